"""The best quotes of a maker that is alone, by dynamic programming over time and stock."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MOST_STOCK = 60
"""The program knows stocks from minus this to this; at the ends it neither buys nor sells more."""
ROUNDS = 12
"""How often bid and ask are improved in turn; each depends a little on the other."""


class Market(NamedTuple):
    """rate: A / steps; k: decay with distance; risk: cost of stock² per step; low, high: bounds of quotes."""

    steps: int
    rate: float
    k: float
    risk: float
    low: float
    high: float


class Plan(NamedTuple):
    """quotes: [T, 2 MOST_STOCK + 1, 2] distances of bid and ask; value: the mean return from an empty stock."""

    quotes: np.ndarray
    value: float


def chance(market: Market, quote: np.ndarray) -> np.ndarray:
    """How likely the best quote at this distance is hit in one step."""
    return np.minimum(1.0, market.rate * np.exp(-market.k * quote))


def solve(market: Market) -> Plan:
    """Quotes that maximise the mean return: V_t(q) = max over bid and ask of the mean of what is earned at the spread
    minus risk q'² plus V_t+1(q'), where q' is the stock after the fills."""
    stock = np.arange(-MOST_STOCK, MOST_STOCK + 1)
    value, quotes = np.zeros(len(stock)), np.zeros((market.steps, len(stock), 2))
    # A quote below this is hit for certain, so that going lower only costs.
    sure = np.log(max(market.rate, 1e-12)) / market.k
    lowest = min(max(market.low, sure), market.high)
    for t in reversed(range(market.steps)):
        then = value - market.risk * stock**2
        up, down = np.append(then[1:], -np.inf) - then, np.insert(then[:-1], 0, -np.inf) - then
        bid = ask = np.full(len(stock), 1 / market.k)
        for _ in range(ROUNDS):
            bid = _quote(market, lowest, up, down, chance(market, ask))
            ask = _quote(market, lowest, down, up, chance(market, bid))
        quotes[t] = np.stack([bid, ask], -1)
        value = then + _gain(market, bid, ask, up, down)
    return Plan(quotes, float(value[MOST_STOCK]))


def _quote(market: Market, lowest: float, mine: np.ndarray, other: np.ndarray, hit: np.ndarray) -> np.ndarray:
    """The best quote of one side: 1 / k minus what a fill is worth. mine, other: how a fill of this side or of the
    other one changes the value; hit: how likely the other one is."""
    worth = np.where(np.isinf(mine), -np.inf, _finite(mine) * (1 - hit) - _finite(other) * hit)
    return np.clip(1 / market.k - worth, lowest, market.high)


def _gain(market: Market, bid: np.ndarray, ask: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    """[Q] the mean gain of one step over standing aside."""
    buys = np.where(np.isinf(up), 0.0, chance(market, bid))
    sells = np.where(np.isinf(down), 0.0, chance(market, ask))
    alone = buys * (1 - sells) * _finite(up) + sells * (1 - buys) * _finite(down)
    return buys * bid + sells * ask + alone


def _finite(x: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(x), 0.0, x)
