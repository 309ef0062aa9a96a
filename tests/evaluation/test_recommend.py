"""Advice: what is told about an environment is so, every algorithm is judged, and reasons follow from the facts."""

import pytest

from flockrl.algos.presets import PRESETS
from flockrl.commands.main import main
from flockrl.core.types import Box, Discrete, EnvSpec
from flockrl.envs.registry import make
from flockrl.evidence.recommend import FITS, NO, Facts, advise, describe, hints, look


def by_name(facts):
    found = {advice.name: advice for advice in advise(facts)}
    assert set(found) == set(PRESETS)
    assert all(advice.reason for advice in found.values())
    return found


def spec(n=3, actions=None, sides=(), steps=25):
    return EnvSpec("x/y", tuple(f"a_{i}" for i in range(n)), (Box((4,)),) * n, (actions or Discrete(3),) * n, steps,
                   sides=sides)  # fmt: skip


def test_a_team_game_with_a_common_reward():
    facts = look(make("games/climbing"))
    assert (facts.common, facts.same_view, facts.views, facts.zero_sum) == (True, True, 1, False)
    found = by_name(facts)
    assert {name for name, advice in found.items() if advice.fit == FITS} == {
        "ippo", "mappo", "iql", "vdn", "qmix", "iql_tabular",
    }  # fmt: skip
    assert found["ppo"].fit == NO
    assert "use ippo or mappo" in found["ppo"].reason
    assert any("a common reward" in line for line in describe(facts))


def test_opponents():
    facts = look(make("games/matching_pennies"))
    assert facts.zero_sum
    assert facts.sides == 2
    assert "sides against each other, zero-sum" in " ".join(describe(facts))
    assert "each of 2 sides" in by_name(facts)["qmix"].reason


def test_individual_rewards_rare_ones_and_unlike_agents():
    facts = look(make("probe/credit"))
    assert (facts.common, facts.same_view) == (False, False)
    assert "averaged" in by_name(facts)["vdn"].reason
    assert advise(facts)[0].name == "mappo"
    assert any("--memory gru" in hint for hint in hints(facts))
    assert any("rare" in hint for hint in hints(Facts(spec(), True, False, False, 0.01, 65)))


def test_continuous_actions_many_agents_one_agent():
    continuous = by_name(Facts(spec(actions=Box((2,), -1.0, 1.0)), True, False, False, 1.0, 65))
    assert continuous["masac"].fit == FITS
    assert (continuous["qmix"].fit, continuous["iql_tabular"].fit) == (NO, NO)
    assert "needs discrete actions" in continuous["qmix"].reason
    many = by_name(Facts(spec(40), True, False, False, 1.0, 65))
    assert many["mappo"].fit == "possible"
    assert "160 numbers at 40 agents" in many["mappo"].reason
    one = by_name(Facts(spec(1), True, False, True, 1.0, 65))
    assert one["ppo"].fit == FITS
    assert "ppo is the plain form" in one["mappo"].reason


def test_an_environment_on_the_host_is_only_described():
    class Host:
        pass

    host = Host()
    host.spec = spec()
    facts = look(host)
    assert facts.common is None
    assert "no random game" in " ".join(describe(facts))
    by_name(facts)
    host.spec = spec(actions=Box((2,)))
    assert look(host).common is None


def test_the_command(capsys):
    assert main(["recommend", "games/climbing", "--all"]) == 0
    text = capsys.readouterr().out
    for name in PRESETS:
        assert name in text
    assert "Try: flockrl train ippo games/climbing" in text
    assert main(["recommend", "games/climbin"]) == 2
    assert "Did you mean 'climbing'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["probe/masks", "probe/death"])
def test_random_games_respect_masks_and_deaths(name):
    facts = look(make(name))
    assert facts.paid == pytest.approx(1.0)
    if name == "probe/masks":  # a random legal action is the paid one
        assert facts.views == 1
