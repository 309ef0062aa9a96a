"""Teams in which every agent hears few others: what is heard is gathered instead of masked, so that messages cost as
much as there are links, and not as there are pairs of agents. Links are always the same, or those of the moment."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array

Who = np.ndarray | Array | None
"""[n, D] places of those whom each of n agents can hear, its own where there are fewer; [..., n, D] of any agents at
these places where links change; None for all agents."""
FEW = 64
"""Links of an agent are few where its team is so many times as large: masking pairs is cheap (TarMAC's attention takes
3.2 µs of CPU time per agent and moment in a team of 16 and 4.1 in one of 64, forward and backward), and gathering two
messages takes 6 whatever the team."""


def are_few(most: int, agents: int) -> bool:
    """Whether gathering pays, where agents hear at most so many of a team."""
    return most > 0 and FEW * most <= agents


def few_links(links: np.ndarray) -> tuple[Who, np.ndarray]:
    """Whom each agent can hear, and [N, D] which of these are links; (None, links) where these are not few."""
    agents, most = len(links), int(links.sum(1).max(initial=0))
    if not are_few(most, agents):
        return None, links
    order = np.argsort(~links, axis=1, kind="stable")[:, :most]
    there = np.take_along_axis(links, order, 1)
    return np.where(there, order, np.arange(agents)[:, None]), there


def first_links(links: Array, most: int) -> tuple[Array, Array]:
    """Whom each agent can hear by links [..., N, N] of the moment, as places [..., N, most], and which of these are
    links: the first ones where there are more."""
    agents, who = links.shape[-1], [jnp.full(links.shape[:-1], -1, jnp.int32)]
    places = jnp.where(links, np.arange(agents, dtype=np.int32), agents)
    for _ in range(most):  # smallest numbers one after the other: quicker than adding up along rows, or sorting them
        who.append(jnp.where(places > who[-1][..., None], places, agents).min(-1))
    found = jnp.stack(who[1:], -1)
    return jnp.minimum(found, agents - 1), found < agents


def gathered(x: Array, who: Who) -> Array:
    """What can be heard of x [..., N, C]: [..., n, D, C] where that is few, else x."""
    if who is None:
        return x
    if isinstance(who, np.ndarray):
        return _rows(x, _Static(who))
    flat = x.reshape(-1, x.shape[-1])
    began = jnp.arange(0, len(flat), x.shape[-2], dtype=jnp.int32).reshape(*x.shape[:-2], 1, 1)
    return jnp.take(flat, who + began, axis=0, mode="clip")


def of_heard(flags: Array, who: Who) -> Array:
    """Flags [..., N] of agents, as those of whom each can hear: [..., 1, N], or [..., N, D] where these are few."""
    if who is None:
        return flags[..., None, :]
    return flags[..., who] if isinstance(who, np.ndarray) else gathered(flags[..., None], who)[..., 0]


def weighed(weight: Array, x: Array, who: Who) -> Array:
    """[..., n, C] sums over what can be heard, `gathered` from x [..., N, C]. weight: [..., n, N], or [..., n, D]."""
    return weight @ x if who is None else (weight[..., None] * gathered(x, who)).sum(-2)


class _Static:
    """An index array that can be compared, as arguments have to be that JAX does not trace."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def __hash__(self) -> int:
        return hash(self.array.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and np.array_equal(self.array, other.array)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _rows(x: Array, who: _Static) -> Array:
    return jnp.take(x, jnp.asarray(who.array), axis=-2, mode="clip")


def _forward(x: Array, who: _Static) -> tuple[Array, int]:
    return _rows(x, who), x.shape[-2]


def _backward(who: _Static, agents: int, g: Array) -> tuple[Array]:
    """Whoever is heard gathers from those who hear: adding up at scattered places is slow."""
    flat = g.reshape(*g.shape[:-3], -1, g.shape[-1])
    flat = jnp.concatenate([flat, jnp.zeros_like(flat[..., :1, :])], -2)
    return (jnp.take(flat, jnp.asarray(_heard_by(who.array, agents)), axis=-2, mode="clip").sum(-2),)


def _heard_by(who: np.ndarray, agents: int) -> np.ndarray:
    """[N, E] places in the flattened `who` at which each agent stands; the one behind its end where there are fewer."""
    found = [np.flatnonzero(who.ravel() == agent) for agent in range(agents)]
    most = max(map(len, found))
    return np.stack([np.pad(places, (0, most - len(places)), constant_values=who.size) for places in found])


_rows.defvjp(_forward, _backward)
