"""Team metrics against numbers worked out by hand."""

import json
import math

import pytest

from flockrl.evaluation import metrics as m


def test_welfare_in_its_forms():
    u = [1.0, 2.0, 4.0]
    assert m.welfare(u) == 7
    assert m.egalitarian_welfare(u) == 1
    assert m.nash_welfare(u) == 8
    assert m.proportional_fairness(u) == pytest.approx(math.log(8))
    assert m.nash_welfare([1.0, -2.0, -4.0]) is None  # the product is positive and means nothing
    assert m.nash_welfare([0.0, 3.0]) is None
    assert m.proportional_fairness([-1.0, 3.0]) is None
    assert m.nash_welfare([1e200, 1e200]) is None


def test_jain_index():
    assert m.jain_index([1, 2, 4]) == pytest.approx(49 / 63)
    assert m.jain_index([5, 5, 5, 5]) == pytest.approx(1)
    assert m.jain_index([0, 0, 9]) == pytest.approx(1 / 3)
    assert m.jain_index([-1, -2, -4]) == pytest.approx(49 / 63)
    assert m.jain_index([0, 0]) == 1
    assert m.jain_index([-1, 2]) is None


def test_gini_index():
    # |1-2| + |1-4| + |2-4| = 6, each pair twice: 12 / (2 * 3 * 7)
    assert m.gini_index([1, 2, 4]) == pytest.approx(12 / 42)
    assert m.gini_index([3, 3]) == 0
    assert m.gini_index([0, 0, 0, 8]) == pytest.approx(3 / 4)
    assert m.gini_index([-1, -2, -4]) == pytest.approx(12 / 42)
    assert m.gini_index([0, 0]) == 0
    assert m.gini_index([-1, 1]) is None


def test_envy():
    assert m.envy([1, 2, 4]) == 3
    assert m.envy([1, 2, 4], kinds=(0, 0, 1)) == 1
    assert m.envy([7, 7]) == 0
    assert m.envy_free([7, 7])
    assert not m.envy_free([7, 8])
    assert m.envy_free([7, 8], kinds=(0, 1))
    # Each values its own outcome most: unequal and still free of envy.
    assert m.envy_free([[5, 1], [3, 4]])
    assert m.envy([[5, 6], [3, 4]]) == 1


def test_efficiency_against_a_stated_maximum():
    assert m.efficiency([6, 3], best=[10, 5]) == pytest.approx(9 / 15)
    assert m.efficiency([175, 175], best=275) == pytest.approx(175 / 275)
    assert m.efficiency([1, 1], best=0) is None
    assert m.efficiency([-4, -4], best=-2) is None


def test_convergence_is_the_step_from_which_the_level_holds():
    steps = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    # Start -20, final level -10: 95% of the way is -10.5. It is reached at 30, lost at 40, held from 50 on.
    scores = [-20, -15, -12, -10.2, -11, -10.4, -10, -10, -10, -10]
    assert m.converged_at(steps, scores) == 50
    assert m.converged_at(steps, [-3] * 10) is None
    assert m.converged_at(steps, list(range(0, -10, -1))) is None
    assert m.converged_at([0, 1], [0, 1]) == 1


def test_stability_is_the_spread_of_the_end():
    assert m.stability([0, 0, 0, 0, 0, 0, 0, 0, 1, 3]) == 1
    assert m.stability([5, 5]) == 0


def test_policy_change():
    # 0.5 log(0.5/0.25) + 0.5 log(0.5/0.75)
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert m.categorical_kl([0.5, 0.5], [0.25, 0.75]) == pytest.approx(expected)
    assert m.categorical_kl([[0.5, 0.5], [1, 0]], [[0.25, 0.75], [1, 0]]) == pytest.approx(expected / 2)
    assert m.categorical_kl([0.5, 0.5], [1, 0]) == math.inf
    # Equal spread: (difference)^2 / (2 sigma^2), summed over the two dimensions
    assert m.gaussian_kl([0, 0], [2, 2], [2, 4], [2, 2]) == pytest.approx(4 / 8 + 16 / 8)
    assert m.gaussian_kl([0], [1], [0], [2]) == pytest.approx(math.log(2) + 1 / 8 - 0.5)


def test_undefined_metrics_are_left_out():
    mixed = m.team_metrics([-1.0, 2.0])
    assert mixed == {"eval_welfare": 1.0, "eval_welfare_min": -1.0, "eval_envy": 3.0}
    assert m.team_metrics([3.0]) == {}
    assert m.team_metrics([3.0], best=4.0) == {"eval_efficiency": 0.75}
    assert set(m.team_metrics([1.0, 2.0], best=2.0)) == {
        "eval_efficiency", "eval_welfare", "eval_welfare_min", "eval_welfare_nash", "eval_proportional_fairness",
        "eval_jain", "eval_gini", "eval_envy",
    }  # fmt: skip


def test_evaluations_log_them(tiny_run):
    rows = [json.loads(line) for line in (tiny_run.path / "metrics.jsonl").read_text().splitlines()]
    tests = [row for row in rows if "eval_return" in row]
    assert tests
    for row in tests:
        each = row["eval_return_per_agent"]
        assert row["eval_welfare"] == pytest.approx(sum(each))
        assert row["eval_welfare_min"] == min(each)
        assert row["eval_jain"] == m.jain_index(each)
        assert "eval_welfare_nash" not in row  # its returns are negative
    assert all("eval_welfare" not in row for row in rows if "eval_return" not in row)
