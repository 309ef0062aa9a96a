"""Hierarchies: decisions as a rollout of their own, the flat algorithm as a special case, goals and what they pay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.algos.segments import decided, segments
from flockrl.core.errors import UsageError
from flockrl.core.types import Trajectory
from flockrl.envs import make
from flockrl.rollouts.compiled import scan_rollout, start

ENV = "hierarchy/goal_assignment:n=2,size=3,steps=6"
SMALL = "hidden=[8]"


def rollout(first, truncated, steps=6):
    """One agent, one environment; it sees the number of the step and is paid 1, 2, 4, ..."""
    t = jnp.arange(steps, dtype=jnp.float32)[:, None, None]
    flags = np.zeros((2, steps), bool)
    flags[0, first], flags[1, truncated] = True, True
    begins, cut = jnp.asarray(flags[..., None])
    return Trajectory(
        obs=t[..., None], action=jnp.zeros((steps, 1, 1), jnp.int32), reward=2.0**t, terminated=jnp.zeros_like(t, bool),
        truncated=cut[..., None], next_obs=t[..., None] + 1, first=begins,
    )  # fmt: skip


def shown(first, truncated, clock, every):
    trajectory = rollout(first, truncated)
    decides = decided(trajectory.first, jnp.array([clock]), every)
    goal = jnp.arange(6)[:, None, None] * 10
    found = segments(trajectory, decides, every, goal, {}, ())
    names = ("obs", "action", "reward", "truncated", "next_obs", "first")
    return {name: np.asarray(getattr(found, name)).reshape(-1).tolist() for name in names}, found


def test_decisions_of_whole_segments():
    found, rows = shown([0], [5], clock=0, every=2)
    assert found == {
        "obs": [0, 2, 4], "action": [0, 20, 40], "reward": [3, 12, 48], "truncated": [False, False, True],
        "next_obs": [2, 4, 6], "first": [True, False, False],
    }  # fmt: skip
    assert bool(rows.alive.all())


def test_decisions_that_are_cut_by_the_rollout_and_by_episodes():
    """A rollout that begins in the middle of a decision, with an episode that ends after step 2."""
    found, _ = shown([3], [2], clock=1, every=2)  # decisions at 1, 3, 5; step 0 belongs to an earlier one
    assert found["obs"] == [1, 3, 5]
    assert found["reward"] == [2 + 4, 8 + 16, 32]
    assert found["truncated"] == [True, False, True]  # the last one is not over, and its value is bootstrapped
    assert found["next_obs"] == [3, 5, 6]
    found, _ = shown([0], [], clock=0, every=3)
    assert found["obs"] == [0, 3]
    assert found["truncated"] == [False, False]
    found, _ = shown([], [], clock=1, every=3)  # one decision, at step 2, and one at step 5
    assert found["reward"] == [4 + 8 + 16, 32]
    found, _ = shown([1, 2], [0, 1], clock=0, every=3)  # decisions at 0, 1, 2 and 5: the first two are kept
    assert found["reward"] == [1, 2]
    assert found["truncated"] == [True, True]
    found, _ = shown([], [], clock=1, every=6)  # none at all but the one at 5, which is there
    assert found["obs"] == [5]


def test_what_has_no_decision_counts_as_nobody():
    trajectory = rollout([], [])
    decides = jnp.zeros((6, 1), bool).at[4, 0].set(True)
    found = segments(trajectory, decides, 2, trajectory.action, {}, ())
    assert np.asarray(found.alive).reshape(-1).tolist() == [True, False, False]
    assert np.asarray(found.truncated).reshape(-1).tolist() == [True, True, True]


def iterate(algorithm, env):
    @jax.jit
    def step(state, actors, key):
        keys = jax.random.split(key)
        actors, trajectory, _ = scan_rollout(algorithm, algorithm.params(state), env, actors, keys[0])
        state, metrics = algorithm.update(state, trajectory, keys[1])
        return state, actors, trajectory.action, metrics

    state, actors = algorithm.init(jax.random.key(7)), start(algorithm, env, jax.random.key(8), 4)
    for i in range(2):
        state, actors, action, metrics = step(state, actors, jax.random.key(i))
    return state, action, metrics


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mappo", "vdn"])
def test_a_manager_of_actions_at_every_step_is_the_flat_algorithm(name):
    env = make(ENV)
    more = {} if name == "mappo" else {"batch_size": 4, "buffer_size": 80, "learning_starts": 0, "steps_per_update": 4}
    text = ",".join(["hidden=[8]", *(f"{key}={value}" for key, value in more.items())])
    flat = make_config(name, {"hidden": [8], "rollout_steps": 8, **more})
    told = {"manager": name, "worker": "identity", "manager_every": 1, "rollout_steps": 8, "manager_settings": text}
    found = [
        iterate(make_algorithm(*pair, envs=4, updates=2), env)
        for pair in ((name, env.spec, flat), ("feudal", env.spec, make_config("feudal", told)))
    ]
    jax.tree.map(np.testing.assert_array_equal, found[0][0], found[1][0]["manager"])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def feudal(**settings):
    env = make(ENV)
    given = {"rollout_steps": 6, "manager_every": 3, "manager_settings": SMALL, "worker_settings": SMALL, **settings}
    return env, make_algorithm("feudal", env.spec, make_config("feudal", given), envs=4, updates=2)


@pytest.mark.slow
def test_workers_see_their_goals_and_keep_them_between_decisions():
    env, algorithm = feudal()
    actors = start(algorithm, env, jax.random.key(0), 4)
    params = jax.jit(lambda key: algorithm.params(algorithm.init(key)))(jax.random.key(1))
    _, rows, _ = jax.jit(lambda a, k: scan_rollout(algorithm, params, env, a, k))(actors, jax.random.key(2))
    goals = np.asarray(rows.extras["goal"])
    assert goals.shape == (6, 4, 2)
    for k in (0, 3):
        assert (goals[k : k + 3] == goals[k]).all()
    assert len(np.unique(goals)) == 2
    assert {"manager.logp", "worker.logp", "goal"} <= set(rows.extras)


@pytest.mark.slow
def test_what_workers_are_paid_and_what_is_logged():
    env, algorithm = feudal(environment_share=0.25)
    _, _, metrics = iterate(algorithm, env)
    wanted = {"goal_entropy", "goal_changes", "goals_reached", "goals_apart", "manager/entropy", "worker/entropy"}
    assert wanted <= set(metrics)
    assert 0 <= metrics["goals_reached"] <= 1
    assert 0 < metrics["goal_entropy"] <= np.log(2) + 1e-6
    assert metrics["goal_changes"] <= 1  # two decisions in an episode


def test_settings_of_tiers_may_be_lists():
    config = make_config("feudal", {"worker_settings": "hidden=[8,4],lr=0.5", "manager_every": 4})
    assert config.tier("worker").hidden == (8, 4)
    assert config.tier("worker").lr == 0.5
    assert (config.tier("worker").rollout_steps, config.tier("manager").rollout_steps) == (100, 25)


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="must divide rollout_steps"):
        make_config("feudal", {"manager_every": 3, "rollout_steps": 100})
    with pytest.raises(UsageError, match="told at every step"):
        make_config("feudal", {"worker": "identity"})
    with pytest.raises(UsageError, match="kernel"):
        make_config("feudal", {"worker_settings": "kernel=os:system"})
    with pytest.raises(UsageError, match="plain learner"):
        make_config("feudal", {"manager": "feudal"})
    with pytest.raises(UsageError, match="no entities 'door'"):
        feudal(goal="door")


@pytest.mark.slow
def test_a_hierarchy_learns_where_to_go_and_how(tmp_path):
    """Two agents on a small grid, who cover nothing before and at least one landmark afterwards (measured: -5.06)."""
    run = flockrl.train(
        "feudal", "hierarchy/goal_assignment:n=2,size=4,steps=10", steps=64_000, envs=16, manager_every=5,
        manager_settings="hidden=[32]", worker_settings="hidden=[32]", eval_every=64_000, out=tmp_path / "run",
    )  # fmt: skip
    rows = run.metrics()
    assert rows[0]["eval_return"] < -9
    assert rows[-1]["eval_return"] > -6.5
    assert rows[-1]["goals_reached"] > 0.6 > rows[1]["goals_reached"]
