"""Every probe is solved by the variants that can solve it, and not by those that can't."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.ppo import _PPO
from flockrl.core.types import Observation
from flockrl.envs import make
from flockrl.training.checkpoint import Checkpoints

QUICK = {
    "steps": 25_600, "envs": 16, "rollout_steps": 16, "epochs": 4, "minibatches": 2, "hidden": (32,), "lr": 5e-3,
    "gamma": 0.9, "gae_lambda": 0.95, "entropy": 0.003, "memory_size": 16, "eval_episodes": 200,
}  # fmt: skip


def learn(tmp_path, algorithm, env, **settings):
    return flockrl.train(algorithm, env, out=tmp_path / "run", **{**QUICK, **settings})


def score(run):
    return run.result["final_eval_return"]


def first_values(run, steps=1):
    """The critic's values, in returns, of the first `steps` observations of an episode: [steps, N]."""
    env = run.env
    state, seen = env.reset(jax.random.key(0))
    rows = []
    for t in range(steps):
        rows.append(seen.obs)
        state, seen, *_ = env.step(jax.random.key(t), state, jnp.zeros(env.spec.num_agents, jnp.int32))
    checkpoints = Checkpoints(run.path / "checkpoints")
    learned = checkpoints.restore(run.program.shape(), checkpoints.steps()[-1])[0].learner
    checkpoints.close()
    learner = _PPO(env.spec, run.config.config, QUICK["envs"], 1)
    raw, _ = learner._values(learned.params["critic"], Observation(jnp.stack(rows)), learned.critic_memory, None)
    return np.asarray(raw * learned.value_moments.std + learned.value_moments.mean)


# What values should be. The critic sees one observation, so these are exact answers.


@pytest.mark.slow
def test_the_value_of_a_constant_reward(tmp_path):
    run = learn(tmp_path, "ppo", "probe/constant_reward")
    assert first_values(run)[0] == pytest.approx([1.0], abs=0.05)


@pytest.mark.slow
def test_discounting(tmp_path):
    run = learn(tmp_path, "ppo", "probe/discount")
    assert first_values(run, 2)[:, 0] == pytest.approx([0.9, 1.0], abs=0.05)


def test_truncation_bootstraps(tmp_path):
    """A constant reward of 1 that is only cut short is worth 1 / (1 - gamma) = 10."""
    run = learn(tmp_path, "ppo", "probe/truncation", steps=102_400)
    assert first_values(run)[0] == pytest.approx([10.0], rel=0.05)


def test_termination_does_not_bootstrap(tmp_path):
    run = learn(tmp_path, "ppo", "probe/termination")
    expected = [(1 - 0.9**k) / 0.1 for k in (5, 4, 3, 2, 1)]
    assert first_values(run, 5)[:, 0] == pytest.approx(expected, rel=0.08)


def test_dead_agents_are_worth_nothing_and_teach_nothing(tmp_path):
    """Agent i lives i + 1 steps and earns 1 per step: its first value is (1 - gamma^(i+1)) / (1 - gamma)."""
    run = learn(tmp_path, "ippo", "probe/death", share="none", steps=51_200)
    first = first_values(run)[0]
    assert first == pytest.approx([(1 - 0.9**k) / 0.1 for k in (1, 2, 3)], rel=0.08)


def test_credit_goes_to_whom_it_is_due(tmp_path):
    run = learn(tmp_path, "ippo", "probe/credit")
    assert score(run) == pytest.approx(run.env.best, abs=0.05)


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        pytest.param("ppo", "action", marks=pytest.mark.slow),
        pytest.param("ia2c", "observation_action", marks=pytest.mark.slow),
        ("maa2c", "observation_action"),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in (("ia2c", "action"), ("maa2c", "action"))),
        pytest.param("ppo", "observation_action", marks=pytest.mark.slow),
    ],
)
def test_actions_that_matter_are_found(tmp_path, algorithm, name):
    settings = {} if algorithm == "ppo" else {"minibatches": 1, "epochs": 1}
    run = learn(tmp_path, algorithm, f"probe/{name}", **settings)
    assert score(run) == pytest.approx(run.env.best, abs=0.05)


def test_continuous_actions_find_the_target(tmp_path):
    run = learn(tmp_path, "ppo", "probe/action:continuous=true", steps=51_200)
    assert score(run) > run.env.best - 0.02


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ippo", "mappo"])
def test_both_agents_must_match(tmp_path, algorithm):
    run = learn(tmp_path, algorithm, "probe/team_credit")
    assert score(run) == pytest.approx(run.env.best, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("share", ["none", "all", "groups"])
def test_unlike_agents_each_learn_their_own(tmp_path, share):
    run = learn(tmp_path, "mappo", "probe/unlike", share=share, steps=51_200)
    assert score(run) == pytest.approx(run.env.best, abs=0.05)


def test_memory_is_needed(tmp_path):
    remembering = learn(tmp_path / "a", "ppo", "probe/memory", memory="gru", steps=76_800)
    assert score(remembering) > 0.95
    forgetful = learn(tmp_path / "b", "ppo", "probe/memory", steps=76_800)
    assert abs(score(forgetful)) < 0.3


class Unmasked:
    """The same environment without telling which actions are legal."""

    def __init__(self, env):
        self.env, self.spec = env, env.spec

    def reset(self, key):
        state, seen = self.env.reset(key)
        return state, seen._replace(avail=None)

    def step(self, key, state, action):
        state, seen, *rest = self.env.step(key, state, action)
        return state, seen._replace(avail=None), *rest


@pytest.mark.slow
def test_masks_are_needed(tmp_path):
    masked = learn(tmp_path / "a", "ppo", "probe/masks")
    assert score(masked) == pytest.approx(masked.env.best)
    blind = learn(tmp_path / "b", "ppo", Unmasked(make("probe/masks")))
    assert score(blind) < 0.3 * masked.env.best


def explained(run):
    return float(np.mean([row["explained_variance"] for row in run.metrics()[-20:]]))


@pytest.mark.slow
def test_only_a_central_critic_sees_the_state(tmp_path):
    central = learn(tmp_path / "a", "mappo", "probe/state")
    own = learn(tmp_path / "b", "ippo", "probe/state")
    assert explained(central) > 0.9
    assert explained(own) < 0.3
