"""REINFORCE solves the probes that it can solve, with and without a baseline."""

from dataclasses import replace

import pytest

import flockrl
from flockrl.envs import make

QUICK = {
    "steps": 25_600, "envs": 32, "rollout_steps": 8, "hidden": (32,), "lr": 1e-2, "gamma": 0.9, "entropy": 0.003,
    "memory_size": 16, "eval_every": 25_600, "eval_episodes": 200,
}  # fmt: skip


def learn(tmp_path, algorithm, env, **settings):
    return flockrl.train(algorithm, env, out=tmp_path / "run", **{**QUICK, **settings})


def score(run):
    return run.result["final_eval_return"]


@pytest.mark.parametrize("baseline", ["none", "own"])
def test_actions_are_chosen_by_observation(tmp_path, baseline):
    run = learn(tmp_path, "reinforce", "probe/observation_action", baseline=baseline)
    assert score(run) == pytest.approx(run.env.best, abs=0.05)


def test_continuous_actions_move_to_the_target(tmp_path):
    """The policy starts at 0.5, the middle of the bounds, with a deviation of 1.5: it must move to 1.5 and shrink."""
    env = replace(make("probe/action:continuous=true"), reward=lambda m, a: 1.0 - (a[:, 0] - 1.5) ** 2)
    run = learn(tmp_path, "reinforce", env, entropy=0.0, lr=0.03)
    assert score(run) > 0.95
    assert float(run.params()["actor"][0]["log_std"][0]) < -1.2


@pytest.mark.slow
def test_memory_is_needed(tmp_path):
    remembering = learn(tmp_path / "a", "reinforce", "probe/memory", memory="gru", steps=51_200)
    assert score(remembering) > 0.95
    forgetful = learn(tmp_path / "b", "reinforce", "probe/memory")
    assert abs(score(forgetful)) < 0.3


def test_masks_are_obeyed(tmp_path):
    """Steps that the rollout cuts off are many here: episodes of 4 steps in rollouts of 7, without a baseline."""
    run = learn(tmp_path, "ipg", "probe/masks", baseline="none", rollout_steps=7, steps=5_000)
    assert score(run) == pytest.approx(run.env.best)


@pytest.mark.slow
def test_unlike_agents_each_learn_their_own(tmp_path):
    run = learn(tmp_path, "mareinforce", "probe/unlike")
    assert score(run) == pytest.approx(run.env.best, abs=0.05)
