"""Roles: actions in groups by what they do, whatever their numbers; workers keep to their roles; what is logged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.algos.roles import RoleGoals, clusters
from flockrl.core.errors import UsageError
from flockrl.core.types import Box, Discrete, EnvSpec, Observation, Trajectory
from flockrl.envs import make
from flockrl.rollouts.compiled import scan_rollout, start

SMALL = {"hidden": [8]}


def sets(member):
    return {frozenset(np.flatnonzero(row).tolist()) for row in np.asarray(member)}


def test_groups_by_hand():
    x = jnp.array([[0.0, 0], [5, 5], [0.2, 0], [5, 5.1], [9, 0]])
    assert sets(jax.jit(clusters, static_argnums=1)(x, 3)) == {frozenset({0, 2}), frozenset({1, 3}), frozenset({4})}
    same = jax.jit(clusters, static_argnums=1)(
        jnp.zeros((4, 2)), 2
    )  # one kind of action alone: the other role keeps everything
    assert sorted(np.asarray(same).sum(1).tolist()) == [4, 4]


def spec(actions=6):
    return EnvSpec("made", ("a", "b"), (Box((3,)),) * 2, (Discrete(actions),) * 2, 10)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_actions_that_do_alike_share_a_role_whatever_their_numbers(seed):
    """Six actions: two push to the right, two to the left, two only pay; which is which is drawn."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(6)
    effect = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [-1, 0, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]])[order]
    goals = RoleGoals(spec(), 3, 0.5, 40)
    state, learn = goals.init(jax.random.key(seed)), jax.jit(goals.learn)
    for i in range(20):
        obs = rng.normal(size=(8, 16, 2, 3)).astype(np.float32)
        action = rng.integers(0, 6, (8, 16, 2))
        does = effect[action] + 0.1 * rng.normal(size=(*action.shape, 4))
        no = np.zeros((8, 16, 2), bool)
        rows = Trajectory(
            *map(jnp.asarray, (obs, action, does[..., 3], no, no, obs + does[..., :3], no[..., 0]))
        )  # fmt: skip
        assert bool(state.allows.all())  # until then every role allows everything
        state, metrics = learn(state, rows, jax.random.key(i))
    wanted = {frozenset(np.flatnonzero(order // 2 == k).tolist()) for k in range(3)}
    assert sets(state.allows) == wanted
    assert metrics["effect_error"] < 0.5
    after, metrics = learn(state, rows, jax.random.key(99))  # and it stays so, with nothing learned any more
    assert sets(after.allows) == wanted
    jax.tree.map(np.testing.assert_array_equal, after.net, state.net)


def test_workers_may_do_what_their_role_allows():
    goals = RoleGoals(spec(4), 2, 0.1, 10)
    allows = jnp.array([[True, True, False, False], [False, False, True, True]])
    avail = jnp.array([[[True, False, True, True], [True, True, False, False]]])
    shown = goals.show(allows, Observation(jnp.zeros((1, 2, 3)), avail=avail), jnp.array([[0, 1]]))
    assert shown.avail.tolist() == [[[True, False, False, False], [True, True, False, False]]]  # or all that is legal
    assert shown.obs[0, :, 3:].tolist() == [[1, 0], [0, 1]]
    free = goals.show(allows, Observation(jnp.zeros((1, 2, 3))), jnp.array([[0, 1]]))
    assert free.avail.tolist() == [allows.tolist()]


def test_information_of_roles_and_actions_by_hand():
    goals = RoleGoals(spec(2), 2, 0.1, 10)
    goal = jnp.array([0, 0, 1, 1])[:, None, None] * jnp.ones((1, 1, 2), jnp.int32)
    no = jnp.zeros((4, 1, 2), bool)
    rows = Trajectory(jnp.zeros((4, 1, 2, 3)), goal, jnp.zeros((4, 1, 2)), no, no, jnp.zeros((4, 1, 2, 3)), no[..., 0])
    found = goals.measures(rows, goal, jnp.ones((4, 1), bool))
    assert found["role_information"] == pytest.approx(np.log(2), abs=1e-5)  # the action tells the role
    assert found["role_entropy"] == pytest.approx(np.log(2), abs=1e-5)
    assert found["role_changes"] == 1  # one change, and no episode that ended
    mixed = rows._replace(action=jnp.array([0, 1, 0, 1])[:, None, None] * jnp.ones((1, 1, 2), jnp.int32))
    assert goals.measures(mixed, goal, jnp.ones((4, 1), bool))["role_information"] == pytest.approx(0, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["ippo", "iql"])
def test_a_team_keeps_to_its_roles(worker):
    env = make("hierarchy/goal_assignment:n=2,size=3,steps=8")  # episodes as long as rollouts
    given = {"roles": 2, "rollout_steps": 8, "manager_every": 4, "manager_settings": SMALL, "worker": worker}
    own = {**SMALL, **({"learning_starts": 0, "steps_per_update": 8, "buffer_size": 128} if worker == "iql" else {})}
    config = make_config("roles", {**given, "worker_settings": own, "roles_after": 0.25})
    algorithm = make_algorithm("roles", env.spec, config, envs=4, updates=4)
    state, actors = algorithm.init(jax.random.key(0)), start(algorithm, env, jax.random.key(1), 4)

    @jax.jit
    def step(state, actors, key):
        actors, rows, _ = scan_rollout(algorithm, algorithm.params(state), env, actors, key)
        state, metrics = algorithm.update(state, rows, key)
        return state, actors, rows, metrics

    for i in range(4):
        allows = np.asarray(state["goals"].allows)
        state, actors, rows, metrics = step(state, actors, jax.random.key(i))
        role, action = np.asarray(rows.extras["goal"]), np.asarray(rows.action)
        assert allows[role, action].all()
        assert allows.all() == (i == 0)
        assert (role[1:4] == role[0]).all()
    assert {"role_entropy", "role_changes", "role_information", "worker/reward", "manager/reward"} <= set(metrics)
    assert metrics["worker/reward"] == pytest.approx(float(rows.reward.mean()))


def test_what_roles_refuse():
    with pytest.raises(UsageError, match="environment_share is for goals that are entities"):
        make_config("roles", {"environment_share": 0.5})
    with pytest.raises(UsageError, match="roles is for --goal role"):
        make_config("feudal", {"roles": 2})
    with pytest.raises(UsageError, match="too few for 9 roles"):
        make_algorithm("roles", spec(4), make_config("roles", {"roles": 9}), envs=2, updates=2)
    real = EnvSpec("made", ("a",), (Box((3,)),), (Box((2,), -1, 1),), 10)
    with pytest.raises(UsageError, match="choose from"):
        make_algorithm("roles", real, make_config("roles", {}), envs=2, updates=2)
