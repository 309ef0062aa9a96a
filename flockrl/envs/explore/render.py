"""Pictures of the exploration environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.comm.render import Grid
from flockrl.envs.sketch import FAINT, GOLD, GREEN, INK, LINE, ORANGE, SKY, Sketch, color_of, mix, number


def _agents(sketch: Grid, agents: np.ndarray) -> None:
    """Discs with the agents' numbers; agents [2, 2] by x and y, cells by row and column."""
    places = [(int(y), int(x)) for x, y in agents]
    for i, place in enumerate(places):
        sketch.piece(place, color_of(i), str(i), (i, 2) if places[0] == places[1] else (0, 1))


def _title(states: Sequence[Any], t: int) -> tuple[str, str]:
    return f"step {t} of {len(states) - 1}", "success" if states[t].success else ""


def room_frames(task: Any, states: Sequence[Any], size: int) -> list[np.ndarray]:
    """task: `Rooms`; states: `Place`s. Walls are dark, shut doors orange, open ones green; cells from which a switch is
    held are gold."""
    wall, cells = task.wall(), np.indices((task.size, task.size))[::-1]  # x and y
    away = ((cells[:, None] - task.switches.T[:, :, None, None]) ** 2).sum(0)
    holds = (away <= task.near**2).any(0)
    pictures = []
    for t, state in enumerate(states):
        sketch = Grid(size, task.size, *_title(states, t))
        for y, x in np.ndindex(wall.shape):
            fill = mix(INK, 0.3) if wall[y, x] else mix(GOLD, 0.6) if holds[y, x] else None
            if fill is not None:
                sketch.cell((y, x), fill)
        for (x, y), is_open in zip(task.doors.tolist(), np.asarray(state.things), strict=True):
            for row in range(y - task.half, y + task.half + 1):
                sketch.cell((row, x), mix(GREEN, 0.4) if is_open else ORANGE)
        for x, y in task.switches.tolist():
            sketch.cell((y, x), GOLD)
        _frame(sketch, task.size)
        _agents(sketch, np.asarray(state.agents))
        pictures.append(sketch.picture())
    return pictures


def box_frames(cells: int, states: Sequence[Any], size: int) -> list[np.ndarray]:
    """states: `Place`s whose things are the box's x and y."""
    pictures = []
    for t, state in enumerate(states):
        sketch = Grid(size, cells, *_title(states, t))
        for place in np.ndindex(cells, cells):
            sketch.cell(place, edge=LINE)
        x, y = (int(v) for v in state.things)
        for row, column in np.ndindex(3, 3):
            sketch.cell((y - 1 + row, x - 1 + column), mix(SKY, 0.2))
        _frame(sketch, cells)
        _agents(sketch, np.asarray(state.agents))
        pictures.append(sketch.picture())
    return pictures


def _frame(sketch: Grid, cells: int) -> None:
    """The outer wall."""
    (left, top), (right, bottom) = sketch.middle((0, 0)), sketch.middle((cells - 1, cells - 1))
    half = sketch.side / 2
    sketch.box(left - half, top - half, right + half, bottom + half, edge=INK, width=0.006)


def walk_frames(k: int, states: Sequence[Any], size: int) -> list[np.ndarray]:
    """states: `Walk`s: a row of k steps, those made in the colour of their branch, and what was earned."""
    pictures = []
    for t, state in enumerate(states):
        sketch, branch = Sketch(size), int(state.branch)
        words = f"branch ({branch // 2}, {branch % 2})" if t else "no branch yet"
        sketch.text(0.5, 0.2, words, 0.07)
        width = 0.9 / k
        for step in range(k):
            made = step < int(state.t)
            left = 0.05 + step * width
            sketch.box(left, 0.42, left + 0.9 * width, 0.54, fill=color_of(branch) if made else None, edge=LINE)
        sketch.text(0.5, 0.7, f"earned {number(float(state.earned))}", 0.07)
        sketch.text(0.5, 0.82, f"the best is {k + 3}", 0.05, FAINT)
        pictures.append(sketch.picture())
    return pictures
