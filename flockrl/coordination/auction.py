"""Role assignment by auction (Bertsekas 1988): agents bid for roles, and nobody has to know everything.

    bid_i = price of the best role + (its value - value of the second best) + e,   value = benefit - price

At the end the sum of benefits is within n e of the best. e begins large and falls (scaling), with the prices kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flockrl.core.errors import UsageError

FALL = 5.0
"""By what e falls between one auction and the next."""
MOST_ROUNDS = 1_000_000


class Auction(NamedTuple):
    """role: [n] of each agent. benefit: their sum. bids: messages that were sent. history: the sum of benefits of those
    who had a role after each round of the last auction."""

    role: np.ndarray
    benefit: float
    bids: int
    history: np.ndarray


def auction(
    benefit: np.ndarray, tolerance: float = 1e-3, loss: float = 0.0, rng: np.random.Generator | None = None
) -> Auction:
    """Roles for agents. benefit: [n, m] of each agent in each role, n <= m, not negative.

    tolerance: the part of the best sum that may be missed. loss: the chance that a bid does not arrive; it is made
    again.
    """
    given = np.asarray(benefit, float)
    if given.ndim != 2 or not 1 <= given.shape[0] <= given.shape[1] or not np.isfinite(given).all() or given.min() < 0:
        raise UsageError("benefit has a row for each agent and a column for each role, at least as many, from 0 on.")
    if not 0 <= loss < 1 or not 0 < tolerance <= 1:
        raise UsageError("loss is a chance below 1, and tolerance a part above 0.")
    rng = np.random.default_rng(0) if rng is None else rng
    agents, roles = given.shape
    square = np.vstack([given, np.zeros((roles - agents, roles))])  # agents who do not care fill the roles left over
    most = float(given.max()) or 1.0
    # The best sum is at least the largest benefit, so n e <= tolerance * most is within tolerance of it.
    last = tolerance * most / roles
    e, prices, bids = max(most / 4, last), np.zeros(roles), 0
    while True:
        role, more, history = _sell(square, prices, e, loss, rng, agents)
        bids += more
        if e <= last:
            break
        e = max(e / FALL, last)
    own = role[:agents]
    return Auction(own, float(given[np.arange(agents), own].sum()), bids, np.array(history))


def _sell(
    benefit: np.ndarray, prices: np.ndarray, e: float, loss: float, rng: np.random.Generator, agents: int
) -> tuple[np.ndarray, int, list[float]]:
    """One auction at e, with prices [m] that rise in place: roles [m], bids, the sum of benefits after each round."""
    n = len(benefit)
    role, owner = np.full(n, -1), np.full(n, -1)
    bids, history = 0, [0.0]
    for _ in range(MOST_ROUNDS):
        free = np.flatnonzero(role < 0)
        if not len(free):
            return role, bids, history
        value = benefit[free] - prices
        best = value.argmax(1)
        rows = np.arange(len(free))
        top = value[rows, best]
        value[rows, best] = -np.inf
        second = value.max(1) if n > 1 else top
        offer = prices[best] + top - second + e
        bids += len(free)
        arrives = rng.random(len(free)) >= loss if loss else np.ones(len(free), bool)
        order = np.flatnonzero(arrives)[np.argsort(-offer[arrives], kind="stable")]
        wanted, first = np.unique(best[order], return_index=True)  # of several bids for a role, the highest
        won = order[first]
        before = owner[wanted]
        role[before[before >= 0]] = -1
        role[free[won]], owner[wanted], prices[wanted] = wanted, free[won], offer[won]
        own = role[:agents]
        history.append(float(benefit[np.flatnonzero(own >= 0), own[own >= 0]].sum()))
    raise UsageError("The auction did not end: are the benefits within the range of numbers?")


def best(benefit: np.ndarray) -> float:
    """The largest sum of benefits that there is (the Hungarian method, by scipy)."""
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    rows, columns = linear_sum_assignment(benefit, maximize=True)
    return float(np.asarray(benefit)[rows, columns].sum())
