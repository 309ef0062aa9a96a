"""Environments by name, and stepping many of them with automatic resets."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.actions import action_bounds, clip_action
from flockrl.core.errors import UsageError
from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.envs import make
from flockrl.envs.api import reset_batch, step_batch
from flockrl.envs.registry import SUITES, environments, parse_settings

KEY = jax.random.key(0)


# --- names and settings


def test_names_and_settings():
    env = make("mpe/simple_spread")
    assert env.spec.name == "mpe/simple_spread"
    assert env.spec.num_agents == 3
    assert make("mpe/simple_spread:N=5,max_cycles=7").spec.max_steps == 7
    assert make("mpe/simple_spread:N=5").spec.num_agents == 5
    assert make("mpe/simple_spread", N=4).spec.num_agents == 4
    assert make("mpe/simple_spread:N=5", N=4).spec.num_agents == 4
    assert not make("mpe/simple_spread:continuous_actions=true").spec.discrete


def test_every_listed_name_is_built():
    for suite in SUITES:
        for name in environments(suite):
            if name != "file":
                assert make(f"{suite}/{name}").spec.name == f"{suite}/{name}"


def test_an_environment_passes_through():
    env = make("probe/action")
    assert make(env) is env
    with pytest.raises(UsageError, match=r"Settings \(N\) go with an environment's name"):
        make(env, N=3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mpe/simple_spred", "no environment 'mpe/simple_spred'. Did you mean 'simple_spread'"),
        ("mpr/simple_spread", "no environment 'mpr/simple_spread'. Did you mean 'mpe/simple_spread'"),
        ("simple_spread", "Did you mean 'mpe/simple_spread'"),
        ("games/zzzzzzzz", "Choose from: .*climbing"),
        ("foraging", "no environment 'foraging'. Did you mean 'foraging/field'"),
        ("swarm", "Choose from: swarm/flocking, swarm/foraging, swarm/search"),
        ("mpe/simple_spread:n_agents=3", "mpe/simple_spread has no setting 'n_agents'"),
        ("mpe/simple_spread:max_cycle=3", "no setting 'max_cycle'. Did you mean 'max_cycles'"),
        ("mpe/simple_spread:N", "name=value, separated by commas, not 'N'"),
        ("mpe/simple_spread:=3", "name=value, separated by commas, not '=3'"),
        ("mpe/simple_spread:N=true", "N must be a number, not True"),
        ("mpe/simple_spread:N=3,N=4", "The setting N is given twice: leave out one of them"),
        ("mpe/simple_spread:N=three", "N must be a number, not 'three'"),
        ("mpe/simple_spread:N=2.5", "N must be a whole number, not 2.5"),
        ("mpe/simple_spread:N=NaN", "N must be a whole number, not nan"),
        ("mpe/simple_spread:continuous_actions=yes", "continuous_actions must be true or false, not 'yes'"),
    ],
)
def test_what_is_wrong_is_said(name, words):
    with pytest.raises(UsageError, match=words):
        make(name)


def test_parse_settings():
    text = "a=1, b=0.5,c=true,d=True,e=word,f=x=y,g=-2,h=None"
    assert parse_settings(text) == {
        "a": 1, "b": 0.5, "c": True, "d": True, "e": "word", "f": "x=y", "g": -2, "h": None,
    }  # fmt: skip
    assert parse_settings("") == {}


# --- bounds


def bounded(*spaces):
    n = len(spaces)
    return EnvSpec("bounded", tuple(f"a_{i}" for i in range(n)), (Box((1,)),) * n, spaces, max_steps=1)


def test_actions_are_clipped_to_each_agents_own_bounds():
    spec = bounded(Box((2,), -1.0, (0.5, 2.0)), Box((1,), 0.0, 1.0))
    low, high = action_bounds(spec)
    assert low.tolist() == [[-1, -1], [0, 0]]
    assert high.tolist() == [[0.5, 2], [1, 0]]
    action = jnp.array([[[9.0, 9.0], [-9.0, 9.0]], [[-9.0, 0.25], [0.5, -9.0]]])
    assert clip_action(spec, action).tolist() == [[[0.5, 2], [0, 0]], [[-1, 0.25], [0.5, 0]]]
    assert clip_action(bounded(Discrete(2)), jnp.array([7])).tolist() == [7]


# --- stepping many


class Count(NamedTuple):
    t: jax.Array
    episode: jax.Array
    key: jax.Array


class Counter:
    """Two agents see the step and their episode's number. Ends after `length` steps, as `flags` says."""

    def __init__(self, length=2, flags=lambda over: (over, jnp.bool_(False))):
        self.length, self.flags = length, flags
        self.spec = EnvSpec("counter", ("a", "b"), (Box((2,)),) * 2, (Discrete(2),) * 2, max_steps=length)

    def observe(self, state):
        return Observation(jnp.broadcast_to(jnp.stack([state.t, state.episode]), (2, 2)))

    def reset(self, key):
        state = Count(jnp.float32(0), (jax.random.key_data(key)[0] % 100_003).astype(jnp.float32), key)
        return state, self.observe(state)

    def step(self, key, state, action):
        state = state._replace(t=state.t + 1)
        return state, self.observe(state), action.astype(jnp.float32), *self.flags(state.t >= self.length)


def run(env, batch, steps, state=None):
    start, seen = reset_batch(env, KEY, batch)
    state = start if state is None else state(start)
    if hasattr(env, "observe"):
        seen = jax.vmap(env.observe)(state)
    action = jnp.tile(jnp.arange(env.spec.num_agents), (batch, 1))
    step = jax.jit(lambda *args: step_batch(env, *args), compiler_options={"xla_backend_optimization_level": 0})
    results = []
    for key in jax.random.split(jax.random.key(1), steps):
        result = step(key, state, seen, action)
        results.append(result)
        state, seen = result.state, result.observation
    return results


def test_a_reset_keeps_the_final_observation_and_opens_the_next_episode():
    # The first environment is one step ahead, so they end at different times.
    first, second = run(Counter(), 2, 2, lambda state: state._replace(t=jnp.array([1.0, 0.0])))
    assert first.done.tolist() == [True, False]
    assert second.done.tolist() == [False, True]
    assert first.final.obs[:, 0, 0].tolist() == [2, 1]
    assert first.observation.obs[:, 0, 0].tolist() == [0, 1]
    assert first.state.t.tolist() == [0, 1]
    was, now = first.final.obs[:, 0, 1], first.observation.obs[:, 0, 1]
    assert was[0] != now[0], "a new episode has a number of its own"
    assert was[1] == now[1], "the other one goes on"
    assert first.state.episode[0] == now[0], "the state is that of the new episode"
    assert second.final.obs[:, 0, 0].tolist() == [1, 2]
    assert second.final.obs[0, 0, 1] == now[0]
    assert second.observation.obs[:, 0, 0].tolist() == [1, 0]


def test_new_episodes_differ_from_each_other():
    result = run(Counter(length=1), 4, 1)[0]
    assert len(set(result.observation.obs[:, 0, 1].tolist())) == 4


def test_nothing_is_reset_while_nothing_ends():
    result = run(Counter(length=5), 3, 1)[0]
    assert not result.done.any()
    assert (result.final.obs == result.observation.obs).all()


@pytest.mark.parametrize(
    "flags",
    [
        lambda over: (over, jnp.bool_(False)),
        lambda over: (jnp.full(2, over), jnp.zeros(2, bool)),
        lambda over: (jnp.full(2, over), jnp.bool_(False)),
    ],
)
def test_flags_of_the_team_hold_for_every_agent(flags):
    result = run(Counter(length=1, flags=flags), 3, 1)[0]
    assert result.terminated.tolist() == [[True, True]] * 3
    assert result.truncated.tolist() == [[False, False]] * 3
    assert result.reward.tolist() == [[0, 1]] * 3
    assert result.done.all()


def test_truncated_is_told_apart():
    result = run(Counter(length=1, flags=lambda over: (jnp.bool_(False), over)), 2, 1)[0]
    assert result.truncated.all()
    assert not result.terminated.any()
    assert result.done.all()


def test_an_episode_goes_on_until_all_have_ended():
    flags = lambda over: (jnp.stack([over, jnp.bool_(False)]), jnp.bool_(False))  # noqa: E731
    assert not run(Counter(length=1, flags=flags), 2, 1)[0].done.any()
    mixed = lambda over: (jnp.stack([over, ~over]), jnp.stack([~over, over]))  # noqa: E731
    assert run(Counter(length=1, flags=mixed), 2, 1)[0].done.all()


def test_the_dead_end_once_and_the_episode_ends_with_the_last():
    first, second, third, fourth = run(make("probe/death"), 2, 4)
    assert [step.done.tolist() for step in (first, second, third, fourth)] == [[f] * 2 for f in (0, 0, 1, 0)]
    assert [step.terminated[0].tolist() for step in (first, second, third)] == np.eye(3, dtype=bool).tolist()
    assert third.final.alive.tolist() == [[False] * 3] * 2
    assert third.observation.alive.tolist() == [[True] * 3] * 2
    assert fourth.terminated[0].tolist() == [True, False, False], "the next episode runs like the first"


class Noisy(Counter):
    """Agent a dies after the first step, and its flag stays up."""

    def __init__(self, reward_after_death=False):
        super().__init__(length=3)
        self.spec = dataclasses.replace(self.spec, reward_after_death=reward_after_death)

    def observe(self, state):
        return super().observe(state)._replace(alive=jnp.stack([state.t < 1, jnp.bool_(True)]))

    def step(self, key, state, action):
        state, seen, reward, over, _ = super().step(key, state, action)
        return state, seen, reward, jnp.stack([state.t >= 1, over]), jnp.bool_(False)


def test_flags_of_the_dead_are_dropped():
    steps = run(Noisy(), 1, 3)
    assert [step.terminated[0].tolist() for step in steps] == [[True, False], [False, False], [False, True]]
    assert [bool(step.done[0]) for step in steps] == [False, False, True]
    steps = run(Noisy(reward_after_death=True), 1, 3)  # returns end together
    assert [step.terminated[0].tolist() for step in steps] == [[False] * 2, [False] * 2, [True] * 2]


def test_typed_keys_in_the_state_survive_a_reset():
    result = run(Counter(length=1), 2, 1)[0]
    assert jax.random.key_data(result.state.key).shape[0] == 2
    assert jnp.issubdtype(result.state.key.dtype, jax.dtypes.prng_key)


def test_step_batch_can_be_compiled_and_scanned():
    env = make("probe/death")

    def body(carry, key):
        result = step_batch(env, key, *carry, jnp.zeros((2, 3), jnp.int32))
        return (result.state, result.observation), result.done

    carry = reset_batch(env, KEY, 2)
    _, done = jax.jit(lambda carry: jax.lax.scan(body, carry, jax.random.split(KEY, 6)))(carry)
    assert done[:, 0].tolist() == [False, False, True, False, False, True]
