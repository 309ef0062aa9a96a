"""Outside environments: spaces, lives, masks, turns, names, and what is said when something is wrong."""

import subprocess
import sys
import warnings
from types import SimpleNamespace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from zoo import Listed, Mixed, Pair, Panel

import flockrl
from flockrl.core.errors import Notice
from flockrl.core.types import Box, Discrete, MultiDiscrete
from flockrl.envs import check, make
from flockrl.envs.adapters.jaxmarl import JaxMARL
from flockrl.envs.adapters.layouts import layout
from flockrl.envs.adapters.sides import correlation
from flockrl.envs.adapters.spaces import Codec, action_code
from flockrl.envs.api import in_training, tuned
from flockrl.envs.host.env import Host, random_action


def written(space, value):
    part = layout(space, "it")
    row = np.full(part.size, 7, np.float32)
    part.write(value, row)
    assert len(part.low) == len(part.high) == part.size
    return row.tolist()


def test_the_layout_of_observations():
    assert written(spaces.Box(0, 9, (2, 2)), [[1, 2], [3, 4]]) == [1, 2, 3, 4]
    assert written(spaces.Discrete(3, start=5), 6) == [0, 1, 0]
    assert written(spaces.MultiDiscrete([2, 3]), [1, 2]) == [0, 1, 0, 0, 1]
    assert written(spaces.MultiBinary((2, 2)), [[0, 1], [1, 1]]) == [0, 1, 1, 1]
    both = {"z": spaces.Discrete(2), "a": spaces.Tuple((spaces.Box(0, 1, ()), spaces.Discrete(2)))}
    assert written(spaces.Dict(both), {"z": 0, "a": (0.5, 1)}) == [0.5, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (spaces.Box(0, 1, (2,)), [1, 2, 3], r"it has shape \[3\], but its space says \[2\]"),
        (spaces.Discrete(2), 2, "it is 2, but its space says 0 to 1"),
        (spaces.Dict({"x": spaces.Box(0, 1, (2,))}), {"x": [1]}, r"it\['x'\] has shape \[1\]"),
    ],
)
def test_observations_outside_their_space_are_named(space, value, words):
    with pytest.raises(flockrl.UsageError, match=words):
        written(space, value)


def test_actions_mean_what_the_environment_says():
    code = action_code(spaces.Discrete(3, start=-1), "it")
    assert (code.space, code.decode(0), code.decode(2)) == (Discrete(3), -1, 1)
    code = action_code(spaces.MultiDiscrete([2, 3]), "it")
    assert code.space == Discrete(6)
    assert [code.decode(i).tolist() for i in range(6)] == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert action_code(spaces.MultiBinary(2), "it").decode(2).tolist() == [1, 0]
    code = action_code(spaces.Box(-2, 2, (2, 1)), "it")
    assert code.space == Box((2,), -2.0, 2.0)
    assert code.decode(np.array([1, 2, 0], np.float32)).tolist() == [[1], [2]]
    with pytest.raises(flockrl.UsageError, match="it is a Text space"):
        action_code(spaces.Text(3), "it")


def test_many_combinations_stay_several_choices():
    assert action_code(spaces.MultiDiscrete([16, 16]), "it").space == Discrete(256)
    assert action_code(spaces.MultiBinary(8), "it").space == Discrete(256)
    code = action_code(spaces.MultiDiscrete([[16, 17], [2, 3]], start=[[0, 10], [0, -1]]), "it")
    assert code.space == MultiDiscrete((16, 17, 2, 3))
    value = code.decode(np.array([15, 16, 1, 0, 99], np.float32))
    assert value.tolist() == [[15, 26], [1, -1]]
    assert value.dtype == np.int64
    code = action_code(spaces.MultiBinary((3, 3)), "it")
    assert code.space == MultiDiscrete((2,) * 9)
    assert code.decode(np.eye(3, dtype=np.float32).ravel()).tolist() == np.eye(3).tolist()
    assert action_code(spaces.MultiBinary(2000), "it").space == MultiDiscrete((2,) * 2000)  # 2^2000 has no float


def test_masks_of_several_choices():
    acts = {"a": spaces.MultiDiscrete([[20, 2], [3, 20]]), "b": spaces.Discrete(2), "c": spaces.Box(0, 1, (3,))}
    codec = Codec("x", list(acts), dict.fromkeys(acts, spaces.Box(0, 1, (1,))), acts)
    parts = [np.arange(n) % 2 for n in (20, 2, 3, 20)]
    for mask in (np.concatenate(parts), tuple(parts), ((parts[0], parts[1]), (parts[2], parts[3])), parts):
        legal = codec.avail({"a": [0.0], "c": [0.0]}, {"a": {"action_mask": mask}, "c": {"action_mask": [0, 0, 0]}})
        assert legal[0].tolist() == [bool(x) for part in parts for x in part]
        assert legal[1].tolist() == [True] * 2 + [False] * 43
        assert legal[2].tolist() == [True] * 3 + [False] * 42  # real actions are not masked
    waiting = np.zeros((3, 45), bool)
    waiting[0, [0, 20, 22, 25]] = waiting[1, 0] = waiting[2, :3] = True  # the first option of every choice
    assert np.array_equal(codec.waiting, waiting)
    for mask, words in (
        (np.ones(44), r"action_mask has shape \[44\], but it has 45 options in all"),
        (tuple(parts[:3]), r"action_mask has parts of \[20, 2, 3\], but its choices have \[20, 2, 3, 20\] options"),
    ):
        with pytest.raises(flockrl.UsageError, match=words):
            codec.avail({"a": [0.0]}, {"a": {"action_mask": mask}})


# --- parallel environments


def test_one_agent_with_choices_and_one_with_real_actions():
    host = make(Pair)
    assert host.spec.actions == (Discrete(3), Box((2,), (-1.0, 0.0), (2.0, 5.0)))
    assert host.form.masked
    assert host.form.action == ((2, 2), "float32")
    assert not make(lambda: Pair(masked=False)).form.masked
    check(host)
    team, rng = host.build(False), np.random.default_rng(0)
    seen, picked, moved = team.reset(0), [0], []
    while seen.alive.all():
        action = random_action(host.form, seen, rng)
        assert seen.avail.tolist() == [[i != picked[-1] for i in range(3)], [True, True, False]]
        seen = team.step(action, 0)[0]
        arrived, _ = Pair.log[-1]
        picked.append(arrived["picker"])
        moved.append(arrived["mover"])
        assert type(picked[-1]) is int
        assert picked[-1] == action[0, 0] != picked[-2]
        assert np.array_equal(moved[-1], action[1])
    assert len(picked) == 6
    assert (np.array(moved) >= [-1, 0]).all()
    assert (np.array(moved) <= [2, 5]).all()
    assert np.ptp(moved, axis=0).min() > 0.5
    far = np.array([[7, 0], [9, -9]], np.float32)
    assert host.form.clip(far).tolist() == [[2, 0], [2, 0]]


def test_random_actions_reach_every_legal_option_and_no_other():
    host = make(Panel)
    team, rng = host.build(False), np.random.default_rng(0)
    seen = team.reset(3)
    seen.avail[0, 5:10] = [False, True, False, False, True]
    drawn = np.array([random_action(host.form, seen, rng)[0] for _ in range(300)])
    for k in range(4):
        options = np.flatnonzero(seen.avail[0, 5 * k : 5 * k + 5])
        assert sorted(set(drawn[:, k])) == options.tolist()


@pytest.mark.parametrize("how", ["parts", "row", ""])
def test_a_panel_of_switches(how):
    host = make(lambda: Panel(how))
    assert host.spec.actions == (MultiDiscrete((5, 5, 5, 5)),)
    assert host.form.masked == bool(how)
    check(host)
    team = host.build(False)
    seen = team.reset(3)
    if how:
        assert np.array_equal(seen.avail[0], np.concatenate(team.env.legal()))
    team.step(np.array([[4, 0, 3, 1]], np.float32), 0)
    action, _ = Panel.log[-1]
    assert Panel.action_space.contains(action)
    assert action.tolist() == [4, 0, 3, 1]


class Odd(Panel):
    """Leaves no position for its third switch."""

    def legal(self):
        return [*super().legal()[:2], np.zeros(5, bool), np.ones(5, bool)]


def test_a_choice_without_options_is_named():
    with pytest.raises(flockrl.UsageError, match="agent 'agent': after reset it has no legal option of choice 2"):
        check(make(Odd))


def test_agents_that_die_and_appear_and_differ():
    host = make(Mixed)
    spec = host.spec
    assert spec.agents == ("scout_0", "scout_1", "heavy")
    assert [space.size for space in spec.observations] == [7, 7, 9]
    assert spec.actions == (Discrete(4), Discrete(4), Discrete(6))
    assert spec.groups == (0, 0, 1)
    assert (spec.max_steps, spec.state_size) == (6, 2)
    assert host.form.masked
    check(host)
    team = host.build(False)
    seen = team.reset(0)
    assert seen.alive.tolist() == [True, False, True]
    assert seen.obs[0].tolist() == [0, 0, 1, 0, 1, 0, 0, 0, 0]
    assert not seen.obs[1].any()
    assert seen.avail.tolist()[0] == [True, False, True, False, False, False]
    assert seen.avail[2].all()
    lives, rewards = [], []
    for t in range(6):
        seen, reward, terminated, truncated = team.step(np.array([2, 0, 5]), t)
        lives.append(seen.alive.tolist())
        rewards.append(reward.tolist())
        assert terminated.tolist() == [t == 2, False, False]
        assert seen.state.tolist() == [t + 1, len(team.env.agents)]
    assert lives == [[True, False, True], [True, True, True], *[[False, True, True]] * 3, [False] * 3]
    assert rewards[3] == [0, 4, 4]
    assert truncated.tolist() == [False, True, True]
    assert team.env.log[0]["scout_0"] == 4
    assert team.env.log[0]["heavy"].tolist() == [1, 2]
    assert set(team.env.log[3]) == {"heavy", "scout_1"}


def test_such_teams_train(tmp_path):
    settings = {"steps": 256, "envs": 4, "eval_episodes": 4, "hidden": (8,), "rollout_steps": 16, "workers": 0}
    run = flockrl.train("mappo", Mixed, out=tmp_path / "run", **settings, minibatches=2)
    rows = [row for row in run.metrics() if row.get("episodes")]
    assert all(row["return_per_agent"] == [6.0, 18.0, 21.0] for row in rows)  # 1+2+3, 3+4+5+6, all
    assert all(row["episode_length"] == 6 for row in rows)
    assert run.evaluate(5).returns.tolist() == [[6.0, 18.0, 21.0]] * 5


def test_dicts_in_and_dicts_out(tmp_path):
    settings = {"steps": 64, "envs": 4, "eval_episodes": 4, "hidden": (8,), "rollout_steps": 16, "workers": 0}
    run = flockrl.train("ippo", Mixed(), out=tmp_path / "run", **settings, minibatches=2)
    with pytest.raises(flockrl.UsageError, match="pass it as env="):
        flockrl.Run(run.path).policy()
    env, policy = Mixed(), flockrl.Run(run.path, make(Mixed)).policy()
    seen, infos = env.reset(seed=1)
    for _ in range(6):
        actions = policy.act(seen, infos)
        assert set(actions) == set(seen)
        for agent, action in actions.items():
            assert env.action_space(agent).contains(action), (agent, action)
            if agent != "heavy":
                assert infos[agent]["action_mask"][action - 2]
        seen, _, _, _, infos = env.step({a: act for a, act in actions.items() if a in env.agents})
        seen = {a: value for a, value in seen.items() if a in env.agents}


def test_dicts_for_compiled_environments(tiny_run):
    policy = tiny_run.policy()
    obs = np.random.default_rng(0).random((3, 18), np.float32)
    named = policy.act(dict(zip(tiny_run.env.spec.agents, obs, strict=True)))
    assert list(named.values()) == policy.act(obs).tolist()


class Alone:
    """A Gymnasium environment of one agent."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def close(self):
        pass


class Broken(Mixed):
    """What users get wrong. `how` is one of the tests' words."""

    def __init__(self, how=""):
        super().__init__()
        self.how = how

    def reset(self, seed=None, options=None):
        if self.how == "first":
            raise KeyError("position")
        seen, infos = super().reset(seed)
        return seen if self.how == "no infos" else (seen, infos)

    def observe(self, agent):
        value = super().observe(agent)
        if self.how == "shape" and agent == "heavy" and self.t == 2:
            return (*value[:2], np.zeros(3))
        if self.how == "nan" and agent == "heavy" and self.t:
            return (*value[:2], np.full((2, 2), np.nan))
        return value

    def info(self, agent):
        return {"action_mask": np.ones(9)} if self.how == "mask" and agent == "scout_0" else super().info(agent)

    def step(self, actions):
        if self.how == "raise":
            raise KeyError("position")
        seen, rewards, ended, cut, infos = super().step(actions)
        if self.how == "missing":
            del seen["heavy"]
        if self.how == "reward":
            rewards["heavy"] = "much"
        if self.how == "stranger":
            rewards["ghost"] = 1.0
        return seen, rewards, ended, cut, infos


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no infos", r"reset must return \(observations, infos\)"),
        ("shape", r"agent 'heavy': its observation\[2\] has shape \[3\], but its space says \[2, 2\]"),
        ("nan", r"agent 'heavy': obs\[5\] after step 1 is nan"),
        ("mask", r"agent 'scout_0': its action_mask has shape \[9\], but it has 4 actions"),
        ("missing", "agent 'heavy' is alive, but its observation is missing"),
        ("reward", "agent 'heavy': its reward is 'much', not a number"),
        ("stranger", "agent 'ghost' is not among its possible_agents"),
        ("first", r"cannot be started \(test_adapters.py, line \d+\): KeyError: 'position'"),
        ("raise", r"step 1 failed \(test_adapters.py, line \d+\): KeyError: 'position'"),
    ],
)
def test_a_broken_environment_is_told_what_is_wrong(how, words):
    with pytest.raises(flockrl.UsageError, match=words):
        check(make(lambda: Broken(how)))


def test_an_environment_that_does_not_follow_its_seed_is_named():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(Alone)
    with pytest.warns(Notice, match="does not follow its seed"):
        check(Noisy)


class Noisy(Alone):
    def reset(self, *, seed=None, options=None):
        return np.array([np.random.default_rng().random()], np.float32), {}


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        ({"reset": lambda self: np.zeros(1, np.float32)}, "Old: reset must take a seed"),
        ({"reset": lambda self, seed=None: np.zeros(1, np.float32)}, r"reset must return \(observation, info\)"),
        (
            {"step": lambda self, action: (np.zeros(1, np.float32), 0.0, False, {})},
            r"step must return \(observation, r",
        ),
        (
            {"__init__": lambda self: {}["size"]},
            r"Old cannot be built \(test_adapters.py, line \d+\): KeyError: 'size'",
        ),
    ],
    ids=["seed", "info", "step", "init"],
)
def test_an_environment_of_the_old_gym_is_told_what_changed(thing, words):
    with pytest.raises(flockrl.UsageError, match=words):
        check(type("Old", (Alone,), thing))


def test_a_pettingzoo_environment_without_names_is_not_taken_for_one_of_gymnasium():
    with pytest.raises(flockrl.UsageError, match="needs possible_agents"):
        make(type("Nameless", (), {"observation_space": Mixed.observation_space, "action_space": Mixed.action_space}))


# --- turns


class Nim:
    """A turn-based game: take 1 or 2 of five stones; who takes the last one wins."""

    possible_agents = ("p_0", "p_1")
    agent_selection = "p_0"

    def observation_space(self, agent):
        return spaces.Dict({"observation": spaces.Box(0, 5, (1,)), "action_mask": spaces.Box(0, 1, (2,), np.int8)})

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.stones, self.agent_selection = list(self.possible_agents), 5, "p_0"
        self.rewards, self.infos = dict.fromkeys(self.agents, 0), {a: {} for a in self.agents}
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))

    def observe(self, agent):
        mask = np.array([1, self.stones > 1], np.int8) * (agent == self.agent_selection)
        return {"observation": np.array([self.stones], np.float32), "action_mask": mask}

    def step(self, action):
        mover = self.agent_selection
        self.agent_selection = self.possible_agents[1 - self.possible_agents.index(mover)]
        if self.terminations[mover]:
            assert action is None
            self.agents.remove(mover)
            self.rewards = dict.fromkeys(self.agents, 0)
            return
        assert action in (0, 1)
        self.stones -= action + 1
        if self.stones == 0:
            self.rewards = {mover: 1, self.agent_selection: -1}
            self.terminations = dict.fromkeys(self.agents, True)

    def close(self):
        pass


def test_turns():
    host = make(Nim)
    check(host)
    team = host.build(False)
    seen = team.reset(0)
    assert seen.avail.tolist() == [[True, True], [True, False]]  # the one who waits has a single choice
    moves = [(1, 0), (0, 1), (0, 0)]  # two, two, one: player 0 takes the last
    for action in moves[:2]:
        seen, reward, terminated, _ = team.step(np.array(action), 0)
        assert not reward.any()
        assert not terminated.any()
    assert seen.avail.tolist() == [[True, False], [True, False]]  # one stone left
    seen, reward, terminated, truncated = team.step(np.array(moves[2]), 0)
    assert reward.tolist() == [1, -1]
    assert terminated.all()
    assert not truncated.any()
    assert seen.obs[:, 0].tolist() == [0, 0]
    assert not seen.alive.any()
    assert team.reset(1).alive.all()


class Bid(Nim):
    """Nim in which the second player says by a real number how many stones it takes."""

    def action_space(self, agent):
        return spaces.Discrete(2) if agent == "p_0" else spaces.Box(0, 1, (1,))

    def step(self, action):
        if self.agent_selection == "p_1" and action is not None:
            assert action.shape == (1,)
            assert action.dtype == np.float32
            action = int(action[0] > 0.5 and self.stones > 1)
        super().step(action)


def test_turns_of_unlike_agents():
    host = make(Bid)
    check(host)
    team = host.build(False)
    assert team.reset(0).avail.tolist() == [[True, True], [True, False]]
    seen, *_ = team.step(np.array([[1], [0]], np.float32), 0)
    assert seen.avail.tolist() == [[True, False], [True, False]]  # one waits, the other has its one real number
    seen, *_ = team.step(np.array([[1], [0.9]], np.float32), 0)
    assert team.env.stones == 1


def test_tictactoe_moves_alternate_and_end():
    pytest.importorskip("pettingzoo")
    host = make("pettingzoo/pettingzoo.classic.tictactoe_v3")
    check(host)
    team, rng = host.build(False), np.random.default_rng(0)
    for seed in range(20):
        seen, mover = team.reset(seed), 0
        for t in range(9):
            assert seen.avail[1 - mover].tolist() == [True] + [False] * 8
            assert seen.avail[mover].sum() == 9 - t
            seen, reward, terminated, _ = team.step(random_action(host.form, seen, rng), 0)
            mover = 1 - mover
            if terminated.all():
                break
        assert terminated.all()
        assert reward.sum() == 0


# --- Gymnasium, names, objects


@pytest.mark.parametrize("module", ["mpe2.simple_spread_v3", "mpe2.simple_world_comm_v3", "pettingzoo.sisl.pursuit_v5"])
def test_the_quick_step_is_the_environments_own(module):
    original = pytest.importorskip(module).parallel_env(max_cycles=4)
    quick = make(f"pettingzoo/{module}:max_cycles=4").first
    assert quick._step != quick.env.step
    rng = np.random.default_rng(0)
    for seed in (1, 2):
        original.reset(seed=seed)
        quick.reset(seed)
        while original.agents:
            actions = {a: int(rng.integers(original.action_space(a).n)) for a in original.agents}
            ours, theirs = quick._step(actions), original.step(actions)
            for one, two in zip(ours, theirs, strict=True):
                assert one.keys() == two.keys()
                jax.tree.map(np.testing.assert_array_equal, one, dict(two))
            assert quick.env.agents == original.agents


def test_lists_of_agents():
    host = make(Listed())
    assert host.spec.agents == ("agent_0", "agent_1")
    assert host.spec.max_steps == 4
    check(host)
    team = host.build(False)
    team.reset(0)
    _, reward, terminated, _ = team.step(np.array([2, 1]), 0)
    assert reward.tolist() == [2, 1]
    assert not terminated


def test_gymnasium_by_name():
    host = make("gymnasium/CartPole-v1")
    assert (host.spec.num_agents, host.spec.max_steps, host.spec.actions) == (1, 500, (Discrete(2),))
    check(host)
    assert make("gymnasium/CartPole-v1:max_steps=20").spec.max_steps == 20
    assert make("gymnasium/Pendulum-v1:g=5.0").first.env.unwrapped.g == 5.0
    assert make("gymnasium/Pendulum-v1").spec.actions == (Box((1,), -2.0, 2.0),)


def test_python_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_world.py").write_text(
        "from zoo import Mixed\nfrom flockrl.envs.probes import ENVIRONMENTS\n"
        "def build(size=3): return Mixed(size)\ncompiled = ENVIRONMENTS['action']\n"
    )
    host = make("python/my_world:build,size=4,team_reward=true,max_steps=5")
    assert isinstance(host, Host)
    assert host.spec.observations[0].size == 9
    assert host.spec.max_steps == 5
    team = host.build(False)
    team.reset(0)
    assert team.step(np.zeros(3, int), 0)[1].tolist() == [2, 2, 2]
    assert make("python/my_world:compiled").spec.name == "probe/action"
    for name, words in (
        ("python/my_world:bild", "has no 'bild'"),
        ("python/no_such_module:x", "no module 'no_such_module'"),
        ("python/my_world:build:size=4", "follow a comma: python/my_world:build,size=4"),
        ("my_world:build", "Did you mean 'python/my_world:build', an environment of your own"),
        ("./my/world.py:build,size=4", "Did you mean 'python/my.world:build,size=4'"),
        ("python/my_world", "Write python/package.module:factory"),
        ("python/my_world:build,width=3", "cannot be built with these settings"),
        ("python/my_world:build,max_steps=0", "max_steps must be a whole number of at least 1"),
        ("gymnasium/CartPol-v1", "no environment gymnasium/CartPol-v1. Did you mean 'CartPole-v1'"),
        ("pettingzoo/mpe2.simple_spred_v3", "no module 'mpe2.simple_spred_v3'.*Did you mean 'simple_spread_v3'"),
        ("pettingzo/mpe2.simple_spread_v3", "no environment"),
    ):
        with pytest.raises(flockrl.UsageError, match=words):
            make(name)


def test_missing_packages_say_what_to_install(monkeypatch):
    for suite, package, name in (
        ("pettingzoo", "pettingzoo", "pettingzoo.classic.tictactoe_v3"),
        ("pettingzoo", "mpe2", "mpe2.simple_spread_v3"),
        ("gymnasium", "gymnasium", "CartPole-v1"),
        ("lbf", "lbforaging", "Foraging-8x8-2p-3f-v3"),
        ("rware", "rware", "rware-tiny-2ag-v2"),
        ("jaxmarl", "jaxmarl", "MPE_simple_spread_v3"),
    ):
        with monkeypatch.context() as patch:
            for loaded in [m for m in sys.modules if m == package or m.startswith(f"{package}.")]:
                patch.delitem(sys.modules, loaded)
            patch.setattr(sys, "meta_path", [Hide(package), *sys.meta_path])
            with pytest.raises(
                flockrl.UsageError, match=rf"needs the package {package}: pip install 'flockrl\[{suite}\]'"
            ):
                make(f"{suite}/{name}")


class Hide:
    """An import system without one package."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=self.package)
        return


def test_things_that_are_no_environment():
    with pytest.raises(flockrl.UsageError, match="a list is no environment"):
        make([1, 2])
    with pytest.raises(flockrl.UsageError, match="needs possible_agents"):
        make(type("Odd", (), {"observation_space": lambda s, a: None, "action_space": None, "possible_agents": []})())
    with pytest.raises(flockrl.UsageError, match=r"is a Text space, and only Box"):
        Codec("x", ["a"], {"a": spaces.Text(2)}, {"a": spaces.Discrete(2)})


def test_jaxmarl_is_adapted_as_a_compiled_environment():
    """A stand-in with JaxMARL's interface: two agents, of whom one dies, legal actions, a world state."""

    class Fake:
        agents = ("a_0", "a_1")
        max_steps = 5

        def action_space(self, agent):
            return spaces.Discrete(3)

        def reset(self, key):
            return self.look(0), {"t": jnp.int32(0)}

        def look(self, t):
            row = jnp.full((2, 2), t, jnp.float32)
            return {"a_0": row, "a_1": row[0], "world_state": row[0]}

        def get_avail_actions(self, state):
            return {"a_0": jnp.array([1, 0, 1]), "a_1": jnp.array([0, 0, 0]) + (state["t"] < 2)}

        def step_env(self, key, state, actions):
            t = state["t"] + 1
            rewards = {"a_0": 1.0 * actions["a_0"], "a_1": jnp.float32(0)}
            dones = {"a_0": t >= 5, "a_1": t >= 2, "__all__": t >= 5}
            return self.look(t), {"t": t}, rewards, dones, {}

    env = JaxMARL(Fake(), "jaxmarl/fake")
    assert (env.spec.max_steps, env.spec.state_size, env.spec.obs_size) == (5, 2, 4)
    check(env)
    state, seen = env.reset(jax.random.key(0))
    assert seen.avail.tolist() == [[True, False, True], [True, True, True]]
    for t in range(1, 6):
        state, seen, reward, terminated, truncated = env.step(jax.random.key(t), state, jnp.array([2, 0]))
        assert reward.tolist() == [2, 0]
        assert terminated.tolist() == [False, 2 <= t < 5]
        assert truncated.tolist() == [t == 5] * 2
        assert seen.alive.tolist() == [t < 5, t < 2]


class Kitchen:
    """A stand-in with JaxMARL's interface that pays 1 at the end and hands out hints of 1 and 2 in every step."""

    agents = ("a_0", "a_1")
    max_steps = 4
    hinting = True

    def action_space(self, agent):
        return Sampled(2)

    def reset(self, key):
        return dict.fromkeys(self.agents, jnp.zeros(1)), {"t": jnp.int32(0)}

    def step_env(self, key, state, actions):
        t = state["t"] + 1
        infos = {"shaped_reward": {"a_0": 1.0, "a_1": 2.0}} if self.hinting else {}
        dones = dict.fromkeys((*self.agents, "__all__"), t >= 4)
        rewards = dict.fromkeys(self.agents, jnp.where(t == 4, 1.0, 0.0))
        return dict.fromkeys(self.agents, jnp.zeros(1)), {"t": t}, rewards, dones, infos


class Sampled(spaces.Discrete):
    """JaxMARL's spaces draw from a key."""

    def sample(self, key):
        return jnp.int32(0)


def test_shaped_rewards_of_jaxmarl_fade_and_are_paid_in_training_alone(tmp_path):
    env = JaxMARL(Kitchen(), "jaxmarl/kitchen", shaped=64)
    check(env)
    assert [float(env.training(steps)["hints"]) for steps in (0, 16, 64, 1000)] == [1, 0.75, 0, 0]
    state, _ = env.reset(jax.random.key(0))
    paid = [tuned(env, env.training(steps)).step(jax.random.key(1), state, jnp.zeros(2))[2] for steps in (0, 16, 64)]
    np.testing.assert_allclose(paid, [[1, 2], [0.75, 1.5], [0, 0]])
    assert env.step(jax.random.key(1), state, jnp.zeros(2))[2].tolist() == [0, 0]

    small = {"steps": 96, "envs": 4, "rollout_steps": 4, "eval_every": 16, "eval_episodes": 2, "minibatches": 1}
    rows = flockrl.train("ippo", env, out=tmp_path / "run", **small).metrics()
    earned = [row["return"] for row in rows if row["step"]]  # an episode in each environment, 16 steps in all
    np.testing.assert_allclose(earned, [1 + 6 * weight for weight in (1, 0.75, 0.5, 0.25, 0, 0)])
    assert {row["eval_return"] for row in rows} == {1}


def test_a_setting_of_training_that_the_environment_does_not_read():
    class Typo(Kitchen):
        spec = JaxMARL(Kitchen(), "jaxmarl/kitchen").spec

        def training(self, steps):
            return {"hint": 1.0 * steps}

    with pytest.raises(flockrl.UsageError, match="training gives 'hint', and the environment has no such attribute"):
        in_training(Typo(), jnp.float32(16))


def test_shaped_rewards_that_jaxmarl_does_not_have():
    silent = type("Silent", (Kitchen,), {"hinting": False})()
    assert JaxMARL(silent, "jaxmarl/silent").training(0) == {}
    with pytest.raises(flockrl.UsageError, match="jaxmarl/silent hands out no shaped reward"):
        JaxMARL(silent, "jaxmarl/silent", shaped=64)
    for wrong in (0, -1, True, 0.5, "yes"):
        with pytest.raises(flockrl.UsageError, match="shaped must be the steps until"):
            JaxMARL(Kitchen(), "jaxmarl/kitchen", shaped=wrong)


WRONG_OUTSIDE = [
    ("pettingzoo/mpe2.simple_spread_v3:N=0", "cannot be (built|started) .*, line"),
    ("pettingzoo/mpe2.simple_spread_v3:local_ratio=5", "AssertionError: local_ratio is a proportion"),
    ("gymnasium/CartPole-v1:render_mode=3", "cannot be built"),
    ("gymnasium/CartPole-v1:reward_after_death=true", "live until the end of an episode: leave out reward_after_death"),
]


@pytest.mark.parametrize(("name", "sentence"), WRONG_OUTSIDE)
def test_what_a_package_makes_of_wrong_settings_is_one_sentence(name, sentence):
    with pytest.raises(flockrl.UsageError, match=sentence) as caught:
        make(name)
    assert "\n" not in str(caught.value)


def test_huge_rewards_are_told_without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert correlation(np.array([1.0, np.inf]), np.array([1.0, 2.0])) == 0
        paid = Codec("x", ["a"], {"a": spaces.Box(0, 1, (1,))}, {"a": spaces.Discrete(2)})
        assert paid.numbers({"a": 1e300}, np.float32, "reward").tolist() == [np.inf]


WRONG_JAXMARL = [
    ("overcooked:layout=cramped", "there is no layout=cramped. Did you mean cramped_room?"),
    ("overcooked:layout=3", "there is no layout=3. Choose from"),
    ("overcooked:max_steps=nan", "max_steps must be a whole number from 1 to 1,000,000,000, not 'nan'"),
    ("overcooked:max_steps=0", "max_steps must be a whole number from 1"),
    ("overcooked:max_steps=true", "max_steps must be a whole number from 1"),
    ("HeuristicEnemySMAX:scenario=3", "there is no scenario=3."),
    ("HeuristicEnemySMAX:scenario=3m,max_steps=0", "max_steps must be a whole number from 1"),
    ("HeuristicEnemySMAX:num_allies=0", "cannot be made with these settings"),
    ("switch_riddle:num_agents=0", "cannot be made with these settings: The minimum number of agents"),
]


@pytest.mark.parametrize(("name", "sentence"), WRONG_JAXMARL)
def test_wrong_settings_of_jaxmarl_get_one_sentence(name, sentence):
    pytest.importorskip("jaxmarl")
    with pytest.raises(flockrl.UsageError) as caught:
        make(f"jaxmarl/{name}")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("nested", [False, True])
def test_jaxmarl_tells_who_won_a_battle(nested):
    """SMAX against a script has the units' state inside its own."""
    env = JaxMARL(Kitchen(), "jaxmarl/battle")
    assert env.measures(env.reset(jax.random.key(0))[0]) == {}
    env.env.num_allies = 2

    def won(*alive):
        units = SimpleNamespace(unit_alive=jnp.array(alive, bool))
        state = SimpleNamespace(inner=SimpleNamespace(state=units) if nested else units)
        return float(env.measures(state)["won"])

    assert won(1, 0, 0, 0, 0) == 1
    assert won(1, 1, 0, 1, 0) == 0
    assert won(0, 0, 0, 0, 0) == 0  # all died at once: a draw


def test_jaxmarl_with_unlike_actions():
    class Fake:
        agents = ("a", "b", "c")
        max_steps = 3
        spaces: ClassVar[dict] = {
            "a": spaces.Discrete(3),
            "b": spaces.Box(-1, 1, (2, 2)),
            "c": spaces.MultiDiscrete([4, 2]),
        }

        def action_space(self, agent):
            return self.spaces[agent]

        def reset(self, key):
            return dict.fromkeys(self.agents, jnp.zeros(2)), {"t": jnp.int32(0)}

        def get_avail_actions(self, state):
            return {"a": jnp.array([0, 1, 1])}

        def step_env(self, key, state, actions):
            assert [actions[x].shape for x in self.agents] == [(), (2, 2), (2,)]
            assert [actions[x].dtype for x in self.agents] == [jnp.int32, jnp.float32, jnp.int32]
            t = state["t"] + 1
            rewards = {"a": 1.0 * actions["a"], "b": actions["b"][1, 0], "c": 1.0 * actions["c"][1]}
            return (
                dict.fromkeys(self.agents, jnp.zeros(2)),
                {"t": t},
                rewards,
                dict.fromkeys((*self.agents, "__all__"), t >= 3),
                {},
            )

    env = JaxMARL(Fake(), "jaxmarl/fake")
    assert env.spec.actions == (Discrete(3), Box((4,), (-1.0,) * 4, (1.0,) * 4), MultiDiscrete((4, 2)))
    check(env)
    state, seen = env.reset(jax.random.key(0))
    assert seen.avail.tolist() == [[False, True, True] + [False] * 3, [True] * 4 + [False] * 2, [True] * 6]
    action = jnp.array([[2, 9, 9, 9], [0.1, 0.2, 0.3, 0.4], [3, 1, 9, 9]])
    reward = env.step(jax.random.key(1), state, action)[2]
    np.testing.assert_allclose(reward, [2, 0.3, 1], rtol=1e-6)


def test_the_original_plays_what_was_learned_on_the_compiled_one(tiny_run):
    pytest.importorskip("mpe2")
    here, there = tiny_run.evaluate(60), tiny_run.evaluate(60, env="pettingzoo/mpe2.simple_spread_v3")
    error = np.hypot(here.std, there.std) / 60**0.5
    assert abs(here.mean - there.mean) < 4 * error
    assert there.lengths.tolist() == [25] * 60
    with pytest.raises(flockrl.UsageError, match=r"cannot play pettingzoo/mpe2.simple_tag_v3: its agents are"):
        tiny_run.evaluate(1, env="pettingzoo/mpe2.simple_tag_v3")


def test_importing_flockrl_imports_no_suite():
    names = ("pettingzoo", "gymnasium", "mpe2", "jaxmarl", "pygame")
    code = f"import sys, flockrl; print([m for m in {names!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_state_that_fails_is_left_out_with_a_word():
    class Stateless(Mixed):
        state: ClassVar = {}  # as in PettingZoo's rps_v2, where it shadows the method

    with pytest.warns(Notice, match=r"without its global state.*not callable"):
        env = make(Stateless)
    assert env.spec.state_size == 0
    assert env.first.reset(0).state is None
