"""Learned against classical: what the pages of the case studies tell, with fewer steps."""

import pytest

import flockrl
from flockrl.training.scripted import Scripted

ONCE = {"eval_every": 10**8, "checkpoint_every": 10**8, "quiet": True}


@pytest.mark.slow
def test_birds_learn_to_trust_a_blurred_sight_less(tmp_path):
    name = "swarm/flocking:n=20,noise=sight"
    run = flockrl.train(
        "mappo", name, out=tmp_path / "run", steps=40_000, agent_ids=False, entropy=0.0, gamma=0.95, log_std=-2.0,
        seed=7, **ONCE,
    )  # fmt: skip
    learned = run.evaluate(32).measures["order"].mean()
    rule = Scripted("vicsek", name).evaluate(32).measures["order"].mean()
    assert learned > 0.9 > rule


@pytest.mark.slow
def test_drones_learn_to_deliver_more_than_the_nearest_rule(tmp_path):
    run = flockrl.train(
        "mappo", "fleet/delivery", out=tmp_path / "run", steps=400_000, envs=32, entropy=0.0, lr=1e-3,
        normalize_obs=True, shaping="flockrl.envs.fleet.delivery:potential", seed=7, **ONCE,
    )  # fmt: skip
    assert run.evaluate(64).mean > Scripted("nearest", "fleet/delivery").evaluate(64).mean


@pytest.mark.slow
def test_makers_in_competition_quote_closer_than_one_alone(tmp_path):
    run = flockrl.train(
        "ippo", "market/making:makers=3", out=tmp_path / "run", steps=600_000, envs=32, entropy=0.0, log_std=-1.5,
        seed=7, **ONCE,
    )  # fmt: skip
    found = run.evaluate(200).measures
    assert found["spread"].mean() < 0.8
    assert found["profit"].mean() > 5
