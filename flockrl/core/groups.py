"""Which agents share parameters, and how arrays move between the team and its groups.

Every learner keeps one set of parameters per `Group` in a tuple and walks over the groups in Python:
one group when all share, N when none do. Groups may have unlike spaces, so nothing is padded inside
a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, MultiDiscrete

Share = str
"""all, groups, none, or average:every=K,topology=T: see `parse_share`."""


class Averaging(NamedTuple):
    """Agents have parameters of their own and average them: every so many updates, with whom the topology links."""

    every: int
    topology: str


def parse_share(share: Share) -> tuple[str, Averaging | None]:
    """Who shares one set of parameters (all, groups or none), and how those average that have their own."""
    if share in ("all", "groups", "none"):
        return share, None
    kind, _, settings = share.partition(":")
    values = {"every": "1", "topology": "all"}
    for part in filter(None, settings.split(",")):
        name, _, value = part.partition("=")
        if name not in values:
            kind = ""
        values[name] = value
    if kind != "average" or values["topology"] not in ("all", "ring", "star"):
        raise UsageError(
            f"share must be one of all, groups, none, or average:every=K,topology=all|ring|star, not {share[:60]!r}."
        )
    if not values["every"].isdigit() or not 1 <= int(values["every"]) < 1 << 31:
        raise UsageError(
            f"every of share=average is a whole number of updates from 1 on, not {values['every'][:40]!r}."
        )
    return "none", Averaging(int(values["every"]), values["topology"])


class Group(NamedTuple):
    """Agents that share parameters: their indices, and the sizes that their networks see."""

    agents: tuple[int, ...]
    obs_size: int
    action_size: int
    legal: np.ndarray
    """[n, A] bool: the options (or action dimensions) that each agent has at all."""
    factors: tuple[int, ...]
    """How the options fall into choices: one entry for one choice, several for `MultiDiscrete`, none for `Box`."""
    number: int
    of: int
    """Number of this group, and how many there are, among those of all sides: random numbers follow from it."""

    @property
    def size(self) -> int:
        return len(self.agents)

    @property
    def continuous(self) -> bool:
        return not self.factors

    @property
    def width(self) -> int:
        """Numbers in an agent's action."""
        return len(self.factors) or self.action_size


def make_groups(spec: EnvSpec, share: Share) -> tuple[Group, ...]:
    """Partition the agents: all together, by kind (`spec.groups`), or each alone."""
    share = parse_share(share)[0]
    whole = spec.whole or spec
    side = {i: name for name, own in whole.parties.items() for i in own}
    together = [side[i] for i in range(whole.num_agents)] if spec.whole is not None else [0] * whole.num_agents
    labels = {"all": together, "groups": whole.groups, "none": range(whole.num_agents)}[share]
    order = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    mine: dict[Any, list[int]] = {}
    for i, place in enumerate(spec.places):
        mine.setdefault(labels[place], []).append(i)
    return tuple(_group(spec, agents, order[label], len(order)) for label, agents in mine.items())


def _group(spec: EnvSpec, agents: Sequence[int], number: int, of: int) -> Group:
    spaces = [spec.actions[i] for i in agents]
    sizes = [space.size for space in spaces]
    legal = np.arange(max(sizes)) < np.array(sizes)[:, None]
    several = {space.choices for space in spaces if isinstance(space, MultiDiscrete)}
    if len({type(space) for space in spaces}) > 1 or len(several) > 1:
        names = ", ".join(spec.agents[i] for i in agents)
        raise UsageError(
            f"{spec.name}: {names} have unlike kinds of actions and cannot share one network: use --share groups or "
            "--share none."
        )
    factors = (max(sizes),) if isinstance(spaces[0], Discrete) else several.pop() if several else ()
    seen = max(spec.observations[i].size for i in agents)
    return Group(tuple(agents), seen, max(sizes), legal, factors, number, of)


def take(x: Array, group: Group, axis: int, size: int | None = None) -> Array:
    """The group's part of `x` along the agent `axis`; with `size`, the last axis is cut to it."""
    x = pick_agents(x, group.agents, axis)
    return x if size is None or x.shape[-1] == size else x[..., :size]


def begins(spec: EnvSpec, group: Group, first: Array | None, alive: Array | None) -> Array | None:
    """Where the memory of a group's agents is cleared: [..., B] where an episode begins; where agents respawn,
    [..., B, n], also as long as an agent is dead, so that a later life knows nothing of the last one."""
    if first is None or alive is None or not spec.respawn:
        return first
    return first[..., None] | ~take(alive, group, alive.ndim - 1).astype(bool)


def pick_agents(x: Any, agents: Sequence[int], axis: int) -> Any:
    """`x` at these places of its agent `axis`; contiguous places cost nothing."""
    agents, total = tuple(agents), x.shape[axis]
    if agents == tuple(range(total)):
        return x
    index: list[Any] = [slice(None)] * x.ndim
    contiguous = agents == tuple(range(agents[0], agents[-1] + 1))
    index[axis] = slice(agents[0], agents[-1] + 1) if contiguous else np.array(agents)
    return x[tuple(index)]


def merge(parts: Sequence[Array], groups: Sequence[Group], axis: int, size: int | None = None) -> Array:
    """Undo `take`: the groups' parts as one array in the order of the team; the last axis is padded to `size`."""
    if size is not None:
        parts = [jnp.pad(p, [(0, 0)] * (p.ndim - 1) + [(0, size - p.shape[-1])]) for p in parts]
    return interleave(parts, [group.agents for group in groups], axis)


def interleave(parts: Sequence[Array], agents: Sequence[Sequence[int]], axis: int) -> Array:
    """One array out of parts along the agent `axis`, each of the agents at these places."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([np.asarray(places, int) for places in agents]))
    whole = jnp.concatenate(parts, axis=axis)
    return whole if (order == np.arange(len(order))).all() else jnp.take(whole, order, axis=axis)


def read_actions(spec: EnvSpec, group: Group, action: Array) -> Array:
    """The group's part of actions [..., N(, W)]: [..., n] int32, [..., n, k] int32 of several choices, or real ones."""
    if spec.discrete:
        return take(action, group, action.ndim - 1)
    rows = take(action, group, action.ndim - 2, group.width)
    if group.continuous:
        return rows
    return rows[..., 0].astype(jnp.int32) if len(group.factors) == 1 else rows.astype(jnp.int32)


def write_actions(spec: EnvSpec, groups: Sequence[Group], parts: Sequence[Array]) -> Array:
    """Undo `read_actions`: the groups' actions [B, n(, k)] as those of the team, [B, N] or [B, N, W]."""
    if spec.discrete:
        return merge(parts, groups, 1)
    rows = [p if p.ndim == 3 else p[..., None] for p in parts]
    return merge([p.astype(jnp.float32) for p in rows], groups, 1, spec.action_width)


def pooling(groups: Sequence[Group], num_agents: int) -> np.ndarray:
    """[N] the place of each agent's group among these."""
    places = np.zeros(num_agents, np.int32)
    for place, group in enumerate(groups):
        places[list(group.agents)] = place
    return places


def is_continuous(spec: EnvSpec) -> np.ndarray:
    """[N] bool: whose actions are real numbers."""
    return np.array([isinstance(space, Box) for space in spec.actions])
