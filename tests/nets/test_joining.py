"""Agents that join and leave in the middle of an episode, with networks of entities."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.core.entities import Entities, Kind
from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.envs.checks import check
from flockrl.rollouts.compiled import scan_rollout, start

WAYS = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], np.float32) * 0.1


class Crowd(NamedTuple):
    t: jax.Array
    spot: jax.Array


class Meeting:
    """n agents that are paid for being close to each other. The first is always there; each other one comes and goes
    every three steps. An agent observes where it is, the offset of each other one, and whether that one is there."""

    def __init__(self, n, steps=12):
        self.n, self.steps = n, steps
        self.others = np.array([[j for j in range(n) if j != i] for i in range(n)])
        kind = Kind("agent", n - 1, ((2, 2),), there=2 * n)
        self.spec = EnvSpec(
            "test/meeting", tuple(f"agent_{i}" for i in range(n)), (Box((3 * n - 1,)),) * n, (Discrete(5),) * n, steps,
            respawn=True, reward_after_death=False, entities=(Entities(((0, 2),), (kind,)),) * n,
        )  # fmt: skip

    def there(self, t):
        return ((t + np.arange(self.n)) // 3 % 2 == 0) | (np.arange(self.n) == 0)

    def observe(self, state):
        away = state.spot[self.others] - state.spot[:, None]
        near = self.there(state.t)[self.others]
        row = [state.spot, away.reshape(self.n, -1), near * 1.0]
        return Observation(jnp.concatenate(row, -1), alive=self.there(state.t))

    def reset(self, key):
        state = Crowd(jnp.int32(0), jax.random.uniform(key, (self.n, 2), minval=-1.0))
        return state, self.observe(state)

    def step(self, key, state, action):
        there = self.there(state.t)
        spot = jnp.where(there[:, None], state.spot + jnp.asarray(WAYS)[action], state.spot)
        away = jnp.linalg.norm(spot[:, None] - spot[None] + 1e-6, axis=-1)
        paid = jnp.where(there, -(away * there).sum(-1) / there.sum(), 0.0)
        state = Crowd(state.t + 1, spot)
        return state, self.observe(state), paid, there & ~self.there(state.t), state.t >= self.steps


def learner(n, net="entities", name="mappo"):
    env = Meeting(n)
    size = {"entity_size": 8, **({"entity_heads": 2} if net == "entities" else {})}
    settings = {"net": net, "hidden": (8, 8), "rollout_steps": 12, "epochs": 2, "minibatches": 1, **size}
    return env, make_algorithm(name, env.spec, make_config(name, settings), envs=2, updates=4)


def logits(made, params, seen):
    """What the policy makes of observations, as how far it is from another policy: KL for each agent."""
    other = jax.tree.map(lambda x: x * 1.5, params)
    return made.kl(params, other, seen, made.memory(seen.obs.shape[0]))


@pytest.mark.parametrize("net", ["entities", pytest.param("deep_set", marks=pytest.mark.slow)])
def test_those_who_are_away_change_nothing_and_order_does_not_either(net):
    env, made = learner(4, net)
    params = jax.jit(lambda key: jax.tree.map(lambda x: 4 * x, made.params(made.init(key))))(jax.random.key(0))
    state, _ = env.reset(jax.random.key(1))
    state = state._replace(t=jnp.int32(4))
    there = env.there(4)
    assert there.tolist() == [True, False, True, True]

    @jax.jit
    def look(spot):
        return logits(made, params, jax.tree.map(lambda x: x[None], env.observe(state._replace(spot=spot))))

    found = look(state.spot)[0]
    moved = look(state.spot.at[1].set(jnp.array([7.0, -9.0])))[0]  # somebody who is away goes elsewhere
    np.testing.assert_array_equal(found[there], moved[there])
    assert np.abs(found[there] - look(state.spot.at[2].add(0.5))[0][there]).max() > 1e-5  # who is there does count
    swapped = look(state.spot[np.array([0, 1, 3, 2])])[0]  # two who are there change places
    np.testing.assert_allclose(swapped, found[np.array([0, 1, 3, 2])], atol=1e-6)
    few, small = learner(3, net)  # the same three, where nobody else could be
    seen = env.observe(state)
    first = np.array([0, 1, 4, 5, 6, 7, 9, 10])  # agent 0 lists 1, 2, 3; agents 2 and 3 list 0, 1, and one more
    rows = [seen.obs[0][first], *(seen.obs[i][np.array([0, 1, 2, 3, 6, 7, 8, 10])] for i in (2, 3))]
    assert len(first) == few.spec.obs_size
    alone = jax.jit(lambda x: logits(small, params, Observation(x, alive=jnp.ones((1, 3), bool))))(
        jnp.stack(rows)[None]
    )
    np.testing.assert_allclose(alone[0], found[there], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mappo", "ippo"])
def test_learning_reads_nothing_of_those_who_are_away(name):
    env, made = learner(4, name=name)
    check(env)

    @jax.jit
    def rollout(state, key):
        return scan_rollout(made, made.params(state), env, start(made, env, key, 2), key)[1]

    state = jax.jit(made.init)(jax.random.key(0))
    played = rollout(state, jax.random.key(1))
    assert bool((played.alive != played.next_alive).any())
    noise = jax.random.normal(jax.random.key(2), played.obs.shape)
    other = played._replace(
        obs=jnp.where(played.alive[..., None], played.obs, noise),
        next_obs=jnp.where(played.next_alive[..., None], played.next_obs, noise),
    )
    update = jax.jit(made.update)
    one, two = (update(state, x, jax.random.key(3))[0] for x in (played, other))
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)
    assert any(bool((a != b).any()) for a, b in zip(*map(jax.tree.leaves, (one.params, state.params)), strict=True))
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(one.params))
