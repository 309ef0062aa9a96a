"""Leagues and populations: who learns where, who meets whom, who joins and who begins anew, exact resume."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stop_at import StopAt

import flockrl
from flockrl.algos.wrappers.league import league
from flockrl.algos.wrappers.self_play import OWN, RIVAL, SELF
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Observation, Trajectory
from flockrl.envs import make
from flockrl.training.interrupt import Interrupted

PENNIES, LEVER = (make(f"games/{name}:rounds=1").spec for name in ("matching_pennies", "lever"))
ENVS, PART = 120, 40
K = 6
"""Places of the pool; numbers from K on are the learners as they are."""


def counting():
    """A learner whose policy says how many updates it has seen as action; its lesson says what it learned from."""
    return Algorithm(
        init=lambda key: {"number": jnp.int32(0), "lesson": jnp.zeros((2, PART, 2))},
        params=lambda state: state["number"],
        act=lambda params, seen, memory, key, explore: (
            jnp.full((len(seen.obs), 2), params, jnp.int32), memory + 1, {"logp": jnp.full((len(seen.obs), 2), -1.0)}
        ),
        update=lambda state, trajectory, key: (
            {"number": state["number"] + 1, "lesson": trajectory.alive * 1.0}, {"seen": trajectory.reward.sum()}
        ),
        memory=lambda batch: jnp.zeros(batch, jnp.int32),
        rollout_steps=2,
    )  # fmt: skip


def made(how="league", spec=PENNIES, **settings):
    usual = {"main_agents": 1, "main_exploiters": 1, "league_exploiters": 1, "partners": 2, "pool_every": 2}
    config = SimpleNamespace(self_play=how, pool_size=K, pool_share=None, **{**usual, **settings})
    return league(counting(), spec, config, envs=ENVS, updates=10, draws=True, learns=True)


def rollout(algorithm, state, key=0, reward=None):
    """Two steps of which each is an episode."""
    actor, obs, rows = algorithm.in_training, jnp.ones((2, ENVS, 2, 1)), []
    for t in range(2):
        keys = jax.random.fold_in(jax.random.key(key), t)
        rows.append(actor.act(actor.params(state), Observation(obs[0]), actor.memory(ENVS), keys, True))
    extras = jax.tree.map(lambda *x: jnp.stack(x), *(row[2] for row in rows))
    flags, action = jnp.ones((2, ENVS, 2), bool), jnp.stack([row[0] for row in rows])
    paid = jnp.zeros((2, ENVS, 2)) if reward is None else reward(extras[OWN])
    return Trajectory(
        obs, action, paid, flags, ~flags, obs, flags[..., 0], memory=actor.memory(ENVS), extras=extras
    )  # fmt: skip


def members(x):
    """[2, ENVS, ...] as what each learner's part of the environments holds."""
    return np.moveaxis(np.asarray(x).reshape(2, 3, PART, *x.shape[2:]), 1, 0)


def test_who_meets_whom():
    algorithm = made()
    state = algorithm.init(jax.random.key(0))
    trajectory = rollout(algorithm, state)
    main, exploiter, raider = members(trajectory.extras[RIVAL][..., 0])
    assert 0.3 < (main == SELF).mean() < 0.7, "a main agent plays itself, or the pool"
    assert set(main[main >= 0]) == {0, 1, 2}, "which begins with all first selves"
    assert (exploiter == K).all(), "a main exploiter plays the main agent as it is"
    assert set(raider.ravel()) == {0, 1, 2}, "a league exploiter plays the pool alone"
    own = members(trajectory.extras[OWN])
    assert own[0][main == SELF].all()
    assert (own[1:].sum(-1) == 1).all(), "one seat is the learner's"
    assert 0.3 < own[1][..., 0].mean() < 0.7


def test_nobody_acts_by_the_random_numbers_of_another():
    """Learners are given keys apart from each other and from what draws opponents and their actions."""
    used = []

    def act(params, seen, memory, key, explore):
        numbers = jax.random.uniform(key, (len(seen.obs), 2))
        return (numbers * 2**24).astype(jnp.int32), memory, {}

    config = SimpleNamespace(
        self_play="league", pool_size=K, pool_share=None, pool_every=2, main_agents=1, main_exploiters=1,
        league_exploiters=1,
    )  # fmt: skip
    inner = counting()._replace(act=act)
    algorithm = league(inner, PENNIES, config, envs=ENVS, updates=10, draws=True, learns=True)
    trajectory = rollout(algorithm, algorithm.init(jax.random.key(0)))
    own, action = np.asarray(trajectory.extras[OWN]), np.asarray(trajectory.action)
    for t in range(2):
        assert not set(action[t][own[t]]) & set(action[t][~own[t]]), "opponents have luck of their own"
        used += list(action[t][own[t]])
    assert len(set(used)) > 0.99 * len(used)


def test_each_learns_from_its_own_environments_and_seats():
    algorithm = made()
    state = algorithm.init(jax.random.key(0))
    trajectory = rollout(algorithm, state)
    after, metrics = algorithm.update(state, trajectory, jax.random.key(0))
    assert (np.asarray(after.learners["lesson"]) == members(trajectory.extras[OWN])).all()
    assert np.asarray(after.learners["number"]).tolist() == [1, 1, 1]
    assert int(algorithm.params(after)) == 1, "what leaves is the first main agent"
    assert {"win_rate", "rating", "pool", "exploiter_win_rate", "seen"} <= set(metrics)


def test_all_join_and_main_exploiters_begin_anew():
    algorithm = made()
    state = algorithm.init(jax.random.key(0))
    for i in range(2):
        state, _ = algorithm.update(state, rollout(algorithm, state, i), jax.random.key(i))
    assert np.asarray(state.roster.params).tolist() == [0, 0, 0, 2, 2, 2]
    assert np.asarray(state.roster.origin).tolist() == [0, 1, 2, 0, 1, 2]
    assert np.asarray(state.learners["number"])[:2].tolist() == [2, 0]
    assert int(state.roster.joined) == 6
    trajectory = rollout(algorithm, state, 9)
    action, rival, own = (members(x) for x in (trajectory.action, trajectory.extras[RIVAL], trajectory.extras[OWN]))
    assert (action[1][own[1]] == 0).all()
    assert (action[1][~own[1]] == 2).all(), "the main agent as it is answers"
    past = rival[2][~own[2]]
    assert (action[2][~own[2]] == np.asarray(state.roster.params)[past]).all(), "past player k plays the others"


def test_results_ratings_and_an_exploiter_that_is_too_weak():
    """Whoever has the first seat of the two wins one: so the exploiter wins half of its games, then none."""
    algorithm = made(pool_every=100)
    state = algorithm.init(jax.random.key(0))
    lost = lambda own: jnp.where(own, -1.0, 1.0)  # noqa: E731
    state, _ = algorithm.update(state, rollout(algorithm, state, 0, lost), jax.random.key(0))
    wins, games = np.asarray(state.roster.wins), np.asarray(state.roster.games)
    assert games[1].tolist() == [0] * K + [PART, 0, 0], "an episode counts when the next has begun"
    assert wins.sum() == 0
    assert np.asarray(state.roster.ratings)[K:] == pytest.approx([-16] * 3), "32 times the half that was expected"
    odds = np.asarray(algorithm.in_training.params(state)["odds"])
    assert odds[1].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0], "now it meets the past main agent"
    weights = (1 - 1 / (games[2, :3] + 2)) ** 2
    assert odds[2, :3] == pytest.approx(weights / weights.sum(), rel=1e-5)


def test_a_population_has_partners_who_learn_alone():
    algorithm = made("population", LEVER)
    state = algorithm.init(jax.random.key(0))
    main, *partners = members(rollout(algorithm, state).extras[RIVAL][..., 0])
    assert (np.array(partners) == SELF).all()
    assert set(main.ravel()) == {1, 2, K + 1, K + 2}, "any partner, past or present, and never itself"
    own = members(rollout(algorithm, state).extras[OWN])[0]
    assert (own.sum(-1) == 1).all()
    assert 0.3 < own[..., 0].mean() < 0.7, "in either seat"


@pytest.mark.parametrize(
    ("how", "env", "settings", "words"),
    [
        ("league", "mpe/simple_spread", {}, "all agents of mpe/simple_spread are on one"),
        ("population", "games/kuhn", {}, "has several sides: use league"),
        ("population", "classic/cartpole", {}, "has one agent"),
        ("league", "games/kuhn", {"envs": 10}, r"--envs \(10\) must be a multiple"),
        ("league", "games/kuhn", {"pool_size": 2}, "room for all 4 learners"),
        ("league", "games/kuhn", {"main_agents": 0}, "main_agents must be at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused(how, env, settings, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        flockrl.train("ippo", env, out=tmp_path / "run", **{"self_play": how, "envs": 12, **settings})


SHORT = {
    "steps": 3840, "envs": 12, "rollout_steps": 16, "epochs": 1, "minibatches": 1, "hidden": (8,), "eval_episodes": 8,
    "checkpoint_every": 768, "pool_every": 3, "pool_size": 6, "memory": "gru", "memory_size": 8,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "env"), [("league", "games/kuhn"), ("population", "games/lever:rounds=4,history=true")]
)
def test_a_stopped_and_resumed_run_equals_one_that_was_not_stopped(how, env, tmp_path):
    """All learners, the pool, results, ratings and who is being played are part of the state."""
    settings = {**SHORT, "self_play": how, "partners": 2, "league_exploiters": 1}
    whole = flockrl.train("ippo", env, out=tmp_path / "whole", **settings)
    with pytest.raises(Interrupted):
        flockrl.train("ippo", env, out=tmp_path / "cut", callbacks=[StopAt(1920)], **settings)
    resumed = flockrl.resume(tmp_path / "cut")
    pairs = zip(*(jax.tree.leaves(run.state()) for run in (whole, resumed)), strict=True)
    assert all((np.asarray(a) == np.asarray(b)).all() for a, b in pairs)
    assert int(whole.state().learner.roster.joined) == 3 * (1 + 20 // 3)
    assert whole.metrics()[-1]["pool"] == 6


@pytest.mark.slow
def test_the_name_league_trains_one(tmp_path):
    run = flockrl.train("league", "games/kuhn", out=tmp_path / "run", **{**SHORT, "memory": "none"})
    assert flockrl.exploit(run).nash_conv == run.metrics()[-1]["eval_nash_conv"]
    assert run.metrics()[-1]["exploiter_win_rate"] > 0
    policy = run.policy()
    assert policy is not None
    with pytest.raises(UsageError, match="begin anew"):
        flockrl.train("league", "games/kuhn", out=tmp_path / "next", init_from=run, **{**SHORT, "memory": "none"})
