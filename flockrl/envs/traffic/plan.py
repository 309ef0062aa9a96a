"""Tables of a signal grid that are made once: phases, arrivals, and the timetable of fixed signals."""

from __future__ import annotations

import numpy as np

UNLIKELY = 1e-6
"""More vehicles than arrive with this probability at one entry in one step never do."""


def phase_table(phases: int) -> np.ndarray:
    """[P, 4, 3] 0/1: the movements (left, straight, right) of each approach (N, E, S, W) that a phase lets go.

    With 4 phases left turns have a phase of their own; with 2 everybody goes, and left turns are not held up by
    oncoming traffic.
    """
    through, left = np.array([0, 1, 1]), np.array([1, 0, 0])
    ways = [through, left] if phases == 4 else [through + left]
    axes = (np.array([1, 0, 1, 0]), np.array([0, 1, 0, 1]))
    return np.stack([axis[:, None] * way for axis in axes for way in ways])


def poisson_table(means: np.ndarray) -> np.ndarray:
    """[L, K] cumulative probabilities: the number of those below a uniform draw is a Poisson number."""
    terms = np.exp(-means)[:, None]
    while terms.sum(1).min() < 1 - UNLIKELY:
        terms = np.concatenate([terms, terms[:, -1:] * means[:, None] / terms.shape[1]], 1)
    return np.cumsum(terms, axis=1).astype(np.float32)


def fixed_plan(green: np.ndarray, loads: np.ndarray, lost: int, least: int) -> np.ndarray:
    """The timetable of fixed signals [cycle]: the phase to ask for in each step, by Webster's rule.

    green: [P, 4, 3] vehicles served per step; loads: [4, 3] vehicles that come per step. With Y the sum over phases of
    their heaviest load over what they serve, the cycle is (1.5 L + 5) / (1 - Y) for L lost steps, at most 60, and its
    green time is shared out in the ratio of these loads.
    """
    share = np.where(green > 0, loads / np.maximum(green, 1), 0).max((1, 2))
    phases, total = len(green), float(share.sum())
    waste = phases * lost
    cycle = min((1.5 * waste + 5) / (1 - total), 60.0) if total < 0.9 else 60.0
    weight = share / total if total else np.full(phases, 1 / phases)
    times = np.maximum(np.round((cycle - waste) * weight), least).astype(int) + lost
    return np.repeat(np.arange(phases), times).astype(np.int32)
