"""The rules of level-based foraging as pure functions: where players and food begin, what they do, what players see.

Food is kept in the order of rows and columns, in which players see it. Food that is gone, or for which there was no
room, has level 0.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array

NONE, NORTH, SOUTH, WEST, EAST, LOAD = range(6)
MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1], [0, 0]], np.int32)
"""Rows and columns of the actions."""
LARGEST = 28
"""Cells on a side: a row is kept in the bits of a number, with room beside it."""


class Harvest(NamedTuple):
    """t: steps so far; players: [N, 2] row and column; levels: [N]; food: [F, 2]; worth: [F] its levels, 0 where there
    is none; spawned: the sum of all levels of food at the beginning."""

    t: Array
    players: Array
    levels: Array
    food: Array
    worth: Array
    spawned: Array


# The beginning


def place_players(chances: Array, size: int) -> Array:
    """[N, 2] cells for all players, each drawn from those that are free. chances: [N] numbers from 0 to 1."""

    def place(free: Array, chance: Array) -> tuple[Array, Array]:
        cell = _draw(chance, free)
        return free & ~_around(cell, size, 0, 0), cell

    return jax.lax.scan(place, jnp.full(size, (1 << size) - 1, jnp.uint32), chances)[1]


def place_food(chances: Array, size: int, players: Array) -> tuple[Array, Array]:
    """[F, 2] cells for food in the order of rows and columns, and [F] whether there was room for it.

    Food is never at the edge, nor under a player, nor within one cell of other food, diagonally too, nor two cells
    beside, above or below it. So nobody is ever beside two of them.
    """

    def place(free: Array, chance: Array) -> tuple[Array, Array]:
        cell = _draw(chance, free)
        near = _around(cell, size, 1, 1) | _around(cell, size, 2, 0) | _around(cell, size, 0, 2)
        return free & ~near, cell[0] * size + cell[1]

    free = jnp.full(size, (1 << (size - 1)) - 2, jnp.uint32).at[np.array([0, size - 1])].set(0)
    for player in players:
        free &= ~_around(player, size, 0, 0)
    numbers = jnp.sort(jax.lax.scan(place, free, chances)[1])
    there = numbers < size * size
    return jnp.where(there[:, None], jnp.stack([numbers // size, numbers % size], -1), 0), there


def draw_levels(chances: Array, least: Array | int, most: Array | int) -> Array:
    """Whole numbers from least to most, all as likely. chances: numbers from 0 to 1, without 1."""
    return least + jnp.floor(chances * (most - least + 1)).astype(jnp.int32)


def _draw(chance: Array, free: Array) -> Array:
    """[2] one of the free cells, all as likely; (size, 0) where none is. First its row, then its column there.

    free: [size] rows, whose bits are the columns, which is a third of the time of a mask of cells. Resets matter here:
    episodes end at any time, so that there is a reset in almost every step of many environments.
    """
    at, until = np.arange(len(free)), np.tri(len(free), dtype=bool)
    in_row = jax.lax.population_count(free).astype(jnp.int32)
    rows = jnp.where(until, in_row, 0).sum(1)  # cumulative
    k = jnp.floor(chance * rows[-1]).astype(jnp.int32)
    row = (rows <= k).sum()
    bits = (jnp.where(at == row, free, 0).sum() >> at.astype(np.uint32)) & 1
    columns = jnp.where(until, bits, 0).sum(1)
    within = k - jnp.where(at < row, in_row, 0).sum()
    return jnp.where(row < len(free), jnp.stack([row, (columns <= within).sum()]), jnp.array([len(free), 0]))


def _around(cell: Array, size: int, rows: int, columns: int) -> Array:
    """[size] the cells within so many rows and columns, as rows of bits."""
    bits = (jnp.uint32((1 << (2 * columns + 1)) - 1) << cell[1].astype(jnp.uint32)) >> columns
    return jnp.where(jnp.abs(np.arange(size) - cell[0]) <= rows, bits, 0)


# A step


def beside(players: Array, food: Array, worth: Array) -> Array:
    """[N, F] which food players are beside."""
    return (jnp.abs(players[:, None] - food).sum(-1) == 1) & (worth > 0)


def legal(state: Harvest, size: int) -> Array:
    """[N, 6] actions that do something: moves inside of the field onto cells without food, whoever stands there, and
    LOAD beside food. All others do nothing, as NONE."""
    wanted = state.players[:, None] + MOVES[NORTH:LOAD]  # [N, 4, 2]
    inside = ((wanted >= 0) & (wanted < size)).all(-1)
    on_food = ((wanted[:, :, None] == state.food).all(-1) & (state.worth > 0)).any(-1)
    always = jnp.ones((len(state.players), 1), bool)
    load = beside(state.players, state.food, state.worth).any(-1, keepdims=True)
    return jnp.concatenate([always, inside & ~on_food, load], -1)


def moved(players: Array, action: Array) -> Array:
    """[N, 2] where players are after legal actions. Of those who want the same cell, also by staying, nobody moves;
    so two may change places, and one may enter a cell that another wanted to leave and could not."""
    wanted = players + (jax.nn.one_hot(action, len(MOVES), dtype=jnp.int32)[:, :, None] * MOVES).sum(1)
    alone = (wanted[:, None] == wanted).all(-1).sum(-1) == 1
    return jnp.where(alone[:, None], wanted, players)


def loaded(state: Harvest, action: Array, normalize: bool) -> tuple[Array, Array, Array]:
    """What comes of LOAD: levels of food [F] afterwards, what players are paid [N], and who tried in vain [N].

    Food is loaded when the levels of those who load it add up to its own or more. Each is paid its part in these levels
    of the food's part in all food; or, if that is not wanted, its own level times that of the food.
    """
    loads = beside(state.players, state.food, state.worth) & (action == LOAD)[:, None]
    strength = jnp.where(loads, state.levels[:, None], 0)
    together = strength.sum(0)
    taken = (state.worth > 0) & (together >= state.worth)
    whole = jnp.maximum(together * state.spawned, 1) if normalize else 1
    paid = jnp.where(taken, strength * state.worth / whole, 0.0).sum(-1)
    return jnp.where(taken, 0, state.worth), paid, (loads & ~taken).any(-1)


# What players see


def look(state: Harvest, sight: int) -> Array:
    """[N, 3 F + 3 N]: row, column and level of food, of oneself and of the others; what is not seen comes last, as -1,
    -1, 0. Cells are counted from the corner of what one sees, the square of `sight` cells around, within the field.

    As in lbforaging, others are seen up to 2 `sight` cells from that corner, which is further than the square where the
    edge of the field cuts it.
    """
    n = len(state.players)
    corner = jnp.maximum(state.players - sight, 0)[:, None]  # [N, 1, 2]
    away = jnp.abs(state.food - state.players[:, None])
    food_seen = (away <= sight).all(-1) & (state.worth > 0)
    food = _listed(state.food - corner, state.worth, food_seen)
    others = np.array([[i, *(j for j in range(n) if j != i)] for i in range(n)])  # oneself first
    at = state.players[others] - corner
    seen = ((at >= 0) & (at <= 2 * sight)).all(-1)
    return jnp.concatenate([food, _listed(at, state.levels[others], seen)], -1).astype(jnp.float32)


def _listed(cells: Array, levels: Array, seen: Array) -> Array:
    """[N, 3 K]: those that are seen, in their order, then -1, -1, 0 for each of the rest. cells: [N, K, 2]; levels: [K]
    or [N, K]; seen: [N, K]."""
    n, k = seen.shape
    levels = jnp.broadcast_to(levels, (n, k))[..., None]
    known = jnp.concatenate([cells + 1, levels], -1)  # 0 where nothing is known
    before = (seen[:, None] & np.tri(k, k=-1, dtype=bool)).sum(-1)  # how many seen ones precede
    goes = seen[..., None] & (before[..., None] == np.arange(k))  # [N, from, to]
    listed = (goes[..., None] * known[:, :, None]).sum(1)  # [N, to, 3]
    return (listed - np.array([1, 1, 0])).reshape(n, -1)
