"""Lines of a chart: of one run, or the mean of several with its interval, with few enough points to draw."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flockrl.dash.tail import Tail

MOST = 2000
"""Points of a line."""
DRAWS = 500
"""Samples of the bootstrap."""
GRID = 300
"""Places at which lines are compared that have no places in common."""


def thinned(y: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most `most` points of a line: the lowest and the highest of each of equal parts, and both ends."""
    count = len(y)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, max((most - 2) // 2, 1) + 1).astype(int)
    kept = {0, count - 1}
    for low, high in pairwise(edges):
        part = y[low:high]
        kept |= {low + int(part.argmin()), low + int(part.argmax())}
    return np.array(sorted(kept))


def line(tails: Sequence[Tail], x: str, y: str, most: int = MOST) -> dict[str, Any]:
    """x and y of one run; of several, the mean over those that have the figure, with the ends of its 95% interval."""
    found = [pair for pair in (tail.pairs(x, y) for tail in tails) if len(pair[0])]
    if not found:
        return {"x": [], "y": [], "of": 0}
    if len(found) == 1:
        at, mean = found[0]
        kept = thinned(mean, most)
        return {"x": at[kept].tolist(), "y": mean[kept].tolist(), "of": 1}
    at, table = together(found)
    mean = table.mean(0)
    kept = thinned(mean, most)
    low, high = interval(table[:, kept])
    ends = {"low": low.tolist(), "high": high.tolist()}
    return {"x": at[kept].tolist(), "y": mean[kept].tolist(), **ends, "of": len(found)}


def together(found: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """[K] places, [runs, K] values there: the places that all have, or a grid between ends that all have reached."""
    unique = [np.unique(x, return_index=True) for x, _ in found]
    shared = unique[0][0]
    for places, _ in unique[1:]:
        shared = np.intersect1d(shared, places, assume_unique=True)
    values = [y[first] for (_, y), (_, first) in zip(found, unique, strict=True)]
    if 2 * len(shared) < min(len(places) for places, _ in unique):
        low, high = max(places[0] for places, _ in unique), min(places[-1] for places, _ in unique)
        shared = np.linspace(low, high, GRID) if high > low else np.array([low])
    rows = [np.interp(shared, places, y) for (places, _), y in zip(unique, values, strict=True)]
    return shared, np.array(rows)


def interval(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends [K] of the 95% bootstrap interval of the mean over runs. table: [runs, K]."""
    runs = len(table)
    chosen = np.random.default_rng(0).integers(runs, size=(DRAWS, runs))
    weights = np.stack([(chosen == i).sum(1) for i in range(runs)], 1) / runs
    low, high = np.percentile(weights @ table, (2.5, 97.5), axis=0)
    return low, high
