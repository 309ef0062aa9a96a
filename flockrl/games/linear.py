"""Zero-sum games of two players by linear programmes (HiGHS): matrices, many matrices at once, and sequence forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.games.sequence import Seat, SequenceForm

LONGEST = 300
"""Seconds after which a linear programme is given up."""
EXACT = 1e-9
"""The gap, relative to the size of payoffs, below which a solution counts as exact."""


def programme(**parts: Any) -> Any:
    """The solution of a linear programme by scipy's HiGHS, or an error in one sentence."""
    from scipy.optimize import linprog  # type: ignore[import-untyped]

    found = linprog(method="highs", options={"time_limit": LONGEST}, **parts)
    if found.status == 1:
        raise UsageError(f"The linear programme was given up after {LONGEST} seconds: the game is too large for it.")
    if found.status != 0:
        raise UsageError(f"The linear programme was not solved: {' '.join(str(found.message).split()).rstrip('.')}.")
    return found


def maximin(payoff: np.ndarray) -> tuple[float, np.ndarray]:
    """The most that the player of the rows can be sure of, and a strategy [A] that ensures it. payoff: [A, B]."""
    rows, columns = payoff.shape
    found = programme(
        c=np.append(np.zeros(rows), -1.0),
        A_ub=np.hstack([-payoff.T, np.ones((columns, 1))]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * rows + [(None, None)],
    )
    strategy = _normal(found.x[:rows])
    return float((strategy @ payoff).min()), strategy


def _normal(weights: np.ndarray) -> np.ndarray:
    weights = np.maximum(weights, 0.0)
    return weights / weights.sum()


def zero_sum(payoff: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Value and both players' strategies of a matrix [A, B] of what the second pays the first."""
    low, first = maximin(payoff)
    high, second = maximin(-payoff.T)
    return (low - high) / 2, first, second


def zero_sum_many(payoffs: np.ndarray, turns: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`zero_sum` of many matrices [K, A, B] at once: values [K], strategies [K, A] and [K, B].

    The simplex method on all of them side by side; those whose gap is not below `EXACT` afterwards are solved by HiGHS.
    """
    count, rows, columns = payoffs.shape
    size = np.abs(payoffs).max(axis=(1, 2), initial=0.0) + 1.0
    scaled = payoffs / size[:, None, None] + 2.0  # all above 0
    table = np.zeros((count, rows + 1, columns + rows + 1))
    table[:, :rows, :columns] = scaled
    table[:, :rows, columns:-1] = np.eye(rows)
    table[:, :rows, -1] = 1.0
    table[:, rows, :columns] = -1.0
    basis = np.broadcast_to(columns + np.arange(rows), (count, rows)).copy()
    for _ in range(turns):
        reduced = table[:, rows, :-1]
        going = np.nonzero(reduced.min(1) < -1e-12)[0]
        if not len(going):
            break
        _pivot(table, basis, going, (reduced[going] < -1e-12).argmax(1), rows)
    second = np.zeros((count, columns + rows))
    np.put_along_axis(second, basis, table[:, :rows, -1], 1)
    first, second = table[:, rows, columns:-1], second[:, :columns]
    first, second = (np.maximum(x, 0.0) / np.maximum(x, 0.0).sum(1, keepdims=True) for x in (first, second))
    low = np.einsum("ka,kab->kb", first, payoffs).min(1)
    high = np.einsum("kab,kb->ka", payoffs, second).max(1)
    for k in np.nonzero(~(high - low <= EXACT * size))[0]:
        _, first[k], second[k] = zero_sum(payoffs[k])
        low[k], high[k] = (first[k] @ payoffs[k]).min(), (payoffs[k] @ second[k]).max()
    return (low + high) / 2, first, second


def _pivot(table: np.ndarray, basis: np.ndarray, which: np.ndarray, column: np.ndarray, rows: int) -> None:
    """One step of the simplex method in each table of `which`; Bland's rule, so that it ends."""
    part = table[which]
    entering = np.take_along_axis(part, column[:, None, None], 2)[:, :rows, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(entering > 1e-12, part[:, :rows, -1] / entering, np.inf)
    least = ratio.min(1, keepdims=True)
    number = np.where(ratio <= least * (1 + 1e-12) + 1e-15, basis[which], np.iinfo(int).max)
    row = number.argmin(1)
    k = np.arange(len(which))
    pivot = part[k, row] / part[k, row, column][:, None]
    part = part - part[k, :, column][:, :, None] * pivot[:, None, :]
    part[k, row] = pivot
    table[which] = part
    basis[which, row] = column


def solve_sequence_form(form: SequenceForm) -> list[np.ndarray]:
    """Both players' equilibrium policies [S] in a zero-sum game (Koller, Megiddo and von Stengel 1996)."""
    if not form.zero_sum:
        raise UsageError(
            "The linear programme of a game tree is for two players of whom one gains what the other loses."
        )
    return [_side(form, player) for player in range(2)]


def _side(form: SequenceForm, player: int) -> np.ndarray:
    """One player's policy: its plan x with  E x = e  that maximises the other's best-response value from below."""
    from scipy import sparse  # type: ignore[import-untyped]

    own, other = form.seats[player], form.seats[1 - player]
    places = (form.leaves[:, 1 - player], form.leaves[:, player])
    shape = (len(other.actions), len(own.actions))
    payoff = sparse.csr_array((form.worth[:, player], places), shape=shape)  # of the player, per other's sequence
    mine, theirs = _constraints(own), _constraints(other)
    # For every plan of the other the player gets at least v[0], where  F' v <= payoff x  (duality).
    size = theirs.shape[0]
    found = programme(
        c=np.concatenate([np.zeros(shape[1]), [-1.0], np.zeros(size - 1)]),
        A_ub=sparse.hstack([-payoff, theirs.T]).tocsr(),
        b_ub=np.zeros(shape[0]),
        A_eq=sparse.hstack([mine, sparse.csr_array((mine.shape[0], size))]).tocsr(),
        b_eq=np.append([1.0], np.zeros(mine.shape[0] - 1)),
        bounds=[(0, None)] * shape[1] + [(None, None)] * size,
    )
    return own.policy(found.x[: shape[1]])


def _constraints(seat: Seat) -> Any:
    """[1 + I, S]: plan[0] = 1, and in each information set the actions add up to what leads there."""
    from scipy import sparse

    sets = len(seat.parents)
    rows = np.concatenate([[0], 1 + np.arange(sets), 1 + seat.owner[1:]])
    columns = np.concatenate([[0], seat.parents, np.arange(1, len(seat.actions))])
    values = np.concatenate([[1.0], -np.ones(sets), np.ones(len(seat.actions) - 1)])
    return sparse.csr_array((values, (rows, columns)), shape=(1 + sets, len(seat.actions)))
