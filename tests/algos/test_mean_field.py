"""The mean field: whose actions it is the mean of, and that with two agents it is the pairwise formula."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import AS_USERS_DO

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.algos.wrappers.mean_field import _mean_of_neighbours, with_mean_actions
from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.envs import make
from flockrl.rollouts.compiled import scan_rollout, start

SMALL = {
    "mfq": {
        "rollout_steps": 5, "hidden": (8,), "steps_per_update": 5, "batch_size": 4, "buffer_size": 100,
        "learning_starts": 0,
    },
    "mfac": {"rollout_steps": 5, "hidden": (8,)},
}  # fmt: skip
PLAIN = {"mfq": "iql", "mfac": "ia2c"}


def spec(n, **more):
    return EnvSpec("x", tuple(f"a_{i}" for i in range(n)), (Box((2,)),) * n, (Discrete(3),) * n, 3, **more)


def test_who_is_in_the_mean():
    codes = jax.nn.one_hot(jnp.array([[0, 1, 2, 2]]), 3)
    seen = Observation(jnp.zeros((1, 4, 2)))
    np.testing.assert_allclose(_mean_of_neighbours(spec(4))(seen, codes)[0, 0], [0, 1 / 3, 2 / 3], atol=1e-6)
    dead = seen._replace(alive=jnp.array([[True, True, False, True]]))
    np.testing.assert_allclose(_mean_of_neighbours(spec(4))(dead, codes)[0, 0], [0, 1 / 2, 1 / 2])
    near = np.zeros((1, 4, 4), bool)
    near[0, 0, [0, 2]] = near[0, 1, [0, 2]] = True  # an agent is not its own neighbour
    sighted = _mean_of_neighbours(spec(4, neighbours=True))(seen._replace(neighbours=jnp.asarray(near)), codes)[0]
    np.testing.assert_allclose(sighted, [[0, 0, 1], [0.5, 0, 0.5], [0, 0, 0], [0, 0, 0]])
    graph = _mean_of_neighbours(spec(4, graph=((2,), (0, 2), (), ())))
    np.testing.assert_allclose(graph(seen, codes)[0], sighted)
    np.testing.assert_allclose(graph(dead, codes)[0], [[0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]])


def test_graphs_follow_the_agents_of_a_part():
    whole = spec(4, graph=((1, 3), (0, 2), (1, 3), (0, 2)), sides=("a", "b", "b", "b"))
    assert whole.part([1, 2, 3]).graph == ((1,), (0, 2), (1,))
    assert with_mean_actions(whole).obs_size == 5


class Echo:
    """Two agents; each is paid for saying what the other one said before. `shows`: whether they see it."""

    def __init__(self, shows):
        self.shows = shows
        plain = spec(2)
        self.spec = dataclasses.replace(plain, observations=(Box((5,)),) * 2) if shows else plain

    def reset(self, key):
        return self._seen(jax.random.normal(key, (2, 2)), jnp.zeros((2, 3)), jnp.int32(0))

    def step(self, key, state, action):
        said, t = state
        code = jax.nn.one_hot(action, 3)
        reward = (code * said[::-1]).sum(-1)
        state, seen = self._seen(jax.random.normal(key, (2, 2)), code, t + 1)
        return state, seen, reward, jnp.bool_(False), t + 1 >= 3

    def _seen(self, noise, said, t):
        return (said, t), Observation(jnp.concatenate([noise, said[::-1]], -1) if self.shows else noise)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mfq", "mfac"])
def test_with_two_agents_it_is_the_pairwise_formula(name):
    """The same as a learner who sees what the other one did last, bit for bit, across ends of episodes."""
    found = []
    for own, env in ((name, Echo(False)), (PLAIN[name], Echo(True))):
        algorithm = make_algorithm(own, env.spec, make_config(own, SMALL[name]), envs=4, updates=3)

        @partial(jax.jit, compiler_options=AS_USERS_DO)
        def iterate(state, actors, key, algorithm=algorithm, env=env):
            keys = jax.random.split(key)
            actors, trajectory, _ = scan_rollout(algorithm, algorithm.params(state), env, actors, keys[0])
            state, metrics = algorithm.update(state, trajectory, keys[1])
            return state, actors, (algorithm.params(state), trajectory.action, metrics)

        state, actors = algorithm.init(jax.random.key(7)), start(algorithm, env, jax.random.key(8), 4)
        for i in range(3):
            state, actors, last = iterate(state, actors, jax.random.key(i))
        found.append(last)
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_mean_fields_go_with_entities_and_with_many_agents():
    env = make("mpe/simple_spread:N=4").spec
    config = make_config("mfac", {"net": "deep_set"})
    algorithm = make_algorithm("mfac", env, config, envs=2, updates=1)
    shape = jax.eval_shape(lambda: algorithm.init(jax.random.key(0)))
    kernel = shape.params["actor"][0]["torso"]["kind_landmark_0"]["kernel"]
    assert kernel.shape == (4 + 5 + 2, 32)  # own numbers, the mean field, a landmark
