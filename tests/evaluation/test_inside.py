"""What goes on inside of a team: values are those of its critics, attention that of its listeners."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.assembly import Side, Sides, make_algorithm
from flockrl.algos.presets import make_config
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.core.types import Observation, Trajectory
from flockrl.envs.registry import make
from flockrl.evaluation.inside import look_inside
from flockrl.nets.normalisation import Moments

SPEC = EnvSpec("x", ("a_0", "a_1", "a_2"), (Box((4,)),) * 3, (Discrete(3),) * 3, 9)
REAL = dataclasses.replace(SPEC, actions=(Box((2,), -1.0, 1.0),) * 3)
STEPS, KEY = 5, jax.random.key(0)
SMALL = {"hidden": (8,)}
GRU = {"memory": "gru", "memory_size": 4}


def team(name, spec=SPEC, **settings):
    config = make_config(name, SMALL | settings)
    return make_algorithm(name, spec, config, envs=2, updates=4)


def rollout(spec=SPEC, memory=(), **extras):
    """An episode of five steps in which the second agent dies after two."""
    rng, n = np.random.default_rng(0), spec.num_agents
    obs = rng.normal(size=(STEPS + 1, 1, n, spec.obs_size)).astype(np.float32)
    action = rng.integers(0, 3, (STEPS, 1, n)) if spec.discrete else rng.uniform(-1, 1, (STEPS, 1, n, 2))
    alive = np.ones((STEPS, 1, n), bool)
    alive[2:, :, 1] = False
    nothing = np.zeros((STEPS, 1, n))
    return Trajectory(
        obs[:-1], jnp.asarray(action, spec.action_dtype), nothing, nothing > 0, nothing > 0, obs[1:],
        np.arange(STEPS)[:, None] == 0, alive=alive, next_alive=alive, memory=memory, extras=extras,
    )  # fmt: skip


def values(algorithm, state, trajectory):
    return np.asarray(jax.jit(algorithm.critic.values)(algorithm.critic.params(state), trajectory))


def dense(layer, x):
    return x @ np.asarray(layer["kernel"]) + np.asarray(layer.get("bias", 0))


# Values


def test_values_of_ppo_are_its_critics_in_units_of_returns():
    algorithm = team("ippo", share="none", normalize_obs=True)
    seen = Moments(jnp.full((3, 4), 0.3), jnp.full((3, 4), 4.0), jnp.int32(1))
    returns = Moments(jnp.array([10.0, -2.0, 0.5]), jnp.array([9.0, 4.0, 1.0]), jnp.int32(1))
    state = algorithm.init(KEY)._replace(obs_moments=seen, value_moments=returns)
    trajectory = rollout()
    for i, (mean, std) in enumerate(((10.0, 3.0), (-2.0, 2.0), (0.5, 1.0))):
        net = state.params["critic"][i]
        hidden = np.tanh(dense(net["torso"]["dense_0"], (trajectory.obs[:, 0, i] - 0.3) / 2.0))
        wanted = dense(net["head"], hidden)[:, 0] * std + mean
        np.testing.assert_allclose(values(algorithm, state, trajectory)[:, 0, i], wanted, rtol=1e-3)


@pytest.mark.parametrize("name", ["mappo", pytest.param("vdac", marks=pytest.mark.slow)])
def test_critics_with_memory_remember_the_episode_and_nothing_before(name):
    """Values of later steps depend on earlier ones, and none on what was remembered while it learned."""
    algorithm = team(name, **GRU)
    state, trajectory = algorithm.init(KEY), rollout()
    stale = state._replace(critic_memory=jax.tree.map(lambda x: x + 1, state.critic_memory))
    found = values(algorithm, state, trajectory)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, values(algorithm, stale, trajectory))
    other = trajectory._replace(obs=trajectory.obs + (np.arange(STEPS) == 1).reshape(-1, 1, 1, 1))
    changed = np.abs(values(algorithm, state, other) - found).max((1, 2)) > 1e-6
    assert changed.tolist() == [False, True, True, True, True]


@pytest.mark.parametrize("memory", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_values_of_q_learning_are_those_that_it_acts_by(memory):
    algorithm = team("vdn", **(GRU if memory else {}))
    state, trajectory = algorithm.init(KEY), rollout()
    found, params, held = values(algorithm, state, trajectory), algorithm.params(state), algorithm.memory(1)
    for t in range(STEPS):
        seen = jax.tree.map(lambda x, t=t: jnp.asarray(x[t]), trajectory.observation)
        scores = algorithm.scores(params, seen, held, KEY, False)
        wanted = np.take_along_axis(np.asarray(scores), np.asarray(trajectory.action[t])[..., None], -1)[..., 0]
        np.testing.assert_allclose(found[t], wanted, atol=1e-6)
        held = algorithm.act(params, seen, held, KEY, False)[1]


def test_values_of_actors_and_critics_are_of_state_and_action():
    algorithm = team("matd3", REAL, share="none")
    state, trajectory = algorithm.init(KEY), rollout(REAL)
    found = values(algorithm, state, trajectory)
    there = trajectory.alive[:, 0, :, None]  # what the dead do is not told
    joint = [(x * 1.0).reshape(STEPS, -1) for x in (trajectory.obs[:, 0], np.asarray(trajectory.action)[:, 0] * there)]
    for i in range(3):
        twins = []
        for net in state.learned.params["critic"][2 * i : 2 * i + 2]:
            hidden = np.maximum(dense(net["torso"]["dense_0"], np.concatenate(joint, -1)), 0)
            twins.append(dense(net["head"], hidden)[:, 0])
        assert np.abs(twins[0] - twins[1]).max() > 1e-4
        np.testing.assert_allclose(found[:, 0, i], np.minimum(*twins), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["maddpg", "masac", "maac", "td3_bc", "implicit_q", "cql_continuous"])
def test_values_along_episodes_of_any_length(name):
    memory = {} if name == "maac" else {**GRU, "burn_in": 3}
    spec = SPEC if name == "maac" else REAL
    algorithm = team(name, spec, **memory)
    state, trajectory = algorithm.init(KEY), rollout(spec)
    found = values(algorithm, state, trajectory)
    assert found.shape == (STEPS, 1, 3)
    assert np.isfinite(found).all()
    short = jax.tree.map(lambda x: x[:2], trajectory)
    np.testing.assert_allclose(found[:2], values(algorithm, state, short), atol=1e-5)


WRAPPED = {
    "bonus": {"bonus": "rnd"}, "credit": {"credit": "difference", "credit_reward": "learned"},
    "self_play": {"self_play": "uniform"}, "adversary": {"adversary": "takeover:share=0.25"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", WRAPPED)
def test_wrappers_pass_values_on(what):
    spec = dataclasses.replace(SPEC, sides=("s", "s", "t")) if what == "self_play" else SPEC
    plain, wrapped = team("ippo", spec), team("ippo", spec, **WRAPPED[what])
    wanted = values(plain, plain.init(KEY), rollout(spec))
    np.testing.assert_allclose(values(wrapped, wrapped.init(KEY), rollout(spec)), wanted, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "env", "settings"),
    [
        ("iql", "mpe/simple_spread", {"comm": "rial"}),
        ("iql", "mpe/simple_spread", {"fingerprint": True, "comm": "gat", "memory": "gru"}),
        ("mappo", "mpe/simple_spread", {"mean_field": True, "comm": "tarmac"}),
        ("iql_tabular", "games/climbing", {}),
        ("feudal", "mpe/simple_spread", {}),
        ("ippo", "games/rock_paper_scissors", {"self_play": "league"}),
    ],
)
def test_an_episode_tells_values_and_attention(name, env, settings):
    env = make(env)
    algorithm = make_algorithm(name, env.spec, make_config(name, settings), envs=12, updates=4, env=env)
    state = jax.jit(algorithm.init)(KEY)
    told = partial(algorithm.critic.values, algorithm.critic.params(state))
    _, inside = look_inside(algorithm, env, algorithm.params(state), KEY, True, 4, told, 2)
    for step in inside:
        assert step.value.shape == (env.spec.num_agents,)
        assert np.isfinite(step.value).all()
        assert (step.attention is not None) == (settings.get("comm") in ("gat", "tarmac"))
        if settings.get("comm") == "gat":
            assert step.attention.shape == (1, 5, 2, 2)  # the mean of four heads and each, of two of three agents
            np.testing.assert_allclose(step.attention[:, 0], step.attention[:, 1:].mean(1), atol=1e-6)


@pytest.mark.slow
def test_a_mean_field_is_seen_by_critics():
    algorithm, plain = (
        team("ippo", mean_field=True),
        team("ippo", dataclasses.replace(SPEC, observations=(Box((7,)),) * 3)),
    )
    trajectory = rollout(memory=algorithm.memory(1))
    codes, there, others = np.eye(3)[np.asarray(trajectory.action)], trajectory.alive[..., None] * 1.0, 1 - np.eye(3)
    before = np.concatenate([np.zeros_like(codes[:1]), codes[:-1]])
    mean = others @ (before * there) / np.maximum(others @ there, 1)
    seen = trajectory._replace(obs=np.concatenate([trajectory.obs, mean], -1).astype(np.float32), memory=())
    state = algorithm.init(KEY)
    np.testing.assert_allclose(values(algorithm, state, trajectory), values(plain, state, seen), atol=1e-5)


def test_nobody_values_a_side_that_does_not_learn():
    spec = dataclasses.replace(SPEC, sides=("s", "t", "s"))
    config = Sides({"s": Side("learner", "mappo", make_config("mappo", SMALL)), "t": Side("random")})
    algorithm = make_algorithm("", spec, config, envs=2, updates=4)
    found = values(algorithm, algorithm.init(KEY), rollout(spec, memory=algorithm.memory(1)))
    assert np.isnan(found[..., 1]).all()
    assert np.isfinite(found[..., [0, 2]]).all()


def test_learners_without_a_critic_have_none():
    assert team("bc").critic is None
    assert team("ireinforce", baseline="none", rollout_steps=9).critic is None


# Attention


def attention(algorithm, seen, memory=None, state=None):
    params = algorithm.params(algorithm.init(KEY) if state is None else state)
    memory = algorithm.memory(len(seen.obs)) if memory is None else memory
    return np.asarray(jax.jit(algorithm.attends)(params, seen, memory))


def moment(alive=(True, True, True), neighbours=None, n=3):
    obs = np.random.default_rng(1).normal(size=(2, n, 4)).astype(np.float32)
    near = None if neighbours is None else jnp.broadcast_to(jnp.asarray(neighbours), (2, n, n))
    return Observation(jnp.asarray(obs), alive=jnp.broadcast_to(jnp.asarray(alive), (2, n)), neighbours=near)


def test_attention_is_the_softmax_of_queries_and_keys():
    algorithm, seen = team("ippo", comm="tarmac", comm_size=4), moment((True, False, True))
    state = algorithm.init(KEY)
    net = state.params["actor"][0]
    layer, talk = net["torso"]["dense_0"], net["exchange_0"]
    h = np.tanh(np.asarray(seen.obs) @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
    scores = np.exp(dense(talk["query"], h) @ dense(talk["sign"], h).swapaxes(1, 2) / 4)
    scores[:, :, 1] = scores[:, 1] = 0  # the dead neither speak nor hear
    wanted = scores / np.maximum(scores.sum(-1, keepdims=True), 1e-9)
    found = attention(algorithm, seen, state=state)
    assert found.shape == (2, 1, 1, 3, 3)
    np.testing.assert_allclose(found[:, 0, 0], wanted, atol=1e-5)


@pytest.mark.slow
def test_recorded_teams_attend_in_units_of_what_they_saw():
    """With observations scaled by their moments, as those that act read them."""
    scaled, plain = (team("td3_bc", comm="tarmac", comm_size=4, normalize_obs=on) for on in (True, False))
    seen, state = moment(), scaled.init(KEY)
    stats = Moments(jnp.full((3, 4), 0.5), jnp.full((3, 4), 4.0), jnp.int32(1))
    state = state._replace(learned=state.learned._replace(extra=(stats, ())))
    bare = state._replace(learned=state.learned._replace(extra=()))
    wanted = attention(plain, seen._replace(obs=(seen.obs - 0.5) / 2), state=bare)
    np.testing.assert_allclose(attention(scaled, seen, state=state), wanted, atol=1e-4)


NEAR = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)


@pytest.mark.parametrize(
    "settings",
    [
        {**GRU, "comm": "gat", "comm_rounds": 2, "comm_size": 4, "channel": "topology=neighbours"},
        pytest.param({**GRU, "comm": "tarmac", "comm_early": True}, marks=pytest.mark.slow),
        pytest.param({"comm": "gat", "channel": "delay=2,loss=0.5"}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", ["ippo", pytest.param("iql", marks=pytest.mark.slow)])
def test_attention_adds_up_over_the_living_that_may_be_heard(name, settings):
    algorithm = team(name, dataclasses.replace(SPEC, neighbours=True), **settings)
    params, memory = algorithm.params(algorithm.init(KEY)), algorithm.memory(2)
    act = jax.jit(algorithm.act, static_argnums=4)
    for t, alive in enumerate([(True,) * 3] * 3 + [(True, False, True)] * 2):
        seen = moment(alive, NEAR)
        _, after, noted = act(params, seen, memory, jax.random.key(t), True)
        found = attention(algorithm, seen._replace(seeds=noted.get("channel")), memory)
        assert np.isfinite(found).all()
        assert (found >= 0).all()
        np.testing.assert_allclose(found.sum(-1), np.broadcast_to(alive, found.shape[:-1]), atol=1e-5)
        if "topology" in settings.get("channel", ""):
            assert (found[..., ~(NEAR | np.eye(3, dtype=bool))] == 0).all()
            assert (found[..., NEAR & np.outer(alive, alive)] > 0).all()
        memory = after


@pytest.mark.slow
def test_few_links_give_the_attention_that_masks_give(monkeypatch):
    n = 6
    spec = EnvSpec("x", tuple(f"a_{i}" for i in range(n)), (Box((4,)),) * n, (Discrete(3),) * n, 9)
    found = []
    for few in (1, 64):
        monkeypatch.setattr("flockrl.comm.few.FEW", few)
        algorithm = team("ippo", spec, comm="gat", comm_size=4, channel="topology=ring")
        assert (algorithm.talk.who is None) == (few == 64)
        found.append(attention(algorithm, moment((True,) * 5 + (False,), n=n)))
    np.testing.assert_allclose(*found, atol=1e-6)
    assert (found[0] > 0).sum(-1).max() == 3  # two neighbours and itself


def test_who_does_not_weigh_has_no_attention():
    assert team("ippo", comm="commnet").attends is None
    assert team("ippo").attends is None
