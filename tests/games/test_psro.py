"""PSRO and fictitious play with exact best responses."""

import numpy as np
import pytest
from game_kit import tree

from flockrl.core.errors import UsageError
from flockrl.envs import make
from flockrl.games.normal import NormalForm, from_matrix_game
from flockrl.games.psro import mix, one_move, psro


def matrix(name):
    return from_matrix_game(make(f"games/{name}"))


def test_rock_paper_scissors_from_rock_closes_at_three_policies():
    sizes = []
    found = psro(
        one_move(matrix("rock_paper_scissors")), each=lambda k, gap: sizes.append((k, round(gap.nash_conv, 9)))
    )
    assert sizes == [(1, 2.0), (2, 2.0), (3, 0.0)]
    assert found.closed
    assert [pool[:, 1:].argmax(1).tolist() for pool in found.plans] == [[0, 1, 2]] * 2, (
        "rock, then paper, then scissors"
    )
    assert found.policies[0][1:] == pytest.approx([1 / 3] * 3)


def test_kuhn_is_below_a_fiftieth_at_70_policies():
    form, sizes = tree("kuhn").form, {}
    found = psro(form, 70, each=lambda k, gap: sizes.update({k: gap.nash_conv}))
    assert found.gap.nash_conv < 0.02
    assert max(map(len, found.plans)) <= 70
    assert form.gap(found.policies).nash_conv == pytest.approx(found.gap.nash_conv, abs=1e-9), "what it claims holds"
    assert sizes[1] > 1


def test_mixtures_are_those_of_the_meta_game():
    form = tree("kuhn").form
    found = psro(form, 6)
    mixed = [seat.policy(w @ p) for seat, w, p in zip(form.seats, found.weights, found.plans, strict=True)]
    assert np.allclose(np.concatenate(mixed), np.concatenate(found.policies))
    payoffs = np.array([[sum(form.worth[:, 0] * a[form.leaves[:, 0]] * b[form.leaves[:, 1]]) for b in found.plans[1]]
                        for a in found.plans[0]])  # fmt: skip
    value = found.weights[0] @ payoffs @ found.weights[1]
    assert (found.weights[0] @ payoffs).min() == pytest.approx(value, abs=1e-9)
    assert (payoffs @ found.weights[1]).max() == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(("meta", "rounds", "conv"), [("uniform", 327, 0.05), ("alpha-rank", 15, 2.0)])
def test_other_mixtures(meta, rounds, conv):
    form = tree("kuhn").form
    found = psro(form, rounds, meta)
    assert form.gap(found.policies).nash_conv == pytest.approx(found.gap.nash_conv, abs=1e-9)
    assert found.gap.nash_conv < conv


def test_fictitious_play_does_not_close_on_shapleys_game():
    found = psro(one_move(matrix("shapley")), 2000, "uniform")
    assert not found.closed
    assert found.gap.nash_conv > 0.2


def test_refusals():
    with pytest.raises(UsageError, match="one gains what the other loses: use uniform"):
        psro(one_move(matrix("chicken")))
    with pytest.raises(UsageError, match="iterations must be at least 1"):
        psro(tree("kuhn").form, 0)
    three = one_move(NormalForm(np.random.default_rng(0).normal(size=(2, 2, 2, 3))))
    with pytest.raises(UsageError, match="is for two players: use uniform"):
        psro(three, 5, "alpha-rank")
    assert len(psro(three, 5, "uniform").plans) == 3


def test_mixtures_of_measured_payoffs():
    """Rock, paper and scissors that met: the equilibrium, and nobody is left out."""
    first = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    payoffs = np.stack([first, -first], -1)
    for meta in ("nash", "uniform", "alpha-rank"):
        assert mix(payoffs, meta) == [pytest.approx(np.full(3, 1 / 3), abs=1e-6)] * 2
    assert mix(payoffs[:2, :1], "nash")[0] == pytest.approx([0, 1], abs=1e-9), "paper beats rock"
