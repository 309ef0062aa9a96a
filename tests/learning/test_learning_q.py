"""Q-learning on games and probes with known answers: what each mixer can represent, and what it cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.presets import make_config
from flockrl.algos.q_learning import QLearner
from flockrl.core.types import Box, Discrete, EnvSpec, Observation, Trajectory
from flockrl.replay.ring import add
from flockrl.training.checkpoint import Checkpoints

QUICK = {
    "steps": 12_800, "envs": 16, "rollout_steps": 4, "steps_per_update": 16, "batch_size": 64, "hidden": (32,),
    "lr": 3e-3, "gamma": 0.9, "learning_starts": 640, "buffer_size": 6400, "eval_episodes": 200, "eval_every": 12_800,
}  # fmt: skip


def learn(tmp_path, algorithm, env, **settings):
    return flockrl.train(algorithm, env, out=tmp_path / "run", **{**QUICK, **settings})


def score(run):
    return run.result["final_eval_return"]


def fitted(algorithm, seen, actions, seeds, updates, **settings):
    """Two agents with so many actions that learned from all of `seen` in every gradient step: functions to act."""
    spec = EnvSpec("game", ("a_0", "a_1"), (Box(seen.obs.shape[3:]),) * 2, (Discrete(actions),) * 2, max_steps=2)
    count = len(seen.reward)
    whole = {"rollout_steps": count, "steps_per_update": count, "buffer_size": count, "batch_size": count}
    agent = QLearner(spec, make_config(algorithm, {"hidden": (16,), "lr": 1e-3, **whole, **settings}), 1, 1)
    place = jnp.arange(count), jnp.zeros(count, jnp.int32), jnp.ones(count)

    @jax.jit
    def fit(key):
        state = agent.init(key)
        replay = add(state.replay, seen)
        step = lambda _, x: agent.learn(x, replay, place, jnp.float32(1), key)[0]  # noqa: E731
        return jax.lax.fori_loop(0, updates, step, state.learned).params["q"]

    def acting(q):
        def act(row):
            obs = jnp.broadcast_to(jnp.asarray(row, jnp.float32), (1, 2, len(row)))
            return tuple(np.asarray(agent.act({"q": q}, Observation(obs), (), jax.random.key(0), False)[0][0]))

        return act

    return [acting(fit(jax.random.key(seed))) for seed in seeds]


def transitions(rows):
    """(observation, joint action, reward, terminated, next observation), the same for both, as a trajectory [T, 1]."""
    obs, action, reward, over, following = (np.asarray(column, np.float32) for column in zip(*rows, strict=True))
    both = lambda x: jnp.asarray(np.repeat(x[:, None, None], 2, 2))  # noqa: E731
    over = both(over > 0)
    first = jnp.ones((len(rows), 1), bool)
    return Trajectory(
        both(obs), jnp.asarray(action, jnp.int32)[:, None], both(reward), over, over & False, both(following), first
    )


@pytest.mark.parametrize(("algorithm", "expected"), [("vdn", 7.0), ("qmix", 8.0)])
def test_the_two_step_game_tells_a_sum_from_a_mixer(algorithm, expected):
    """Uniform experience, as in the paper: a sum cannot represent the matrix that pays 8 and settles on 7."""
    places, pays = np.eye(3), np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]])
    rows = [(places[0], a, 0.0, False, places[1 + a[0]]) for a in np.ndindex(2, 2)]
    rows += [(places[1 + m], a, pays[m][a], True, places[1 + m]) for m in range(2) for a in np.ndindex(2, 2)]
    for act in fitted(algorithm, transitions(rows), 2, range(5), 2000, gamma=0.99, lr=3e-3):
        matrix = act(places[0])[0]
        assert pays[matrix][act(places[1 + matrix])] == expected


PAYOFF = np.array([[8, -12, -12], [-12, 0, 0], [-12, 0, 0]], np.float32)


@pytest.mark.parametrize(
    ("algorithm", "found"), [("vdn", False), ("qmix", False), ("qplex", True), ("wqmix", True), ("qtran", True)]
)
def test_what_is_not_monotonic(algorithm, found):
    """A teammate's choice turns the best action into the worst: sums and monotonic mixers end elsewhere."""
    rows = [([1.0], a, PAYOFF[a], True, [1.0]) for a in np.ndindex(3, 3)]
    (act,) = fitted(algorithm, transitions(rows), 3, [0], 4000)
    assert (PAYOFF[act([1.0])] == 8.0) == found


@pytest.mark.slow
def test_memory_is_needed_for_a_cue_shown_only_at_first(tmp_path):
    settings = {"steps": 51_200, "batch_size": 256, "sequence": 8, "lr": 5e-3}
    remembering = learn(tmp_path / "a", "iql", "probe/memory", memory="gru", memory_size=16, **settings)
    assert score(remembering) > 0.95
    forgetful = learn(tmp_path / "b", "iql", "probe/memory", **settings)
    assert abs(score(forgetful)) < 0.3


@pytest.mark.slow
def test_masks_are_obeyed(tmp_path):
    run = learn(tmp_path, "dqn", "probe/masks", steps=1280)
    assert score(run) == pytest.approx(run.env.best)


@pytest.mark.slow
def test_unlike_agents_each_learn_their_own_from_the_teams_reward(tmp_path):
    run = learn(
        tmp_path, "vdn", "probe/unlike", share="all", hidden=(64,), steps=51_200, prioritized=True, dueling=True
    )
    assert score(run) > 0.9


@pytest.mark.parametrize(
    ("probe", "value", "settings"),
    [
        ("truncation", 10.0, {"n_step": 3}),
        ("termination", (1 - 0.9**5) / 0.1, {"td_lambda": 0.8, "sequence": 8}),
    ],
)
def test_truncation_bootstraps_and_termination_does_not(tmp_path, probe, value, settings):
    """A reward of 1 per step is worth 10 when it is only cut after five steps, 4.1 when it ends there."""
    run = learn(tmp_path, "dqn", f"probe/{probe}", steps=38_400, **settings)
    checkpoints = Checkpoints(run.path / "checkpoints")
    learned = checkpoints.restore(run.program.shape(), checkpoints.steps()[-1])[0].learner.learned
    checkpoints.close()
    agent = QLearner(run.env.spec, run.config.config, QUICK["envs"], 1)
    _, seen = run.env.reset(jax.random.key(0))
    q = agent._q(learned.params["q"], jax.tree.map(lambda x: x[None], seen))[0]
    assert np.asarray(learned.scales.values(q))[0, 0, :2] == pytest.approx(value, rel=0.08)
