"""Pictures of the credit environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.sketch import BLUE, FAINT, GREEN, INK, LINE, ORANGE, Sketch, color_of, mix

WHITE = (255, 255, 255)
TOP, BOTTOM, MARGIN = 0.14, 0.9, 0.05


def bar_frames(states: Sequence[Any], nights: int, capacity: float, best: float, size: int) -> list[np.ndarray]:
    """states: `Week`s: a column for each night, as high as it was attended."""
    pictures = []
    for state in states:
        sketch, chosen = Sketch(size), np.asarray(state.chosen)
        came = np.array([(chosen == k).sum() for k in range(nights)])
        paid = float((came * np.exp(-came / capacity)).sum())
        before = bool((chosen < 0).any())
        sketch.text(0.5, 0.07, "nobody has chosen yet" if before else f"G {paid:.3f} of {best:.3f}", 0.05)
        wide, top = (1 - 2 * MARGIN) / nights, max(1, came.max())
        for k, count in enumerate(came.tolist()):
            left, high = MARGIN + k * wide, (BOTTOM - TOP) * count / top
            sketch.box(left + 0.1 * wide, BOTTOM - high, left + 0.9 * wide, BOTTOM, fill=mix(BLUE, 0.25))
            words = min(0.05, 0.6 * wide)
            sketch.text(left + wide / 2, max(BOTTOM - high - 0.03, TOP), str(count), words)
            sketch.text(left + wide / 2, 0.95, str(k), words, FAINT)
        sketch.line([(MARGIN, BOTTOM), (1 - MARGIN, BOTTOM)])
        pictures.append(sketch.picture())
    return pictures


def squeeze_frames(states: Sequence[Any], worth: np.ndarray, size: int) -> list[np.ndarray]:
    """states: `Efforts`; worth: of every sum. The curve of what sums are worth, a line at the one that came out."""
    pictures = []
    along = np.linspace(0, len(worth) - 1, min(len(worth), 200)).astype(int)
    across = (1 - 2 * MARGIN) / (len(worth) - 1)
    rise = (BOTTOM - TOP) / max(float(worth.max()), 1e-9)
    curve = [(MARGIN + x * across, BOTTOM - float(worth[x]) * rise) for x in along.tolist()]
    for state in states:
        sketch, chosen = Sketch(size), np.asarray(state.chosen)
        before, total = bool((chosen < 0).any()), int(chosen.sum())
        told = "nobody has chosen yet" if before else f"sum {total}: G {worth[total]:.2f} of {worth.max():.2f}"
        sketch.text(0.5, 0.07, told, 0.05)
        sketch.line([(MARGIN, BOTTOM), (1 - MARGIN, BOTTOM)])
        sketch.line(curve, BLUE, 0.008)
        if not before:
            x, y = MARGIN + total * across, BOTTOM - float(worth[total]) * rise
            sketch.line([(x, BOTTOM), (x, TOP)], ORANGE)
            sketch.disc(x, y, 0.015, ORANGE)
        pictures.append(sketch.picture())
    return pictures


def rover_frames(states: Sequence[Any], cells: int, radius: int, coupling: int, size: int) -> list[np.ndarray]:
    """states: `Field`s. Around each point the cells from which it is observed; green when that has been done."""
    pictures = []
    side = (1 - TOP - MARGIN) / cells
    edge = (1 - cells * side) / 2

    def middle(place: Any) -> tuple[float, float]:
        return edge + (place[1] + 0.5) * side, TOP + (place[0] + 0.5) * side

    for t, state in enumerate(states):
        sketch = Sketch(size)
        done = int(np.asarray(state.seen).sum())
        sketch.text(MARGIN, TOP / 2, f"step {t} of {len(states) - 1}", 0.045, anchor="lm")
        words = f"{done} of {len(state.seen)} observed, {coupling} together"
        sketch.text(1 - MARGIN, TOP / 2, words, 0.045, anchor="rm")
        for point, seen in zip(np.asarray(state.points), np.asarray(state.seen), strict=True):
            (low, high), paint = _reach(point, radius, cells), GREEN if seen else ORANGE
            left, top = edge + low[1] * side, TOP + low[0] * side
            sketch.box(left, top, edge + (high[1] + 1) * side, TOP + (high[0] + 1) * side, fill=mix(paint, 0.8))
            x, y = middle(point)
            sketch.box(x - side / 5, y - side / 5, x + side / 5, y + side / 5, fill=paint)
        for k in range(cells + 1):
            sketch.line([(edge + k * side, TOP), (edge + k * side, TOP + cells * side)], LINE, 0.002)
            sketch.line([(edge, TOP + k * side), (edge + cells * side, TOP + k * side)], LINE, 0.002)
        for i, place in enumerate(np.asarray(state.rovers)):
            x, y = middle(place)
            shift = side * 0.18 * np.array([np.cos(i), np.sin(i)])  # those that share a cell stay visible
            sketch.disc(x + shift[0], y + shift[1], side * 0.22, color_of(i))
            sketch.text(x + shift[0], y + shift[1], str(i), side * 0.28, WHITE)
        sketch.box(edge, TOP, edge + cells * side, TOP + cells * side, edge=INK)
        pictures.append(sketch.picture())
    return pictures


def _reach(point: Any, radius: int, cells: int) -> tuple[Any, Any]:
    """First and last (row, column) of the cells from which a point is observed."""
    return np.maximum(point - radius, 0), np.minimum(point + radius, cells - 1)
