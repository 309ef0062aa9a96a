"""Who says what to whom: a panel beside each picture of an episode, for teams that talk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flockrl.envs.sketch import FAINT, LINE, PAPER, Sketch, color_of, mix, shade
from flockrl.evaluation.inside import Inside

MOST, CELLS = 20, 8
"""Agents, and numbers of a message, that a panel has room for."""
SPEAKS, HEARS = 0.52, 0.92
"""Where the column of those who speak stands, and that of those who listen."""


def panels(inside: Sequence[Inside], size: int) -> list[np.ndarray]:
    """[size, size, 3] for each step: on the left messages, blue above 0 and orange below; on the right a line from each
    agent to those whose policy its message moved, the thicker the more. The dead stand in grey."""
    said = [np.asarray(step.said)[:MOST, :CELLS] for step in inside]
    moved = [np.nan_to_num(np.asarray(step.influence, float))[:MOST, :MOST] for step in inside]
    loudest = max((float(np.abs(x).max()) for x in said if x.size), default=0.0) or 1.0
    most = max((float(x.max()) for x in moved if x.size), default=0.0) or 1.0
    return [
        _panel(words / loudest, pulls / most, _alive(step, len(words)), size)
        for words, pulls, step in zip(said, moved, inside, strict=True)
    ]


def _alive(step: Inside, n: int) -> np.ndarray:
    return np.ones(n, bool) if step.seen.alive is None else np.asarray(step.seen.alive)[0, :n]


def _panel(said: np.ndarray, moved: np.ndarray, alive: np.ndarray, size: int) -> np.ndarray:
    """said: [n, C] and moved: [listener, speaker], both as shares of the largest."""
    sketch, n = Sketch(size), len(said)
    sketch.text(0.24, 0.05, "says", 0.045, FAINT)
    sketch.text(HEARS, 0.05, "hears", 0.045, FAINT)
    step = 0.88 / n
    radius, rows = min(0.035, 0.4 * step), 0.1 + step * (np.arange(n) + 0.5)
    for i, j in np.argwhere(moved > 0.02):
        color = mix(color_of(int(j)), 0.7 * (1 - moved[i, j]))
        sketch.line([(SPEAKS, rows[j]), (HEARS, rows[i])], color, 0.002 + 0.012 * float(moved[i, j]))
    wide, high = 0.42 / CELLS, min(0.42 / CELLS, 0.8 * step)
    for i, y in enumerate(rows):
        for k, value in enumerate(said[i] if alive[i] else ()):
            left = 0.04 + k * wide
            sketch.box(left, y - high / 2, left + wide, y + high / 2, shade(float(value)), LINE, 0.002)
        for x in (SPEAKS, HEARS):
            sketch.disc(x, y, radius, color_of(i) if alive[i] else LINE)
            sketch.text(x, y, str(i), 1.1 * radius, PAPER)
    return sketch.picture()
