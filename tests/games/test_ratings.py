"""Elo, alpha-rank and Nash averaging against known answers."""

import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.games.ratings import alpha_rank, elo, nash_average

RPS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], float)


def test_alpha_rank_of_han_2013():
    r, t, p, s, delta, eps = 1.0, 2.0, 0.0, -1.0, 4.0, 0.25
    table = [
        [r - eps / 2, r - eps, 0, s + delta - eps, r - eps], [r, r, s, s, s], [0, t, p, p, p], [t - delta, t, p, p, p],
        [r, t, p, p, p],
    ]  # fmt: skip
    known = [0.40966787, 0.07959841, 0.20506998, 0.08505983, 0.2206039]
    assert alpha_rank(table, alpha=0.1, m=20) == pytest.approx(known, abs=1e-8)


def test_alpha_rank_of_games():
    assert alpha_rank(RPS) == pytest.approx([1 / 3] * 3)
    assert alpha_rank(np.stack([RPS, -RPS], -1)) == pytest.approx(np.full((3, 3), 1 / 9))
    dilemma = np.array([[[3, 3], [0, 5]], [[5, 0], [1, 1]]], float)
    assert alpha_rank(dilemma)[1, 1] == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(UsageError, match="finite payoffs"):
        alpha_rank([[0.0, np.nan], [0, 0]])
    with pytest.raises(UsageError, match="up to 1,000 joint strategies"):
        alpha_rank(np.zeros((100, 100, 2)))


def test_alpha_rank_is_that_of_open_spiel():
    theirs = pytest.importorskip("open_spiel.python.egt.alpharank")
    table = np.random.default_rng(0).normal(size=(3, 4, 2))
    expected = theirs.compute([table[..., 0], table[..., 1]], m=50, alpha=0.2)[2].reshape(3, 4)
    assert alpha_rank(table, alpha=0.2, m=50) == pytest.approx(expected, abs=1e-6)


def test_nash_averaging():
    assert nash_average(RPS)[0] == pytest.approx([1 / 3] * 3, abs=1e-6)
    copies = RPS[np.ix_([0, 1, 2, 2], [0, 1, 2, 2])]
    weights, scores = nash_average(copies)
    assert weights == pytest.approx([1 / 3, 1 / 3, 1 / 6, 1 / 6], abs=1e-5), "a copy changes nothing for the others"
    assert scores == pytest.approx([0] * 4, abs=1e-6)
    weights, scores = nash_average(np.array([[0, 2.0], [-2.0, 0]]))
    assert weights == pytest.approx([1, 0], abs=1e-6)
    assert scores == pytest.approx([0, -2], abs=1e-6)
    with pytest.raises(UsageError, match="what one wins the other loses"):
        nash_average(np.ones((2, 2)))


def test_elo():
    games = np.array([[0, 10_000], [10_000, 0]])
    rated = elo(np.array([[0, 7597], [2403, 0]]), games)
    assert rated.ratings[0] - rated.ratings[1] == pytest.approx(200, abs=1)
    assert rated.low[0] < rated.ratings[0] < rated.high[0]
    assert rated.ratings.sum() == pytest.approx(0, abs=1e-9)
    few = elo(np.array([[0, 76], [24, 0]]), games / 100)
    assert few.high[0] - few.low[0] > 5 * (rated.high[0] - rated.low[0])
    unbeaten = elo(np.array([[0, 10, 10], [0, 0, 5], [0, 5, 0]]), np.array([[0, 10, 10], [10, 0, 10], [10, 10, 0]]))
    assert np.isfinite(unbeaten.ratings).all()
    assert unbeaten.ratings.argmax() == 0
    cycle = elo(50 + 50 * RPS - 50 * np.eye(3), 100 * (1 - np.eye(3)))
    assert cycle.ratings == pytest.approx([0, 0, 0], abs=1e-6), "Elo does not see a cycle"
    with pytest.raises(UsageError, match="add up to the games"):
        elo(np.ones((2, 2)), np.ones((2, 2)))
