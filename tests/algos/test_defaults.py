"""Settings that the user leaves open, and advantages where nothing was paid yet."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.defaults import settle
from flockrl.algos.ppo import _PPO, PPOConfig
from flockrl.algos.presets import make_config
from flockrl.algos.returns import monte_carlo
from flockrl.core.spec import spec_from_json, spec_to_json
from flockrl.core.types import Box, Discrete, EnvSpec
from flockrl.envs import make


def world(steps: int) -> EnvSpec:
    return EnvSpec("test", ("a_0", "a_1"), (Box((3,)),) * 2, (Discrete(2),) * 2, steps)


@pytest.mark.parametrize(
    ("game", "ippo", "iql"), [("kuhn", 1, 1), ("connect_four", 1, 1), ("soccer", 0.99, 0.975), ("chicken", 0.96, 0.9)]
)
def test_games_that_are_won_or_lost_are_not_discounted(game: str, ippo: float, iql: float):
    spec = make(f"games/{game}").spec
    for name, gamma in (("ippo", ippo), ("iql", iql)):
        assert settle(make_config(name, {}), spec, 4, 10)[0].gamma == pytest.approx(gamma)
    assert settle(make_config("ippo", {"gamma": 0.5}), spec, 4, 10)[0].gamma == 0.5
    assert spec_from_json(spec_to_json(spec)).undiscounted == spec.undiscounted
    assert spec.part([0]).undiscounted == spec.undiscounted


@pytest.mark.parametrize(("steps", "gamma"), [(1, 0.95), (20, 0.95), (25, 0.96), (50, 0.98), (100, 0.99), (1000, 0.99)])
def test_the_discount_follows_the_horizon(steps: int, gamma: float):
    for name in ("ippo", "ireinforce", "iql_tabular"):
        assert settle(make_config(name, {}), world(steps), 4, 10)[0].gamma == pytest.approx(gamma)
    assert settle(make_config("ippo", {"gamma": 0.5}), world(steps), 4, 10)[0].gamma == 0.5


@pytest.mark.parametrize(("steps", "gamma"), [(1, 0.9), (25, 0.9), (50, 0.95), (100, 0.975), (250, 0.99), (1000, 0.99)])
def test_learners_with_a_replay_look_less_far_ahead(steps: int, gamma: float):
    for name in ("iql", "qmix", "ddpg", "masac"):
        assert settle(make_config(name, {}), world(steps), 4, 10)[0].gamma == pytest.approx(gamma)
    assert settle(make_config("qmix", {"gamma": 0.5}), world(steps), 4, 10)[0].gamma == 0.5


@pytest.mark.parametrize(("envs", "minibatches"), [(1, 1), (2, 2), (3, 3), (5, 1), (6, 3), (16, 4)])
def test_minibatches_divide_the_environments(envs: int, minibatches: int):
    config, words = settle(make_config("mappo", {}), world(25), envs, 10)
    assert config.minibatches == minibatches
    assert words == f"gamma 0.96, minibatches {minibatches}"
    assert make_algorithm("mappo", world(25), make_config("mappo", {}), envs=envs, updates=10).note == words
    with pytest.raises(flockrl.UsageError, match=r"minibatches \(7\) must divide"):
        make_algorithm("mappo", world(25), make_config("mappo", {"minibatches": 7}), envs=envs, updates=10)


@pytest.mark.parametrize(
    ("envs", "rollout", "updates", "every", "starts"),
    [
        (16, 25, 250, 2, 5_000),  # 100,000 steps
        (16, 25, 5_000, 25, 5_000),  # 2,000,000
        (16, 25, 1_000, 10, 5_000),  # 400,000
        (3, 7, 10, 1, 21),  # 210: 2 does not divide 21
        (1, 1, 50_000, 1, 5_000),
    ],
)
def test_gradient_steps_follow_the_budget(envs: int, rollout: int, updates: int, every: int, starts: int):
    config, words = settle(make_config("qmix", {"rollout_steps": rollout}), world(25), envs, updates)
    assert (config.steps_per_update, config.learning_starts) == (every, starts)
    assert words == f"gamma 0.9, a gradient step every {every} steps, learning from step {starts:,} on"
    make_algorithm("qmix", world(25), make_config("qmix", {"rollout_steps": rollout}), envs=envs, updates=updates)


def test_sequences_cover_rollouts_and_there_are_enough_of_them():
    for rollout, steps in ((10, 25), (25, 25), (60, 60)):
        config, _ = settle(make_config("iql", {"memory": "gru", "rollout_steps": rollout}), world(25), 4, 10)
        assert (config.steps, config.samples, config.filling) == (steps, 32, 0)
    config, _ = settle(make_config("maddpg", {"memory": "gru"}), world(25), 4, 10)
    assert (config.steps, config.samples, config.filling) == (25, 32, 8)
    assert settle(make_config("iql", {}), world(25), 4, 10)[0].samples == 256
    many = EnvSpec("test", tuple(f"a_{i}" for i in range(1_000)), (Box((3,)),) * 1_000, (Discrete(2),) * 1_000, 25)
    config, _ = settle(make_config("iql", {"memory": "gru", "rollout_steps": 100}), many, 4, 10)
    assert (config.steps, config.samples) == (100, 1)


@pytest.mark.parametrize(
    ("agents", "buffer", "samples"), [(2, 200_000, 256), (256, 195_140, 256), (1_000, 49_988, 65), (10_000, 4_999, 6)]
)
def test_replays_and_samples_of_many_agents_are_small(agents: int, buffer: int, samples: int):
    """An agent takes 40 bytes of 2 GB in each transition: three numbers of four bytes and two flags of choices, before
    and after, an action, a reward and four flags."""
    spec = EnvSpec("test", tuple(f"a_{i}" for i in range(agents)), (Box((3,)),) * agents, (Discrete(2),) * agents, 25)
    config, _ = settle(make_config("mfq", {}), spec, 4, 10)
    assert (config.buffer_size, config.samples) == (buffer, samples)
    config, _ = settle(make_config("mfq", {"buffer_size": 5, "batch_size": 900}), spec, 4, 10)
    assert (config.buffer_size, config.samples) == (5, 900)


def test_replays_hold_who_perceives_whom_and_agents_that_see_nothing():
    env = make("swarm/flocking:n=300")
    config, _ = settle(make_config("isac", {}), env.spec, 4, 10)
    assert 1_000 < config.buffer_size < 2 * 10**9 / (2 * 300 * 300)
    blind = EnvSpec("test", ("a_0",), (Box((0,)),), (Discrete(2),), 25)
    assert settle(make_config("iql", {}), blind, 4, 10)[0].buffer_size == 200_000


def test_two_environments_train_with_defaults_and_the_first_line_tells(tmp_path: Any, capsys: Any):
    from flockrl.commands.main import main

    main(["train", "ippo", "probe/action", "--envs", "2", "--steps", "400", "--out", str(tmp_path / "run")])
    assert "2 environments; gamma 0.95, minibatches 2; compiled" in capsys.readouterr().out


class Unpaid:
    """simple_spread where nothing is paid."""

    def __init__(self) -> None:
        self.env = make("mpe/simple_spread")
        self.spec, self.reset = self.env.spec, self.env.reset

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, ...]:
        state, seen, reward, *ends = self.env.step(key, state, action)
        return state, seen, 0.0 * reward, *ends


def last_entropy(tmp_path: Any, **settings: Any) -> float:
    run = flockrl.train(
        "ippo", Unpaid(), steps=32_000, eval_episodes=1, rollout_steps=50, entropy=0.0, out=tmp_path, **settings
    )
    return run.metrics()[-1]["entropy"]


@pytest.mark.slow
def test_noise_becomes_no_policy_before_the_first_reward(tmp_path: Any):
    assert last_entropy(tmp_path / "with") > 1.59  # that of five actions at random is 1.61
    assert last_entropy(tmp_path / "without", advantage_floor=0.0) < 1.5


def normal(paid: Any, reward: Any, advantage: Any, **settings: Any) -> tuple[Any, Any]:
    learner = _PPO(world(25), PPOConfig(gamma=1.0, hidden=(4,), **settings), 2, 10)
    over = jnp.zeros(reward.shape, bool).at[-1].set(True)
    paid = learner.init(jax.random.key(0)).paid if paid is None else paid
    return learner._normal_advantage(paid, monte_carlo(reward, over, 1.0)[0], advantage, None)


def test_advantages_are_divided_by_no_less_than_a_part_of_the_deviation_of_returns():
    rng = np.random.default_rng(0)
    noise = jnp.asarray(rng.normal(size=(4, 2, 2)), jnp.float32)
    nothing, paid = normal(None, jnp.zeros((4, 2, 2)), noise)
    assert float(jnp.abs(nothing).max()) == 0
    reward = jnp.asarray(rng.normal(size=(4, 2, 2)), jnp.float32)
    earned = np.flip(np.flip(reward, 0).cumsum(0), 0)
    whole, paid = normal(None, reward, noise)
    want = (noise - noise.mean()) / np.std(noise)
    np.testing.assert_allclose(whole, want, atol=1e-5)
    small, _ = normal(paid, reward, 1e-3 * noise)
    want = 1e-3 * (noise - noise.mean()) / (0.05 * np.std(earned))
    np.testing.assert_allclose(small, want, atol=1e-5)
    same, _ = normal(paid, reward, 1e-3 * noise, advantage_floor=0.0)
    assert float(jnp.std(same)) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("said", "spread"), [({}, -0.5), ({"log_std": -2.0}, -2.0)])
def test_real_actions_begin_as_spread_as_said(said: dict[str, Any], spread: float):
    spec = EnvSpec("test", ("a_0",), (Box((3,)),), (Box((2,), -1.0, 1.0),), 25)
    learner = make_algorithm("ppo", spec, make_config("ppo", said), envs=4, updates=10)
    (actor,) = learner.params(learner.init(jax.random.key(0)))["actor"]
    assert np.allclose(actor["log_std"], spread)
    if said:
        with pytest.raises(flockrl.UsageError, match="log_std is of real actions"):
            make_algorithm("ippo", world(25), make_config("ippo", said), envs=4, updates=10)
        with pytest.raises(flockrl.UsageError, match="log_std"):
            PPOConfig(log_std=11.0)
