"""Policies for level-based foraging that know the state."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array
from flockrl.envs.foraging.rules import LOAD, MOVES, NONE, Harvest, beside

FAR = 10_000
"""The distance of cells from where there is no way."""


def greedy_alone(state: Harvest, size: int) -> Array:
    """[N] everyone goes a shortest way to the nearest food that it can load alone, whoever stands in the way, and loads
    it; those for whom there is none stay."""
    able = (state.worth > 0) & (state.worth <= state.levels[:, None])  # [N, F]
    away = jnp.where(able, jnp.abs(state.players[:, None] - state.food).sum(-1), FAR)
    target = away.argmin(-1)
    walls = _marked(state.food, state.worth > 0, size)
    steps = jax.vmap(lambda f: _distances(_beside(state.food[f], size), walls))(target)  # [N, size, size]
    ahead = _ahead(state.players, size)
    cost = jax.vmap(lambda steps, cells: _read(steps, cells))(steps, ahead)
    walk = cost.argmin(-1)
    there = away.min(-1) == 1
    return jnp.where(able.any(-1), jnp.where(there, LOAD, walk), NONE)


def together(state: Harvest, size: int) -> Array:
    """[N] all go to the food whose distances to the players add up to the least, and those beside it load it as soon as
    their levels suffice.

    Players choose one after the other and enter no cell on which somebody is, or which another has chosen, so that
    all moves succeed; those who wait beside the food are walked around. The one who is nearest is never in anybody's
    way, so somebody always gets closer.
    """
    away = jnp.abs(state.players[:, None] - state.food).sum(-1)
    target = jnp.where(state.worth > 0, away.sum(0), FAR).argmin()
    waits = beside(state.players, state.food, state.worth)[:, target]
    ready = jnp.where(waits, state.levels, 0).sum() >= state.worth[target]
    standing = _marked(state.players, waits, size)
    walls = _marked(state.food, state.worth > 0, size) | standing
    steps = _distances(_beside(state.food[target], size), walls)
    cost = _read(steps, _ahead(state.players, size))  # [N, 5], staying first
    n, chosen, action = len(state.players), list[Array](), []
    for i in range(n):
        cells = state.players[i] + MOVES[:LOAD]
        taken = [(cells == state.players[j]).all(-1) for j in range(n) if j != i]
        taken += [(cells == cell).all(-1) for cell in chosen]
        blocked = jnp.stack(taken).any(0) & (np.arange(LOAD) != NONE) if taken else jnp.zeros(LOAD, bool)
        walk = jnp.where(blocked, FAR, cost[i]).argmin()
        action.append(jnp.where(waits[i], jnp.where(ready, LOAD, NONE), walk))
        chosen.append(jnp.where(waits[i], state.players[i], cells[walk]))
    return jnp.stack(action)


def _ahead(players: Array, size: int) -> Array:
    """[N, 5, 2] where NONE and the moves lead, row `size` for cells outside."""
    cells = players[:, None] + MOVES[:LOAD]
    inside = ((cells >= 0) & (cells < size)).all(-1, keepdims=True)
    return jnp.where(inside, cells, size)


def _read(steps: Array, cells: Array) -> Array:
    """Distances [size, size] at cells [..., 2]; FAR outside."""
    padded = jnp.pad(steps, (0, 1), constant_values=FAR)
    return padded[cells[..., 0], cells[..., 1]]


def _marked(cells: Array, there: Array, size: int) -> Array:
    """[size, size] the cells [K, 2] of those that are there [K]."""
    at = np.arange(size)
    rows, columns = cells[:, 0, None] == at, cells[:, 1, None] == at
    return ((rows & there[:, None])[:, :, None] & columns[:, None]).any(0)


def _beside(cell: Array, size: int) -> Array:
    """[size, size] the four cells beside one."""
    at = np.arange(size)
    return jnp.abs(at - cell[0])[:, None] + jnp.abs(at - cell[1]) == 1


def _distances(goals: Array, walls: Array) -> Array:
    """[size, size] the fewest moves from each cell to a goal, around walls."""
    size = len(goals)
    begin = jnp.where(goals & ~walls, 0, FAR)

    def wider(_: int, steps: Array) -> Array:
        p = jnp.pad(steps, 1, constant_values=FAR)
        near = jnp.minimum(jnp.minimum(p[:-2, 1:-1], p[2:, 1:-1]), jnp.minimum(p[1:-1, :-2], p[1:-1, 2:]))
        return jnp.where(walls, FAR, jnp.minimum(steps, near + 1))

    # Walls are single cells, so that no way is much longer than one from corner to corner.
    return jax.lax.fori_loop(0, 2 * size + 8, wider, begin)
