"""Pictures of swarms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.emergence import order
from flockrl.envs.sketch import BLUE, GOLD, GREEN, INK, LINE, ORANGE, SKY, Sketch, color_of, mix

LEFT, TOP, SPAN = 0.06, 0.1, 0.88


def _sheet(size: int, words: str) -> Sketch:
    sketch = Sketch(size)
    sketch.text(LEFT, TOP / 2, words, 0.042, anchor="lm")
    sketch.box(LEFT, TOP, LEFT + SPAN, TOP + SPAN, edge=LINE)
    return sketch


def _place(pos: Any, side: float) -> np.ndarray:
    x, y = np.asarray(pos, float) / side
    return np.array([LEFT + SPAN * x, TOP + SPAN * (1 - y)])


def _arrow(sketch: Sketch, at: np.ndarray, way: np.ndarray, length: float, color: Any) -> None:
    """A slim triangle that points along `way` (y upwards)."""
    unit = np.array([way[0], -way[1]]) / max(float(np.hypot(*way)), 1e-9)
    aside = np.array([-unit[1], unit[0]])
    sketch.shape([at + unit * length, at - unit * length / 2 + aside * length / 2.5,
                  at - unit * length / 2 - aside * length / 2.5], color)  # fmt: skip


def flock_frames(states: Sequence[Any], side: float, size: int) -> list[np.ndarray]:
    """states: `Flock`s. Arrows show where everybody moves."""
    pictures = []
    for t, state in enumerate(states):
        pos, vel = np.asarray(state.pos), np.asarray(state.vel)
        sketch = _sheet(size, f"step {t}   order {float(order(state.vel)):.2f}")
        for i in range(len(pos)):
            _arrow(sketch, _place(pos[i], side), vel[i], max(0.012, 0.11 / np.sqrt(len(pos))), BLUE)
        pictures.append(sketch.picture())
    return pictures


def colony_frames(states: Sequence[Any], nest: np.ndarray, food: int, size: int) -> list[np.ndarray]:
    """states: `Colony`s. Blue cells smell of pheromone; ants with food are orange; numbers are what depots hold."""
    pictures = []
    for t, state in enumerate(states):
        scent = np.asarray(state.scent)
        cells, side = len(scent), SPAN / len(scent)
        sketch = _sheet(size, f"step {t}   {int(state.brought)} at the nest")

        def middle(cell: Any, side: float = side) -> tuple[float, float]:
            return LEFT + (float(cell[1]) + 0.5) * side, TOP + (float(cell[0]) + 0.5) * side

        for row, column in np.ndindex(cells, cells):
            (x, y), strong = middle((row, column)), float(scent[row, column])
            if strong > 0.02:
                sketch.box(x - side / 2, y - side / 2, x + side / 2, y + side / 2, fill=mix(SKY, 1 - 0.7 * strong))
        x, y = middle(nest)
        sketch.box(x - side / 2, y - side / 2, x + side / 2, y + side / 2, fill=mix(INK, 0.5))
        for depot, left in zip(np.asarray(state.depots), np.asarray(state.food), strict=True):
            x, y = middle(depot)
            sketch.disc(x, y, side * 0.5, mix(GREEN, 0.2) if left else mix(INK, 0.8))
            sketch.text(x, y, str(int(left)), side * 0.6, (255, 255, 255))
        for i, pos in enumerate(np.asarray(state.pos)):
            x, y = middle(pos)
            turn = 2 * np.pi * i / len(state.pos)
            x, y = x + 0.22 * side * np.cos(turn), y + 0.22 * side * np.sin(turn)
            sketch.disc(x, y, side * 0.16, ORANGE if state.loaded[i] else INK)
        pictures.append(sketch.picture())
    return pictures


def search_frames(states: Sequence[Any], sight: float, cone: float, size: int) -> list[np.ndarray]:
    """states: `Hunt`s. Tinted cells have been in view, cones are views, dots are targets (grey: found)."""
    pictures = []
    for t, state in enumerate(states):
        found = np.asarray(state.found)
        sketch = _sheet(size, f"step {t}   {found.sum()} of {len(found)} found")
        seen = np.asarray(state.seen)
        cells = int(np.sqrt(len(seen)))
        for k in np.flatnonzero(seen):
            (i, j), side = divmod(int(k), cells), SPAN / cells
            x, y = LEFT + i * side, TOP + SPAN - (j + 1) * side
            sketch.box(x, y, x + side, y + side, fill=mix(GOLD, 0.85))
        for target, known in zip(np.asarray(state.targets), found, strict=True):
            x, y = _place(target, 1.0)
            sketch.disc(float(x), float(y), 0.01, mix(INK, 0.7) if known else ORANGE)
        for i, (pos, angle) in enumerate(zip(np.asarray(state.pos), np.asarray(state.angle), strict=True)):
            sides = float(angle) + np.linspace(-cone, cone, 12)
            arc = [_place(pos + sight * np.array([np.cos(a), np.sin(a)]), 1.0) for a in sides]
            sketch.shape([_place(pos, 1.0), *arc], (*color_of(i), 70))
            _arrow(sketch, _place(pos, 1.0), np.array([np.cos(angle), np.sin(angle)]), 0.02, color_of(i))
        pictures.append(sketch.picture())
    return pictures
