"""The policies that come with the communication environments earn what IC3Net's own code and exact counting say."""

import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.training.scripted import Scripted

SCORES = [
    # policy, environment, episodes, figure, what it is, its own standard error
    ("always_gas", "traffic_junction", 2000, "success", 0.283, 0.007),
    ("always_gas", "traffic_junction", 2000, "throughput", 6.9, 0.05),
    ("always_gas", "traffic_junction", 2000, "team return", -23.1, 0.6),
    ("omniscient", "traffic_junction", 2000, "success", 0.997, 0.001),
    ("omniscient", "traffic_junction", 2000, "throughput", 6.8, 0.05),
    ("omniscient", "traffic_junction", 2000, "team return", -1.89, 0.05),
    ("random", "traffic_junction", 2000, "success", 0.006, 0.002),
    ("always_gas", "traffic_junction:difficulty=medium", 1000, "success", 0.038, 0.005),
    ("always_gas", "traffic_junction:difficulty=medium", 1000, "team return", -208, 3.5),
    ("omniscient", "traffic_junction:difficulty=medium", 1000, "throughput", 16.7, 0.1),
    ("omniscient", "traffic_junction:difficulty=medium", 1000, "team return", -18.5, 0.3),
    ("always_gas", "traffic_junction:difficulty=hard", 1000, "success", 0.070, 0.013),
    ("omniscient", "traffic_junction:difficulty=hard", 500, "throughput", 23.9, 0.3),
    ("omniscient", "traffic_junction:difficulty=hard", 500, "team return", -49.0, 1.0),
    ("full_information", "predator_prey", 4000, "steps", 4.66, 0.01),
    ("full_information", "predator_prey:size=10,compact=true", 4000, "steps", 10.40, 0.01),
    ("full_information", "predator_prey:size=20,compact=true", 2000, "steps", 23.07, 0.02),
    ("random", "levers", 4000, "return", 0.5904, 0.0),
    ("id_mod", "levers", 4000, "return", 0.5904, 0.0),
    ("leader_only", "signalling", 4000, "success", 0.5, 0.0),
    ("random", "signalling", 4000, "success", 0.125, 0.0),
]
EXACT = [
    ("omniscient", "traffic_junction:difficulty=medium", 1000, "success", 1.0),
    ("omniscient", "traffic_junction:difficulty=hard", 500, "success", 1.0),
    ("full_information", "predator_prey", 4000, "success", 1.0),
    ("stay", "predator_prey", 100, "success", 0.0),
    ("by_rank", "levers", 4000, "return", 1.0),
    ("told", "signalling", 4000, "return", 1.0),
]


@pytest.fixture(scope="module")
def played():
    """Each team plays once."""
    found = {}

    def play(policy, name, episodes, figure):
        if (policy, name) not in found:
            found[policy, name] = Scripted(policy, f"comm/{name}").evaluate(episodes)
        result = found[policy, name]
        returns = {"return": result.returns.mean(1), "team return": result.returns.sum(1)}
        return (returns | dict(result.measures))[figure]

    return play


@pytest.mark.parametrize(("policy", "name", "episodes", "figure", "value", "error"), SCORES)
def test_policies_earn_what_was_measured(played, policy, name, episodes, figure, value, error):
    """Within three standard errors, those of the figure itself included."""
    found = played(policy, name, episodes, figure)
    assert abs(found.mean() - value) < 3 * np.hypot(found.std() / np.sqrt(episodes), error)


@pytest.mark.parametrize(("policy", "name", "episodes", "figure", "value"), EXACT)
def test_policies_that_cannot_fail_or_win(played, policy, name, episodes, figure, value):
    assert (played(policy, name, episodes, figure) == value).all()


def test_a_policy_that_is_not_there_is_named():
    with pytest.raises(UsageError, match=r"no policy 'nonsense'\. Choose from: by_rank, id_mod, random"):
        Scripted("nonsense", "comm/levers")
    with pytest.raises(UsageError, match=r"games/climbing has no policy 'oracle'\. Choose from: random"):
        Scripted("oracle", "games/climbing")
    with pytest.raises(UsageError, match="at least 1"):
        Scripted("told", "comm/signalling").evaluate(0)


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ("random", "traffic_junction"), ("full_information", "predator_prey:size=10"), ("told", "signalling"),
        ("id_mod", "levers"), ("one_bit", "switch_riddle"), ("oracle", "switch_riddle:n=4,bit=false"),
    ],
)  # fmt: skip
def test_every_episode_can_be_drawn(policy, name):
    team = Scripted(policy, f"comm/{name}")
    episode = team.episode(seed=1)
    pictures = team.env.render(episode.states, 90)
    assert len(pictures) == len(episode.states) == len(episode.reward) + 1
    assert {picture.shape for picture in pictures} == {(90, 90, 3)}
    assert len({picture.tobytes() for picture in pictures}) > 1
