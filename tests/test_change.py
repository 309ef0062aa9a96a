"""How far updates move policies: by hand, against the plain formulas, and which learners tell it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.presets import make_config
from flockrl.algos.wrappers.measured import distance, measured
from flockrl.core.groups import make_groups
from flockrl.core.types import Algorithm, Box, Discrete, EnvSpec, MultiDiscrete, Trajectory
from flockrl.envs.registry import make
from flockrl.evaluation.metrics import categorical_kl, gaussian_kl
from flockrl.nets import heads
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program


def spec(*spaces):
    n = len(spaces)
    return EnvSpec("own", tuple(f"a_{i}" for i in range(n)), (Box((2,)),) * n, spaces, 10)


def test_distance_of_discrete_actions_is_one_where_they_differ():
    found = distance(spec(Discrete(3), Discrete(3)), jnp.array([[0, 2], [1, 1]]), jnp.array([[0, 1], [2, 2]]))
    assert found.tolist() == [[0, 1], [1, 1]]


def test_distance_of_continuous_actions_is_a_part_of_their_range():
    """Agent 0 has two dimensions of width 4, agent 1 one without bounds; what is clipped does not count."""
    world = spec(Box((2,), -2, 2), Box((1,)))
    before = jnp.array([[[0.0, 5.0], [1.0, 0.0]]])
    after = jnp.array([[[1.0, 3.0], [4.0, 9.0]]])
    np.testing.assert_allclose(distance(world, before, after), [[(1 / 4 + 0) / 2, 3.0]])


def test_distance_of_mixed_actions_counts_other_choices_and_measures_real_ones():
    """The first agent chooses once, the second twice and changes one of them, the third moves in one dimension."""
    world = spec(Discrete(4), MultiDiscrete((3, 2)), Box((2,), -2, 2))
    before = jnp.array([[[1.0, 0.0], [2.0, 1.0], [0.0, 1.0]]])
    after = jnp.array([[[3.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    np.testing.assert_allclose(distance(world, before, after), [[1, 1 / 2, 1 / 8]])


def test_an_update_tells_how_many_greedy_actions_it_changed():
    """A learner whose policy is a table of actions: the update turns agent 0's, and agent 1 is dead in one team.

    Memory of an episode that begins here is cleared: the second team's would change its action otherwise.
    """
    remembered = []

    def act(params, seen, memory, key, explore):
        assert not explore
        remembered.append(memory)
        return jnp.broadcast_to(params, (2, 2)), memory, {}

    learner = Algorithm(
        init=lambda key: jnp.array([0, 0]), params=lambda state: state, act=act,
        update=lambda state, trajectory, key: (state.at[0].set(1), {"loss": jnp.float32(3)}),
        memory=lambda batch: jnp.zeros((batch, 3)), rollout_steps=1,
        kl=lambda old, new, seen, memory: jnp.broadcast_to(new - old, (2, 2)),
    )  # fmt: skip
    flags = jnp.zeros((1, 2, 2), bool)
    trajectory = Trajectory(
        obs=jnp.zeros((1, 2, 2, 2)), action=jnp.zeros((1, 2, 2), jnp.int32), reward=jnp.zeros((1, 2, 2)),
        terminated=flags, truncated=flags, next_obs=jnp.zeros((1, 2, 2, 2)), first=jnp.array([[False, True]]),
        alive=jnp.array([[[True, False], [True, True]]]), memory=jnp.ones((2, 3)),
    )  # fmt: skip
    world = spec(Discrete(3), Discrete(3))
    state, metrics = measured(learner, world).update(jnp.array([0, 0]), trajectory, jax.random.key(0))
    assert state.tolist() == [1, 0]
    assert float(metrics["policy_change"]) == pytest.approx(2 / 3)
    assert float(metrics["policy_kl"]) == pytest.approx(2 / 3)
    assert float(metrics["loss"]) == 3
    for memory in remembered:
        assert memory.tolist() == [[1] * 3, [0] * 3]


def test_divergences_equal_the_plain_formulas():
    rng = np.random.default_rng(0)
    world = spec(Discrete(4), Discrete(3))
    (group,) = make_groups(world, "groups")[:1]
    old, new = rng.normal(size=(2, 5, 1, 4)).astype(np.float32)
    avail = np.array([True, False, True, True])
    found = jax.jit(heads.make_head(world, group).kl)(old, new, jnp.broadcast_to(avail, (5, 1, 4)))
    weights = [np.where(avail, np.exp(x), 0) for x in (old, new)]
    p, q = (w / w.sum(-1, keepdims=True) for w in weights)
    assert float(found.mean()) == pytest.approx(categorical_kl(p, q), rel=1e-5)

    world = spec(Box((2,), -1, 1))
    (group,) = make_groups(world, "groups")
    old, new = rng.normal(size=(2, 5, 1, 4)).astype(np.float32)
    found = jax.jit(heads.make_head(world, group).kl)(old, new, None)
    wanted = gaussian_kl(old[..., :2], np.exp(old[..., 2:]), new[..., :2], np.exp(new[..., 2:]))
    assert float(found.mean()) == pytest.approx(wanted, rel=1e-5)


STOCHASTIC = ["mappo", "ireinforce", "masac"]


@pytest.mark.parametrize("name", [*STOCHASTIC, "vdn", "maddpg", "matd3", "iql_tabular"])
def test_every_learner_tells_its_change(name):
    env = make("mpe/simple_spread")
    program = make_program(RunConfig(name, env.spec.name, TrainOptions(), make_config(name, {})), env)
    metrics = jax.eval_shape(program.iterate, program.shape(), jax.random.key(0))[2]
    assert "policy_change" in metrics
    assert ("policy_kl" in metrics) == (name in STOCHASTIC)


@pytest.mark.parametrize(
    ("name", "env"), [("masac", "mpe/simple_spread:continuous_actions=true"), ("isac", "mpe/simple")]
)
def test_sac_diverges_from_itself_by_nothing_and_from_another_by_something(name, env):
    world = make(env)
    program = make_program(RunConfig(name, env, TrainOptions(envs=2), make_config(name, {"buffer_size": 100})), world)
    algorithm = program.setting.algorithm

    def both(keys):
        one, other = (algorithm.params(algorithm.init(key)) for key in keys)
        one, other = (jax.tree.map(lambda x: 3 * x, params) for params in (one, other))
        seen = jax.vmap(world.reset)(jax.random.split(keys[0], 2))[1]
        return algorithm.kl(one, one, seen, ()), algorithm.kl(one, other, seen, ())

    same, apart = jax.jit(both)(jax.random.split(jax.random.key(0)))
    assert same.shape == (2, world.spec.num_agents)
    assert np.abs(same).max() < 1e-6
    assert apart.min() > 0
