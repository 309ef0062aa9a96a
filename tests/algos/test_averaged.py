"""Agents that learn alone and average their policies."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.algos.wrappers.averaged import _matrices
from flockrl.core.errors import UsageError
from flockrl.core.groups import Averaging, parse_share
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.core.types import Trajectory

T, B, N, SEEN = 4, 3, 3, 5
SPEC = EnvSpec("x", ("a_0", "a_1", "a_2"), (Box((SEEN,)),) * N, (Discrete(2),) * N, 9)


def experience(seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=(T, B, N, *shape)), jnp.float32)  # noqa: E731
    no = jnp.zeros((T, B, N), bool)
    action = jnp.asarray(rng.integers(0, 2, (T, B, N)), jnp.int32)
    extras = {"logp": jnp.full((T, B, N), np.log(0.5), jnp.float32)}
    return Trajectory(draw(SEEN), action, draw(), no, no, draw(SEEN), jnp.zeros((T, B), bool), extras=extras)


@functools.cache
def alone_or_together(every):
    return learn(f"average:every={every}", 4 if every > 1 else 1)


def learn(share, updates, name="ireinforce", **more):
    """The policies of all agents after each update: lists of leaves [N, ...]."""
    config = make_config(name, {"hidden": (4,), "share": share, "rollout_steps": T, "lr_schedule": "constant", **more})
    learner = make_algorithm(name, SPEC, config, envs=B, updates=10)
    state, found = jax.jit(learner.init)(jax.random.key(0)), []
    update = jax.jit(learner.update)
    for i in range(updates + 1):
        nets = learner.params(state).get("actor", ()) or learner.params(state)["q"]
        found.append([np.stack(leaves) for leaves in zip(*map(jax.tree.leaves, nets), strict=True)])
        state, _ = update(state, experience(i), jax.random.key(i))
    return found


def apart(leaves):
    return max(np.abs(leaf - leaf[:1]).max() for leaf in leaves)


def test_they_begin_alike_and_are_alike_after_every_second_update():
    found = alone_or_together(2)
    distances = [apart(leaves) for leaves in found]
    assert max(distances[0], distances[2], distances[4]) < 1e-6
    assert min(distances[1], distances[3]) > 1e-4


def test_the_first_average_is_the_mean_of_agents_that_learned_alone():
    """every=2 has not averaged after one update; every=1 is its mean, exactly."""
    alone, mean = alone_or_together(2)[1], alone_or_together(1)[1]
    for a, b in zip(alone, mean, strict=True):
        np.testing.assert_allclose(b, np.broadcast_to(a.mean(0, keepdims=True), a.shape), atol=1e-6)


@pytest.mark.slow
def test_learners_with_a_replay_average_too():
    found = learn("average:every=1", 3, "iql", learning_starts=0, buffer_size=24, batch_size=4, steps_per_update=4)
    assert max(map(apart, found)) < 1e-6
    assert any(np.abs(a - b).max() > 1e-5 for a, b in zip(found[0], found[3], strict=True))


def test_who_averages_with_whom():
    ring = EnvSpec("r", tuple(f"a_{i}" for i in range(5)), (Box((2,)),) * 5, (Discrete(2),) * 5, 9)
    first, mixing = _matrices(ring, "ring")
    np.testing.assert_allclose(mixing[0], [1 / 3, 1 / 3, 0, 0, 1 / 3], atol=1e-6)
    np.testing.assert_allclose(mixing.sum(0), 1, atol=1e-6)
    np.testing.assert_array_equal(first[:, 0], 1)
    np.testing.assert_allclose(_matrices(ring, "all")[1], 0.2, atol=1e-6)


def test_what_is_asked_for_is_read_or_refused():
    assert parse_share("average:every=3,topology=ring") == ("none", Averaging(3, "ring"))
    assert parse_share("groups") == ("groups", None)
    for wrong in ("some", "average:often=1", "average:every=0", "average:every=x", "average:topology=tree"):
        with pytest.raises(UsageError):
            parse_share(wrong)
    unlike = EnvSpec("u", ("a", "b"), (Box((2,)), Box((3,))), (Discrete(2),) * 2, 9, groups=(0, 0))
    with pytest.raises(UsageError, match="like spaces"):
        make_algorithm("ippo", unlike, make_config("ippo", {"share": "average"}), envs=2, updates=1)
    with pytest.raises(UsageError, match="averages networks"):
        make_algorithm("iql_tabular", SPEC, make_config("iql_tabular", {"share": "average"}), envs=2, updates=1)
