"""Where shelves, roads and goals are, as tables over cells. Cells are numbered row by row from the upper left."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flockrl.envs.comm.window import OUTSIDE, offsets

SIZES = {"tiny": (1, 3), "small": (2, 3), "medium": (2, 5), "large": (3, 5)}
"""Rows and columns of blocks of shelves; a block is two shelves wide."""
STAY, FORWARD, TURN_LEFT, TURN_RIGHT, TOGGLE = range(5)
"""The actions."""
UP, DOWN, LEFT, RIGHT = range(4)
STEPS = np.array([[0, -1], [0, 1], [-1, 0], [1, 0]])
"""x and y of one step in each direction."""
TO_THE_LEFT, TO_THE_RIGHT = np.array([LEFT, RIGHT, DOWN, UP]), np.array([RIGHT, LEFT, UP, DOWN])
"""[4] the direction after a quarter turn."""
NONE = -1
"""No shelf."""


class Layout(NamedTuple):
    """rows, columns: of the grid, C = rows * columns cells. road: [C] bool, cells on which shelves are carried but
    never stand; place: [C] the number of a cell among the P cells where shelves stand, P on roads; cells: [P] where
    these are; goals: [2] cells; ahead: [C, 4] the next cell in each direction, the same one at the outer wall; around:
    [C, K] the cells that are seen from a cell, row by row, or OUTSIDE."""

    rows: int
    columns: int
    road: np.ndarray
    place: np.ndarray
    cells: np.ndarray
    goals: np.ndarray
    ahead: np.ndarray
    around: np.ndarray


def make_layout(size: str, height: int, sight: int) -> Layout:
    """height: of a block of shelves. Blocks are two wide and have roads of one cell between them and around them; the
    goals are in the middle of the last row, and above them a block is left out so that robots can queue."""
    blocks, across = SIZES[size]
    rows, columns = (height + 1) * blocks + 2, 3 * across + 1
    y, x = np.indices((rows, columns))
    middle = (x == columns // 2 - 1) | (x == columns // 2)
    queue = middle & (y > rows - (height + 3))
    road = ((x % 3 == 0) | (y % (height + 1) == 0) | (y == rows - 1) | queue).reshape(-1)
    cells = np.flatnonzero(~road)
    place = np.full(rows * columns, len(cells))
    place[cells] = np.arange(len(cells))
    here = np.stack([x, y], -1).reshape(-1, 2)
    most = np.array([columns - 1, rows - 1])
    ahead = np.clip(here[:, None] + STEPS, 0, most)
    seen = here[:, None] + offsets(sight)[:, ::-1]  # offsets are rows and columns
    inside = ((seen >= 0) & (seen <= most)).all(-1)
    return Layout(
        rows, columns, road, place.astype(np.int32), cells.astype(np.int32),
        (rows - 1) * columns + np.array([columns // 2 - 1, columns // 2], np.int32),
        (ahead[..., 1] * columns + ahead[..., 0]).astype(np.int32),
        np.where(inside, seen[..., 1] * columns + seen[..., 0], OUTSIDE).astype(np.int32),
    )  # fmt: skip
