"""Self-play: who plays whom, what is learned from, win rates and ratings by hand, and mixtures of past selves."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stop_at import StopAt

import flockrl
from flockrl.algos.wrappers.self_play import OPEN, SELF, mixed, self_play
from flockrl.core.errors import UsageError
from flockrl.core.types import Actor, Algorithm, Mixture, Observation, Trajectory
from flockrl.envs import make
from flockrl.games.query import Examiner
from flockrl.training.interrupt import Interrupted

PENNIES = make("games/matching_pennies:rounds=1").spec
ENVS = 64


def told(number: int):
    """A learner whose policy says its number of updates as action, and which keeps the last lesson it was given."""
    return Algorithm(
        init=lambda key: {"number": jnp.int32(0), "lesson": jnp.zeros((2, ENVS, 2))},
        params=lambda state: state["number"],
        act=lambda params, seen, memory, key, explore: (
            jnp.full((len(seen.obs), 2), params, jnp.int32),
            memory + 1,
            {"logp": jnp.full((len(seen.obs), 2), -1.0 * params)},
        ),
        update=lambda state, trajectory, key: (
            {"number": state["number"] + number, "lesson": trajectory.alive.astype(jnp.float32)}, {}
        ),
        memory=lambda batch: jnp.zeros(batch, jnp.int32),
        rollout_steps=2,
    )  # fmt: skip


def learner(how: str, **settings):
    usual = {"pool_size": 3, "pool_every": 1, "pool_share": 0.5, "sparring": "", "sparring_share": 0.5}
    config = SimpleNamespace(self_play=how, **{**usual, **settings})
    return self_play(told(1), PENNIES, config, envs=ENVS, updates=10, draws=True)


def rollout(algorithm, state, reward, key=0):
    """Two steps of which each is an episode. reward: (own) -> [B, 2]."""
    actor = algorithm.in_training
    rows = []
    for t in range(2):
        seen = Observation(jnp.ones((ENVS, 2, 1)))
        action, _, extras = actor.act(
            actor.params(state), seen, actor.memory(ENVS), jax.random.fold_in(jax.random.key(key), t), True
        )
        rows.append((action, extras))
    flags = jnp.ones((2, ENVS, 2), bool)
    extras = jax.tree.map(lambda *x: jnp.stack(x), *(row[1] for row in rows))
    obs = jnp.ones((2, ENVS, 2, 1))
    return Trajectory(
        obs, jnp.stack([row[0] for row in rows]), reward(extras["own"]), flags, ~flags, obs, flags[..., 0],
        memory=actor.memory(ENVS), extras=extras,
    )  # fmt: skip


def nothing(own):
    return jnp.zeros(own.shape)


def test_some_sides_are_played_by_past_selves_and_the_learner_learns_from_its_own_seats():
    algorithm = learner("uniform")
    state = algorithm.init(jax.random.key(0))
    for i in range(2):
        state, _ = algorithm.update(state, rollout(algorithm, state, nothing, i), jax.random.key(0))
    assert int(algorithm.params(state)) == 2, "what leaves is the present self"
    trajectory = rollout(algorithm, state, nothing, 7)
    own, rival = np.asarray(trajectory.extras["own"]), np.asarray(trajectory.extras["rival"])[..., 0]
    action = np.asarray(trajectory.action)
    assert (action[own] == 2).all(), "the learner plays its own seats"
    assert (action[~own] == np.broadcast_to(rival[..., None], own.shape)[~own]).all(), "past self k plays the others"
    assert np.asarray(trajectory.extras["logp"])[~own] == pytest.approx(-action[~own]), "and tells its own chances"
    assert (own.all(-1) == (rival == SELF)).all(), "or nobody else does"
    against = own[rival != SELF]
    assert (against.sum(-1) == 1).all()
    assert 0.3 < against[:, 0].mean() < 0.7, "the seat is drawn"
    assert 0.3 < (rival != SELF).mean() < 0.7, "as often as pool_share says"
    assert set(rival[rival >= 0]) == {0, 1, 2}
    after, _ = algorithm.update(state, trajectory, jax.random.key(0))
    assert (np.asarray(after.learner["lesson"]) == own).all()


def test_an_opponent_stays_until_the_episode_ends():
    algorithm = learner("uniform", pool_share=1.0)
    actor, state = algorithm.in_training, algorithm.init(jax.random.key(0))
    seen, memory = Observation(jnp.ones((ENVS, 2, 1))), algorithm.in_training.memory(ENVS)
    assert (memory["who"] == OPEN).all()
    seats = []
    for t in range(3):
        _, memory, extras = actor.act(actor.params(state), seen, memory, jax.random.key(t), True)
        seats.append(np.asarray(extras["own"]))
    assert (seats[0] == seats[1]).all()
    assert (seats[1] == seats[2]).all()
    assert (memory["own"] == 3).all()
    assert (memory["past"] == 3).all()


@pytest.mark.parametrize(("how", "odds"), [("latest", [0, 0, 1]), ("uniform", [1 / 3] * 3)])
def test_who_is_met(how, odds):
    algorithm = learner(how)
    state = algorithm.init(jax.random.key(0))
    assert algorithm.in_training.params(state)["odds"] == pytest.approx([1, 0, 0]), "at first there is one"
    for i in range(2):
        state, _ = algorithm.update(state, rollout(algorithm, state, nothing, i), jax.random.key(0))
    assert algorithm.in_training.params(state)["odds"] == pytest.approx(odds)
    state, _ = algorithm.update(state, rollout(algorithm, state, nothing, 5), jax.random.key(0))
    assert np.asarray(state.pool.params).tolist() == [3, 1, 2], "the oldest goes where the pool is full"


def test_win_rates_and_ratings_by_hand():
    """The learner wins every game against past selves: episodes count when the next one has begun."""
    algorithm = learner("prioritised", pool_every=100, pool_share=1.0)
    state = algorithm.init(jax.random.key(0))
    win = lambda own: jnp.where(own, 1.0, -1.0)  # noqa: E731
    state, metrics = algorithm.update(state, rollout(algorithm, state, win), jax.random.key(0))
    assert np.asarray(state.pool.games).tolist() == [ENVS, 0, 0], "the first of two episodes is known to have ended"
    assert np.asarray(state.pool.wins).tolist() == [ENVS, 0, 0]
    assert float(metrics["rating"]) == pytest.approx(32 * 0.5), "expected 1/2, got 1"
    state, metrics = algorithm.update(state, rollout(algorithm, state, nothing), jax.random.key(0))
    assert float(state.pool.games[0]) == pytest.approx(0.95 * ENVS + 2 * ENVS), "the second, and one draw"
    assert float(state.pool.wins[0]) == pytest.approx(0.95 * ENVS + ENVS + ENVS / 2)
    expected = 1 / (1 + 10 ** (-16 / 400))
    assert float(metrics["rating"]) == pytest.approx(16 + 32 * (0.75 - expected), abs=1e-4)


def nine(spec, seen, key):
    """A script that always does the same."""
    return jnp.full(seen.obs.shape[:2], 9)


def anything(spec, seen, key):
    """A script that draws."""
    return jax.random.randint(key, seen.obs.shape[:2], 0, spec.action_size)


def test_a_script_is_among_the_opponents_and_has_no_part_in_ratings():
    algorithm = learner("uniform", pool_share=0.8, sparring=f"{__name__}:nine", sparring_share=0.75, pool_every=100)
    state = algorithm.init(jax.random.key(0))
    trajectory = rollout(algorithm, state, lambda own: jnp.where(own, 1.0, -1.0))
    own, rival = np.asarray(trajectory.extras["own"]), np.asarray(trajectory.extras["rival"])[..., 0]
    script, action = rival == 3, np.asarray(trajectory.action)
    assert script.mean() == pytest.approx(0.8 * 0.75, abs=0.15), "it comes after a pool of three"
    assert (own[script].sum(-1) == 1).all()
    assert ((action == 9) == (script[..., None] & ~own)).all(), "it plays its seat and no other"
    state, metrics = algorithm.update(state, trajectory, jax.random.key(0))
    assert float(metrics["sparring_win_rate"]) == 1
    assert float(state.pool.games.sum()) == (rival[0] == 0).sum(), "of the episodes that are known to have ended"
    lost = rollout(algorithm, state, lambda own: jnp.where(own, -1.0, 1.0))
    _, metrics = algorithm.update(state, lost, jax.random.key(0))
    first, second = script[1].sum(), (np.asarray(lost.extras["rival"])[0, :, 0] == 3).sum()
    assert float(metrics["sparring_win_rate"]) == pytest.approx(first / (first + second))


def test_hard_opponents_are_met_more_often():
    algorithm = learner("prioritised")
    state = algorithm.init(jax.random.key(0))
    pool = state.pool._replace(joined=jnp.int32(2), wins=jnp.array([98.0, 0, 0]), games=jnp.array([98.0, 98, 0]))
    odds = algorithm.in_training.params(state._replace(pool=pool))["odds"]
    chances = np.array([(1 - 99 / 100) ** 2, (1 - 1 / 100) ** 2, 0])
    assert odds == pytest.approx(chances / chances.sum(), rel=1e-4)


def softmax(spec):
    """A policy whose params are the logits [A] of all agents."""

    def act(params, seen, memory, key, explore):
        logits = jnp.broadcast_to(params, (*seen.obs.shape[:-1], spec.action_size))
        logits = logits if seen.avail is None else jnp.where(seen.avail, logits, -jnp.inf)
        action = jax.random.categorical(key, logits) if explore else logits.argmax(-1)
        logp = jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]
        return action.astype(jnp.int32), memory, {"logp": logp} if explore else {}

    return Actor(act, lambda batch: ())


def mixture_of(env, rows, odds):
    member = softmax(env.spec)
    act, memory = mixed(member)
    whole = told(0)._replace(act=act, memory=memory, member=member)
    return whole, Mixture(jnp.asarray(rows, jnp.float32), jnp.asarray(odds, jnp.float32))


def test_a_mixture_of_pure_policies_is_examined_by_its_plans():
    """Kuhn: half the time somebody always passes, else always bets. Who bets first never comes to answer a bet."""
    env = make("games/kuhn")
    examiner = Examiner(env)
    gap = examiner.gap(*mixture_of(env, [[9, -9, 0], [-9, 9, 0]], [0.5, 0.5]))
    form, game = examiner.game.form, examiner.game
    policies = []
    for player, seat in enumerate(form.seats):
        first = seat.depths[seat.owner[1:]] == 0
        bets = np.where(first, 0.5, 0.0)
        policies.append(seat.policy(np.append([1.0], np.where(seat.actions[1:] == 1, bets, 1 - bets))))
        assert seat.depths.max() == (1 if player == 0 else 0)
    assert game.name == "games/kuhn"
    assert gap.gains == pytest.approx(form.gap(policies).gains, abs=1e-6)
    assert gap.values == pytest.approx(form.gap(policies).values, abs=1e-6)


def test_a_mixture_of_heads_and_tails_is_the_equilibrium_of_matching_pennies():
    env = make("games/matching_pennies:rounds=1")
    assert Examiner(env).gap(*mixture_of(env, [[30, 0], [0, 30]], [0.5, 0.5])).nash_conv == pytest.approx(0, abs=1e-6)
    assert Examiner(env).gap(*mixture_of(env, [[30, 0], [0, 30]], [1, 0])).nash_conv == pytest.approx(2, abs=1e-6)


def test_a_mixture_draws_once_per_episode():
    env = make("games/matching_pennies:rounds=1")
    whole, params = mixture_of(env, [[30, 0], [0, 30]], [0.25, 0.75])
    seen, memory, before = Observation(jnp.ones((4000, 2, 1))), whole.memory(4000), None
    for t in range(3):
        action, memory, _ = whole.act(params, seen, memory, jax.random.key(t), True)
        assert (action[:, 0] == action[:, 1]).all(), "one draw for the team"
        assert before is None or (action == before).all()
        before = action
    assert float(before.mean()) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "words"),
    [
        ("ippo", "mpe/simple_spread", {}, "all agents of mpe/simple_spread are on one"),
        ("commnet", "games/kuhn", {}, "use self_play without comm"),
        ({"agent_0": "ippo", "agent_1": "random"}, "games/kuhn", None, "needs one algorithm for all sides"),
        ("ippo", "games/kuhn", {"pool_share": 2.0}, "pool_share must be"),
        ("ippo", "games/kuhn", {"sparring": "a:b", "self_play": "average"}, "sparring needs a self_play that meets"),
        ("ippo", "games/kuhn", {"sparring": "a:b", "sparring_share": 0.0}, "sparring_share must be above 0"),
        ("ippo", "games/kuhn", {"sparring": "nowhere.at_all:play"}, "nowhere.at_all"),
    ],
)
def test_what_does_not_go_together_is_refused(algorithm, env, settings, words, tmp_path):
    settings = {"agent_0": {"self_play": "latest"}} if settings is None else {"self_play": "latest", **settings}
    with pytest.raises(UsageError, match=words):
        flockrl.train(algorithm, env, out=tmp_path / "run", **settings)


def test_a_trainer_in_a_loop_of_ones_own_has_no_pool():
    with pytest.raises(UsageError, match="rollouts of its own"):
        flockrl.Trainer("ippo", obs_dim=3, act_dim=2, agents=2, hyperparams={"self_play": "latest"})


SHORT = {
    "steps": 5120,
    "envs": 8,
    "rollout_steps": 16,
    "epochs": 1,
    "minibatches": 1,
    "hidden": (8,),
    "eval_episodes": 8,
}
SHORT |= {"checkpoint_every": 1024, "pool_every": 3, "pool_size": 2}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["prioritised", "fictitious", "average"])
def test_a_stopped_and_resumed_run_equals_one_that_was_not_stopped(how, tmp_path):
    """Pool, win rates, ratings and who is being played are part of the state."""
    settings = {**SHORT, "self_play": how, "memory": "gru", "memory_size": 8}
    if how == "prioritised":
        settings["sparring"] = f"{__name__}:anything"
    whole = flockrl.train("ippo", "games/leduc", out=tmp_path / "whole", **settings)
    with pytest.raises(Interrupted):
        flockrl.train("ippo", "games/leduc", out=tmp_path / "cut", callbacks=[StopAt(2560)], **settings)
    resumed = flockrl.resume(tmp_path / "cut", trust=True)
    pairs = zip(*(jax.tree.leaves(run.state()) for run in (whole, resumed)), strict=True)
    assert all((np.asarray(a) == np.asarray(b)).all() for a, b in pairs)
    assert int(whole.state().learner.pool.joined) == 1 + 40 // 3
    told = [run.metrics()[-1] for run in (whole, resumed)]
    more = {"average": (), "prioritised": ("rating", "win_rate", "sparring_win_rate")}
    for name in ("eval_nash_conv", "pool", *more.get(how, ("rating", "win_rate"))):
        assert told[0][name] == told[1][name]
    assert whole.config.config.share == "all", "seats with equal spaces share parameters"


def test_an_average_learns_like_the_plain_learner_and_keeps_its_second_half(tmp_path):
    """To the bit; the pool has the selves of the last updates, and its mixture is what is examined."""
    settings = {name: value for name, value in SHORT.items() if name not in ("pool_every", "pool_size", "steps")}
    settings |= {"steps": 1024, "eval_every": 1024, "checkpoint_every": 1024, "share": "all"}  # eight updates
    plain = flockrl.train("mmd", "games/kuhn", out=tmp_path / "plain", **settings)
    run = flockrl.train("mmd", "games/kuhn", out=tmp_path / "run", self_play="average", pool_size=2, **settings)
    state, pairs = run.state().learner, (plain.state().learner.params, run.state().learner.learner.params)
    assert all(map(np.array_equal, *map(jax.tree.leaves, pairs)))
    assert int(state.pool.joined) == 1 + 4, "one more every second update"
    newest = jax.tree.map(lambda x: x[0], state.pool.params)  # the fifth of two places
    assert all(map(np.array_equal, jax.tree.leaves(newest), jax.tree.leaves(plain.params())))
    gaps = [flockrl.exploit(each).nash_conv for each in (plain, run)]
    assert gaps[0] != gaps[1]
    with pytest.raises(UsageError, match="leave out --pool-share"):
        flockrl.train("mmd", "games/kuhn", out=tmp_path / "no", self_play="average", pool_share=0.5, **settings)


@pytest.mark.slow
def test_a_learner_with_a_replay_plays_itself_too(tmp_path):
    """And what it becomes is evaluated, exploited and exported like any other."""
    settings = {
        name: SHORT[name] for name in ("steps", "envs", "hidden", "checkpoint_every", "pool_every", "pool_size")
    }
    run = flockrl.train("iql", "games/kuhn", out=tmp_path / "run", self_play="uniform", **settings)
    assert run.metrics()[-1]["win_rate"] > 0
    assert flockrl.exploit(run).nash_conv > 0


@pytest.mark.slow
def test_self_play_begins_with_another_run(tmp_path):
    first = flockrl.train("ippo", "games/kuhn", out=tmp_path / "first", **{**SHORT, "self_play": "latest"})
    second = flockrl.train(
        "ippo",
        "games/kuhn",
        out=tmp_path / "second",
        init_from=first.path,
        **{**SHORT, "steps": 128},
        self_play="uniform",
    )
    apart = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), first.params(), second.params())
    assert max(jax.tree.leaves(apart)) < 0.05
