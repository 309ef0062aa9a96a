"""Olfati-Saber's control of flocks (2006, algorithm 2): gradient, consensus and navigational feedback."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array

EPSILON, BUMP, A, B = 0.1, 0.2, 5.0, 5.0
GOAL, PULL, SPRING, FRICTION = (1.0, 0.0), 1.0, 3.0, 2.0
"""The wanted velocity, the gain towards it, and the gains of forces and of consensus."""


def sigma_norm(squared: Array) -> Array:
    """A smooth stand-in for the length: (sqrt(1 + eps |z|²) - 1) / eps. squared: |z|²."""
    return (jnp.sqrt(1 + EPSILON * squared) - 1) / EPSILON


def bump(z: Array, h: float = BUMP) -> Array:
    """1 up to h, falling smoothly to 0 at 1, 0 beyond."""
    falling = 0.5 * (1 + jnp.cos(jnp.pi * (z - h) / (1 - h)))
    return jnp.where(z < h, 1.0, jnp.where(z < 1, falling, 0.0)) * (z >= 0)


def force(z: Array, spacing: float, radius: float) -> Array:
    """The action function phi_alpha of the sigma-norm z: attraction (> 0) beyond the spacing, repulsion below it."""
    d, r = (float((np.sqrt(1 + EPSILON * x**2) - 1) / EPSILON) for x in (spacing, radius))
    c = abs(A - B) / np.sqrt(4 * A * B)
    x = z - d + c
    uneven = 0.5 * ((A + B) * x / jnp.sqrt(1 + x**2) + (A - B))
    return bump(z / r) * uneven


def acceleration(way: Array, near: Array, vel: Array, spacing: float, radius: float) -> Array:
    """[N, 2] what everybody should do. way: [N, N, 2] to the others; near: [N, N] who perceives whom; vel: [N, 2]."""
    squared = (way**2).sum(-1)
    towards = way / jnp.sqrt(1 + EPSILON * squared)[..., None]
    z = sigma_norm(squared)
    others = near & ~np.eye(len(vel), dtype=bool)
    pull = (others * force(z, spacing, radius))[..., None] * towards
    r = float((np.sqrt(1 + EPSILON * radius**2) - 1) / EPSILON)
    weight = others * bump(z / r)
    agree = weight @ vel - weight.sum(1, keepdims=True) * vel
    return SPRING * pull.sum(1) + FRICTION * agree - PULL * (vel - jnp.array(GOAL))
