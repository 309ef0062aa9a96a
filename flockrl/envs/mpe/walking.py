"""How a particle that knows its goal goes there: for policies that come with scenarios."""

from __future__ import annotations

import jax.numpy as jnp

from flockrl.core.types import Array

EASE = 4.0
"""Wanted speed per distance: as fast as still allows to stop there."""
SLACK = 0.2
"""Differences of speed that are not worth a push, in a world whose pushes change it by 0.5."""


def walk(pos: Array, vel: Array, goals: Array, continuous: bool, dt: float, damping: float) -> Array:
    """Actions of agents [N, 2] that go to goals [N, 2]: moves [N], or pushes [N, 5] where actions are real numbers.

    dt, damping: of the world's motion, see `core`.
    """
    wanted = jnp.clip(EASE * (goals - pos - vel * dt), -2.0, 2.0)
    need = wanted - (1 - damping) * vel
    if continuous:
        push = jnp.clip(2.0 * need, -1.0, 1.0)
        zero = jnp.zeros(len(pos))
        left, right, down, up = (jnp.maximum(x, 0.0) for x in (-push[:, 0], push[:, 0], -push[:, 1], push[:, 1]))
        return jnp.stack([zero, left, right, down, up], -1)
    sideways = jnp.abs(need[:, 0]) >= jnp.abs(need[:, 1])
    move = jnp.where(sideways, jnp.where(need[:, 0] > 0, 2, 1), jnp.where(need[:, 1] > 0, 4, 3))
    return jnp.where(jnp.abs(need).max(-1) < SLACK, 0, move).astype(jnp.int32)
