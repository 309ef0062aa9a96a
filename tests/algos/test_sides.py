"""Sides: what each learner is given of a rollout, what it makes of it, and players that do not learn."""

import dataclasses
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.assembly import Side, Sides, make_algorithm, make_players
from flockrl.algos.presets import make_config
from flockrl.algos.sides import Player, side_spec, side_trajectory
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.core.types import Observation, Trajectory
from flockrl.envs import make
from flockrl.nets.actions import ActionCode
from flockrl.rollouts.compiled import scan_rollout, start
from flockrl.training.players import make_sides

SPEC = EnvSpec(
    "chase", ("wolf_0", "hare_0", "wolf_1"), (Box((2,)), Box((1,)), Box((2,))),
    (Discrete(3), Discrete(2), Discrete(3)), 4, sides=("wolf", "hare", "wolf"),
)  # fmt: skip
"""The hare stands between the wolves, sees less than they do and has fewer actions."""
MIXED = EnvSpec(
    "mixed", ("wolf_0", "hare_0"), (Box((2,)), Box((2,))), (Discrete(3), Box((2,), -1.0, 1.0)), 4,
    sides=("wolf", "hare"),
)  # fmt: skip
PPO = {"rollout_steps": 8, "epochs": 1, "minibatches": 2, "hidden": (8,)}
REPLAY = {
    "rollout_steps": 8, "hidden": (8,), "steps_per_update": 16, "batch_size": 8, "buffer_size": 128,
    "learning_starts": 16,
}  # fmt: skip
RUN = {"steps": 96, "envs": 4, "eval_episodes": 2, "eval_every": 96, "checkpoint_every": 48}
"""Three iterations."""


class Chase:
    """Observations are noise. Large actions pay where its first number is positive. Four steps are an episode."""

    def __init__(self, spec=SPEC):
        self.spec = spec

    def look(self, key):
        sizes = np.array([space.size for space in self.spec.observations])
        noise = jax.random.normal(key, (self.spec.num_agents, self.spec.obs_size))
        return Observation(noise * (np.arange(self.spec.obs_size) < sizes[:, None]))

    def reset(self, key):
        seen = self.look(key)
        return (jnp.int32(0), seen.obs), seen

    def step(self, key, state, action):
        time, before = state
        seen = self.look(key)
        reward = (action if action.ndim == 1 else action.sum(-1)) * before[:, 0]
        return (time + 1, seen.obs), seen, reward, jnp.bool_(False), time + 1 == self.spec.max_steps


def equal(a, b):
    """Bit for bit."""
    jax.tree.map(np.testing.assert_array_equal, a, b)


def learners(env, players, settings, envs=4, updates=10):
    return make_algorithm("", env.spec, make_sides(players, settings, env.spec), envs=envs, updates=updates)


def rollout(algorithm, env, state, key, envs=4):
    def play(state, key):
        return scan_rollout(algorithm, algorithm.params(state), env, start(algorithm, env, key, envs), key)[1]

    return jax.jit(play)(state, key)


def look(spec, batch=64, seed=0):
    """Observations [batch, N, O] with padding."""
    noise = 3 * np.random.default_rng(seed).normal(size=(batch, spec.num_agents, spec.obs_size))
    sizes = np.array([space.size for space in spec.observations])
    return (noise * (np.arange(spec.obs_size) < sizes[:, None])).astype(np.float32)


# One learner for each kind is two learners


@pytest.fixture(scope="module")
def twins():
    """IPPO for all of simple_tag, and IPPO for each side: (algorithm, first state, first rollout) of both, and the
    states after both learned from the first one's rollout."""
    env, key = make("mpe/simple_tag"), jax.random.key(0)
    settings = {**PPO, "rollout_steps": 25, "share": "groups"}
    one = make_algorithm("ippo", env.spec, make_config("ippo", settings), envs=8, updates=10)
    two = learners(env, {"adversary": "ippo", "agent": "ippo"}, dict.fromkeys(("adversary", "agent"), settings), envs=8)
    states = one.init(key), two.init(key)
    played = [rollout(a, env, s, key, 8) for a, s in zip((one, two), states, strict=True)]
    after = jax.jit(one.update)(states[0], played[0], key), jax.jit(two.update)(states[1], played[1], key)
    return env.spec, states, played, after


def test_two_learners_begin_as_one_and_play_the_same_first_rollout(twins):
    _, (one, two), (a, b), _ = twins
    for g, side in enumerate(("adversary", "agent")):
        for net in ("actor", "critic"):
            equal(one.params[net][g], two[side].params[net][0])
    for name in ("obs", "action", "reward", "next_obs", "first", "truncated", "extras"):
        equal(getattr(a, name), getattr(b, name))
    assert len(np.unique(a.action)) == 5


def test_two_learners_learn_what_one_learns(twins):
    """The compiler orders the sums of a lone agent otherwise, so its parameters may differ in the last bits."""
    spec, (before, _), _, ((one, _), (two, metrics)) = twins
    for g, (side, close) in enumerate((("adversary", 0.0), ("agent", 1e-6))):
        for net in ("actor", "critic"):
            jax.tree.map(
                lambda x, y, close=close: np.testing.assert_allclose(x, y, rtol=0, atol=close),
                one.params[net][g], two[side].params[net][0],
            )  # fmt: skip
            moved = jax.tree.map(lambda x, y: np.abs(x - y).max() > 1e-5, before.params[net][g], one.params[net][g])
            assert all(jax.tree.leaves(moved))
        own = list(spec.parties[side])
        np.testing.assert_allclose(one.value_moments.mean[jnp.array(own)], two[side].value_moments.mean, atol=1e-6)
    assert {name.partition("/")[0] for name in metrics} == {"adversary", "agent"}


# What a side sees of a rollout


def numbered(**more):
    """Four steps of one environment, whose second ends an episode. Every number says where it stands."""
    t, i, k = np.ogrid[:4, :3, :2]
    own = np.array([[1, 1], [1, 0], [1, 1]], bool)
    obs = ((100 * t + 10 * i + k) * own)[:, None].astype(np.float32)
    flags = np.zeros((4, 1, 3), bool)
    end = np.array([False, True, False, False])[:, None, None] | flags
    action = np.array([[0, 1, 2], [1, 0, 0], [2, 1, 1], [0, 0, 2]], np.int32)[:, None]
    fields = {
        "obs": obs, "action": action, "reward": (10 * t + i).astype(np.float32)[:, None, :, 0], "terminated": flags,
        "truncated": end, "next_obs": obs + 1000 * own, "first": np.array([[True], [False], [True], [False]]),
        "extras": {"logp": -(10 * t + i).astype(np.float32)[:, None, :, 0]},
    }  # fmt: skip
    return Trajectory(**jax.tree.map(jnp.asarray, {**fields, **more}))


def view(side, trajectory, central=False, actions=False, spec=SPEC):
    player = Player(side_spec(spec, spec.parties[side], central, actions), None, central, actions)
    return side_trajectory(spec, player, trajectory, ActionCode(spec))


def test_a_side_gets_its_own_columns():
    avail = np.array([[[1, 0, 1], [0, 1, 0], [1, 1, 0]]] * 4, bool)[:, None]
    alive = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]], bool)[:, None]
    everything = numbered(avail=avail, next_avail=~avail, alive=alive)
    wolf, hare = view("wolf", everything), view("hare", everything)
    assert wolf.obs[1, 0].tolist() == [[100, 101], [120, 121]]
    assert hare.obs[:, 0].tolist() == [[[10]], [[110]], [[210]], [[310]]]
    assert wolf.next_obs[2, 0].tolist() == [[1200, 1201], [1220, 1221]]
    assert hare.next_obs[2, 0].tolist() == [[1210]]
    assert wolf.action[:, 0].tolist() == [[0, 2], [1, 0], [2, 1], [0, 2]]
    assert hare.action[:, 0].tolist() == [[1], [0], [1], [0]]
    assert wolf.reward[3, 0].tolist() == [30, 32]
    assert hare.reward[:, 0, 0].tolist() == [1, 11, 21, 31]
    assert wolf.avail[0, 0].tolist() == [[True, False, True], [True, True, False]]
    assert hare.avail[0, 0].tolist() == [[False, True]]
    assert hare.next_avail[0, 0].tolist() == [[True, False]]
    assert wolf.alive[:, 0].tolist() == [[True, True]] * 3 + [[False, True]]
    assert hare.alive[:, 0].tolist() == [[True], [False], [True], [True]]
    assert hare.truncated[:, 0].tolist() == [[False], [True], [False], [False]]
    assert hare.extras["logp"][:, 0].tolist() == [[-1], [-11], [-21], [-31]]
    equal(hare.first, everything.first)
    assert wolf.state is None
    assert hare.state is None


def test_a_central_critic_reads_what_all_see():
    wolf, hare = (view(side, numbered(), True) for side in ("wolf", "hare"))
    assert wolf.state[1, 0].tolist() == [100, 101, 110, 120, 121]
    assert wolf.next_state[1, 0].tolist() == [1100, 1101, 1110, 1120, 1121]
    equal(wolf.state, hare.state)


def test_a_central_critic_reads_the_environments_own_state_where_there_is_one():
    state = np.arange(8, dtype=np.float32).reshape(4, 1, 2)
    spec = dataclasses.replace(SPEC, state_size=2)
    hare = view("hare", numbered(state=state, next_state=state + 1), True, True, spec)
    assert hare.state[0, 0].tolist() == [0, 1, 1, 0, 0, 0, 0, 1]
    assert hare.next_state[3, 0].tolist() == [7, 8, 1, 0, 0, 0, 0, 1]
    assert side_spec(spec, (1,), True, True).state_size == 8


def test_critics_of_joint_actions_read_what_the_others_do_now_and_next():
    """Where an episode or the rollout ends, the others are taken to go on with what they did."""
    hare = view("hare", numbered(), True, True)
    does = [[1, 0, 0, 0, 0, 1], [0, 1, 0, 1, 0, 0], [0, 0, 1, 0, 1, 0], [1, 0, 0, 0, 0, 1]]
    assert hare.state[:, 0, 5:].tolist() == does
    assert hare.next_state[:, 0, 5:].tolist() == [does[1], does[1], does[3], does[3]]
    assert hare.next_state[0, 0, :5].tolist() == [1000, 1001, 1010, 1020, 1021]
    wolf = view("wolf", numbered(), True, True)
    assert wolf.state[:, 0, 5:].tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]]
    assert wolf.state.shape[-1] == side_spec(SPEC, (0, 2), True, True).state_size


def test_dead_agents_do_nothing():
    alive = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 0, 1]], bool)[:, None]
    wolf = view("wolf", numbered(alive=alive), True, True)
    assert wolf.state[:, 0, 5:].tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert wolf.next_state[2, 0, 5:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("algorithm", ["mappo", "qmix", "maddpg", "ippo"])
def test_central_learners_of_a_side_read_the_whole(algorithm):
    """SPEC has two wolves of 2 numbers and a hare of 1; MADDPG reads all three actions too."""
    settings = PPO if algorithm in ("mappo", "ippo") else REPLAY
    made = learners(Chase(), {"wolf": algorithm, "hare": "random"}, {"wolf": settings})
    state = jax.eval_shape(made.init, jax.random.key(0))["wolf"]
    params = state.params if hasattr(state, "params") else state.learned.params
    reader = "mixer" if algorithm == "qmix" else "critic"
    kernels = {
        x.shape[0]
        for path, x in jax.tree_util.tree_leaves_with_path(params[reader])
        if x.ndim == 2 and ("dense_0" in str(path) or reader == "mixer")
    }
    assert {"mappo": 5, "qmix": 5, "maddpg": 5 + 3 * 3, "ippo": 2}[algorithm] in kernels


# Rollouts of unlike lengths


@pytest.mark.parametrize("algorithm", ["ippo", pytest.param("iddpg", marks=pytest.mark.slow)])
def test_a_learner_of_shorter_rollouts_learns_from_the_pieces_in_turn(algorithm):
    own = PPO if algorithm == "ippo" else REPLAY
    env, key = Chase(), jax.random.key(3)
    settings = {"wolf": own, "hare": {**PPO, "rollout_steps": 16}}
    both = learners(env, {"wolf": algorithm, "hare": "ippo"}, settings)
    assert both.rollout_steps == 16
    state = both.init(key)
    played = rollout(both, env, state, key)
    after, metrics = jax.jit(both.update)(state, played, key)
    sides = make_sides({"wolf": algorithm, "hare": "ippo"}, settings, SPEC)
    wolf = make_players(SPEC, sides, 16, 4, 10)["wolf"]
    trajectory = side_trajectory(SPEC, wolf, played, None)._replace(memory=())
    halves = [jax.tree.map(lambda x, p=part: x[p], trajectory) for part in (slice(8), slice(8, 16))]
    expected, update, rates = state["wolf"], jax.jit(wolf.algorithm.update), []
    for half, own_key in zip(halves, jax.random.split(key, 2), strict=True):
        expected, found = update(expected, half, own_key)
        rates.append(float(found["lr"]))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), after["wolf"], expected)
    counted = after["wolf"].updates if algorithm == "ippo" else after["wolf"].iterations
    assert int(counted) == 2
    assert rates[0] > rates[1]  # two of the twenty updates of a run of ten iterations
    assert rates[1] == pytest.approx(rates[0] * 0.95)
    assert float(metrics["wolf/lr"]) == pytest.approx(np.mean(rates))
    assert int(after["hare"].updates) == 1


def test_rollouts_that_do_not_divide_are_refused():
    settings = {"wolf": {**PPO, "rollout_steps": 12}, "hare": {**PPO, "rollout_steps": 16}}
    with pytest.raises(flockrl.UsageError, match=r"rollout_steps of hare \(16\) must be a multiple of .* wolf \(12\)"):
        learners(Chase(), {"wolf": "ippo", "hare": "ippo"}, settings)


def test_on_policy_memory_needs_rollouts_of_its_own_length():
    settings = {"wolf": {**PPO, "memory": "gru"}, "hare": {**PPO, "rollout_steps": 16}}
    with pytest.raises(flockrl.UsageError, match=r"wolf learns on-policy with memory.*--wolf\.rollout-steps to 16"):
        learners(Chase(), {"wolf": "ippo", "hare": "ippo"}, settings)
    settings["wolf"]["rollout_steps"] = 16
    assert learners(Chase(), {"wolf": "ippo", "hare": "ippo"}, settings).rollout_steps == 16


def test_somebody_must_learn():
    with pytest.raises(flockrl.UsageError, match=r"No side learns.*flockrl eval"):
        learners(Chase(), {"wolf": "random", "hare": "random"}, {})


# Frozen sides


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run for all agents; one against its hare; one against that one's hare; and one against a side that learned."""
    base = tmp_path_factory.mktemp("sides")

    def train(name, algorithm, **more):
        return flockrl.train(algorithm, Chase(), out=base / name, **RUN, **more)

    plain = train("plain", "ippo", **PPO)
    sided = train("sided", {"wolf": "ippo", "hare": plain}, wolf={**PPO, "lr": 0.05})
    again = train("again", {"wolf": "ippo", "hare": sided}, wolf=PPO, seed=1)
    other = train("other", {"wolf": sided, "hare": "ippo"}, hare=PPO, seed=3)
    return {"plain": plain, "sided": sided, "again": again, "other": other}


@pytest.mark.parametrize("name", ["sided", "again"])
def test_a_frozen_policy_stays_as_it_is(runs, name):
    learner = runs[name].state().learner
    equal(learner["hare"], runs["plain"].params())
    assert "optimiser" not in str(jax.tree_util.tree_leaves_with_path(learner["hare"]))
    assert "optimiser" in str(jax.tree_util.tree_leaves_with_path(learner["wolf"]))
    names = {key for row in runs[name].metrics() for key in row}
    assert "wolf/policy_loss" in names
    assert not [key for key in names if key.startswith("hare/")]


def test_a_frozen_side_of_a_run_with_sides_stays_as_it_is(runs):
    learner = runs["other"].state().learner
    equal(learner["wolf"], runs["sided"].params()["wolf"])
    assert "optimiser" not in str(jax.tree_util.tree_leaves_with_path(learner["wolf"]))
    assert not [key for row in runs["other"].metrics() for key in row if key.startswith("wolf/")]


def test_the_learner_beside_it_does_learn(runs):
    fresh = runs["sided"].program.start_state(0).learner["wolf"].params["actor"]
    changed = jax.tree.map(lambda x, y: bool((x != y).any()), fresh, runs["sided"].params()["wolf"]["actor"])
    assert all(jax.tree.leaves(changed))


@pytest.mark.parametrize("name", ["sided", "again"])
def test_a_frozen_policy_acts_as_in_its_own_run(runs, name):
    seen = look(SPEC)
    expected, found = (runs[n].policy().act(seen) for n in ("plain", name))
    assert set(expected[:, 1]) == {0, 1}
    np.testing.assert_array_equal(expected[:, 1], found[:, 1])
    assert (expected[:, [0, 2]] != found[:, [0, 2]]).any()


def test_a_frozen_side_acts_as_in_its_own_run(runs):
    seen = look(SPEC)
    expected, found = (runs[n].policy().act(seen) for n in ("sided", "other"))
    assert len(set(expected[:, [0, 2]].ravel())) > 1
    np.testing.assert_array_equal(expected[:, [0, 2]], found[:, [0, 2]])


def test_a_policy_can_be_frozen_again_and_again(runs):
    """The hare of `plain`, as it comes through three runs in which it did not learn."""
    chain = Side("frozen", "ippo", make_config("ippo", PPO), "plain", "", 4)
    learner = Side("learner", "ippo", make_config("ippo", PPO))
    for source in ("sided", "again", "third"):
        chain = Side("frozen", f"wolf=ippo,hare={source}", Sides({"wolf": learner, "hare": chain}), source, "hare", 4)
    player = make_players(SPEC, Sides({"wolf": learner, "hare": chain}), 8, 4, 10)["hare"]
    assert player.for_all
    assert not player.learns
    seen = look(SPEC)
    action, _, _ = player.algorithm.act(runs["plain"].params(), Observation(seen), (), jax.random.key(0), False)
    np.testing.assert_array_equal(action, runs["plain"].policy().act(seen))


def test_a_frozen_side_is_exported_to_the_same_bytes_before_and_after(runs, tmp_path):
    begun = tmp_path / "begun"
    shutil.copytree(runs["other"].path, begun)
    for later in ("64", "96"):
        shutil.rmtree(begun / "checkpoints" / later)
    stages = flockrl.Run(begun, Chase()), runs["other"]
    assert [run.steps()[-1] for run in stages] == [0, 96]

    def models(side):
        for i, run in enumerate(stages):
            out = flockrl.export(run, tmp_path / f"{side}-{i}", side=side)
            [file] = out.glob("model-*")
            yield file.read_bytes()

    before, after = models("wolf")
    assert before == after
    before, after = models("hare")
    assert before != after


def test_a_frozen_side_of_another_name_is_refused(runs):
    with pytest.raises(flockrl.UsageError, match="plays for hare, and here wolf is asked for"):
        make_sides({"wolf": f"{runs['sided'].path}:hare", "hare": "ippo"}, {}, SPEC)
    with pytest.raises(flockrl.UsageError, match=r"has no side 'fox': name one of wolf, hare"):
        make_sides({"wolf": f"{runs['sided'].path}:fox", "hare": "ippo"}, {}, SPEC)
    with pytest.raises(flockrl.UsageError, match="one policy for all agents: leave out :wolf"):
        make_sides({"wolf": f"{runs['plain'].path}:wolf", "hare": "ippo"}, {}, SPEC)


def test_a_policy_of_other_agents_is_refused(runs):
    larger = dataclasses.replace(SPEC, name="larger", observations=(*SPEC.observations[:2], Box((5,))), groups=())
    with pytest.raises(flockrl.UsageError, match=r"cannot play for wolf of larger: wolf_1 sees or does something else"):
        make_sides({"wolf": runs["plain"], "hare": "ippo"}, {}, larger)
    renamed = dataclasses.replace(SPEC, name="renamed", agents=("wolf_0", "hare_0", "wolf_7"))
    with pytest.raises(flockrl.UsageError, match=r"cannot play for wolf of renamed: wolf_7 is not there"):
        make_sides({"wolf": runs["sided"], "hare": "ippo"}, {}, renamed)


@pytest.mark.parametrize(("algorithm", "samples"), [("ippo", True), ("iql", False), ("iddpg", False)])
def test_only_stochastic_policies_are_sampled_while_others_explore(algorithm, samples):
    """A frozen policy plays as it was meant to be played, without the exploration that it learned with."""
    settings = PPO if algorithm == "ippo" else REPLAY
    frozen = Side("frozen", algorithm, make_config(algorithm, settings), "elsewhere", "", 4)
    learner = Side("learner", "ippo", make_config("ippo", PPO))
    made = make_algorithm("", SPEC, Sides({"wolf": learner, "hare": frozen}), envs=4, updates=10)
    params = made.params(made.init(jax.random.key(0)))
    seen, memory = Observation(jnp.asarray(look(SPEC))), made.memory(64)
    act = jax.jit(lambda key, explore: made.act(params, seen, memory, key, explore)[0][:, 1], static_argnums=1)
    greedy, *explored = (np.asarray(act(jax.random.key(i), i > 0)) for i in range(4))
    np.testing.assert_array_equal(act(jax.random.key(9), False), greedy)
    same = [bool((actions == greedy).all()) for actions in explored]
    assert not any(same) if samples else all(same)


# Scripts and chance


def flee(spec, seen, key):
    """Runs from what is on its left."""
    assert spec.agents == ("hare_0",)
    assert seen.obs.shape[1:] == (1, 1)
    assert jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    return seen.obs[..., 0] < 0


def wrong(spec, seen, key):
    return jnp.zeros(len(seen.obs))


def test_a_script_plays_its_side():
    env, key = Chase(), jax.random.key(0)
    sides = make_sides({"wolf": "ippo", "hare": flee}, {"wolf": PPO}, SPEC)
    assert sides.players["hare"].source == "test_sides:flee"
    made = learners(env, {"wolf": "ippo", "hare": "test_sides:flee"}, {"wolf": PPO})
    state = made.init(key)
    played = rollout(made, env, state, key)
    assert played.action.dtype == jnp.int32
    np.testing.assert_array_equal(played.action[..., 1], played.obs[..., 1, 0] < 0)
    assert set(np.unique(played.action[..., 1])) == {0, 1}
    after, metrics = jax.jit(made.update)(state, played, key)
    assert after["hare"] == ()
    assert all(name.startswith("wolf/") for name in metrics)


def test_a_script_of_the_wrong_shape_is_refused():
    made = learners(Chase(), {"wolf": "ippo", "hare": wrong}, {"wolf": PPO})
    with pytest.raises(flockrl.UsageError, match=r"must return actions of shape \[4, 1\], not \[4\]"):
        rollout(made, Chase(), made.init(jax.random.key(0)), jax.random.key(0))


def test_scripts_that_are_not_there_are_refused():
    with pytest.raises(flockrl.UsageError, match=r"no script 'test_sides:fly'"):
        learners(Chase(), {"wolf": "ippo", "hare": "test_sides:fly"}, {})
    with pytest.raises(flockrl.UsageError, match="write the script as a function"):
        learners(Chase(), {"wolf": "ippo", "hare": functools.partial(flee)}, {})


def test_chance_takes_every_legal_action_and_no_other():
    made = learners(Chase(), {"wolf": "random", "hare": "ippo"}, {"hare": PPO})
    legal = np.ones((300, 3, 3), bool)
    legal[:, 1, 2] = False
    legal[:, 0, 1] = False
    params = made.params(made.init(jax.random.key(0)))
    seen = Observation(jnp.zeros((300, 3, 2)), jnp.asarray(legal))
    action, _, _ = made.act(params, seen, made.memory(300), jax.random.key(0), False)
    assert set(np.asarray(action[:, 0]).tolist()) == {0, 2}
    assert set(np.asarray(action[:, 2]).tolist()) == {0, 1, 2}
    np.testing.assert_allclose(np.bincount(action[:, 2]) / 300, 1 / 3, atol=0.1)


def test_random_sides_do_not_copy_each_other():
    """Both draw from the same key, of which each side makes its own."""
    spec = EnvSpec("duel", ("a_0", "b_0"), (Box((1,)),) * 2, (Discrete(8),) * 2, 4, sides=("a", "b"))
    sides = Sides({"a": Side("random"), "b": Side("random")})
    left, right = (
        player.algorithm.act((), Observation(jnp.zeros((50, 1, 1))), (), jax.random.key(0), True)[0]
        for player in make_players(spec, sides, 1, 1, 1).values()
    )
    assert (left != right).mean() > 0.5


# Unlike kinds of actions


@pytest.mark.parametrize("wolf", [pytest.param("qmix", marks=pytest.mark.slow), "iql"])
def test_each_side_of_a_mixed_game_keeps_its_kind_of_actions(wolf):
    env, key = Chase(MIXED), jax.random.key(1)
    made = learners(env, {"wolf": wolf, "hare": "maddpg"}, {"wolf": REPLAY, "hare": REPLAY})
    state = made.init(key)
    played = rollout(made, env, state, key)
    assert played.action.shape == (8, 4, 2, 2)
    number, padding = np.asarray(played.action[..., 0, 0]), np.asarray(played.action[..., 0, 1])
    assert set(number.ravel()) == {0.0, 1.0, 2.0}
    assert not padding.any()
    real = np.asarray(played.action[..., 1, :])
    assert np.abs(real).max() <= 1
    assert len(np.unique(real)) == real.size
    after, metrics = jax.jit(made.update)(state, played, key)
    assert after["wolf"].replay.rows.action.dtype == jnp.int32
    np.testing.assert_array_equal(after["wolf"].replay.rows.action[:8, :, 0], number)
    np.testing.assert_array_equal(after["hare"].replay.rows.action[:8, :, 0], real)
    code = np.asarray(after["hare"].replay.rows.state[:8, :, 4:])
    np.testing.assert_array_equal(code, np.eye(3)[number.astype(int)])
    assert all(np.isfinite(float(x)) for x in metrics.values())
    assert float(metrics["wolf/updates"]) == float(metrics["hare/updates"]) == 2
