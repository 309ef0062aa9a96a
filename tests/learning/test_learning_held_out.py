"""Six families learn an environment on which no defaults were chosen: a speaker sees the goal, a listener moves.

A listener that never moves earns -33 (25 steps of a mean squared distance of 4/3), random play -39, and untrained
greedy teams less than -100.
"""

import pytest

import flockrl

ROLLOUTS = {"envs": 64, "rollout_steps": 25, "hidden": (64,)}
REPLAY = {
    "steps": 12_000, "envs": 16, "rollout_steps": 25, "hidden": (64,), "lr": 2e-3, "steps_per_update": 8,
    "batch_size": 128, "learning_starts": 1_200, "buffer_size": 12_000,
}  # fmt: skip
CASES = {
    "mappo": {**ROLLOUTS, "steps": 50_000, "lr": 2e-3},
    "mareinforce": {**ROLLOUTS, "steps": 80_000, "lr": 5e-3},
    "qmix": REPLAY,
    "maddpg": {**REPLAY, "critic_lr": 2e-3},
    "matd3": {**REPLAY, "critic_lr": 2e-3},
    "masac": {**REPLAY, "critic_lr": 2e-3},
}


@pytest.mark.parametrize("algorithm", CASES)
def test_a_listener_comes_nearer(tmp_path, algorithm):
    run = flockrl.train(
        algorithm, "mpe/simple_speaker_listener", out=tmp_path / "run", seed=1, eval_episodes=300, eval_every=10**6,
        quiet=True, log="none", **CASES[algorithm],
    )  # fmt: skip
    assert run.result["final_eval_return"] > -25
