"""Rewards in units and observations in deviations: learners with a replay do not depend on how large either is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.algos.scales import FULL, earn, no_unit
from flockrl.core.errors import UsageError
from flockrl.core.types import Box, Discrete, EnvSpec, Observation, Trajectory

T, B, N = 4, 4, 3
SMALL = {
    "hidden": (7, 6), "rollout_steps": T, "steps_per_update": 4, "batch_size": 16, "buffer_size": 64,
    "learning_starts": 0,
}  # fmt: skip


def world(discrete):
    space = Discrete(3) if discrete else Box((2,), -1.0, 1.0)
    return EnvSpec("test", ("a_0", "a_1", "b"), (Box((4,)),) * N, (space,) * N, 9, state_size=5)


def algorithm(name, **settings):
    spec = world(name in ("iql", "vdn", "qmix"))
    return spec, make_algorithm(name, spec, make_config(name, {**SMALL, **settings}), envs=B, updates=10)


def rollouts(spec, count=3, seed=0):
    rng, no = np.random.default_rng(seed), np.zeros((T, B, N), bool)
    for _ in range(count):
        obs, state = rng.normal(size=(2, T, B, N, 4)), rng.normal(size=(2, T, B, 5))
        action = rng.integers(0, 3, (T, B, N)) if spec.discrete else rng.uniform(-1, 1, (T, B, N, 2))
        arrays = Trajectory(
            obs=obs[0], next_obs=obs[1], state=state[0], next_state=state[1], reward=rng.normal(size=no.shape),
            action=action, terminated=rng.random(no.shape) < 0.2, truncated=no, first=rng.random((T, B)) < 0.2,
            alive=~no,
        )  # fmt: skip
        yield jax.tree.map(
            lambda x: jnp.asarray(x, {"f": jnp.float32, "i": jnp.int32, "b": bool}[x.dtype.kind]), arrays
        )


def learned(algorithm, parts):
    """The state after these rollouts, and the metrics of the last one."""
    update, state = jax.jit(algorithm.update), jax.jit(algorithm.init)(jax.random.key(0))
    for part in parts:
        state, metrics = update(state, part, jax.random.key(1))
    return state, metrics


def gap(one, two):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def test_the_unit_by_hand():
    """Two environments of one agent each: 1, then 0.5 * 1 + 2; and 3, an episode that begins, -4, then -2 + 1."""
    unit = no_unit(2, 1)
    np.testing.assert_array_equal(unit.size, [1.0])
    reward, first = jnp.array([[[1.0], [3.0]], [[2.0], [-4.0]]]), jnp.array([[True, True], [False, True]])
    unit = earn(unit, reward, first, 0.5, np.array([0]))
    np.testing.assert_array_equal(unit.earned[:, 0], [2.5, -4.0])
    np.testing.assert_allclose(unit.size, [4.0 / FULL])
    unit = earn(unit, jnp.array([[[0.0], [1.0]]]), jnp.array([[False, False]]), 0.5, np.array([0]))
    np.testing.assert_array_equal(unit.earned[:, 0], [1.25, -1.0])  # it goes on over rollouts
    np.testing.assert_allclose(unit.size, [4.0 / FULL])


def test_agents_that_share_have_one_unit_and_others_their_own():
    unit = earn(no_unit(1, 3), jnp.array([[[1.0, 0.0, 6.0]]]), jnp.array([[True]]), 0.9, np.array([0, 0, 1]))
    np.testing.assert_allclose(unit.size, np.array([1.0, 1.0, 6.0]) / FULL)
    unit = earn(no_unit(1, 2), jnp.array([[[1.0, 0.0]]]), jnp.array([[True]]), 0.9, np.array([0, 1]))
    np.testing.assert_allclose(unit.size, [1.0 / FULL, 1.0])  # the second was never paid


@pytest.mark.parametrize("name", ["iql", "qmix", "iddpg", pytest.param("masac", marks=pytest.mark.slow)])
def test_larger_rewards_teach_the_same_bit_for_bit(name):
    spec, made = algorithm(name)
    plain, large = [], []
    for part in rollouts(spec):
        plain.append(part)
        large.append(part._replace(reward=1024 * part.reward))
    (one, told), (two, more) = learned(made, plain), learned(made, large)
    assert gap(one.learned.params, two.learned.params) == 0
    assert float(more["reward_unit"]) == 1024 * float(told["reward_unit"])
    ask = jax.jit(lambda state: made.critic.values(made.critic.params(state), plain[0]))
    np.testing.assert_array_equal(1024 * ask(one), ask(two))  # values are told as returns
    assert np.abs(ask(one)).max() > 0
    _, off = algorithm(name, normalize_reward=False)
    assert gap(learned(off, plain)[0].learned.params, learned(off, large)[0].learned.params) > 1e-4


@pytest.mark.parametrize("name", ["isac", pytest.param("masac", marks=pytest.mark.slow)])
def test_a_temperature_counts_in_rewards_of_the_environment(name):
    """If rewards are 1024 times as large, a temperature that is so too teaches the same."""
    spec, made = algorithm(name, temperature=0.25)
    plain = list(rollouts(spec))
    large = [part._replace(reward=1024 * part.reward) for part in plain]
    one = learned(made, plain)[0].learned.params
    assert gap(one, learned(algorithm(name, temperature=256.0)[1], large)[0].learned.params) == 0
    assert gap(one, learned(made, large)[0].learned.params) > 1e-4


def test_a_team_has_the_unit_of_what_it_earns_together():
    """Two agents of a side, paid 3 and 1: their sum is 4, their mean 2, and alone they earn 3 and 1."""
    spec = EnvSpec("test", ("a_0", "a_1"), (Box((2,)),) * 2, (Discrete(2),) * 2, 9)
    zeros, no = jnp.zeros((T, B, 2)), jnp.zeros((T, B, 2), bool)
    part = Trajectory(
        obs=jnp.zeros((T, B, 2, 2)), next_obs=jnp.zeros((T, B, 2, 2)), reward=zeros.at[0, 0].set(jnp.array([3.0, 1.0])),
        action=no.astype(int), terminated=no, truncated=no, first=no[..., 0].at[0].set(True), alive=~no,
    )  # fmt: skip
    for settings, most in (({"team_reward": "sum"}, 4.0), ({}, 2.0), ({"mixer": "none"}, 3.0)):
        config = make_config("vdn", {**SMALL, **settings})
        made = make_algorithm("vdn", spec, config, envs=B, updates=10)
        state, _ = learned(made, [part])
        np.testing.assert_allclose(state.learned.scales.reward.most, [most, most])


@pytest.mark.parametrize("name", ["qmix", "matd3", pytest.param("isac", marks=pytest.mark.slow)])
def test_observations_count_in_units_of_their_deviation(name):
    """Experience that is moved and stretched teaches nearly the same, and is acted on alike."""
    spec, made = algorithm(name, normalize_obs=True)
    plain, moved = list(rollouts(spec)), []
    fields = "obs", "next_obs", "state", "next_state"
    for part in plain:
        moved.append(part._replace(**{name: 20 * getattr(part, name) + 5 for name in fields}))
    (one, _), (two, _) = learned(made, plain), learned(made, moved)
    assert gap(one.learned.params, two.learned.params) < 1e-2
    begun = jax.jit(made.init)(jax.random.key(0))
    assert gap(one.learned.params, begun.learned.params) > 1e-2 / 4
    seen = made.params(two)["seen"]
    obs = np.concatenate([part.obs for part in moved]).reshape(-1, N, 4)
    np.testing.assert_allclose(seen.mean[0], obs[:, :2].mean((0, 1)), rtol=1e-3)  # a_0 and a_1 share
    np.testing.assert_allclose(seen.mean[2], obs[:, 2].mean(0), rtol=1e-3)
    act = jax.jit(made.act, static_argnums=4)
    _, bare = algorithm(name)
    scaled = np.clip((moved[0].obs[0] - seen.mean) / seen.std, -10, 10)
    params = made.params(two)
    got = act(params, Observation(moved[0].obs[0]), made.memory(B), jax.random.key(2), False)[0]
    want = bare.act(params, Observation(jnp.asarray(scaled)), bare.memory(B), jax.random.key(2), False)[0]
    np.testing.assert_allclose(got, want, atol=1e-5)
    _, same = algorithm(name)
    assert gap(learned(same, plain)[0].learned.params, learned(same, moved)[0].learned.params) > 1e-2


def test_sets_are_not_scaled():
    with pytest.raises(UsageError, match="normalize_obs scales every place of a row"):
        make_config("vdn", {"net": "entities", "normalize_obs": True})


class Paid:
    """Cartpole in another currency."""

    def __init__(self, rate):
        self.env, self.rate = flockrl.make_env("classic/cartpole"), rate
        self.spec = self.env.spec

    def reset(self, key):
        return self.env.reset(key)

    def step(self, key, state, action):
        state, seen, reward, *over = self.env.step(key, state, action)
        return state, seen, self.rate * reward, *over


def test_a_pole_is_balanced_for_any_pay(tmp_path):
    """20,000 steps paid 1,000 each: without a unit, values of 100,000 are out of reach, and it falls at once."""
    run = flockrl.train("dqn", Paid(1000.0), steps=20_000, seed=1, eval_episodes=20, quiet=True, out=tmp_path / "run")
    assert run.result["final_eval_return"] / 1000 > 150
