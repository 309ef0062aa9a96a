"""Who plays together in environments that do not say it."""

import warnings

import numpy as np
import pytest

from flockrl.core.errors import Notice, UsageError
from flockrl.envs import make
from flockrl.envs.adapters.sides import infer_sides, opponents, read_sides

HUNT = ("adversary_0", "adversary_1", "lead_0", "agent_0")


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("together", ("team",) * 4),
        ("stems", ("adversary", "adversary", "lead", "agent")),
        ("adversary+lead/agent", ("adversary", "adversary", "adversary", "agent")),
        ("adversary_0/adversary_1+lead_0+agent", ("adversary_0", "adversary_1", "adversary_1", "adversary_1")),
    ],
)
def test_what_the_user_says(text, sides):
    assert read_sides("x", text, HUNT) == sides


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("adversary+lead", "sides leaves out agent_0"),
        ("adversary+lead/agent/adversary_0", "sides puts adversary_0 on two sides"),
        ("adversery+lead/agent", "'adversery', which is no agent. Did you mean 'adversary"),
    ],
)
def test_wrong_sides_are_one_sentence(text, words):
    with pytest.raises(UsageError, match=words):
        read_sides("x", text, HUNT)


def test_stems_that_are_paid_alike_share_a_side():
    hunt = np.random.default_rng(0).normal(size=60)
    reward = np.stack([hunt, hunt, hunt + 1, -hunt], 1)
    assert infer_sides("x", HUNT, reward) == "adversary+lead/agent"
    assert infer_sides("x", HUNT, np.stack([hunt] * 4, 1)) == "together"
    assert infer_sides("x", HUNT, np.zeros((60, 4))) == "adversary/lead/agent"  # rewards tell nothing
    assert infer_sides("x", HUNT, np.zeros((0, 4))) == "adversary/lead/agent"


def test_mates_that_oppose_each_other_are_reported():
    gain = np.random.default_rng(0).normal(size=60)
    reward = np.stack([gain, -gain], 1)
    assert opponents(("player_1", "player_2"), ("player_1", "player_2"), reward) == [("player_1", "player_2")]
    with pytest.warns(Notice, match="what player_1 gains player_2 loses.*x:sides=player_1/player_2"):
        assert infer_sides("x", ("player_1", "player_2"), reward) == "together"


@pytest.mark.parametrize(
    ("module", "sides"),
    [
        ("simple_tag_v3", ("adversary",) * 3 + ("agent",)),
        ("simple_speaker_listener_v4", ("team",) * 2),
        ("simple_world_comm_v3", ("adversary",) * 4 + ("agent",) * 2),
    ],
)
def test_the_sides_of_mpe2(module, sides):
    pytest.importorskip("mpe2")
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        host = make(f"pettingzoo/mpe2.{module}")
    assert host.spec.sides == sides
    assert host.build(False).spec.sides == sides  # those of worker processes too


def test_a_dead_agent_may_earn_what_its_side_earns():
    from flockrl.envs.adapters.options import Options

    alive, sides = np.array([True, False, True]), ("us", "us", "them")
    reward = np.array([3.0, 0.0, -1.0], np.float32)
    assert Options().reward(reward, alive, sides).tolist() == [3.0, 0.0, -1.0]
    assert Options(reward_after_death=True).reward(reward, alive, sides).tolist() == [3.0, 3.0, -1.0]
