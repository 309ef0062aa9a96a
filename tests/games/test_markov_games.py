"""Markov games: known values, brute force, certificates, files and refusals."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from game_kit import markov

from flockrl.core.errors import UsageError
from flockrl.envs import make
from flockrl.games.linear import zero_sum
from flockrl.games.markov import from_arrays, from_env, from_rules
from flockrl.games.stochastic import (
    METHODS,
    best_response_iteration,
    correlated_iteration,
    fictitious_iteration,
    minimax,
    nash_iteration,
    policy_iteration,
)  # fmt: skip


def draw_game(seed, states=3, actions=2, together=False, discount=0.8):
    generator = np.random.default_rng(seed)
    moves = generator.dirichlet(np.ones(states), (states, actions, actions))
    first = generator.normal(size=(states, actions, actions))
    second = generator.normal(size=first.shape) if together else -first
    return from_arrays(moves, np.stack([first, second], -1), discount)


@pytest.mark.parametrize("seed", range(3))
def test_shapley_against_plain_iteration(seed):
    game = draw_game(seed)
    value = np.zeros(3)
    for _ in range(120):
        value = np.array([zero_sum(m)[0] for m in game.stage(np.stack([value, -value], 1))[..., 0]])
    for solve in (minimax, policy_iteration):
        found = solve(game)
        assert found.settled
        assert found.values[:, 0] == pytest.approx(value, abs=1e-8)
        assert found.worst < 1e-8
        assert found.gap.nash_conv < 1e-8


@pytest.mark.parametrize("seed", range(3))
def test_best_responses_against_brute_force(seed):
    """All pure stationary policies of a player, one by one."""
    game = draw_game(seed, together=True)
    generator = np.random.default_rng(seed)
    policies = [generator.dirichlet(np.ones(2), 3) for _ in range(2)]
    for player in range(2):
        tried = []
        for choice in itertools.product(range(2), repeat=3):
            answer = [np.eye(2)[list(choice)] if i == player else p for i, p in enumerate(policies)]
            tried.append(game.evaluate(game.together(answer))[:, player])
        value, answer = game.best_response(player, policies)
        assert value == pytest.approx(np.max(tried, 0), abs=1e-10)
        against = [answer if i == player else p for i, p in enumerate(policies)]
        assert game.evaluate(game.together(against))[:, player] == pytest.approx(value, abs=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_what_settles_is_an_equilibrium_and_what_does_not_says_so(seed):
    game = draw_game(seed, together=True)
    for solve in (nash_iteration, correlated_iteration, best_response_iteration):
        found = solve(game)
        assert found.worst < 1e-6 if found.settled else found.worst > 1e-6


def test_fictitious_play_comes_closer_in_a_zero_sum_game():
    game = draw_game(0)
    early, late = fictitious_iteration(game, 5), fictitious_iteration(game, 200)
    assert late.gap.nash_conv < 0.05
    assert late.gap.nash_conv < early.gap.nash_conv
    assert not late.settled


def test_grid_games_of_hu_and_wellman():
    one, two = markov("grid_game_1"), markov("grid_game_2")
    for solve in (nash_iteration, correlated_iteration):
        assert solve(one).gap.values == pytest.approx([100 * 0.99**3] * 2, abs=1e-6)
        found = solve(two)
        assert sorted(found.gap.values) == pytest.approx([50 * 0.99**2, 100 * 0.99**2], abs=1e-6)
        assert found.worst < 1e-6


def test_soccer_is_fair_before_the_ball_is_drawn():
    game = markov("soccer")
    found = minimax(game)
    assert game.states == 760
    assert found.gap.values == pytest.approx([0, 0], abs=1e-9)
    assert found.worst < 1e-8
    with_ball = found.values[:, 0][game.start > 0]
    assert sorted(with_ball) == pytest.approx([-max(with_ball), max(with_ball)], abs=1e-9)
    assert max(with_ball) > 0.1


def test_tic_tac_toe_is_a_draw():
    game = markov("tic_tac_toe")
    found = policy_iteration(game)
    assert game.states == 4520
    assert found.gap.values.tolist() == [0, 0]
    assert found.worst < 1e-12


def test_compiled_environments_by_trying_everything():
    two_step = from_env(make("games/two_step"))
    assert two_step.states == 3
    assert nash_iteration(two_step).gap.values.tolist() == [8, 8]
    dilemma = from_env(make("games/prisoners_dilemma:rounds=3,history=true"))
    found = nash_iteration(dilemma)
    assert found.gap.values.tolist() == [3, 3]
    assert found.worst == 0
    with pytest.raises(UsageError, match="begins at random, and its draws are not listed"):
        from_env(make("probe/observation_action"))
    with pytest.raises(UsageError, match="not a choice among a few"):
        from_env(make("classic/pendulum"))


def test_enumerated_transitions_are_those_of_the_environment():
    env, game = make("games/soccer"), markov("soccer")
    place, seen = env.reset(jax.random.key(0))
    number = {row.astype(np.float32).tobytes(): i for i, row in enumerate(game.seen)}
    step = jax.jit(env.step)
    for t in range(30):
        s = number[np.asarray(seen.obs).tobytes()]
        action = jax.random.randint(jax.random.key(t), (2,), 0, 5)
        place, seen, reward, over, _ = step(jax.random.key(100 + t), place, action)
        joint = int(action[0] * 5 + action[1])
        after = [game.next[s, joint, c] for c in range(2) if game.odds[s, joint, c] > 0]
        if bool(over):
            assert game.states in after
            assert abs(float(reward[0])) == 1
            break
        assert number[np.asarray(seen.obs).tobytes()] in after
    assert jnp.isfinite(seen.obs).all()


def test_refusals():
    with pytest.raises(UsageError, match="has hidden information"):
        from_rules(make("games/kuhn").rules)
    with pytest.raises(UsageError, match="games/connect_four is too large to enumerate"):
        from_rules(make("games/connect_four").rules)
    with pytest.raises(UsageError, match="one gains what the other loses"):
        minimax(draw_game(0, together=True))
    moves, pays = np.full((2, 2, 2, 2), 0.5), np.zeros((2, 2, 2, 2))
    for changes, words in (
        ({"transitions": moves * 1.1}, "add up to at most 1"),
        ({"payoffs": pays[:1]}, r"not \[2, 2, 2, 2\] and \[1, 2, 2, 2\]"),
        ({"discount": 1.5}, "discount must be from 0 to 1, not 1.5"),
        ({"start": [1.0]}, "one probability for each of the 2 states"),
        ({"transitions": [["a"]]}, "must be tensors of numbers"),
        ({"payoffs": pays + np.inf}, "must be finite"),
    ):
        with pytest.raises(UsageError, match=words):
            from_arrays(**{"transitions": moves, "payoffs": pays, "discount": 0.9, **changes})
    endless = from_arrays(moves, np.ones((2, 2, 2, 2)), 1.0)
    with pytest.raises(UsageError, match="set a discount below 1"):
        nash_iteration(endless, rounds=3)
    assert set(METHODS) == {"minimax", "policy-iteration", "nash", "correlated", "best-response", "fictitious"}
