"""Tabular Q-learning on probes and games whose answers are known."""

import jax
import numpy as np
import pytest

import flockrl
from flockrl.algos.tabular import Tabular
from flockrl.training.checkpoint import Checkpoints


def learn(tmp_path, env, **settings):
    quick = {"steps": 5_000, "eval_every": 10**6, "checkpoint_every": 10**6, "eval_episodes": 50}
    return flockrl.train("iql_tabular", env, out=tmp_path / "run", **{**quick, **settings})


def values(run, observations):
    """The first agent's values of observations [K, O]: [K, A]."""
    checkpoints = Checkpoints(run.path / "checkpoints")
    state = checkpoints.restore(run.program.shape(), checkpoints.steps()[-1])[0].learner
    checkpoints.close()
    learner = Tabular(run.env.spec, run.config.config, 1, 1)
    spread = np.repeat(np.asarray(observations, np.float32)[:, None], run.env.spec.num_agents, axis=1)
    return np.asarray(state.values[0, learner.rows(jax.numpy.asarray(spread))[:, 0]])


def score(run):
    return run.result["final_eval_return"]


def test_actions_follow_the_observation(tmp_path):
    run = learn(tmp_path, "probe/observation_action")
    assert score(run) == run.env.best
    np.testing.assert_allclose(values(run, [[-1], [1]]), [[1, -1], [-1, 1]], atol=1e-4)


def test_unlike_agents_each_learn_their_own(tmp_path):
    assert score(learn(tmp_path, "probe/unlike", share="all")) == 1


def test_masks_are_obeyed(tmp_path):
    run = learn(tmp_path, "probe/masks", steps=500)
    assert score(run) == run.env.best


def test_values_behind_a_termination_are_exact(tmp_path):
    """With k steps left, (1 - gamma^k) / (1 - gamma), whatever is done."""
    run = learn(tmp_path, "probe/termination", gamma=0.9)
    want = [(1 - 0.9**k) / 0.1 for k in (5, 4, 3, 2, 1)]
    np.testing.assert_allclose(values(run, np.eye(5)), np.stack([want, want], 1), rtol=1e-3)


def test_values_behind_a_truncation_are_exact(tmp_path):
    """1 / (1 - gamma), as if it went on for ever: nothing is lost where an episode is cut."""
    run = learn(tmp_path, "probe/truncation", gamma=0.9)
    np.testing.assert_allclose(values(run, [[1]]), [[10, 10]], rtol=1e-3)


def test_the_dead_teach_nothing(tmp_path):
    run = learn(tmp_path, "probe/death", gamma=0.9, share="all")
    left = values(run, np.eye(3))
    want = [(1 - 0.9**k) / 0.1 for k in (1, 2, 3)]
    np.testing.assert_allclose(left, np.stack([want, want], 1), rtol=1e-3)


def test_penalty_without_penalty_is_solved(tmp_path):
    """Ten seeds of ten agree on one of the two best pairs."""
    assert score(learn(tmp_path, "games/penalty:k=0,rounds=1", steps=50_000)) == 10


def test_climbing_ends_in_an_equilibrium(tmp_path):
    """The pairs that pay 11 and 7 are the only ones that nobody leaves alone; learners find the second."""
    assert score(learn(tmp_path, "games/climbing", steps=200_000)) >= 7 * 25


def test_prisoners_defect(tmp_path):
    """Played once, defection is dominant."""
    assert score(learn(tmp_path, "games/prisoners_dilemma:rounds=1", steps=20_000)) == 1


def test_the_two_step_game_is_won(tmp_path):
    """The pair that pays 8 lies behind a step that pays nothing."""
    assert score(learn(tmp_path, "games/two_step", steps=50_000)) == pytest.approx(8)
