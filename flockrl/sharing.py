"""Which agents share parameters, and how arrays move between the team and its groups.

Every learner keeps one set of parameters per `Group` in a tuple and walks over the groups in Python:
one group when all share, N when none do. Groups may have unlike spaces, so nothing is padded inside
a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from flockrl.types import Array, EnvSpec

Share = Literal["all", "groups", "none"]


class Group(NamedTuple):
    """Agents that share parameters: their indices, and the sizes that their networks see."""

    agents: tuple[int, ...]
    obs_size: int
    action_size: int
    legal: np.ndarray
    """[n, A] bool: the actions (or action dimensions) that each agent has at all."""

    @property
    def size(self) -> int:
        return len(self.agents)


def make_groups(spec: EnvSpec, share: Share) -> tuple[Group, ...]:
    """Partition the agents: all together, by kind (`spec.groups`), or each alone."""
    labels = {"all": (0,) * spec.num_agents, "groups": spec.groups, "none": tuple(range(spec.num_agents))}[share]
    return tuple(_group(spec, [i for i, k in enumerate(labels) if k == label]) for label in dict.fromkeys(labels))


def _group(spec: EnvSpec, agents: Sequence[int]) -> Group:
    sizes = [spec.actions[i].size for i in agents]
    legal = np.arange(max(sizes)) < np.array(sizes)[:, None]
    return Group(tuple(agents), max(spec.observations[i].size for i in agents), max(sizes), legal)


def take(x: Array, group: Group, axis: int, size: int | None = None) -> Array:
    """The group's part of `x` along the agent `axis`; with `size`, the last axis is cut to it."""
    agents, total = group.agents, x.shape[axis]
    if len(agents) < total or agents != tuple(range(total)):
        index: list[Any] = [slice(None)] * x.ndim
        contiguous = agents == tuple(range(agents[0], agents[-1] + 1))
        chosen = slice(agents[0], agents[-1] + 1) if contiguous else np.array(agents)
        index[axis] = chosen
        x = x[tuple(index)]
    return x if size is None or x.shape[-1] == size else x[..., :size]


def merge(parts: Sequence[Array], groups: Sequence[Group], axis: int, size: int | None = None) -> Array:
    """Undo `take`: the groups' parts as one array in the order of the team; the last axis is padded to `size`."""
    if size is not None:
        parts = [jnp.pad(p, [(0, 0)] * (p.ndim - 1) + [(0, size - p.shape[-1])]) for p in parts]
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([group.agents for group in groups]))
    whole = jnp.concatenate(parts, axis=axis)
    return whole if (order == np.arange(len(order))).all() else jnp.take(whole, order, axis=axis)


def pooling(groups: Sequence[Group], num_agents: int) -> np.ndarray:
    """[N, N] matrix that replaces each agent's number by the mean over its group."""
    matrix = np.zeros((num_agents, num_agents), np.float32)
    for group in groups:
        matrix[np.ix_(group.agents, group.agents)] = 1 / group.size
    return matrix
