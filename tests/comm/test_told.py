"""Teams outside of training are told who lives: an exported model and a policy act as the algorithm does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.core.errors import UsageError
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.core.types import Observation
from flockrl.policies.policy import Policy
from flockrl.portable.model import Model
from flockrl.portable.write import export

pytestmark = pytest.mark.slow  # tests/relay/test_export.py has one such team in the fast set
SPEC = EnvSpec("x", ("a_0", "a_1", "a_2"), (Box((4,)),) * 3, (Discrete(6),) * 3, 9, neighbours=True)
ALIVE = np.array([True, False, True])
AROUND = ~np.eye(3, dtype=bool) & np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], bool)


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    config = make_config("iql", {"comm": "gat", "hidden": (8,), "channel": "topology=neighbours", "learning_starts": 0})
    algorithm = make_algorithm("iql", SPEC, config, envs=2, updates=4)
    params = jax.jit(lambda key: algorithm.params(algorithm.init(key)))(jax.random.key(0))
    policy = Policy(algorithm, params, SPEC, name="iql")
    return algorithm, params, policy, Model(export(policy, tmp_path_factory.mktemp("told")))


def wanted(team, obs, alive, around):
    algorithm, params, _, _ = team
    told = [None if x is None else jnp.broadcast_to(x, (len(obs), *x.shape)) for x in (alive, around)]
    seen = Observation(jnp.asarray(obs), alive=told[0], neighbours=told[1])
    return np.asarray(jax.jit(algorithm.act, static_argnums=4)(params, seen, (), jax.random.key(0), False)[0])


def test_they_hear_the_living_and_those_around_them(team):
    obs = np.random.default_rng(0).normal(size=(200, 3, 4)).astype(np.float32)
    _, _, policy, model = team
    everyone, some = wanted(team, obs, None, AROUND), wanted(team, obs, ALIVE, AROUND)
    assert (everyone != some).any()
    assert (wanted(team, obs, None, ~np.eye(3, dtype=bool)) != everyone).any()
    for act in (policy.act, lambda obs, **told: model.act(obs, explore=False, **told).action):
        np.testing.assert_array_equal(act(obs, neighbours=AROUND), everyone)
        np.testing.assert_array_equal(act(obs, neighbours=AROUND, alive=ALIVE), some)
        np.testing.assert_array_equal(act(obs[0], neighbours=AROUND, alive=ALIVE), some[0])
        with pytest.raises(UsageError, match="alive"):
            act(obs, neighbours=AROUND, alive=ALIVE[:2])
        with pytest.raises(UsageError, match="perceive"):
            act(obs)


def test_agents_that_are_not_in_a_dict_are_dead(team):
    obs = np.random.default_rng(1).normal(size=(50, 3, 4)).astype(np.float32)
    obs[:, 1] = 0
    for row, action in zip(obs, wanted(team, obs, ALIVE, AROUND), strict=True):
        found = team[2].act({"a_0": row[0], "a_2": row[2]}, neighbours=AROUND)
        assert [found["a_0"], found["a_2"]] == [action[0], action[2]]
