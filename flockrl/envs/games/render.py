"""Pictures of matrix games: the payoff matrix with the joint action of the round, and the payoffs so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.sketch import ABOVE, BELOW, BLUE, FAINT, GOLD, INK, LINE, Sketch, color_of, mix, number

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def matrix_frames(payoff: np.ndarray, states: Sequence[Any], size: int) -> list[np.ndarray]:
    """payoff: [A1, ..., AN, N]; states: `Play`s. Two agents get a matrix; with more, each gets a column of actions."""
    moves = [np.asarray(state.last) for state in states]
    paid = [np.zeros(payoff.shape[-1]), *(payoff[tuple(move)] for move in moves[1:])]
    totals = np.cumsum(paid, axis=0)
    pictures = []
    for t, move in enumerate(moves):
        sketch = Sketch(size)
        _head(sketch, t, len(states) - 1, totals[t])
        if payoff.ndim == 3:
            _matrix(sketch, payoff, move, (0.16, 0.24, 0.94, 0.82))
        else:
            _columns(sketch, payoff.shape[:-1], move)
        _history(sketch, [row.mean() for row in paid[1 : t + 1]], len(states) - 1, payoff)
        pictures.append(sketch.picture())
    return pictures


def _head(sketch: Sketch, t: int, rounds: int, totals: np.ndarray) -> None:
    sketch.text(0.04, 0.06, "before the first round" if t == 0 else f"round {t} of {rounds}", 0.052, anchor="lm")
    if (totals == totals[0]).all():
        sketch.text(0.96, 0.06, f"return {number(totals[0])}", 0.052, anchor="rm")
        return
    words = [number(total) for total in totals]
    for i in reversed(range(len(words))):
        sketch.text(0.96 - 0.16 * (len(words) - 1 - i), 0.06, words[i], 0.052, color_of(i), "rm")


def _matrix(sketch: Sketch, payoff: np.ndarray, move: np.ndarray, where: tuple[float, float, float, float]) -> None:
    """Rows are the first agent's actions, columns the second's."""
    left, top, right, bottom = where
    rows, columns = payoff.shape[:2]
    high, wide = (bottom - top) / rows, (right - left) / columns
    together = bool((payoff == payoff[..., :1]).all())
    chosen = tuple(move) if (move >= 0).all() else None
    letter = min(0.06, 0.3 * high)
    for i in range(rows):
        on = chosen is not None and chosen[0] == i
        sketch.text(left - 0.06, top + (i + 0.5) * high, LETTERS[i % 26], letter, color_of(0) if on else FAINT)
        for j in range(columns):
            x, y = left + j * wide, top + i * high
            here = chosen == (i, j)
            shade = mix(GOLD, 0.55) if here else _shade(payoff[i, j].mean(), payoff)
            sketch.box(x, y, x + wide, y + high, fill=shade, edge=LINE)
            _payoffs(sketch, payoff[i, j], together, x + wide / 2, y + high / 2, min(0.07, 0.3 * high, 0.22 * wide))
    for j in range(columns):
        on = chosen is not None and chosen[1] == j
        sketch.text(left + (j + 0.5) * wide, top - 0.05, LETTERS[j % 26], letter, color_of(1) if on else FAINT)
    if chosen is not None:
        x, y = left + chosen[1] * wide, top + chosen[0] * high
        sketch.box(x, y, x + wide, y + high, edge=INK, width=0.01)


def _payoffs(sketch: Sketch, values: np.ndarray, together: bool, x: float, y: float, height: float) -> None:
    if together:
        sketch.text(x, y, number(values[0]), height)
        return
    sketch.text(x - 1.3 * height, y, number(values[0]), height, color_of(0))
    sketch.text(x + 1.3 * height, y, number(values[1]), height, color_of(1))


def _shade(value: float, payoff: np.ndarray) -> tuple[int, ...]:
    """Pale blue for the highest payoff, white for the lowest."""
    means = payoff.mean(axis=-1)
    low, high = float(means.min()), float(means.max())
    part = (value - low) / (high - low) if high > low else 0.0
    return mix(BLUE, 1 - 0.22 * part)


def _columns(sketch: Sketch, counts: Sequence[int], move: np.ndarray) -> None:
    """More than two agents: a column of letters each, the chosen one filled."""
    for i, count in enumerate(counts):
        x = (i + 0.5) / len(counts)
        sketch.text(x, 0.16, f"agent {i}", min(0.045, 0.18 / len(counts)), FAINT)
        for a in range(count):
            y = 0.24 + 0.56 * (a + 0.5) / count
            radius = min(0.06, 0.22 / count, 0.3 / len(counts))
            sketch.disc(x, y, radius, color_of(i) if move[i] == a else (238, 238, 236))
            sketch.text(x, y, LETTERS[a % 26], radius, (255, 255, 255) if move[i] == a else FAINT)


def _history(sketch: Sketch, paid: Sequence[float], rounds: int, payoff: np.ndarray) -> None:
    """A bar for each round played: how much it paid, mean over agents."""
    low, high = min(0.0, float(payoff.mean(-1).min())), max(0.0, float(payoff.mean(-1).max()))
    tall = 0.1 / ((high - low) or 1.0)
    base, wide = 0.87 + high * tall, 0.92 / max(rounds, 1)
    sketch.line([(0.04, base), (0.96, base)], LINE)
    for k, value in enumerate(paid):
        top, bottom = sorted((base, base - value * tall))
        left = 0.04 + k * wide + 0.1 * wide
        sketch.box(
            left, top, left + min(0.8 * wide, 0.06), max(bottom, top + 0.004), fill=ABOVE if value >= 0 else BELOW
        )


def two_step_frames(matrices: np.ndarray, states: Sequence[Any], size: int) -> list[np.ndarray]:
    """Pictures of the two-step game: the team's place, and the matrix it plays."""
    pictures = []
    for t, state in enumerate(states):
        place = int(state)
        place = place - 2 if place > 2 else place
        sketch = Sketch(size)
        words = ("step 1: agent 0 chooses the matrix", "step 2: both choose in it", "the end")
        sketch.text(0.04, 0.06, words[min(t, 2)], 0.05, anchor="lm")
        sketch.disc(0.5, 0.2, 0.05, INK if place == 0 else mix(INK, 0.6))
        for k, x in enumerate((0.27, 0.73)):
            on = place == k + 1
            tint = color_of(0) if on else LINE
            sketch.line([(0.5, 0.25), (x, 0.4)], tint, 0.012 if on else 0.006)
            sketch.text((0.5 + x) / 2 + (0.06 if k else -0.06), 0.31, LETTERS[k], 0.05, tint if on else FAINT)
            payoff = np.repeat(matrices[k][..., None], 2, axis=-1)
            _matrix(sketch, payoff, np.full(2, -1), (x - 0.13, 0.56, x + 0.17, 0.86))
            sketch.text(x + 0.02, 0.43, f"2{LETTERS[k]}", 0.05, INK if on else FAINT)
            if on:
                sketch.box(x - 0.145, 0.545, x + 0.185, 0.875, edge=INK, width=0.01)
        pictures.append(sketch.picture())
    return pictures
