"""The roads of the traffic junction: which cells there are, and the routes from every entry.

Cars keep to the right. Two neighbouring lanes of a road run in opposite directions, and where two roads cross, a car
goes straight on, turns right at once, or goes one cell further and turns left.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from flockrl.envs.comm.window import OUTSIDE, offsets

Cell = tuple[int, int]
STRAIGHT, RIGHT, LEFT = range(3)


class Level(NamedTuple):
    """size: of the grid; lanes: rows, and columns, of each road; order: the sides of the grid from which cars come;
    turns: what a car may do at a crossing; cars: most at a time; steps: of an episode; rate: of arrivals per entry."""

    size: int
    lanes: tuple[tuple[int, ...], ...]
    order: str
    turns: tuple[int, ...]
    cars: int
    steps: int
    rate: float


LEVELS = {
    "easy": Level(7, ((3,),), "TL", (STRAIGHT,), 5, 20, 0.3),
    "medium": Level(14, ((6, 7),), "TBLR", (STRAIGHT, RIGHT, LEFT), 10, 40, 0.2),
    "hard": Level(18, ((4, 5), (12, 13)), "TLBR", (STRAIGHT, RIGHT, LEFT), 20, 80, 0.05),
}
"""IC3Net's three levels: two one-way roads, two roads, four roads."""


class Roads(NamedTuple):
    """Road cells are numbered by row, then column. cells: [C, 2] row and column of each number; paths: [R, L] the
    numbers along each route, OUTSIDE after its end; starts: [E] the first cell of each entry. Route r begins at entry
    r // (R / E)."""

    cells: np.ndarray
    paths: np.ndarray
    starts: np.ndarray

    def around(self, vision: int) -> np.ndarray:
        """[C, K] numbers of the cells in the window around each road cell."""
        number = {tuple(cell): i for i, cell in enumerate(self.cells.tolist())}
        near = self.cells[:, None] + offsets(vision)
        return np.array([[number.get(tuple(cell), OUTSIDE) for cell in row] for row in near.tolist()], np.int32)


def make_roads(level: Level) -> Roads:
    """All roads and routes of a level."""
    lanes = {lane for road in level.lanes for lane in road}
    cells = [(r, c) for r, c in product(range(level.size), repeat=2) if r in lanes or c in lanes]
    number = {cell: i for i, cell in enumerate(cells)}
    routes = [list(_routes(level, lanes, *entry)) for entry in _entries(level)]
    paths = [path for entry in routes for path in entry]
    table = np.full((len(paths), max(map(len, paths)) + 1), OUTSIDE, np.int32)
    for row, path in zip(table, paths, strict=True):
        row[: len(path)] = [number[cell] for cell in path]
    return Roads(np.array(cells), table, table[:: len(routes[0]), 0])


def _entries(level: Level) -> Iterator[tuple[Cell, Cell]]:
    """Where cars come in, and where they are heading."""
    last = level.size - 1
    for side in level.order:
        for road in level.lanes:
            near, far = road[0], road[-1]
            yield {
                "T": ((0, near), (1, 0)), "B": ((last, far), (-1, 0)),
                "L": ((far, 0), (0, 1)), "R": ((near, last), (0, -1)),
            }[side]  # fmt: skip


def _routes(level: Level, lanes: set[int], start: Cell, heading: Cell) -> Iterator[list[Cell]]:
    """The different routes of an entry: a choice at the first crossing and one at the second, then straight on."""
    seen: list[list[Cell]] = []
    for turns in product(level.turns, repeat=2):
        path = _drive(level.size, lanes, start, heading, turns)
        if path not in seen:
            seen.append(path)
            yield path


def _drive(size: int, lanes: set[int], cell: Cell, heading: Cell, turns: tuple[int, ...]) -> list[Cell]:
    path, choices, crossing = [cell], iter(turns), False
    while True:
        if not crossing and cell[0] in lanes and cell[1] in lanes:
            turn = next(choices, STRAIGHT)
            if turn == LEFT:
                cell = (cell[0] + heading[0], cell[1] + heading[1])
                path.append(cell)
            if turn != STRAIGHT:
                sign = 1 if turn == RIGHT else -1
                heading = (sign * heading[1], -sign * heading[0])
        crossing = cell[0] in lanes and cell[1] in lanes
        cell = (cell[0] + heading[0], cell[1] + heading[1])
        if not (0 <= cell[0] < size and 0 <= cell[1] < size):
            return path
        path.append(cell)
