"""Players learn to load food together, which chance hardly does."""

import pytest

import flockrl

SMALL = "foraging/field:size=5,food=1,coop=true,max_steps=20"


@pytest.mark.slow
def test_a_pair_learns_to_load_what_nobody_can_alone(tmp_path):
    """By the episodes of training, which are sampled: greedy teams get stuck now and then. The most is 1 in sum."""
    settings = {"envs": 32, "rollout_steps": 20, "eval_every": 60_000, "quiet": True}
    run = flockrl.train("mappo", SMALL, steps=60_000, out=tmp_path / "run", **settings)
    paid = [2 * row["return"] for row in run.metrics() if "return" in row]
    assert paid[0] < 0.2
    assert sum(paid[-5:]) / 5 > 0.9
