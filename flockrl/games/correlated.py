"""Correlated and coarse correlated equilibria by linear programme, with a chosen objective."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.games.linear import programme
from flockrl.games.normal import NormalForm

Objective = Literal["welfare", "fairest"]
MOST_OUTCOMES = 2_500
"""The most joint actions of a game whose correlated equilibria are computed."""
MOST_NUMBERS = 1 << 24
"""The most numbers in the constraints of their linear programme: deviations x joint actions."""


class Correlated(NamedTuple):
    """A distribution [A1, ..., An] over joint actions from which a mediator draws, and tells each player its action.

    values: [N]; regret: the most that any player would gain by not following, computed from the distribution.
    """

    joint: np.ndarray
    values: np.ndarray
    regret: float


def correlated(game: NormalForm, objective: Objective = "welfare", coarse: bool = False) -> Correlated:
    """The correlated equilibrium with the highest sum of payoffs (`welfare`), or the highest payoff of whoever gets the
    least (`fairest`). coarse: players decide whether to follow before they are told their action."""
    outcomes = int(np.prod(game.counts))
    if outcomes > MOST_OUTCOMES:
        raise UsageError(
            f"{game.name} is too large: correlated equilibria are computed up to {MOST_OUTCOMES:,} joint actions, and "
            f"it has {outcomes:,}."
        )
    deviations = sum(count * (1 if coarse else count - 1) for count in game.counts)
    if deviations * outcomes > MOST_NUMBERS:
        raise UsageError(f"{game.name} is too large for correlated equilibria: it has {deviations:,} deviations.")
    payoff = game.payoff.reshape(outcomes, -1)
    limits = np.concatenate([_gains(game, player, coarse) for player in range(len(game.counts))]) / game.scale
    if objective == "welfare":
        goal, extra = -payoff.sum(1) / game.scale, limits
    else:  # one more number, below every player's payoff, is maximised
        low = np.hstack([-payoff.T / game.scale, np.ones((payoff.shape[1], 1))])
        extra = np.vstack([np.hstack([limits, np.zeros((len(limits), 1))]), low])
        goal = np.append(np.zeros(outcomes), -1.0)
    bounds = [(0.0 if i < outcomes else None, None) for i in range(len(goal))]
    whole = np.zeros((1, len(goal)))
    whole[0, :outcomes] = 1.0
    found = programme(c=goal, A_ub=extra, b_ub=np.zeros(len(extra)), A_eq=whole, b_eq=[1.0], bounds=bounds)
    joint = np.maximum(found.x[:outcomes], 0.0)
    joint = (joint / joint.sum()).reshape(game.counts)
    return Correlated(joint, joint.reshape(-1) @ payoff, regret(game, joint, coarse))


def _gains(game: NormalForm, player: int, coarse: bool) -> np.ndarray:
    """[rows, outcomes]: what the player gains by each deviation at each joint action."""
    own = np.moveaxis(game.payoff[..., player], player, 0)
    count = len(own)
    rows = []
    for other in range(count):
        gain = own[other][None] - own  # [A, ...]
        if coarse:
            rows.append(gain)
            continue
        for told in range(count):
            if told != other:
                rows.append(np.where((np.arange(count) == told).reshape(-1, *(1,) * (own.ndim - 1)), gain, 0.0))
    return np.array([np.moveaxis(row, 0, player).reshape(-1) for row in rows]).reshape(-1, own.size)


def regret(game: NormalForm, joint: np.ndarray, coarse: bool = False) -> float:
    """The most that any player gains by not following a distribution over joint actions: [A1, ..., An]."""
    worst = 0.0
    for player in range(len(game.counts)):
        rows = np.moveaxis(joint, player, 0).reshape(game.counts[player], -1)
        own = np.moveaxis(game.payoff[..., player], player, 0).reshape(game.counts[player], -1)
        worth = rows @ own.T  # [told, done instead]
        followed = np.trace(worth)
        best = worth.sum(0).max() if coarse else worth.max(1).sum()
        worst = max(worst, float(best - followed))
    return worst
