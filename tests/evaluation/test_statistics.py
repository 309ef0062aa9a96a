"""Statistics: equal to rliable's own, and to what can be worked out without it."""

import numpy as np
import pytest

from flockrl.evidence import statistics as s

rly = pytest.importorskip("rliable.library")
from rliable import metrics  # noqa: E402

EXAMPLE = np.arange(5 * 16, dtype=float).reshape(5, 16)
"""Five runs of sixteen tasks: the data on which rliable tests itself (the package ships no other)."""
REPS = 100


def theirs(scores, func, reps=REPS):
    np.random.seed(s.SEED)
    values, ends = rly.get_interval_estimates({"a": scores}, func, reps=reps)
    return values["a"], ends["a"]


@pytest.mark.parametrize(
    ("name", "func"),
    [("mean", metrics.aggregate_mean), ("median", metrics.aggregate_median), ("iqm", metrics.aggregate_iqm)],
)
def test_aggregates_equal_rliables(name, func):
    value, (low, high) = theirs(EXAMPLE, lambda x: np.array([func(x)]))
    assert tuple(s.aggregate(EXAMPLE, REPS)[name]) == (value[0], low[0], high[0])


def test_improvement_equals_rliables():
    pair = (EXAMPLE, np.flip(EXAMPLE, axis=0) + 3.5)
    value, (low, high) = theirs(pair, lambda x, y: np.array([metrics.probability_of_improvement(x, y)]), 30)
    assert tuple(s.improvement(*pair, 30)) == pytest.approx((value[0], low[0], high[0]))
    tied = (EXAMPLE[:, :2], EXAMPLE[:, :2])
    assert s.improvement(*tied, 30).value == metrics.probability_of_improvement(*tied) == 0.5


def test_profiles_equal_rliables():
    thresholds = np.linspace(0, 80, 9)
    np.random.seed(s.SEED)
    values, ends = rly.create_performance_profile({"a": EXAMPLE}, thresholds, reps=REPS)
    band = s.profile(EXAMPLE, thresholds, REPS)
    np.testing.assert_array_equal(band.value, values["a"])
    np.testing.assert_array_equal([band.low, band.high], ends["a"])
    # By hand: above 0 lie 79 of 80 scores, above 40 lie 39, above 80 none.
    np.testing.assert_allclose(band.value[[0, 4, 8]], [79 / 80, 39 / 80, 0])


def test_curves_equal_rliables_iqm_at_every_point():
    scores = np.stack([EXAMPLE, 2 * EXAMPLE, EXAMPLE - 7], axis=-1)
    value, ends = theirs(scores, lambda x: np.array([metrics.aggregate_iqm(x[..., k]) for k in range(3)]))
    band = s.curve(scores, REPS)
    np.testing.assert_allclose(band.value, value)
    np.testing.assert_allclose([band.low, band.high], ends)


def test_figures_by_hand():
    found = s.aggregate(EXAMPLE, REPS)
    assert found["mean"].value == found["median"].value == 39.5
    assert found["iqm"].value == np.arange(20, 60).mean()
    one = s.aggregate(np.array([[0.0], [1.0], [2.0], [9.0]]), REPS)
    assert (one["mean"].value, one["median"].value, one["iqm"].value) == (3, 1.5, 1.5)
    # Pairs of a run of ours with one of theirs: 3 > 2 wins, 1 < 2 loses, and a tie is worth half.
    assert s.improvement(np.array([[1.0], [3.0]]), np.array([[2.0], [2.0]]), REPS).value == 0.5
    assert s.improvement(np.array([[2.0], [3.0]]), np.array([[1.0], [2.0]]), REPS).value == (3 + 0.5) / 4


def test_the_interval_of_a_mean_is_as_wide_as_theory_says():
    scores = np.random.default_rng(0).normal(size=(40, 1))
    found = s.aggregate(scores, 600)["mean"]
    error = scores.std() / np.sqrt(40)
    assert found.value == pytest.approx(scores.mean())
    assert (found.high - found.low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.12)


def test_same_scores_same_intervals_and_no_trace_in_the_global_generator():
    np.random.seed(7)
    before = np.random.get_state()[1].copy()
    first = s.aggregate(EXAMPLE, REPS)
    assert first == s.aggregate(EXAMPLE, REPS)
    np.testing.assert_array_equal(before, np.random.get_state()[1])


def test_normalisation_and_the_warning():
    np.testing.assert_allclose(s.normalize(np.array([-30.0, -20.0, -10.0]), -30, -10), [0, 0.5, 1])
    np.testing.assert_array_equal(s.normalize(np.array([3.0, 4.0]), 3, 3), [0, 0])
    assert "only 1 seed." in s.caution(1)
    assert "only 3 seeds" in s.caution(3)
    assert s.caution(5) == ""


def test_the_interval_in_a_runs_curve_is_rliables_up_to_its_draws():
    from flockrl.view.plots import mean_interval

    scores = np.random.default_rng(1).normal(size=(10, 2)) * [5, 0]
    low, high = mean_interval(scores)
    found = s.aggregate(scores[:, :1], 600)["mean"]
    assert (low[0], high[0]) == pytest.approx((found.low, found.high), abs=0.12 * (found.high - found.low))
    assert (low[1], high[1]) == (0, 0)
