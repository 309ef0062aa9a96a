"""Tactics of `mean_field/battle`: what agents who know the state do, without learning. Each gives the actions of both
sides; agents that are dead may do whatever they like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array

MOVES = np.array([[0, 0], [-1, 0], [0, 1], [1, 0], [0, -1]], np.int32)
"""Rows and columns of the actions stay, up, right, down, left."""
TURNS = np.array([[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j], np.int32)
"""Rows and columns of the cells that the actions after these attack."""
NEVER = 1e9


def offsets(battle: Any, state: Any) -> Array:
    """[M, M, 2] rows and columns from the agent of the row to the agent of the column."""
    spot = jnp.stack(jnp.divmod(state.place, battle.size), -1)
    return spot[None] - spot[:, None]


def random(battle: Any, state: Any, key: Array) -> Array:
    """Any of the 13 actions."""
    return jax.random.randint(key, (2 * battle.n,), 0, len(MOVES) + len(TURNS))


def rush(battle: Any, state: Any, key: Array) -> Array:
    """Walk to the nearest opponent, and strike it."""
    away = offsets(battle, state)
    score = _distance(away)
    return _act(battle, state, away, score, score)


def focus(battle: Any, state: Any, key: Array) -> Array:
    """Walk to the nearest opponent, and strike the weakest of those within reach, as others will."""
    away = offsets(battle, state)
    distance = _distance(away)
    return _act(battle, state, away, state.health[None] + distance / 1000, distance)


TACTICS: dict[str, Callable[[Any, Any, Array], Array]] = {"random": random, "rush": rush, "focus": focus}


def _distance(away: Array) -> Array:
    """[M, M] steps until one is beside the other, the shorter ways of those first."""
    size = jnp.abs(away)
    return size.max(-1) + 0.01 * size.sum(-1)


def _enemies(battle: Any, state: Any) -> Array:
    """[M, M] bool: whether the agent of the column is a living opponent of the agent of the row."""
    return (battle.side[:, None] != battle.side[None]) & (state.health > 0)[None]


def _act(battle: Any, state: Any, away: Array, strike: Array, follow: Array) -> Array:
    """[M] strike the opponent within reach with the lowest score `strike` [M, M], else walk to the one with the lowest
    score `follow` [M, M]."""
    enemy = _enemies(battle, state)
    reach = enemy & (jnp.abs(away).max(-1) <= 1)
    whom = jnp.argmin(jnp.where(reach, strike, NEVER), -1)
    turn = away[jnp.arange(len(whom)), whom]
    blow = jnp.argmax((turn[:, None] == TURNS).all(-1), -1) + len(MOVES)
    goal = jnp.argmin(jnp.where(enemy, follow, NEVER), -1)
    step = _walk(battle, state, away[jnp.arange(len(goal)), goal])
    return jnp.where(reach.any(-1), blow, step).astype(jnp.int32)


def _walk(battle: Any, state: Any, way: Array) -> Array:
    """[M] a move along `way` [M, 2], first in the longer direction, else in the other if somebody is in the way."""
    vertical = jnp.where(way[:, 0] < 0, 1, 3)
    horizontal = jnp.where(way[:, 1] > 0, 2, 4)
    along = jnp.abs(way[:, 0]) >= jnp.abs(way[:, 1])
    first, second = jnp.where(along, vertical, horizontal), jnp.where(along, horizontal, vertical)
    has_second = jnp.where(along, way[:, 1], way[:, 0]) != 0
    row, column = jnp.divmod(state.place, battle.size)
    who = battle.occupants(state)

    def free(move: Array) -> Array:
        by = jnp.asarray(MOVES)[move]
        at, inside = battle._cell(row + by[:, 0], column + by[:, 1])
        return inside & (who[at] == 2 * battle.n)

    step = jnp.where(free(first), first, jnp.where(has_second & free(second), second, 0))
    return jnp.where((way == 0).all(-1), 0, step).astype(jnp.int32)
