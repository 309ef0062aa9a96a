"""Add an agent to a team that keeps what it learned."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.spec import stem
from flockrl.core.types import Array, Box, Discrete, EnvSpec, PyTree
from flockrl.data.experience import Experience


def grown(old: EnvSpec, name: str | None, obs_dim: int | None, act_dim: int | None) -> EnvSpec:
    """The spec of a team with one agent more, at its end; by default of the same kind as the last one."""
    name = name or f"{stem(old.agents[-1]) or 'agent'}_{old.num_agents}"
    if name in old.agents:
        raise UsageError(f"There is an agent {name!r} already.")
    seen, does = old.observations[-1], old.actions[-1]
    if obs_dim is not None:
        seen = dataclasses.replace(seen, shape=(obs_dim,))
    if act_dim is not None:
        does = dataclasses.replace(does, shape=(act_dim,)) if isinstance(does, Box) else Discrete(act_dim)
    return EnvSpec(
        old.name, (*old.agents, name), (*old.observations, seen), (*old.actions, does), old.max_steps,
        sides=(*old.sides, old.sides[-1]), state_size=old.state_size,
    )  # fmt: skip


def larger(data: Experience, old: EnvSpec, new: EnvSpec) -> Experience:
    """Experience of the smaller team as that of the larger one, in which the newcomer was not there."""
    from flockrl.data.schema import decode, encode  # needs pyarrow, which few need

    return decode(encode(data, old), new)


def add_agent(old: PyTree, new: PyTree, before: EnvSpec, after: EnvSpec) -> PyTree:
    """The learner's state `old` of the team `before` in the form of `new`, a fresh state of the team `after`, which has
    one more agent, its last.

    The actions and values of the other agents do not change: weights that read the new agent are 0. It acts like the
    mean of the agents that it shares a network with; if there are none, its parameters are those of `new`.
    """
    known = dict(jax.tree_util.tree_leaves_with_path(old))
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: (
            _fit(jax.tree_util.keystr(path), known[path], leaf, before, after) if path in known else leaf
        ),
        new,
    )


def _fit(name: str, old: Array, new: Array, before: EnvSpec, after: EnvSpec) -> Array:
    if old.shape == new.shape:
        return old
    learned = "optimiser" not in name and "replay" not in name and "memory" not in name
    if old.ndim < new.ndim:  # a group of one agent now has two, with one bias for each
        return jnp.broadcast_to(old, new.shape) if learned else jnp.zeros_like(new)
    reads = name.endswith("['kernel']")
    for axis, (a, b) in enumerate(zip(old.shape, new.shape, strict=True)):
        if a != b:
            old = _widen(old, axis, _places(a, b, before, after), b, learned and not (reads and axis == 0))
    return old


def _places(size: int, wider: int, before: EnvSpec, after: EnvSpec) -> np.ndarray:
    """Where the old entries of an axis go: to its front or, where all observations and all actions are concatenated, to
    the front of each of the two parts."""
    actions, more = (spec.num_agents * spec.action_size for spec in (before, after))
    if (size, wider) == (before.central_size + actions, after.central_size + more):
        return np.r_[: before.central_size, after.central_size : after.central_size + actions]
    return np.arange(size)


def _widen(x: Array, axis: int, places: np.ndarray, size: int, typical: bool) -> Array:
    """`x` with its entries along `axis` moved to `places`; new entries are the mean of the old ones, or 0."""
    fill: Any = x.mean(axis, keepdims=True) if typical and jnp.issubdtype(x.dtype, jnp.floating) else 0
    whole = jnp.broadcast_to(jnp.asarray(fill, x.dtype), (*x.shape[:axis], size, *x.shape[axis + 1 :]))
    return whole.at[(slice(None),) * axis + (places,)].set(x)
