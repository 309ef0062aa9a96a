"""Normal-form games: equilibria with their regret, correlated equilibria, dominance, stability, dynamics, strangers."""

from pathlib import Path

import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.envs import make
from flockrl.games import analysis, dynamics
from flockrl.games.correlated import correlated, regret
from flockrl.games.linear import maximin, zero_sum, zero_sum_many
from flockrl.games.nash import equilibria, is_equilibrium, lemke_howson, logit_path, support_enumeration
from flockrl.games.normal import NormalForm, from_matrix_game, pure


def game(name):
    return from_matrix_game(make(f"games/{name}"))


def strategies(profile):
    return [np.round(s, 9).tolist() for s in profile.strategies]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("matching_pennies", [([0.5, 0.5], [0.5, 0.5], 0.0)]),
        ("rock_paper_scissors", [([1 / 3] * 3, [1 / 3] * 3, 0.0)]),
        ("shapley", [([1 / 3] * 3, [1 / 3] * 3, 1 / 3)]),
        ("prisoners_dilemma", [([0, 1], [0, 1], 1.0)]),
        ("battle_of_the_sexes", [([1, 0], [1, 0], 3), ([0, 1], [0, 1], 2), ([0.6, 0.4], [0.4, 0.6], 1.2)]),
        ("chicken", [([1, 0], [0, 1], 2), ([0, 1], [1, 0], 7), ([2 / 3, 1 / 3], [2 / 3, 1 / 3], 14 / 3)]),
    ],
)
def test_known_equilibria(name, known):
    found = equilibria(game(name))
    assert all(profile.regret < 1e-12 for profile in found)
    values = [(*strategies(profile), profile.gap.values[0]) for profile in found]
    assert len(values) == len(known)
    for first, second, value in known:
        assert any(
            np.allclose(first, a, atol=1e-8) and np.allclose(second, b, atol=1e-8) and abs(value - v) < 1e-9
            for a, b, v in values
        )


def check_against_nashpy(count, seed):
    nashpy = pytest.importorskip("nashpy")
    generator = np.random.default_rng(seed)
    for _ in range(count):
        rows, columns = generator.integers(2, 5, 2)
        one = NormalForm(generator.normal(size=(rows, columns, 2)))
        found = equilibria(one)
        assert found
        assert len(found) % 2 == 1, "a game that is not degenerate has an odd number of them"
        assert max(profile.regret for profile in found) < 1e-9
        theirs = list(nashpy.Game(one.payoff[..., 0], one.payoff[..., 1]).vertex_enumeration())
        assert len(theirs) == len(found)
        for profile in found:
            flat = np.concatenate(profile.strategies)
            assert min(np.abs(np.concatenate(pair) - flat).max() for pair in theirs) < 1e-7
        for profile in lemke_howson(one, labels=int(rows + columns)):
            flat = np.concatenate(profile.strategies)
            assert min(np.abs(np.concatenate(other.strategies) - flat).max() for other in found) < 1e-7


def test_random_bimatrix_games_against_nashpy():
    check_against_nashpy(60, seed=0)


@pytest.mark.slow
def test_a_thousand_bimatrix_games_against_nashpy():
    check_against_nashpy(1000, seed=1)


def test_lemke_howson_alone_solves_larger_games():
    generator = np.random.default_rng(0)
    for shape in ((12, 12), (20, 15), (5, 30)):
        one = NormalForm(generator.normal(size=(*shape, 2)))
        found = lemke_howson(one, labels=5)
        assert found
        assert max(profile.regret for profile in found) < 1e-9
    degenerate = NormalForm(np.zeros((4, 4, 2)))
    assert lemke_howson(degenerate)[0].regret == 0
    assert support_enumeration(degenerate), "pure ones at least"


def test_linear_programmes_are_dual():
    generator = np.random.default_rng(0)
    for shape in ((3, 3), (4, 7), (9, 2)):
        payoff = generator.normal(size=shape)
        low, high = maximin(payoff)[0], -maximin(-payoff.T)[0]
        assert low == pytest.approx(high, abs=1e-9)
        value, x, y = zero_sum(payoff)
        assert (x @ payoff).min() == pytest.approx(value, abs=1e-9)
        assert (payoff @ y).max() == pytest.approx(value, abs=1e-9)


def test_many_matrices_at_once_are_each_of_them():
    generator = np.random.default_rng(0)
    payoffs = generator.normal(size=(120, 4, 5))
    payoffs[:40] = generator.integers(-1, 2, (40, 4, 5))  # with ties
    payoffs[40:45] = 3.0
    values, first, second = zero_sum_many(payoffs)
    assert np.einsum("ka,kab->kb", first, payoffs).min(1) == pytest.approx(values, abs=1e-9)
    assert np.einsum("kab,kb->ka", payoffs, second).max(1) == pytest.approx(values, abs=1e-9)


def test_more_than_two_players():
    generator = np.random.default_rng(0)
    for shape in ((2, 2, 2), (3, 2, 4), (2, 2, 2, 2)):
        one = NormalForm(generator.normal(size=(*shape, len(shape))))
        profile = logit_path(one)
        assert profile.regret < 1e-9
        assert is_equilibrium(one, profile)


def test_a_path_that_ends_early_is_not_called_an_equilibrium():
    one = NormalForm(np.random.default_rng(0).normal(size=(3, 3, 3, 3)))
    profile = logit_path(one, rounds=10)
    assert profile.regret > 1e-3
    assert not is_equilibrium(one, profile)


@pytest.mark.parametrize("objective", ["welfare", "fairest"])
@pytest.mark.parametrize("coarse", [False, True])
def test_correlated_equilibrium_of_chicken(objective, coarse):
    found = correlated(game("chicken"), objective, coarse)
    assert found.values == pytest.approx([5.25, 5.25], abs=1e-9)
    assert found.joint == pytest.approx(np.array([[0.5, 0.25], [0.25, 0.0]]), abs=1e-9)
    assert found.regret < 1e-9
    traffic_light = np.array([[1, 1], [1, 0]]) / 3
    assert regret(game("chicken"), traffic_light) == 0
    assert (traffic_light.reshape(-1) @ game("chicken").payoff.reshape(4, 2)).tolist() == pytest.approx([5, 5])


def test_objectives_and_coarseness_differ_where_they_must():
    battle = NormalForm(np.array([[[5.0, 1.0], [0, 0]], [[0, 0], [2.0, 2.0]]]))
    assert correlated(battle, "welfare").values.tolist() == pytest.approx([5, 1])
    assert correlated(battle, "fairest").values.tolist() == pytest.approx([2, 2])
    generator = np.random.default_rng(3)
    for _ in range(5):
        one = NormalForm(generator.normal(size=(3, 3, 2)))
        fine, coarse = (correlated(one, coarse=c) for c in (False, True))
        assert max(fine.regret, coarse.regret) < 1e-8
        assert coarse.values.sum() >= fine.values.sum() - 1e-9
        assert fine.values.sum() >= max(p.gap.values.sum() for p in equilibria(one)) - 1e-9
    assert regret(game("chicken"), np.array([[1.0, 0], [0, 0]])) == 1.0, "going straight against who swerves"


def test_dominance():
    removed, kept = analysis.dominated(game("prisoners_dilemma"))
    assert [(r.player, r.action, r.round) for r in removed] == [(0, 0, 1), (1, 0, 1)]
    assert [k.tolist() for k in kept] == [[1], [1]]
    mixed = np.array([[4, 0], [0, 4], [1, 1]], float)  # the last row is beaten by a mixture alone
    removed, kept = analysis.dominated(NormalForm(np.stack([mixed, np.zeros((3, 2))], -1)))
    assert [(r.player, r.action) for r in removed] == [(0, 2)]
    assert not analysis.dominated(game("rock_paper_scissors"))[0]


def test_front_security_and_optimum():
    chicken = game("chicken")
    assert analysis.pareto_front(chicken) == [(0, 0), (0, 1), (1, 0)]
    assert [s.value for s in analysis.security(chicken)] == pytest.approx([2, 2])
    assert analysis.social_optimum(chicken) == (0, 0)
    assert analysis.security(game("matching_pennies"))[0].value == pytest.approx(0)


def test_evolutionary_stability():
    hawk_dove = game("chicken")
    assert analysis.evolutionarily_stable(hawk_dove, np.array([2 / 3, 1 / 3]))
    assert not analysis.evolutionarily_stable(hawk_dove, np.array([1.0, 0.0]))
    assert not analysis.evolutionarily_stable(game("rock_paper_scissors"), np.full(3, 1 / 3)), "it is only neutral"
    good = np.array([[0, -1, 2], [2, 0, -1], [-1, 2, 0]], float)  # winning pays more than losing costs
    assert analysis.evolutionarily_stable(NormalForm(np.stack([good, good.T], -1)), np.full(3, 1 / 3))
    assert analysis.evolutionarily_stable(game("prisoners_dilemma"), np.array([0.0, 1.0]))
    weak = np.array([[1.0, 1.0], [1.0, 2.0]])  # action 1 does as well against 0, and better against itself
    assert not analysis.evolutionarily_stable(NormalForm(np.stack([weak, weak.T], -1)), np.array([1.0, 0.0]))
    with pytest.raises(UsageError, match="symmetric games"):
        analysis.evolutionarily_stable(game("battle_of_the_sexes"), np.array([1.0, 0.0]))


def test_fictitious_play_cycles_on_shapleys_game_and_not_on_pennies():
    cycling = dynamics.run(game("shapley"), "fictitious", 5000)
    assert cycling.last_gap.nash_conv > 0.2
    gaps = [game("shapley").gap([path[t] for path in cycling.strategies]).nash_conv for t in range(500, 5000, 50)]
    assert min(gaps) > 0.1
    assert dynamics.run(game("matching_pennies"), "fictitious", 5000).last_gap.nash_conv < 0.05


@pytest.mark.parametrize("rule", ["regret_matching", "regret_matching_plus", "multiplicative_weights", "replicator"])
def test_averages_of_learning_approach_the_equilibrium_of_a_zero_sum_game(rule):
    one = game("rock_paper_scissors")
    start = [np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.5, 0.3])]
    found = dynamics.run(one, rule, 3000, start)
    assert found.average_gap.nash_conv < 0.1
    assert found.strategies[0].shape == (3001, 3)
    assert found.strategies[0][0].tolist() == start[0].tolist()
    assert np.allclose([path.sum(1) for path in found.strategies], 1.0)


def test_best_response_and_replicator_settle_where_one_action_dominates():
    dilemma = game("prisoners_dilemma")
    assert dynamics.run(dilemma, "best_response", 5).last_gap.nash_conv == 0
    assert dynamics.run(dilemma, "replicator", 2000).last_gap.nash_conv < 1e-6
    with pytest.raises(UsageError, match=r"no learning dynamics 'replicate'\. Did you mean 'replicator'"):
        dynamics.run(dilemma, "replicate")
    with pytest.raises(UsageError, match="steps must be from 1"):
        dynamics.run(dilemma, "replicator", 10**9)


def test_strangers_in_the_lever_game():
    lever = game("lever")
    assert analysis.symmetry_classes(lever).tolist() == [0] * 9 + [9]
    together = pure(lever.counts, (4, 4))
    assert lever.values(together).tolist() == [1, 1]
    assert analysis.among_strangers(lever, together).tolist() == pytest.approx([1 / 9, 1 / 9], abs=1e-12)
    choice, paid = analysis.other_play(lever)
    assert choice == (9, 9)
    assert paid.tolist() == [0.9, 0.9]


def test_payoffs_are_checked():
    with pytest.raises(UsageError, match=r"shape \[A1, ..., An, N\], not \[2, 3, 3\]"):
        NormalForm(np.zeros((2, 3, 3)))
    with pytest.raises(UsageError, match=r"the one at \[0, 1, 0\] is not"):
        NormalForm(np.array([[[0, 0], [np.nan, 0]]]))
    with pytest.raises(UsageError, match="more than 1,000,000 joint actions"):
        NormalForm(np.zeros((1001, 1001, 2)))
    with pytest.raises(UsageError, match="correlated equilibria are computed up to"):
        correlated(NormalForm(np.zeros((200, 200, 2))))


def test_names_of_the_package_are_not_its_modules():
    from flockrl import games

    for name in games.__all__:
        assert callable(getattr(games, name)), name
    assert callable(games.solve_psro), "also after its module was imported"
    assert not {name for name in games.__all__ if (Path(games.__file__).parent / f"{name}.py").exists()}
