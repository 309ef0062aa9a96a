"""Exploration for policies that are not random by themselves, with a schedule."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp

from flockrl.draw import Source, normal
from flockrl.errors import UsageError
from flockrl.types import Array, PyTree

Explore = Literal["auto", "gaussian", "ou", "epsilon", "gumbel"]
LEVELS = {"gaussian": (0.3, 0.1), "ou": (0.3, 0.1), "epsilon": (1.0, 0.05), "gumbel": (1.0, 1.0)}
"""Level at the start and at the end of the schedule where the user says nothing."""
OU_PULL = 0.15
"""How fast Ornstein-Uhlenbeck noise returns to zero, per step."""


def kind_of(explore: Explore, discrete: bool) -> str:
    """The kind of noise for an action space, or an error that says which would do."""
    fitting = ("gumbel", "epsilon") if discrete else ("gaussian", "ou", "epsilon")
    kind = fitting[0] if explore == "auto" else explore
    if kind not in fitting:
        space = "discrete" if discrete else "continuous"
        raise UsageError(f"explore={explore} does not fit {space} actions: use {' or '.join(fitting)}.")
    return kind


def level(kind: str, start: float | None, end: float | None, part: float, progress: Array) -> Array:
    """The noise's level, falling in a straight line over the first `part` of the run and then level."""
    first, last = LEVELS[kind]
    first, last = first if start is None else start, last if end is None else end
    return jnp.float32(first) + (last - first) * jnp.clip(progress / part, 0.0, 1.0)


def perturb(kind: str, key: Source, u: Array, noise: PyTree, scale: Array) -> tuple[Array, PyTree]:
    """Noise on continuous actions u [B, N, A] in units of half their range; and the noise's state for next time."""
    fresh = normal(key, u.shape, range(u.shape[1]))
    if kind == "ou":  # its standard deviation in the long run is `scale`, as for Gaussian noise
        noise = (1 - OU_PULL) * noise + (1 - (1 - OU_PULL) ** 2) ** 0.5 * fresh
        fresh = noise
    return jnp.clip(u + scale * fresh, -1.0, 1.0), noise


def random_action(number: Array, legal: Array) -> Array:
    """The legal action [...] that a uniform number [...] in [0, 1) falls on; legal: [..., A]."""
    upto = jnp.cumsum(legal.astype(jnp.int32), axis=-1)
    count = upto[..., -1]
    place = jnp.minimum((number * count).astype(jnp.int32), count - 1)
    return (upto <= place[..., None]).sum(-1).astype(jnp.int32)
