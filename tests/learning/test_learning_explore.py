"""Rewards that chance does not find are found with a bonus, and not without."""

import pytest

import flockrl

COUNT = {"bonus": "count", "bonus_on": "state"}
COARSE = COUNT | {"bonus_cell": 0.2, "bonus_schedule": "linear"}
RUN = {
    "hidden": (64, 64), "normalize_reward": False, "envs": 32, "n_step": 5, "lr": 1e-3, "explore_part": 0.05,
    "steps_per_update": 25, "eval_every": 10**7, "checkpoint_every": 10**7, "quiet": True,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "success"), [(0.1, 1), (0.0, 0)])
def test_a_door_that_one_holds_open_for_the_other_is_passed_for_a_bonus_alone(tmp_path, scale, success):
    settings = {**RUN, **COARSE, "bonus_scale": scale}
    run = flockrl.train("vdn", "explore/pass", steps=1_000_000, out=tmp_path / "run", **settings)
    assert run.evaluate(20).mean == success


@pytest.mark.slow
def test_a_deviation_that_two_must_make_at_once_is_tried_for_a_bonus_on_what_is_done(tmp_path):
    """With this seed QMIX alone stays at 10."""
    bonus = COUNT | {"bonus_actions": True, "bonus_scale": 1.0, "bonus_schedule": "linear"}
    own = {"gamma": 0.95, "steps": 24_000, "steps_per_update": 10, "eval_every": 24_000, "quiet": True}
    run = flockrl.train("qmix", "explore/k_step", seed=0, out=tmp_path / "run", **own, **bonus)
    assert run.evaluate(4).mean == 13


@pytest.mark.slow
def test_policy_gradients_pass_a_small_door_for_a_bonus(tmp_path):
    """As the team acts in training, since greedy moves may go round in circles."""
    own = {"envs": 32, "rollout_steps": 32, "entropy": 0.003, "advantage_floor": 1.0, "bonus_scale": 0.1}
    run = flockrl.train(
        "mappo", "explore/pass:size=10,steps=100", steps=200_000, out=tmp_path / "run", quiet=True, **own, **COARSE
    )
    assert run.evaluate(50, explore=True).mean > 0.9
