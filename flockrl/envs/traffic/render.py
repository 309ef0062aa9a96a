"""Pictures of traffic: the grid of signals with its queues, and a platoon with its speeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flockrl.envs.sketch import BLUE, FAINT, GREEN, INK, LINE, ORANGE, Sketch, color_of, mix

if TYPE_CHECKING:
    from flockrl.envs.traffic.grid import SignalGrid

SIDES = np.array([[0, -1], [1, 0], [0, 1], [-1, 0]])
"""x and y towards the sides N, E, S, W."""
TOP = 0.1


def grid_frames(env: SignalGrid, states: Sequence[Any], size: int) -> list[np.ndarray]:
    """states: `Streets`s. Bars are queues (blue, and orange where the street is nearly full) in the lane that leads to
    the junction; strokes at its edge show which approaches have green (short for left turns alone)."""
    rows, columns = env.shape
    pitch = min(0.96 / columns, (0.96 - TOP) / rows)
    left, top = 0.5 - pitch * columns / 2, TOP + (0.98 - TOP - pitch * rows) / 2
    pictures = []
    for t, state in enumerate(states):
        sketch, queue, outside = Sketch(size), np.asarray(state.queue), np.asarray(state.outside)
        words = (
            f"{t * 5 // 60}:{t * 5 % 60:02d} min   {queue.sum() + outside.sum()} waiting   {int(state.left)} through"
        )
        sketch.text(0.03, TOP / 2, words, 0.042, anchor="lm")
        for r, c in np.ndindex(rows, columns):
            middle = np.array([left + (c + 0.5) * pitch, top + (r + 0.5) * pitch])
            _junction(sketch, env, middle, pitch, state, (r, c))
        pictures.append(sketch.picture())
    return pictures


def _junction(sketch: Sketch, env: SignalGrid, middle: np.ndarray, pitch: float, state: Any, at: Any) -> None:
    box, street = 0.16 * pitch, 0.33 * pitch
    waits = np.asarray(state.queue)[at].sum(-1)
    lit = env.green[int(np.asarray(state.phase)[at])] * (int(np.asarray(state.age)[at]) > env.lost)
    for side, way in enumerate(SIDES):
        lane = middle + np.array([-way[1], way[0]]) * -0.07 * pitch  # vehicles keep to the right
        near, far = lane + way * box, lane + way * (box + street)
        sketch.line([near, far], mix(INK, 0.85), 0.09 * pitch)
        full = waits[side] / env.capacity
        if waits[side]:
            color = ORANGE if full > 0.8 else BLUE
            sketch.line([near, near + way * max(street * full, 0.02 * pitch)], color, 0.09 * pitch)
        if outside := int(np.asarray(state.outside)[at][side]):
            x, y = far + way * 0.04
            sketch.text(float(x), float(y), str(outside), 0.09 * pitch, ORANGE)
    x, y = middle
    sketch.box(x - box, y - box, x + box, y + box, fill=mix(INK, 0.7))
    for side, way in enumerate(SIDES):
        if lit[side].any():
            start = middle + way * box
            reach = 0.8 if lit[side, 1] else 0.35
            sketch.line([start, start - way * box * reach], GREEN, 0.06 * pitch)


def platoon_frames(states: Sequence[Any], size: int) -> list[np.ndarray]:
    """states: `Convoy`s. Above the vehicles, seen from the leader's place; below their speeds so far."""
    speeds = np.stack([np.asarray(state.speed) for state in states])
    gaps = np.stack([np.asarray(state.gap) for state in states])
    reach, most = 1.1 * gaps.sum(1).max(), max(31.0, speeds.max())
    pictures = []
    for t, state in enumerate(states):
        sketch = Sketch(size)
        crash = "   a crash" if state.crashed else ""
        sketch.text(0.04, 0.06, f"{t / 10:.1f} s   least headway {gaps[t].min():.1f} m{crash}", 0.045, anchor="lm")
        sketch.line([(0.03, 0.25), (0.97, 0.25)], mix(INK, 0.85), 0.06)
        sketch.disc(0.96, 0.25, 0.02, INK)
        for i, behind in enumerate(np.cumsum(gaps[t])):
            sketch.disc(0.96 - 0.93 * behind / reach, 0.25, 0.018, color_of(i))
        sketch.text(0.04, 0.4, "speeds, 0 to 30 m/s (line: 15)", 0.04, FAINT, anchor="lm")
        sketch.box(0.04, 0.45, 0.96, 0.95, edge=LINE)
        sketch.line([(0.04, 0.7), (0.96, 0.7)], LINE)
        for i in range(speeds.shape[1]):
            path = [(0.04 + 0.92 * k / len(states), 0.95 - 0.5 * speeds[k, i] / most) for k in range(t + 1)]
            if len(path) > 1:
                sketch.line(path, color_of(i), 0.004)
        pictures.append(sketch.picture())
    return pictures
