"""Learning dynamics in normal-form games, with their trajectories.

None of them is sure to find an equilibrium: what they return carries the gap of the last strategies and of the average.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flockrl.core.errors import UsageError, nearest
from flockrl.games.normal import NormalForm
from flockrl.games.sequence import Gap

MOST_NUMBERS = 20_000_000
"""The most numbers that a trajectory keeps."""


class Trajectory(NamedTuple):
    """strategies: for each player [T + 1, A], from the start on. average: for each player [A], the mean over time (for
    fictitious play its beliefs, for best response how often each action was taken)."""

    strategies: list[np.ndarray]
    average: list[np.ndarray]
    last_gap: Gap
    average_gap: Gap


def run(
    game: NormalForm, rule: str, steps: int = 1000, start: list[np.ndarray] | None = None, rate: float = 0.1
) -> Trajectory:
    """Let all players follow a rule at once for some steps.

    rule: best_response, fictitious, regret_matching, regret_matching_plus, multiplicative_weights or replicator. start:
    the first strategies, uniform by default. rate: of multiplicative weights and replicator.
    """
    if rule not in RULES:
        raise UsageError(f"There is no learning dynamics {rule!r}.{nearest(rule, RULES)}")
    if steps < 1 or (steps + 1) * sum(game.counts) > MOST_NUMBERS:
        raise UsageError(f"steps must be from 1 to {MOST_NUMBERS // sum(game.counts) - 1:,}, not {steps:,}.")
    now = [np.asarray(s, float) for s in (start if start is not None else _start(game, rule))]
    paths = [np.zeros((steps + 1, count)) for count in game.counts]
    step, sums = RULES[rule](game, rate), [np.zeros(count) for count in game.counts]
    for t in range(steps + 1):
        for path, total, s in zip(paths, sums, now, strict=True):
            path[t] = s
            total += s
        if t < steps:
            now = step([game.action_values(i, now) for i in range(len(now))], now, t)
    average = paths_end(paths) if rule == "fictitious" else [total / (steps + 1) for total in sums]
    return Trajectory(paths, average, game.gap(paths_end(paths)), game.gap(average))


def paths_end(paths: list[np.ndarray]) -> list[np.ndarray]:
    return [path[-1] for path in paths]


def _start(game: NormalForm, rule: str) -> list[np.ndarray]:
    """Uniform, or the first action where all that is played are single actions."""
    single = rule in ("best_response", "fictitious")
    return [np.eye(count)[0] if single else np.full(count, 1.0 / count) for count in game.counts]


Step = Callable[[list[np.ndarray], list[np.ndarray], int], list[np.ndarray]]
"""(values of all actions [A] for each player, strategies, number of the step) -> strategies."""


def _best_response(game: NormalForm, rate: float) -> Step:
    """Everybody answers what the others did last."""
    return lambda values, now, t: [np.eye(len(v))[v.argmax()] for v in values]


def _fictitious(game: NormalForm, rate: float) -> Step:
    """Everybody answers what the others did on average (Brown 1951). Strategies are these averages."""
    return lambda values, now, t: [
        s + (np.eye(len(v))[v.argmax()] - s) / (t + 2) for v, s in zip(values, now, strict=True)
    ]


def _regret_matching(plus: bool) -> Callable[[NormalForm, float], Step]:
    """Actions in proportion to the regret of not having taken them (Hart and Mas-Colell 2000); `plus` keeps regrets at
    least 0 (Tammelin 2014)."""

    def make(game: NormalForm, rate: float) -> Step:
        regrets = [np.zeros(count) for count in game.counts]

        def step(values: list[np.ndarray], now: list[np.ndarray], t: int) -> list[np.ndarray]:
            following = []
            for regret, v, s in zip(regrets, values, now, strict=True):
                regret += v - s @ v
                if plus:
                    np.maximum(regret, 0.0, out=regret)
                positive = np.maximum(regret, 0.0)
                total = positive.sum()
                following.append(positive / total if total > 0 else np.full(len(v), 1.0 / len(v)))
            return following

        return step

    return make


def _multiplicative_weights(game: NormalForm, rate: float) -> Step:
    """Each probability is multiplied by exp(rate x value), with values in units of the payoffs' range."""

    def one(v: np.ndarray, s: np.ndarray) -> np.ndarray:
        weights = s * np.exp(rate * (v - v.max()) / game.scale)
        return weights / weights.sum()

    return lambda values, now, t: [one(v, s) for v, s in zip(values, now, strict=True)]


def _replicator(game: NormalForm, rate: float) -> Step:
    """The replicator equation  s' = s (value - mean)  in steps of `rate` (Taylor and Jonker 1978), in units of the
    payoffs' range."""

    def one(v: np.ndarray, s: np.ndarray) -> np.ndarray:
        weights = np.maximum(s * (1.0 + rate * (v - s @ v) / game.scale), 0.0)
        return weights / weights.sum()

    return lambda values, now, t: [one(v, s) for v, s in zip(values, now, strict=True)]


RULES: dict[str, Callable[[NormalForm, float], Step]] = {
    "best_response": _best_response,
    "fictitious": _fictitious,
    "regret_matching": _regret_matching(False),
    "regret_matching_plus": _regret_matching(True),
    "multiplicative_weights": _multiplicative_weights,
    "replicator": _replicator,
}
