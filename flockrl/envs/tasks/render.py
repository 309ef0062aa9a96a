"""Pictures of jobs and workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.sketch import FAINT, INK, LINE, Sketch, color_of, mix

WHITE = (255, 255, 255)


def frames(states: Sequence[Any], size: int) -> list[np.ndarray]:
    """states: `Shop`s. Above the jobs that wait, in the colour of their skill, with their work and (small) the steps
    until the deadline; below the workers: their speeds by skill, and how long they are busy."""
    pictures = []
    for t, state in enumerate(states):
        sketch = Sketch(size)
        sketch.text(0.04, 0.06, f"step {t}   {int(state.done)} in time, {int(state.missed)} missed", 0.045, anchor="lm")
        _jobs(sketch, state)
        _workers(sketch, state)
        pictures.append(sketch.picture())
    return pictures


def _jobs(sketch: Sketch, state: Any) -> None:
    count = len(state.waits)
    wide = 0.92 / count
    for j in range(count):
        left = 0.04 + j * wide
        sketch.box(left + 0.05 * wide, 0.14, left + 0.95 * wide, 0.34, edge=LINE)
        if state.waits[j]:
            sketch.box(left + 0.05 * wide, 0.14, left + 0.95 * wide, 0.34, fill=color_of(int(state.skill[j])))
            sketch.text(left + wide / 2, 0.21, str(int(state.work[j])), min(0.07, 0.6 * wide), WHITE)
            sketch.text(left + wide / 2, 0.3, f"{int(state.due[j])} left", min(0.035, 0.3 * wide), WHITE)
    sketch.text(0.04, 0.385, "jobs: colour is the skill, number the work", 0.034, FAINT, anchor="lm")


def _workers(sketch: Sketch, state: Any) -> None:
    speed, busy = np.asarray(state.speed), np.asarray(state.busy)
    count, skills = speed.shape
    wide = 0.92 / count
    for i in range(count):
        x = 0.04 + (i + 0.5) * wide
        radius = min(0.05, 0.4 * wide)
        sketch.disc(x, 0.54, radius, mix(INK, 0.35) if busy[i] else mix(INK, 0.85))
        words = str(int(busy[i])) if busy[i] else "free"
        sketch.text(x, 0.54, words, 0.9 * radius if busy[i] else 0.6 * radius, WHITE if busy[i] else INK)
        for s in range(skills):
            bar = min(0.05, 0.8 * wide / skills)
            left = x + (s - skills / 2) * bar
            sketch.box(left, 0.88 - 0.11 * int(speed[i, s]), left + 0.85 * bar, 0.88, fill=color_of(s))
        sketch.line([(x - 0.4 * wide, 0.88), (x + 0.4 * wide, 0.88)], LINE)
    sketch.text(0.04, 0.93, "workers: steps until free, speed in each skill", 0.034, FAINT, anchor="lm")
