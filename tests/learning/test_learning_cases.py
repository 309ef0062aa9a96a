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
