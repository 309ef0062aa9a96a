"""Pictures of rooms with keys and doors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.sketch import FAINT, INK, LINE, Sketch, color_of, mix


def house_frames(house: Any, states: Sequence[Any], size: int) -> list[np.ndarray]:
    """[size, size, 3] uint8 for each state of `Rooms`: walls dark, a locked door full of its colour and an open one
    pale; a key is a small square in the colour of its door."""
    return [_frame(house, state, size) for state in states]


def _frame(house: Any, state: Any, size: int) -> np.ndarray:
    sketch, cell = Sketch(size), 1 / house.width
    top = (1 - house.size * cell) / 2
    used, keys, cells = house.n + 1, np.asarray(state.keys).tolist(), np.asarray(state.cells).tolist()

    def middle(number: int) -> tuple[float, float]:
        row, column = house.places[number]
        return (column + 0.5) * cell, top + (row + 0.5) * cell

    def box(number: int, half: float, fill: Any, edge: Any = None) -> None:
        x, y = middle(number)
        sketch.box(x - half * cell, y - half * cell, x + half * cell, y + half * cell, fill=fill, edge=edge)

    sketch.box(0, top, 1, 1 - top, fill=FAINT)
    for number in range(len(house.places)):
        box(number, 0.5, (255, 255, 255), LINE)
    box(house.exit, 0.3, mix(INK, 0.8))
    for k, code in enumerate(keys):
        color = color_of(k + house.n)
        box(house.door_cells[k], 0.5, mix(color, 0.7) if code == used else color)
        if code == 0:
            box(house.key_cells[k], 0.2, color)
    for i, number in enumerate(cells):
        x, y = middle(number)
        sketch.disc(x, y, 0.35 * cell, color_of(i))
        sketch.text(x, y, str(i), 0.4 * cell, (255, 255, 255))
        for k in (k for k, code in enumerate(keys) if code == i + 1):  # what it carries, at its side
            left, upper = x - 0.45 * cell + 0.25 * k * cell, y - 0.45 * cell
            sketch.box(left, upper, left + 0.2 * cell, upper + 0.2 * cell, fill=color_of(k + house.n))
    return sketch.picture()
