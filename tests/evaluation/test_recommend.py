"""Advice: what is told about an environment is so, every algorithm is judged, and reasons follow from the facts."""

import time

import numpy as np
import pytest

from flockrl.algos.presets import PRESETS
from flockrl.commands.main import main
from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.envs.host.env import Host, HostEnv
from flockrl.envs.registry import make
from flockrl.evidence.facts import Facts, describe, look
from flockrl.evidence.recommend import FITS, NO, advise, hints


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


def test_sets_and_neighbours_are_pointed_out():
    told = " ".join(hints(Facts(make("fleet/coverage").spec)))
    assert "--net entities" in told
    assert "topology=neighbours" in told
    assert not {"--net", "topology"} & set(" ".join(hints(Facts(spec()))).split())


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


class Duel(HostEnv):
    """Agent 0 wins or loses against agent 1 at random; the others earn what agent 0 earns."""

    def __init__(self, agents, slow=0.0):
        self.slow = slow
        self.spec = EnvSpec("own/duel", agents, (Box((1,)),) * len(agents), (Discrete(2),) * len(agents), 5)

    def _see(self):
        return Observation(np.full((self.spec.num_agents, 1), self.t, np.float32))

    def reset(self, seed):
        self.t, self.rng = 0, np.random.default_rng(seed)
        return self._see()

    def step(self, action, seed):
        self.t += 1
        time.sleep(self.slow)
        reward = np.full(self.spec.num_agents, self.rng.choice([-1.0, 1.0]), np.float32)
        reward[1] *= -1
        return self._see(), reward, self.t == 5, False


def test_opponents_on_the_host_are_noticed():
    facts = look(Host(lambda draw: Duel(("wolf_0", "sheep_0", "wolf_1"))))
    assert facts.sides == 1
    assert facts.opposed == (("wolf_0", "sheep_0"), ("sheep_0", "wolf_1"))
    assert (facts.common, facts.same_view, facts.paid, facts.views) == (False, True, 1.0, 5)
    assert "wolf_0 and sheep_0 look like opponents" in " ".join(describe(facts))
    found = by_name(facts)
    assert found["qmix"].fit == found["vdn"].fit == NO
    assert found["ippo"].fit == FITS
    assert any("flockrl train wolf=ALGORITHM,sheep=ALGORITHM" in hint for hint in hints(facts))
    alike = look(Host(lambda draw: Duel(("player_0", "player_1"))))
    assert "zero-sum" in " ".join(describe(alike))
    assert any("own reward" in hint for hint in hints(alike))


def test_agents_of_one_mind_are_no_opponents():
    facts = look(Host(lambda draw: Duel(("a_0", "b_0", "a_1"))))
    assert ("a_0", "a_1") not in facts.opposed
    assert look(make("games/climbing")).opposed == ()


def test_a_slow_environment_is_looked_at_for_a_short_time(monkeypatch):
    monkeypatch.setattr("flockrl.evidence.facts.SECONDS", 0.3)
    begin = time.perf_counter()
    facts = look(Host(lambda draw: Duel(("a", "b"), slow=0.1)))
    assert time.perf_counter() - begin < 5
    assert facts.paid == 1.0


def test_an_environment_that_cannot_be_played_is_only_described():
    class Broken(Duel):
        def step(self, action, seed):
            raise RuntimeError("no")

    facts = look(Host(lambda draw: Broken(("a", "b", "c"))))
    assert facts.common is None
    assert "could not be played" in " ".join(describe(facts))
    by_name(facts)


def test_a_board_game_of_pettingzoo():
    pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    facts = look(make("pettingzoo/pettingzoo.classic.tictactoe_v3"))
    assert facts.opposed == (("player_1", "player_2"),)
    assert facts.zero_sum


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
