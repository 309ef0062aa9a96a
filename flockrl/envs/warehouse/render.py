"""Pictures of the warehouse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.comm.render import Grid
from flockrl.envs.sketch import GOLD, GREEN, INK, LINE, SKY, color_of, mix
from flockrl.envs.warehouse.layout import NONE, STEPS, Layout

WHITE = (255, 255, 255)


def floor_frames(layout: Layout, states: Sequence[Any], size: int) -> list[np.ndarray]:
    """states: `Floor`s. Roads are white and goals green; shelves are blue, requested ones gold; a robot is a disc with
    a line to where it faces, on the shelf that it carries."""
    pictures = []
    for t, state in enumerate(states):
        many = int(state.delivered.sum())
        sketch = Grid(size, max(layout.rows, layout.columns), f"step {t} of {len(states) - 1}", f"{many} delivered")
        requested = set(np.asarray(state.requested).tolist())
        shelves = dict(zip(layout.cells.tolist(), np.asarray(state.standing).tolist(), strict=True))
        for cell in range(layout.rows * layout.columns):
            ground = mix(GREEN, 0.5) if cell in layout.goals else mix(INK, 0.95) if cell in shelves else WHITE
            sketch.cell(divmod(cell, layout.columns), ground, LINE)
        carried = dict(zip(np.asarray(state.cell).tolist(), np.asarray(state.carried).tolist(), strict=True))
        for cell, shelf in (shelves | {c: s for c, s in carried.items() if s != NONE}).items():
            if shelf != NONE:
                _shelf(sketch, divmod(cell, layout.columns), shelf in requested)
        for i, (cell, way) in enumerate(zip(np.asarray(state.cell), np.asarray(state.way), strict=True)):
            _robot(sketch, divmod(int(cell), layout.columns), int(way), i)
        pictures.append(sketch.picture())
    return pictures


def _shelf(sketch: Grid, place: tuple[int, int], requested: bool) -> None:
    (x, y), half = sketch.middle(place), 0.42 * sketch.side
    sketch.box(x - half, y - half, x + half, y + half, GOLD if requested else mix(SKY, 0.45), INK, 0.002)


def _robot(sketch: Grid, place: tuple[int, int], way: int, agent: int) -> None:
    (x, y), step = sketch.middle(place), STEPS[way] * 0.48 * sketch.side
    radius = 0.3 * sketch.side
    sketch.disc(x, y, radius, color_of(agent))
    sketch.line([(x, y), (x + step[0], y + step[1])], INK, 0.14 * sketch.side)
    sketch.text(x - step[0] * 0.3, y - step[1] * 0.3, str(agent), 0.9 * radius, WHITE)
