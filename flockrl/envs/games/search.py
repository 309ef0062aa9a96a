"""A player of connect four that looks a few moves ahead: all lines of play to a depth, by minimax.

A line of four counts 1, less the later it comes; a board at the end of the search counts by the lines of four that are
still open to one player alone. Moves of equal value are drawn from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Observation

HEIGHT, WIDTH, LINE = 6, 7, 4
WORTH = np.array([0.0, 0.001, 0.004, 0.012, 0.0], np.float32)
"""What a line with so many stones of one player, and none of the other, is worth to it at the end of the search."""
LATER = 0.01
"""What a win loses with each move that it takes."""
DEEPEST = 5


def _lines() -> np.ndarray:
    """[cells, lines]: which cells belong to each of the 69 lines of four."""
    found = []
    for y, x in np.ndindex(HEIGHT, WIDTH):
        for dy, dx in ((0, 1), (1, 0), (1, 1), (1, -1)):
            cells = [(y + k * dy, x + k * dx) for k in range(LINE)]
            if all(0 <= a < HEIGHT and 0 <= b < WIDTH for a, b in cells):
                row = np.zeros(HEIGHT * WIDTH, np.float32)
                row[[a * WIDTH + b for a, b in cells]] = 1
                found.append(row)
    return np.stack(found, 1)


LINES = _lines()


class Level(NamedTuple):
    """L positions after the same number of moves. own, other: [L, cells] stones of the player who searches and of the
    opponent; over: [L]; value: [L] to the one who searches, of those that are over; legal: [L] whether the last move
    was one."""

    own: Array
    other: Array
    over: Array
    value: Array
    legal: Array


def search(own: Array, other: Array, depth: int, key: Array) -> Array:
    """The column to play, for stones [cells] of the player to move and of the opponent."""
    scores = column_values(own, other, depth)
    best = scores >= scores.max() - 1e-6
    return jax.random.categorical(key, jnp.where(best, 0.0, -jnp.inf)).astype(jnp.int32)


def _player(depth: int) -> Callable[[Any, Observation, Array], Array]:
    """The search as a script, which sees no more than the agents do: [B, n] columns, also for those who wait."""

    def play(spec: Any, seen: Observation, key: Array) -> Array:
        own, other = jnp.split(seen.obs[..., -2 * HEIGHT * WIDTH :] > 0.5, 2, -1)
        every = jax.vmap(jax.vmap(lambda own, other, key: search(own, other, depth, key)))
        return every(own, other, jax.random.split(key, own.shape[:2]))

    return play


depth_1, depth_2, depth_3, depth_4, depth_5 = map(_player, range(1, DEEPEST + 1))
"""Opponents to train against, as in `agent_1=flockrl.envs.games.search:depth_2`."""


def column_values(own: Array, other: Array, depth: int) -> Array:
    """[columns] what each move is worth after `depth` moves in all, -inf where it is illegal."""
    no = jnp.zeros(1, bool)
    levels = [Level(own[None] * 1.0, other[None] * 1.0, no, jnp.zeros(1), ~no)]
    for ply in range(depth):
        levels.append(_moves(levels[-1], ply))
    value = jnp.where(levels[-1].over, levels[-1].value, _estimate(levels[-1]))
    for ply in range(depth - 1, -1, -1):
        before, turn = levels[ply], 1.0 if ply % 2 == 0 else -1.0
        each = jnp.where(levels[ply + 1].legal, turn * value, -jnp.inf).reshape(-1, WIDTH)
        if ply == 0:
            return each[0]
        value = jnp.where(before.over, before.value, turn * each.max(1))
    raise ValueError(depth)


def _moves(before: Level, ply: int) -> Level:
    """[7 L] the positions after every move. Where a game was over, nothing moves."""
    taken = before.own + before.other
    heights = taken.reshape(-1, HEIGHT, WIDTH).sum(1)  # row 0 is the top
    row = HEIGHT - 1 - heights
    cells = (np.arange(HEIGHT)[:, None] == row[:, None, :]) * 1.0
    stone = (cells[:, None] * np.eye(WIDTH)[:, None, :]).reshape(-1, WIDTH, HEIGHT * WIDTH)
    stone = jnp.where(before.over[:, None, None], 0.0, stone)
    own, other = (
        (x[:, None] + (stone if moves else 0 * stone)).reshape(-1, HEIGHT * WIDTH)
        for x, moves in ((before.own, ply % 2 == 0), (before.other, ply % 2 == 1))
    )
    mover = own if ply % 2 == 0 else other
    won = (mover @ LINES == LINE).any(-1)
    was = jnp.repeat(before.over, WIDTH)
    legal = jnp.repeat(before.legal, WIDTH) & ((row >= 0).reshape(-1) | was)
    full = (own + other).sum(-1) == HEIGHT * WIDTH
    paid = (1.0 - LATER * ply) * (1.0 if ply % 2 == 0 else -1.0)
    value = jnp.where(was, jnp.repeat(before.value, WIDTH), jnp.where(won, paid, 0.0))
    return Level(own, other, was | won | full, value, legal)


def _estimate(level: Level) -> Array:
    """[L] by open lines, always less than a win."""
    own, other = (x @ LINES for x in (level.own, level.other))

    def open_to(mine: Array, theirs: Array) -> Array:
        worth: Array = sum((mine == k) * WORTH[k] for k in range(1, LINE))
        return (worth * (theirs == 0)).sum(-1)

    return jnp.clip(open_to(own, other) - open_to(other, own), -0.5, 0.5)
