"""Off-policy learners on environments with known answers."""

import jax
import jax.numpy as jnp
import pytest

import flockrl
from flockrl.algos.ddpg import DDPG
from flockrl.algos.views import View
from flockrl.envs.probes import Probe
from flockrl.training.checkpoint import Checkpoints

QUICK = {
    "steps": 12_800, "envs": 16, "rollout_steps": 4, "steps_per_update": 16, "batch_size": 64, "hidden": (32,),
    "lr": 3e-3, "critic_lr": 3e-3, "gamma": 0.9, "tau": 0.02, "learning_starts": 640, "buffer_size": 6400,
    "eval_episodes": 200,
}  # fmt: skip


def learn(tmp_path, algorithm, env, **settings):
    return flockrl.train(algorithm, env, out=tmp_path / "run", **{**QUICK, **settings})


def score(run):
    return run.result["final_eval_return"]


@pytest.mark.parametrize(
    "algorithm", ["sac", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddpg", "td3"))]
)
def test_discrete_actions_follow_the_observation(tmp_path, algorithm):
    run = learn(tmp_path, algorithm, "probe/observation_action")
    assert score(run) == pytest.approx(run.env.best, abs=0.05)


@pytest.mark.slow
def test_unlike_agents_each_learn_their_own(tmp_path):
    run = learn(tmp_path, "maddpg", "probe/unlike", share="all", hidden=(64, 64), steps=51_200)
    assert score(run) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["matd3", "masac"])
def test_masks_are_obeyed(tmp_path, algorithm):
    run = learn(tmp_path, algorithm, "probe/masks", steps=1280)
    assert score(run) == pytest.approx(run.env.best)


class Aim:
    """Two agents are paid for hitting targets of their own that lie off the middle of their unlike bounds."""

    spec = flockrl.EnvSpec(
        "aim", ("near", "far"), (flockrl.Box((1,)), flockrl.Box((1,))),
        (flockrl.Box((1,), -2.0, 3.0), flockrl.Box((1,), 10.0, 30.0)), max_steps=1,
    )  # fmt: skip

    def reset(self, key):
        sign = jax.random.rademacher(key, (2, 1), jnp.float32)
        return sign, flockrl.Observation(sign)

    def step(self, key, state, action):
        goal = jnp.array([0.5, 20.0]) + jnp.array([2.0, 8.0]) * state[:, 0]
        reward = 1 - ((action[:, 0] - goal) / jnp.array([2.5, 10.0])) ** 2
        return state, flockrl.Observation(state), reward, jnp.bool_(True), jnp.bool_(False)


@pytest.mark.parametrize(
    "algorithm", ["isac", *(pytest.param(name, marks=pytest.mark.slow) for name in ("maddpg", "matd3"))]
)
def test_continuous_actions_hit_their_targets(tmp_path, algorithm):
    """The middle of the bounds scores 0.36 and 0.36; the best is 1."""
    run = learn(tmp_path, algorithm, Aim(), steps=25_600)
    assert score(run) > 0.97


@pytest.mark.parametrize(
    ("probe", "value", "n_step"),
    [
        ("truncation", 10.0, 3),
        pytest.param("truncation", 10.0, 1, marks=pytest.mark.slow),
        ("termination", (1 - 0.9**5) / 0.1, 3),
    ],
)
def test_truncation_bootstraps_and_termination_does_not(tmp_path, probe, value, n_step):
    """A reward of 1 per step is worth 10 when it is only cut after five steps, 4.1 when it ends there."""
    run = learn(tmp_path, "ddpg", f"probe/{probe}", n_step=n_step, steps=38_400)
    checkpoints = Checkpoints(run.path / "checkpoints")
    learned = checkpoints.restore(run.program.shape(), checkpoints.steps()[-1])[0].learner.learned
    checkpoints.close()
    agent = DDPG(run.env.spec, run.config.config, QUICK["envs"], 1)
    _, seen = run.env.reset(jax.random.key(0))
    view, action = View(jax.tree.map(lambda x: x[None], seen)), jnp.array([[[1.0, 0.0]]])
    q = learned.scales.values(agent._q(0, learned.params["critic"][0], view, action))
    assert float(q[0, 0, 0]) == pytest.approx(value, rel=0.08)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_a_pendulum_is_swung_up(tmp_path, algorithm):
    """A random policy scores about -1200, one that balances at least -200 on average over many starts."""
    run = flockrl.train(
        algorithm, "classic/pendulum", out=tmp_path / "run", steps=10_000, envs=4, rollout_steps=4, steps_per_update=2,
        lr_schedule="constant", learning_starts=1000, eval_every=10_000, eval_episodes=100,
    )  # fmt: skip
    assert score(run) > -250


@pytest.mark.slow
def test_penalty_game_is_won(tmp_path):
    """Two pairs of actions pay 10 of 10; MADDPG's discrete policies must agree on one."""
    run = learn(tmp_path, "maddpg", "games/penalty:k=0,rounds=5", steps=51_200)
    assert score(run) == pytest.approx(run.env.best)


REMEMBERING = {
    "steps": 3200, "steps_per_update": 4, "batch_size": 256, "memory": "gru", "memory_size": 16, "sequence": 8,
    "eval_every": 3200,
}  # fmt: skip


def pair_recall():
    """The memory probe for two agents, each of which is shown a cue of its own and paid for its own answer."""
    spec = flockrl.EnvSpec(
        "recall", ("agent_0", "agent_1"), (flockrl.Box((2,), -1.0, 1.0),) * 2, (flockrl.Discrete(2),) * 2, max_steps=4
    )

    def observe(m):
        return flockrl.Observation(jnp.stack([(2.0 * m.cue - 1) * (m.t == 0), jnp.full(2, m.t == 3, jnp.float32)], -1))

    return Probe(
        spec, 1.0, observe,
        reward=lambda m, action: jnp.where(action == m.cue, 1.0, -1.0) * (m.t == 3),
        draw=lambda key: jax.random.bernoulli(key, 0.5, (2,)).astype(jnp.int32),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        ("td3", "probe/memory"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("sac", "probe/memory"),
                ("maddpg", pair_recall()),
                ("matd3", pair_recall()),
                ("masac", pair_recall()),
            )
        ),
    ],
)
def test_memory_is_needed(tmp_path, algorithm, env):
    own = {} if "sac" in algorithm else {"output_penalty": 0.03}
    remembering = learn(tmp_path / "a", algorithm, env, **REMEMBERING, **own)
    assert score(remembering) > 0.95
    forgetful = learn(tmp_path / "b", algorithm, env, **{**REMEMBERING, "memory": "none", "sequence": None}, **own)
    assert abs(score(forgetful)) < 0.3
