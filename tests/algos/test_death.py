"""Rewards that come after an agent's death."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mortal import STEPS, Sacrifice

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.algos.returns import gae
from flockrl.core.lives import learning_weight, return_ends, side_has, survivors
from flockrl.core.types import EnvSpec
from flockrl.rollouts.compiled import scan_rollout, start


def rollout(env: Any, actions: Any) -> Any:
    """A rollout of one environment in which everybody always does `actions` [N]."""
    config = make_config("ippo", {"rollout_steps": STEPS, "minibatches": 1})
    algorithm = make_algorithm("ippo", env.spec, config, envs=1, updates=1)
    act = algorithm.act

    def fixed(params: Any, seen: Any, memory: Any, key: Any, explore: bool) -> Any:
        _, memory, extras = act(params, seen, memory, key, explore)
        return jnp.asarray(actions)[None], memory, extras

    algorithm = algorithm._replace(act=fixed)
    params = algorithm.params(algorithm.init(jax.random.key(0)))
    actors = start(algorithm, env, jax.random.key(1), 1)
    return scan_rollout(algorithm, params, env, actors, jax.random.key(2))


def test_the_dead_are_paid_and_their_return_goes_on():
    _, seen, episodes = rollout(Sacrifice(), [1, 0])
    assert seen.alive[:, 0].tolist() == [[True, True]] + [[False, True]] * 3
    assert seen.reward[:, 0].tolist() == [[0, 0]] * 3 + [[5, 5]]
    assert seen.terminated[:, 0].tolist() == [[False, False]] * 3 + [[True, True]]
    assert seen.next_alive[:, 0].tolist() == [[False, True]] * 3 + [[False, False]]
    assert episodes.returns.tolist() == [5, 5]
    zero = jnp.zeros_like(seen.reward)
    advantage = gae(seen.reward, zero, zero, seen.terminated, seen.terminated | seen.truncated, 0.5, 1.0)
    assert advantage[0, 0].tolist() == [0.625, 0.625]  # 5 / 2^3, for the one that died too


def test_an_individual_return_ends_with_the_life():
    _, seen, _ = rollout(Sacrifice(reward_after_death=False), [1, 0])
    assert seen.terminated[:, 0].tolist() == [[True, False], [False, False], [False, False], [False, True]]
    over = seen.terminated | seen.truncated
    zero = jnp.zeros_like(seen.reward)
    assert gae(seen.reward, zero, zero, seen.terminated, over, 0.5, 1.0)[0, 0].tolist() == [0.0, 0.625]


def test_ends_of_sides_that_die_or_are_cut():
    spec = EnvSpec(
        "x", ("a_0", "a_1", "b_0"), (flockrl.Box((1,)),) * 3, (flockrl.Discrete(2),) * 3, 9, sides=("a", "a", "b")
    )
    no, alive, going = np.zeros(3, bool), np.ones(3, bool), np.bool_(False)
    assert side_has(spec, np.array([True, False, False]), np).tolist() == [True, True, False]
    # a_0 dies: nobody's return ends. Both of side a: theirs ends. The time is up: all are cut, the dead of a too.
    died = np.array([True, False, False])
    left = survivors(alive & ~died, no, going)
    assert [x.tolist() for x in return_ends(spec, died, no, left, np)] == [[False] * 3] * 2
    both = np.array([True, True, False])
    ends = return_ends(spec, both, no, survivors(alive & ~both, no, going), np)
    assert [x.tolist() for x in ends] == [[True, True, False], [False] * 3]
    now, cut = np.array([False, True, True]), np.array([False, True, True])
    ends = return_ends(spec, no, cut, survivors(no, cut, ~going), np)
    assert [x.tolist() for x in ends] == [[False] * 3, [True] * 3]
    assert learning_weight(spec, now).tolist() == [1, 1, 1]
    assert learning_weight(spec, np.array([False, False, True])).tolist() == [0, 0, 1]


ON_POLICY = {"rollout_steps": 16}
REPLAY = {"learning_starts": 200, "steps_per_update": 4, "batch_size": 32, "buffer_size": 2000, "rollout_steps": 4}
SETTINGS: dict[str, dict[str, Any]] = {
    "ippo": ON_POLICY,
    "mappo": ON_POLICY,
    "ireinforce": {"rollout_steps": STEPS},
    "iql_tabular": {},
    **dict.fromkeys(("iql", "vdn", "qmix", "maddpg", "masac"), REPLAY),
}
RARE = ("ippo", "iql", "qmix", "maddpg", "masac", "iql_tabular")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in RARE else n for n in SETTINGS])
def test_a_team_learns_that_a_sacrifice_pays(name: str, tmp_path: Any):
    settings = {"gamma": 1.0, "hidden": (32,), "eval_episodes": 4, **SETTINGS[name]}
    if name == "iql_tabular":
        del settings["hidden"]
    run = flockrl.train(name, Sacrifice(), steps=12_000, envs=16, out=tmp_path / "run", **settings)
    assert run.evaluate(4).mean == 5.0


@pytest.mark.slow
def test_a_critic_of_state_and_agent_learns_with_death_masks(tmp_path: Any):
    run = flockrl.train(
        "mappo", Sacrifice(), steps=24_000, envs=16, out=tmp_path / "run", eval_episodes=4,
        gamma=1.0, rollout_steps=16, critic="agent", death_mask=True,
    )  # fmt: skip
    assert run.evaluate(4).mean == 5.0
    with pytest.raises(flockrl.UsageError, match="death_mask needs a critic per agent"):
        flockrl.train("mappo", Sacrifice(), steps=100, out=tmp_path / "no", death_mask=True)
