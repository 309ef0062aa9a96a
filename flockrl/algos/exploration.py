"""Exploration for policies that are not random by themselves, with a schedule."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp

from flockrl.core.errors import UsageError
from flockrl.core.random import Source, normal
from flockrl.core.types import Array, Box, EnvSpec, PyTree
from flockrl.nets.heads import best_action

Explore = Literal["auto", "gaussian", "ou", "epsilon", "gumbel"]
LEVELS = {"gaussian": (0.3, 0.1), "ou": (0.3, 0.1), "epsilon": (1.0, 0.05), "gumbel": (1.0, 1.0)}
"""Level at the start and at the end of the schedule where the user says nothing."""
REAL, CHOICE = ("gaussian", "ou", "epsilon"), ("gumbel", "epsilon")
"""Kinds of noise for real actions and for choices, the default first."""
HEAVIEST = 10.0
"""The most that a replayed step may weigh by `others_change`."""
OU_PULL = 0.15
"""How fast Ornstein-Uhlenbeck noise returns to zero, per step."""


def kinds_of(explore: Explore, spec: EnvSpec) -> tuple[str, str]:
    """The noise of agents with real actions and of those with choices, "" where there are no such agents.

    What suits only one of the two leaves the other at its default; what suits nobody is an error that says what would.
    """
    fitting = REAL * (not spec.discrete) + CHOICE * (not spec.continuous)
    if explore != "auto" and explore not in fitting:
        space = "discrete" if spec.discrete else "continuous"
        raise UsageError(f"explore={explore} does not fit {space} actions: use {' or '.join(fitting)}.")
    real, choice = (explore if explore in own else own[0] for own in (REAL, CHOICE))
    return "" if spec.maskable and not _any_real(spec) else real, choice if spec.maskable else ""


def _any_real(spec: EnvSpec) -> bool:
    return any(isinstance(space, Box) for space in spec.actions)


def level(kind: str, start: float | None, end: float | None, part: float, progress: Array) -> Array:
    """The noise's level, falling in a straight line over the first `part` of the run and then level."""
    first, last = LEVELS[kind]
    first, last = first if start is None else start, last if end is None else end
    return jnp.float32(first) + (last - first) * jnp.clip(progress / part, 0.0, 1.0)


def alike(numbers: Array, together: bool) -> Array:
    """Random numbers [B, N, ...], the first agent's for all of them where agents explore together."""
    return jnp.broadcast_to(numbers[:, :1], numbers.shape) if together else numbers


def perturb(
    kind: str, key: Source, u: Array, noise: PyTree, scale: Array, together: bool = False
) -> tuple[Array, PyTree]:
    """Noise on continuous actions u [B, N, A] in units of half their range; and the noise's state for next time."""
    fresh = alike(normal(key, u.shape, range(u.shape[1])), together)
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


def taken_chance(q: Array, action: Array, legal: Array, epsilon: Array) -> Array:
    """[..., N] how likely an agent that is greedy for values q [..., N, A], and random with probability epsilon, does
    `action` [..., N]; legal: [..., N, A] or [N, A]."""
    greedy = best_action(q, legal)[1] == action
    return (1 - epsilon) * greedy + epsilon / legal.sum(-1)


def others_change(now: Array, then: Array, alive: Array) -> Array:
    """[..., N] how much likelier the others' actions are now than they were, for each agent: the product over the
    others that lived of now / then [..., N], at most `HEAVIEST` (Foerster et al. 2017, arXiv 1702.08887)."""
    ratio = jnp.where(alive, jnp.log(jnp.maximum(now, 1e-8)) - jnp.log(jnp.maximum(then, 1e-8)), 0.0)
    return jnp.minimum(jnp.exp(ratio.sum(-1, keepdims=True) - ratio), HEAVIEST)
