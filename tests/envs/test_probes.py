"""Probes: the right policy earns `best`, the wrong one what the docstring says, values are as known."""

import functools

import jax
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.core.types import Observation
from flockrl.envs import make
from flockrl.envs.api import reset_batch
from flockrl.envs.probes import ENVIRONMENTS

B = 200
GAMMA = 0.9
HURRY = {"xla_backend_optimization_level": 0}


@functools.cache
def build(name):
    """A probe with its compiled reset and step of B environments, shared by the tests."""
    env = make(f"probe/{name}")
    reset = jax.jit(lambda key: reset_batch(env, key, B), compiler_options=HURRY)
    return env, reset, jax.jit(jax.vmap(env.step), compiler_options=HURRY)


def play(name, policy):
    """B episodes: observations (a list of T + 1), reward, terminated, truncated [T, B, N]. `policy` is an action, or
    maps the observations so far to actions; it is numpy, so that it may remember and cheat as it likes."""
    env, reset, step = build(name)
    policy = policy if callable(policy) else constant(policy, env)
    state, first = reset(jax.random.key(0))
    seen, outcomes = [jax.tree.map(np.asarray, first)], []
    for t in range(env.spec.max_steps):
        action = np.asarray(policy(seen)).astype(np.int32 if env.spec.discrete else np.float32)
        state, then, *outcome = step(jax.random.split(jax.random.key(t + 1), B), state, action)
        seen.append(jax.tree.map(np.asarray, then))
        shape = (B, env.spec.num_agents)
        outcomes.append([np.broadcast_to(x.reshape(B, -1), shape) for x in map(np.asarray, outcome)])
    return seen, *(np.stack(parts) for parts in zip(*outcomes, strict=True))


def constant(value, env):
    shape = (B, env.spec.num_agents) if env.spec.discrete else (B, env.spec.num_agents, env.spec.action_size)
    return lambda seen: np.full(shape, value)


def value_of_first(reward, gamma=GAMMA):
    """[B, N] discounted return from the first step."""
    return np.tensordot(gamma ** np.arange(len(reward)), reward, axes=1)


def legal(seen: list[Observation]) -> np.ndarray:
    return seen[-1].avail.argmax(axis=-1)


def sign(seen: list[Observation]) -> np.ndarray:
    return seen[-1].obs[..., 0] > 0


def first_sign(seen: list[Observation]) -> np.ndarray:
    return seen[0].obs[..., 0] > 0


def named(seen: list[Observation]) -> np.ndarray:
    obs = seen[-1].obs
    return np.stack([obs[:, 0, 0] > 0, obs[:, 1, :3].argmax(-1), obs[:, 2, :4].argmax(-1)], axis=1)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("action", 1),
        ("action:continuous=true", 0.5),
        ("observation_action", sign),
        ("credit", sign),
        ("team_credit", sign),
        ("memory", first_sign),
        ("memory:length=2", first_sign),
        ("masks", legal),
        ("unlike", named),
        ("constant_reward", 0),
        ("discount", 0),
        ("truncation", 0),
        ("termination", 0),
        ("death", 0),
    ],
)
def test_the_right_policy_earns_the_best_return(name, policy):
    _, reward, terminated, truncated = play(name, policy)
    assert reward.dtype == np.float32
    assert reward.sum(axis=0).mean() == build(name)[0].best
    assert not (terminated & truncated).any()


@pytest.mark.parametrize(
    ("name", "policy", "mean", "slack"),
    [
        ("action", 0, -1, 0),
        ("action:continuous=true", 2.0, 1 - 1.5**2, 1e-6),
        ("observation_value", 0, 0, 0.2),
        ("observation_action", 1, 0, 0.2),
        ("credit", 1, 0, 0.2),
        ("credit", lambda seen: sign(seen)[:, ::-1], 0, 0.2),
        ("team_credit", 1, 0.25, 0.1),
        ("memory", sign, 0, 0.2),
        ("masks", 3, -3, 0.3),
        ("unlike", 0, (0 - 1 / 3 - 1 / 2) / 3, 0.2),
        ("state", 0, 0, 0.2),
    ],
)
def test_the_wrong_policy_does_not(name, policy, mean, slack):
    reward = play(name, policy)[1]
    assert reward.sum(axis=0).mean() == pytest.approx(mean, abs=slack)


def test_every_probe_is_named_after_its_builder_and_says_what_it_isolates():
    assert len(ENVIRONMENTS) == 15
    for name, builder in ENVIRONMENTS.items():
        env = make(f"probe/{name}")
        assert env.spec.name == f"probe/{name}"
        assert builder.__doc__.startswith("Isolates ")
        assert "Known answer: " in builder.__doc__
        assert env.best == {"observation_value": 0, "state": 0, "masks": 4, "truncation": 5, "termination": 5,
                            "death": 2}.get(name, 1)  # fmt: skip


def test_discount():
    seen, reward, terminated, _ = play("discount", 0)
    assert [moment.obs[0, 0].tolist() for moment in seen] == [[1, 0], [0, 1], [0, 0]]
    assert np.allclose(value_of_first(reward), GAMMA)
    assert terminated[:, 0, 0].tolist() == [False, True]


@pytest.mark.parametrize("name", ["observation_value", "state"])
def test_what_is_seen_is_what_is_paid(name):
    seen, reward, *_ = play(name, 0)
    told = seen[0].obs[..., 0] if name == "observation_value" else seen[0].state
    assert (reward[0] == told).all()
    assert set(np.unique(told)) == {-1, 1}


def test_state_is_not_in_the_observations():
    seen, *_ = play("state", 0)
    assert (seen[0].obs == 1).all()
    assert build("state")[0].spec.state_size == 1
    assert seen[0].state.shape == (B, 1)


def test_credit_pays_each_agent_for_its_own_choice_only():
    seen, reward, *_ = play("credit", lambda seen: np.stack([sign(seen)[:, 0], ~sign(seen)[:, 1]], axis=1))
    assert (reward[0] == [1, -1]).all()
    assert len(np.unique(seen[0].obs[..., 0], axis=0)) == 4, "the bits are independent"


def test_team_credit_pays_both_or_nobody():
    reward = play("team_credit", lambda seen: np.stack([sign(seen)[:, 0], ~sign(seen)[:, 1]], axis=1))[1]
    assert (reward == 0).all()


def test_memory_shows_the_cue_once():
    seen, reward, terminated, _ = play("memory:length=3", first_sign)
    cue = np.stack([moment.obs[:, 0, 0] for moment in seen])
    assert set(np.unique(cue[0])) == {-1, 1}
    assert (cue[1:] == 0).all()
    assert [moment.obs[0, 0, 1] for moment in seen] == [0, 0, 1, 0]
    assert reward[:, 0, 0].tolist() == [0, 0, 1]
    assert terminated[:, 0, 0].tolist() == [False, False, True]


def test_masks_change_every_step_and_only_the_mask_tells():
    seen, *_ = play("masks", 0)
    avail = np.stack([moment.avail for moment in seen])
    assert (avail.sum(axis=-1) == 1).all()
    assert set(np.unique(avail.argmax(axis=-1))) == set(range(8))
    assert (avail[1:] != avail[:-1]).any(axis=(1, 2, 3)).all()
    assert all((moment.obs == 1).all() for moment in seen)
    outside = play("masks", 99)[1]
    assert (outside == -1).all(), "an action that is none at all is as wrong as an illegal one"


def test_truncation_cuts_and_termination_ends():
    seen, reward, terminated, truncated = play("truncation", 0)
    assert truncated[:, 0, 0].tolist() == [False] * 4 + [True]
    assert not terminated.any()
    assert all((moment.obs == 1).all() for moment in seen)
    seen, reward, terminated, truncated = play("termination", 0)
    assert terminated[:, 0, 0].tolist() == [False] * 4 + [True]
    assert not truncated.any()
    assert np.allclose(value_of_first(reward), (1 - GAMMA**5) / (1 - GAMMA))
    for t, moment in enumerate(seen[:-1]):
        assert moment.obs[0, 0].argmax() == t


def test_unlike_agents_are_padded_with_zeros():
    env = build("unlike")[0]
    assert [space.size for space in env.spec.observations] == [1, 3, 5]
    assert [space.n for space in env.spec.actions] == [2, 3, 4]
    assert env.spec.groups == (0, 1, 2)
    obs = play("unlike", named)[0][0].obs
    assert (obs[:, 0, 1:] == 0).all()
    assert (obs[:, 1, 3:] == 0).all()
    assert (np.abs(obs[:, 0, 0]) == 1).all()
    assert (obs[:, 1].sum(axis=-1) == 1).all()
    assert (obs[:, 2].sum(axis=-1) == 2).all()
    assert (obs[:, 2, 4] == 1).all()


def test_death():
    seen, reward, terminated, truncated = play("death", 0)
    alive = np.stack([moment.alive for moment in seen])
    lives = np.array([1, 2, 3])
    for t in range(4):
        assert (alive[t] == (t < lives)).all()
        assert (reward[t] == (t < lives)).all()
        assert (terminated[t] == (t + 1 == lives)).all()
    assert not truncated.any()
    assert np.allclose(value_of_first(reward), (1 - GAMMA**lives) / (1 - GAMMA))
    living = seen[1].obs[0, 1:]
    assert living.tolist() == [[1, 0, 0], [0, 1, 0]]
    dead = np.stack([moment.obs[:, 0] for moment in seen[1:]])
    assert np.isfinite(dead).all()
    assert dead.std() > 0.3, "the dead see noise"


@pytest.mark.parametrize(("name", "least"), [("memory", 2), ("masks", 1), ("truncation", 1), ("termination", 1)])
def test_lengths_have_a_floor(name, least):
    assert make(f"probe/{name}:length={least}").spec.max_steps == least
    with pytest.raises(UsageError, match=f"probe/{name}: length must be at least {least}, not {least - 1}"):
        make(f"probe/{name}:length={least - 1}")
