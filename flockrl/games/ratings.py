"""Ratings of players from their results against each other: Elo with intervals, alpha-rank, Nash averaging."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.games.linear import zero_sum

ELO_UNIT = 400 / np.log(10)
"""Elo points of a factor e in the odds of winning."""
MOST_PROFILES = 1_000


class Elo(NamedTuple):
    """ratings: [K] with the mean 0; low, high: [K] the 95% interval over resampled games."""

    ratings: np.ndarray
    low: np.ndarray
    high: np.ndarray


def elo(wins: np.ndarray, games: np.ndarray, samples: int = 200, seed: int = 0) -> Elo:
    """Elo ratings that explain results best (Bradley and Terry 1952). wins: [K, K] points of the row's player against
    the column's, a draw counts half; games: [K, K] how many they played, symmetric. One more drawn game is added to
    each pair that met, so that ratings of players who always win stay finite."""
    games = np.asarray(games, float)
    wins = np.asarray(wins, float)
    if wins.shape != games.shape or wins.ndim != 2 or not np.allclose(wins + wins.T, games):
        raise UsageError("Elo needs wins [K, K] and games [K, K], where the wins of both add up to the games.")
    generator = np.random.default_rng(seed)
    upper = np.triu(games, 1)
    share = np.divide(wins, games, out=np.full_like(wins, 0.5), where=games > 0)
    drawn = []
    for _ in range(samples):
        points = generator.binomial(np.round(upper).astype(int), np.clip(share, 0.0, 1.0))
        won = np.triu(points, 1)
        drawn.append(_fit(won + np.triu(upper - won, 1).T, games))
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    return Elo(_fit(np.where(np.eye(len(wins), dtype=bool), 0.0, wins), games), low, high)


def _fit(wins: np.ndarray, games: np.ndarray) -> np.ndarray:
    """[K] ratings by Newton's method on the log-likelihood."""
    met = (games > 0) & ~np.eye(len(games), dtype=bool)
    won, played = wins + 0.5 * met, np.where(met, games + 1.0, 0.0)
    skill = np.zeros(len(games))
    for _ in range(100):
        chance = 1.0 / (1.0 + np.exp(np.clip(skill[None] - skill[:, None], -50, 50)))
        slope = (np.where(met, won, 0.0) - played * chance).sum(1)
        weight = played * chance * (1 - chance)
        bend = np.diag(weight.sum(1)) - weight
        step = np.linalg.solve(bend + 1.0 / len(skill) + 1e-9 * np.eye(len(skill)), slope)  # with a sum of 0
        skill = skill + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-8:
            break
    return ELO_UNIT * (skill - skill.mean())


def alpha_rank(payoff: Any, alpha: float = 100.0, m: int = 50, eps: float = 1e-14) -> np.ndarray:
    """How often evolution among strategies visits each (Omidshafiei et al. 2019).

    payoff: [A, A], a symmetric game of one population, what the row gets against the column; or [A1, ..., An, N].
    Returns [A] or [A1, ..., An]. alpha: strength of selection; m: size of a population.
    """
    table = np.asarray(payoff, float)
    single = table.ndim == 2
    counts = table.shape[:1] if single else table.shape[:-1]
    if not np.isfinite(table).all() or (single and table.shape[0] != table.shape[1]):
        raise UsageError("alpha-rank needs finite payoffs, [A, A] or [A1, ..., An, N].")
    size = int(np.prod(counts))
    if size > MOST_PROFILES:
        raise UsageError(f"alpha-rank is computed for up to {MOST_PROFILES:,} joint strategies, not {size:,}.")
    moves = np.zeros((size, size))
    eta = 1.0 / max(sum(count - 1 for count in counts), 1)
    for now in np.ndindex(*counts):
        here = np.ravel_multi_index(now, counts)
        for k, count in enumerate(counts):
            for other in range(count):
                if other != now[k]:
                    there = np.ravel_multi_index((*now[:k], other, *now[k + 1 :]), counts)
                    if single:
                        odds = _fixation_alone(table, now[0], other, alpha, m)
                    else:
                        gain = table[np.unravel_index(there, counts)][k] - table[now][k]
                        odds = _fixation(gain, alpha, m)
                    moves[here, there] = eta * odds
    moves[np.diag_indices(size)] = 1.0 - moves.sum(1)
    return _stationary(moves, eps).reshape(counts)


def _fixation(gain: float, alpha: float, m: int) -> float:
    """The chance that one mutant takes over a population of m, if it is fitter by `gain`."""
    if abs(gain) * alpha < 1e-14:
        return 1.0 / m
    return _ratio(-alpha * gain, m)


def _ratio(x: float, m: int) -> float:
    """(1 - e^x) / (1 - e^(m x)) without overflow."""
    if x > 0:
        return float(np.expm1(-x) / np.expm1(-m * x) * np.exp(np.clip((1 - m) * x, -700, 0)))
    return float(np.expm1(x) / np.expm1(m * x))


def _fixation_alone(payoff: np.ndarray, now: int, other: int, alpha: float, m: int) -> float:
    """The chance that one player of `other` takes over a population of m players of `now`, who play each other."""
    total, running = 1.0, 0.0
    for count in range(1, m):
        mutant = (payoff[other, other] * (count - 1) + payoff[other, now] * (m - count)) / (m - 1)
        resident = (payoff[now, other] * count + payoff[now, now] * (m - count - 1)) / (m - 1)
        running += -alpha * (mutant - resident)
        total += np.exp(np.clip(running, -700, 700))
    return float(1.0 / total)


def _stationary(moves: np.ndarray, eps: float) -> np.ndarray:
    """[size] the distribution that stays as it is; a little mutation (eps) makes it the only one."""
    size = len(moves)
    moves = (1 - eps) * moves + eps / size
    system = np.vstack([moves.T - np.eye(size), np.ones(size)])
    found = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]
    found = np.maximum(found, 0.0)
    return found / found.sum()


def nash_average(payoff: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nash averaging (Balduzzi et al. 2018) of an antisymmetric matrix [K, K], what the row wins from the column: the
    equilibrium [K] of the game of choosing a player with the highest entropy, and each player's score [K] against it.
    The best players have the score 0."""
    table = np.asarray(payoff, float)
    if table.ndim != 2 or not np.allclose(table, -table.T, atol=1e-9):
        raise UsageError("Nash averaging needs a matrix in which what one wins the other loses.")
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    size = len(table)
    scale = float(np.abs(table).max()) or 1.0
    start = zero_sum(table / scale)[1]

    def entropy(p: np.ndarray) -> float:
        return float((p * np.log(np.maximum(p, 1e-300))).sum())

    limits = [
        {"type": "eq", "fun": lambda p: p.sum() - 1.0},
        {"type": "ineq", "fun": lambda p: p @ table / scale},  # nobody beats the mixture
    ]
    found = minimize(
        entropy, 0.9 * start + 0.1 / size, jac=lambda p: np.log(np.maximum(p, 1e-300)) + 1.0, method="SLSQP",
        bounds=[(0.0, 1.0)] * size, constraints=limits, options={"maxiter": 500, "ftol": 1e-14},
    )  # fmt: skip
    best = np.maximum(found.x, 0.0)
    best = best / best.sum()
    if not found.success or (best @ table).min() < -1e-6 * scale:
        best = start
    return best, table @ best
