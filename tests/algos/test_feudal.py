"""Hierarchies: decisions as a rollout of their own, the flat algorithm as a special case, goals and what they pay."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.assembly import config_from_json, config_to_json, make_algorithm
from flockrl.algos.feudal import _Feudal
from flockrl.algos.presets import make_config
from flockrl.algos.segments import decided, segments
from flockrl.core.errors import UsageError
from flockrl.core.types import Observation, Trajectory
from flockrl.envs import make
from flockrl.envs.assignment import auction, share_out
from flockrl.nets.heads import pick
from flockrl.rollouts.compiled import scan_rollout, start
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.longer import schedules
from flockrl.training.setup import configure

ENV = "hierarchy/goal_assignment:n=2,size=3,steps=6"
SMALL = {"hidden": [8]}


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
    flat = make_config(name, {**SMALL, "rollout_steps": 8, **more})
    told = {"manager": name, "worker": "identity", "manager_every": 1, "rollout_steps": 8}
    told["manager_settings"] = {**SMALL, **more}
    found = [
        iterate(make_algorithm(*pair, envs=4, updates=2), env)
        for pair in ((name, env.spec, flat), ("feudal", env.spec, make_config("feudal", told)))
    ]
    jax.tree.map(np.testing.assert_array_equal, found[0][0], found[1][0]["manager"])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def feudal_config(**settings):
    given = {"rollout_steps": 6, "manager_every": 3, "manager_settings": SMALL, "worker_settings": SMALL, **settings}
    return make_config("feudal", given)


def feudal(**settings):
    env = make(ENV)
    return env, make_algorithm("feudal", env.spec, feudal_config(**settings), envs=4, updates=2)


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


def test_settings_of_tiers():
    config = make_config("feudal", {"worker_settings": {"hidden": [8, 4], "lr": 0.5}, "manager_every": 4})
    assert config.tier("worker").hidden == (8, 4)
    assert config.tier("worker").lr == 0.5
    assert (config.tier("worker").rollout_steps, config.tier("manager").rollout_steps) == (100, 25)


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="must divide rollout_steps"):
        make_config("feudal", {"manager_every": 3, "rollout_steps": 100})
    with pytest.raises(UsageError, match="told at every step"):
        make_config("feudal", {"worker": "identity"})
    with pytest.raises(UsageError, match="kernel"):
        make_config("feudal", {"worker_settings": {"kernel": "os:system"}})
    with pytest.raises(UsageError, match="manager_settings must hold settings by name"):
        make_config("feudal", {"manager_settings": "lr=1"})
    with pytest.raises(UsageError, match="manager=vnd: There is no algorithm"):
        make_config("feudal", {"manager": "vnd"})
    with pytest.raises(UsageError, match="manager=mappo: mappo has no setting 'lrr'"):
        make_config("feudal", {"manager_settings": {"lrr": 1}})
    deep = {"worker": "feudal", "worker_settings": {"worker": "feudal", "worker_settings": {"worker": "feudal"}}}
    with pytest.raises(UsageError, match="at most 4 levels"):
        make_config("feudal", deep)
    with pytest.raises(UsageError, match="no scores to allocate"):
        feudal(manager="iql_tabular", manager_settings={}, allocate="auction")
    alone = {"share": "none", "hidden": (4,), "buffer_size": 50}
    with pytest.raises(UsageError, match=r"adds up their scores: set --manager\.no-normalize-reward"):
        feudal(manager="iql", manager_settings=alone, allocate="auction")
    feudal(manager="iql", manager_settings={**alone, "normalize_reward": False}, allocate="auction")
    feudal(manager="vdn", manager_settings=alone, allocate="auction")
    with pytest.raises(UsageError, match="no entities 'door'"):
        feudal(goal="door")


@pytest.mark.slow
def test_a_hierarchy_learns_where_to_go_and_how(tmp_path):
    """Two agents on a small grid, who cover nothing before and at least one landmark afterwards (measured: -5.06)."""
    run = flockrl.train(
        "feudal", "hierarchy/goal_assignment:n=2,size=4,steps=10", steps=64_000, envs=16, manager_every=5,
        manager={"hidden": [32]}, worker={"hidden": [32]}, eval_every=64_000, out=tmp_path / "run",
    )  # fmt: skip
    rows = run.metrics()
    assert rows[0]["eval_return"] < -9
    assert rows[-1]["eval_return"] > -6.5
    assert rows[-1]["goals_reached"] > 0.6 > rows[1]["goals_reached"]


def test_names_of_tiers_are_settings_of_feudal():
    spec = make(ENV).spec
    players = {"manager": "vdn", "worker.manager": "ippo", "worker.worker": "iql"}
    given = {"manager_every": 4, "manager": {"lr": 0.5}, "worker": {"goal": "agent", "manager": {"hidden": [3]}}}
    name, config = configure(players, given, spec)
    assert (name, config.manager, config.worker, config.manager_settings) == ("feudal", "vdn", "feudal", {"lr": 0.5})
    below = config.tier("worker")
    assert (below.manager, below.worker, below.goal, below.rollout_steps) == ("ippo", "iql", "agent", 100)
    assert below.tier("manager").hidden == (3,)
    assert config.levels == 3
    assert configure("manager=vdn,worker.manager=ippo,worker.worker=iql", given, spec)[1] == config
    assert config_from_json("feudal", json.loads(json.dumps(config_to_json(config)))) == config
    with pytest.raises(UsageError, match="and not 'wroker'"):
        configure("manager=vdn,wroker=ippo", {}, spec)
    with pytest.raises(UsageError, match="worker=ippo has no manager below it"):
        configure("worker=ippo,worker.manager=vdn", {}, spec)
    with pytest.raises(UsageError, match="is the name of an algorithm"):
        configure({"manager": 3}, {}, spec)


@pytest.mark.parametrize("how", ["hungarian", "auction"])
def test_goals_are_shared_out_as_scipy_does(how):
    scipy = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(0)
    for n, m in ((1, 1), (3, 3), (5, 5), (3, 6)):
        values = rng.integers(0, 30, (20, n, m)).astype(np.float32)
        found = np.asarray(jax.jit(jax.vmap(lambda x: share_out(x, how)))(values))
        best = [table[scipy.linear_sum_assignment(table, maximize=True)].sum() for table in values]
        assert np.take_along_axis(values, found[..., None], 2).sum((1, 2)).tolist() == best
        assert all(len(set(row)) == n for row in found.tolist())
    few = np.asarray(share_out(jnp.asarray(values[0, :3, :2]), how))
    assert sorted(np.bincount(few, minlength=2).tolist()) == [1, 2]


@pytest.mark.parametrize("how", ["hungarian", "auction"])
def test_what_is_not_finite_is_shared_out_all_the_same(how):
    """A network that diverged must not keep a run waiting for ever."""
    for value in (np.full((3, 4), np.nan), np.where(np.eye(3, 4), np.inf, 1.0), np.array([[np.nan, 2], [1, -np.inf]])):
        found = np.asarray(share_out(jnp.asarray(value, jnp.float32), how))
        assert len(set(found.tolist())) == len(value)


def test_an_auction_is_as_exact_as_it_says():
    scipy = pytest.importorskip("scipy.optimize")
    values = np.random.default_rng(1).normal(size=(50, 6, 6)).astype(np.float32)
    for exact in (0.2, 1e-3):
        found = np.asarray(jax.jit(jax.vmap(lambda x, e=exact: auction(x, e)))(values))
        best = np.array([table[scipy.linear_sum_assignment(table, maximize=True)].sum() for table in values])
        lost = best - np.take_along_axis(values, found[..., None], 2).sum((1, 2))
        assert (lost <= exact * np.ptp(values, (1, 2)) + 1e-5).all()


@pytest.mark.parametrize("manager", ["ippo", "vdn"])
def test_scores_are_what_acting_goes_by(manager):
    spec = make(ENV).spec
    learner = make_algorithm(manager, spec, make_config(manager, SMALL), envs=4, updates=2)
    params, seen = learner.params(learner.init(jax.random.key(0))), jax.random.normal(jax.random.key(1), (5, 2, 10))
    seen = Observation(seen)
    act, scoring = jax.jit(learner.act, static_argnums=4), jax.jit(learner.scores, static_argnums=4)
    action, _, _ = act(params, seen, learner.memory(5), jax.random.key(2), False)
    scores = scoring(params, seen, learner.memory(5), jax.random.key(2), False)
    np.testing.assert_array_equal(scores.argmax(-1), action)
    many = Observation(jnp.repeat(seen.obs[:1], 4000, 0))
    drawn = [
        np.asarray(act(params, many, learner.memory(4000), jax.random.key(3), True)[0]),
        np.asarray(scoring(params, many, learner.memory(4000), jax.random.key(3), True).argmax(-1)),
    ]
    shares = [np.stack([np.bincount(x[:, i], minlength=5) for i in (0, 1)]) / 4000 for x in drawn]
    np.testing.assert_allclose(*shares, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"allocate": "hungarian"}, {"allocate": "auction", "manager": "vdn"}])
def test_no_two_agents_have_the_same_goal(settings):
    env, algorithm = feudal(**settings)
    state, _, metrics = iterate(algorithm, env)
    assert metrics["goals_apart"] == 1
    actors = start(algorithm, env, jax.random.key(0), 4)
    rows = jax.jit(lambda p, a, k: scan_rollout(algorithm, p, env, a, k))(
        algorithm.params(state), actors, jax.random.key(2)
    )[1]
    goals = np.asarray(rows.extras["goal"])
    assert (goals[..., 0] != goals[..., 1]).all()
    assert len(np.unique(goals[..., 0])) == 2
    if "manager" not in settings:  # what is learned from is the log-probability of what was given
        manager = algorithm_scores(env, state, rows)
        np.testing.assert_allclose(rows.extras["manager.logp"][0], pick(manager, goals[0]), atol=1e-5)


def test_the_dead_leave_the_best_goals_to_others():
    """Each of the living gets what it would get alone."""
    env, algorithm = feudal(allocate="hungarian")
    params = jax.jit(lambda key: algorithm.params(algorithm.init(key)))(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (50, 2, env.spec.obs_size))
    tier = _Feudal(env.spec, feudal_config(), 4, 2).tiers["manager"]
    for living in range(2):
        moment = Observation(obs, alive=jnp.broadcast_to(jnp.arange(2) == living, (50, 2)))
        found = algorithm.act(params, moment, algorithm.memory(50), jax.random.key(2), False)[2]["goal"]
        alone = tier.scores(params["manager"], moment, tier.memory(50), jax.random.key(2), False).argmax(-1)
        np.testing.assert_array_equal(found[:, living], alone[:, living])


def algorithm_scores(env, state, rows):
    """The manager's log-probabilities [B, N, G] as the rollout began."""
    config = feudal_config()
    learner = _Feudal(env.spec, config, 4, 2).tiers["manager"]
    seen = Observation(rows.obs[0])
    return learner.scores(learner.params(state["manager"]), seen, learner.memory(4), jax.random.key(0), False)


def test_a_hierarchy_of_sets_does_not_depend_on_the_number_of_agents():
    """Neither the workers, nor the manager, whose goals are entities that it scores one by one."""

    def shapes(n, net):
        spec = make(f"hierarchy/goal_assignment:n={n}").spec
        config = feudal_config(manager="vdn", manager_settings={"net": net}, worker_settings={"net": net})
        learner = make_algorithm("feudal", spec, config, envs=2, updates=1)
        return jax.tree.map(jnp.shape, jax.eval_shape(lambda: learner.params(learner.init(jax.random.key(0)))))

    for net in ("entities", "deep_set"):
        assert shapes(2, net) == shapes(5, net)
    assert shapes(2, "flat") != shapes(5, "flat")


@pytest.mark.slow
def test_a_worker_may_be_a_hierarchy_itself():
    below = {"manager": "ippo", "worker": "ippo", "manager_every": 1, "manager_settings": SMALL}
    env, algorithm = feudal(worker="feudal", worker_settings={**below, "worker_settings": SMALL})
    _, _, metrics = iterate(algorithm, env)
    assert {"manager/entropy", "worker/manager/entropy", "worker/worker/entropy", "worker/goals_reached"} <= set(
        metrics
    )


@pytest.mark.slow
def test_with_goals_shared_out_teams_come_close_to_the_optimum(tmp_path):
    """Four agents, within 5 % of the best return of the episodes that were played; the same team of six, too."""
    manager = {"gamma": 0.0, "lr": 1e-3, "learning_starts": 200, "steps_per_update": 2, "buffer_size": 2000}
    run = flockrl.train(
        {"manager": "vdn", "worker": "ippo"}, "hierarchy/goal_assignment:n=4", steps=61_440, manager_every=16,
        rollout_steps=64, allocate="hungarian", eval_every=61_440, worker={"net": "deep_set"},
        manager={**manager, "net": "deep_set", "batch_size": 128, "explore_part": 0.3}, out=tmp_path / "run",
    )  # fmt: skip
    last = run.metrics()[-1]
    assert last["eval_return"] > 1.05 * last["eval_optimum"]
    more = run.evaluate(100, env="hierarchy/goal_assignment:n=6")
    assert more.mean > 1.1 * more.measures["optimum"].mean()


@pytest.mark.slow
def test_keys_are_carried_to_doors_until_all_are_out(tmp_path):
    """Random play never gets there in 112 steps; the fewest are 14."""
    run = flockrl.train(
        {"manager": "qmix", "worker": "ippo"}, "hierarchy/rooms", steps=128_000, manager_every=8, rollout_steps=64,
        manager={
            "net": "deep_set", "gamma": 0.9, "steps_per_update": 2, "learning_starts": 500, "buffer_size": 5000,
            "explore_part": 0.6,
        },
        worker={"gamma": 0.8}, eval_every=64_000, out=tmp_path / "run",
    )  # fmt: skip
    rows = run.metrics()
    assert rows[0]["eval_success"] == 0
    assert rows[-1]["eval_success"] > 0.9
    assert rows[-1]["eval_return"] > -25


def test_schedules_of_tiers_depend_on_the_length_of_a_run():
    config = feudal_config(manager="vdn", worker_settings={**SMALL, "lr_schedule": "linear"})
    found = schedules(RunConfig("feudal", ENV, TrainOptions(), config))
    assert "manager.the level of exploration" in found
    assert "worker.lr_schedule (linear)" in found
