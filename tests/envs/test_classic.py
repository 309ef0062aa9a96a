"""Classic control against Gymnasium, step by step.

Episodes are played in Gymnasium and replayed here twice: in double precision from the first state on, and
in single precision from Gymnasium's state before every step. A rod that stands upright blows up rounding
errors fiftyfold in a second, so episodes of more than 5 seconds are taken up again after `STRETCH` steps.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

from flockrl.core.errors import UsageError
from flockrl.core.types import Box, Discrete
from flockrl.envs import check, make
from flockrl.envs.api import reset_batch, step_batch
from flockrl.envs.classic.control import Balance, Swing

KEY = jax.random.key(0)
REFERENCE = {"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1"}
SEEDS = range(4)
STRETCH = 250

quick = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


class Play(NamedTuple):
    """An episode of Gymnasium. raw: [T + 1, 2 or 4] its states; obs: [T + 1, O]; action: [T, 1, 1] or [T, 1];
    reward, terminated, truncated: [T]."""

    raw: np.ndarray
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def reference(name: str, max_cycles: int | None = None, **settings: Any) -> Any:
    """Gymnasium's own environment, time limit included."""
    limit = {} if max_cycles is None else {"max_episode_steps": max_cycles}
    return gymnasium.make(REFERENCE[name], disable_env_checker=True, **limit, **settings)


def played(env: Any, choose: Any, seed: int, start: Any = None) -> Play:
    """One episode, from `start` if given, by choose(state, random generator) -> action."""
    rng = np.random.default_rng(seed)
    obs = [env.reset(seed=seed)[0]]
    if start is not None:
        env.unwrapped.state = np.array(start, float)
        obs = [np.full_like(obs[0], np.nan)]  # nobody was shown this state
    raw, rest, over = [np.array(env.unwrapped.state)], [], False
    while not over:
        action = choose(raw[-1], rng)
        seen, reward, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
        obs.append(seen)
        raw.append(np.array(env.unwrapped.state))
        rest.append((np.asarray(action)[None], reward, terminated, truncated))
    return Play(np.array(raw), np.array(obs), *map(np.array, zip(*rest, strict=True)))


def ours(name: str, t: Any, raw: Any) -> Any:
    """Gymnasium's state as ours."""
    return Swing(t, raw[0], raw[1]) if name == "pendulum" else Balance(t, raw)


def agree(name: str, play: Play, **settings: Any) -> None:
    """Both replays give what Gymnasium gave."""
    env = make(f"classic/{name}", **settings)
    steps = len(play.action)

    def outcome(seen, reward, terminated, truncated):
        return seen.obs[0], reward[0], terminated, truncated

    @quick
    def along(t, raw, action):
        def move(state, act):
            state, *rest = env.step(KEY, state, act)
            return state, outcome(*rest)

        return jax.lax.scan(move, ours(name, t, raw), action)[1]

    @quick
    def single(raw, action):
        times = jnp.arange(steps, dtype=jnp.int32)
        return jax.vmap(lambda t, raw, act: outcome(*env.step(KEY, ours(name, t, raw), act)[1:]))(times, raw, action)

    with jax.enable_x64(True):
        starts = range(0, steps, STRETCH)
        parts = [along(np.int32(t), play.raw[t], play.action[t : t + STRETCH]) for t in starts]
        double = [np.concatenate(field) for field in zip(*parts, strict=True)]
    assert double[0].dtype == np.float64
    raw, action = play.raw[:-1].astype(np.float32), play.action
    action = action.astype(np.int32 if env.spec.discrete else np.float32)
    for obs, reward, terminated, truncated in (double, single(raw, action)):
        np.testing.assert_allclose(obs, play.obs[1:], rtol=0, atol=1e-4)
        np.testing.assert_allclose(reward, play.reward, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(terminated, play.terminated)
        np.testing.assert_array_equal(truncated, play.truncated)


# --- the pendulum


def torque(state, rng):
    """Within bounds half of the time, else up to twice as much."""
    return rng.uniform(-4.0, 4.0, 1)


def whirl(state, rng):
    """Always faster, so the speed limit and many turns are met."""
    return np.array([3.0 if state[1] >= 0 else -3.0])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("choose", [torque, whirl])
def test_pendulum_does_what_gymnasiums_does(choose, seed):
    play = played(reference("pendulum"), choose, seed)
    assert len(play.action) == 200
    assert not play.terminated.any()
    assert play.truncated.tolist() == [False] * 199 + [True]
    assert (np.abs(play.action) > 2).any(), "torques out of bounds are among them"
    if choose is whirl:
        assert np.abs(play.raw[:, 0]).max() > 2 * math.pi
        assert np.abs(play.raw[:, 1]).max() == 8
    agree("pendulum", play)


@pytest.mark.parametrize("settings", [{"g": 9.81}, {"g": 0.0}, {"g": 3, "max_cycles": 30}, {"max_cycles": 1}])
def test_pendulum_settings(settings):
    agree("pendulum", played(reference("pendulum", **settings), torque, 5), **settings)


def test_the_cost_is_of_the_torque_that_was_applied():
    env = make("classic/pendulum")
    state = Swing(jnp.int32(0), jnp.float32(2 * math.pi), jnp.float32(0))
    for asked in (2.0, 50.0, -50.0):
        then, _, reward, _, _ = env.step(KEY, state, jnp.array([[asked]]))
        np.testing.assert_allclose(reward, [-0.004], atol=1e-6)
        np.testing.assert_allclose(then.speed, math.copysign(0.3, asked), atol=1e-5)


def test_turns_do_not_add_up():
    env = make("classic/pendulum:max_cycles=5000")
    state = Swing(jnp.int32(0), jnp.float32(0), jnp.float32(8))
    push = jnp.full((1, 1), 2.0)
    angle = quick(lambda s: jax.lax.scan(lambda s, _: (env.step(KEY, s, push)[0], s.angle), s, None, 5000))(state)[1]
    assert np.abs(angle).max() <= math.pi + 0.4 + 1e-5


# --- the cart and its pole


def anything(state, rng):
    return int(rng.integers(2))


def balance(state, rng):
    """Holds the pole up and the cart in the middle for as long as it is asked to."""
    return int(state @ [0.1, 0.3, 3.0, 0.6] > 0)


def leave(state, rng):
    """Holds the pole up and runs off to one side."""
    return int(state @ [0.0, 0.0, 3.0, 0.6] + 0.1 * np.sign(state[1]) > 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_cartpole_falls_like_gymnasiums(seed):
    play = played(reference("cartpole"), anything, seed)
    assert play.terminated.tolist() == [False] * (len(play.action) - 1) + [True]
    assert abs(play.raw[-1, 2]) > math.radians(12)
    agree("cartpole", play)


@pytest.mark.parametrize("seed", SEEDS)
def test_cartpole_stands_like_gymnasiums(seed):
    play = played(reference("cartpole"), balance, seed)
    assert len(play.action) == 500
    assert not play.terminated.any()
    assert play.truncated[-1]
    assert play.reward.sum() == 500
    agree("cartpole", play)


@pytest.mark.parametrize("side", [-1, 1])
def test_cartpole_leaves_the_track_like_gymnasiums(side):
    play = played(reference("cartpole"), leave, 0, start=[side * 2.0, side * 1.0, 0.0, 0.0])
    assert play.terminated[-1]
    assert play.raw[-1, 0] * side > 2.4
    assert abs(play.raw[-1, 2]) < math.radians(12)
    agree("cartpole", play)


def test_a_fall_in_the_last_step_is_both():
    length = len(played(reference("cartpole"), anything, 0).action)
    for limit in (length - 1, length, length + 1):
        play = played(reference("cartpole", limit), anything, 0)
        assert (bool(play.terminated[-1]), bool(play.truncated[-1])) == (limit >= length, limit <= length)
        agree("cartpole", play, max_cycles=limit)


# --- both


@pytest.mark.parametrize("name", REFERENCE)
def test_spaces_are_gymnasiums(name):
    theirs, spec = reference(name), make(f"classic/{name}").spec
    assert spec.num_agents == 1
    assert spec.max_steps == theirs.spec.max_episode_steps
    seen = spec.observations[0]
    assert seen.shape == theirs.observation_space.shape
    np.testing.assert_allclose(seen.low, theirs.observation_space.low)
    np.testing.assert_allclose(seen.high, theirs.observation_space.high)
    if name == "pendulum":
        assert spec.actions == (Box((1,), float(theirs.action_space.low[0]), float(theirs.action_space.high[0])),)
    else:
        assert spec.actions == (Discrete(int(theirs.action_space.n)),)


@pytest.mark.parametrize(("name", "bounds"), [("pendulum", [math.pi, 1.0]), ("cartpole", [0.05, 0.05, 0.05, 0.05])])
def test_episodes_begin_where_gymnasiums_do(name, bounds):
    env, theirs = make(f"classic/{name}"), reference(name).unwrapped
    state, seen = reset_batch(env, KEY, 2000)
    raw = np.stack([state.angle, state.speed], 1) if name == "pendulum" else np.asarray(state.body)
    assert (state.t == 0).all()
    assert (np.abs(raw) <= np.array(bounds, np.float32)).all()
    for k, bound in enumerate(bounds):
        assert kstest(raw[:, k], "uniform", (-bound, 2 * bound)).pvalue > 1e-3
    links = np.corrcoef(raw.T) - np.eye(len(bounds))
    assert np.abs(links).max() < 0.1, "the numbers are drawn one by one"
    theirs.reset(seed=0)
    for row, shown in zip(raw[:5], seen.obs, strict=False):
        theirs.state = row
        wanted = theirs._get_obs() if name == "pendulum" else row
        np.testing.assert_allclose(shown, [wanted], atol=1e-6)
    starts = [theirs.reset(seed=seed) and np.array(theirs.state) for seed in range(200)]
    assert (np.abs(starts) <= bounds).all()
    assert (np.abs(starts).max(axis=0) > 0.9 * np.array(bounds)).all(), "Gymnasium's bounds are these"


@pytest.mark.parametrize("name", ["pendulum", "pendulum:g=9.81,max_cycles=7", "cartpole", "cartpole:max_cycles=1"])
def test_the_contract_is_kept(name):
    check(make(f"classic/{name}"))


def test_training_steps_many_of_them():
    for name, action in (("pendulum", jnp.full((3, 1, 1), 9.0)), ("cartpole", jnp.ones((3, 1), jnp.int32))):
        env = make(f"classic/{name}:max_cycles=2")
        state, seen = reset_batch(env, KEY, 3)
        for over in (False, True):
            now = quick(partial(step_batch, env))(KEY, state, seen, action)
            state, seen = now.state, now.observation
            assert now.reward.shape == now.terminated.shape == now.truncated.shape == (3, 1)
            assert now.done.tolist() == now.truncated[:, 0].tolist() == [over] * 3
        assert state.t.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pendulum:max_cycles=0", "classic/pendulum: max_cycles must be a whole number of at least 1, not 0"),
        ("cartpole:max_cycles=0", "classic/cartpole: max_cycles must be a whole number of at least 1, not 0"),
        ("cartpole:max_cycles=-5", "at least 1, not -5"),
        ("cartpole:max_cycles=2.5", "max_cycles must be a whole number, not 2.5"),
        ("pendulum:g=NaN", "classic/pendulum: g must be a finite number, not nan"),
        ("pendulum:g=Infinity", "g must be a finite number, not inf"),
        ("pendulum:g=moon", "g must be a number, not 'moon'"),
        ("pendulum:gravity=9", "no setting 'gravity'"),
        ("cartpole:g=9", "no setting 'g'"),
        ("pendulums", "Did you mean 'pendulum'"),
    ],
)
def test_bad_settings(name, words):
    with pytest.raises(UsageError, match=words):
        make(f"classic/{name}")
