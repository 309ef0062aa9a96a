"""What matters for QMIX on simple_spread: one setting after another is changed, and the rest stays as it is.

    python bench/factors.py --steps 1000000 --seed 12
    python bench/factors.py --only reward           # factors whose name contains the word

Prints one row per factor: the greedy return after the last update, and the best evaluation of the run, of 200
episodes each.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp

import flockrl
from flockrl.core.types import Array, Observation, PyTree

ENV = "mpe/simple_spread"
BASE: dict[str, Any] = {"agent_ids": False, "gamma": 0.9, "hidden": (64, 64), "normalize_reward": False}
FACTORS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "ids": {"agent_ids": True},
    "discount 0.8": {"gamma": 0.8},
    "discount 0.96": {"gamma": 0.96},
    "discount 0.99": {"gamma": 0.99},
    "constant rate": {"lr_schedule": "constant"},
    "width 128": {"hidden": (128, 128)},
    "gradient step per 10 steps": {"steps_per_update": 10},
    "gradient step per 50 steps": {"steps_per_update": 50},
    "standardised reward": {},
    "reward in units": {"normalize_reward": True},
    "memory": {"memory": "gru"},
}


class Standardised:
    """The environment with rewards (r - mean) / deviation; both are those of random play."""

    def __init__(self, env: Any, episodes: int = 400):
        self.env, self.spec = env, env.spec
        rewards = jax.jit(jax.vmap(self._random))(jax.random.split(jax.random.key(0), episodes))
        self.mean, self.deviation = float(rewards.mean()), float(rewards.std())

    def _random(self, key: Array) -> Array:
        first, *keys = jax.random.split(key, 1 + self.spec.max_steps)

        def step(state: PyTree, key: Array) -> tuple[PyTree, Array]:
            action = jax.random.randint(key, (self.spec.num_agents,), 0, self.spec.actions[0].n)
            state, _, reward, *_ = self.env.step(key, state, action)
            return state, reward

        return jax.lax.scan(step, self.env.reset(first)[0], jnp.stack(keys))[1]

    def reset(self, key: Array) -> tuple[PyTree, Observation]:
        return self.env.reset(key)

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Observation, Array, Array, Array]:
        state, observation, reward, *over = self.env.step(key, state, action)
        return state, observation, (reward - self.mean) / self.deviation, *over

    def undone(self, score: float) -> float:
        """A return in the environment's own units."""
        return score * self.deviation + self.mean * self.spec.max_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="qmix")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--only", default="", help="factors whose name contains this word")
    given = parser.parse_args()
    standardised = Standardised(flockrl.make_env(ENV))
    print("| changed | final | best | seconds |\n|---|---|---|---|")
    for name, own in FACTORS.items():
        if given.only not in name:
            continue
        other = name == "standardised reward"
        began = time.perf_counter()
        run: Any = flockrl.train(
            given.algorithm, standardised if other else ENV, steps=given.steps, seed=given.seed, eval_episodes=200,
            quiet=True, **{**BASE, **own},
        )  # fmt: skip
        scores = [row["eval_return"] for row in run.metrics() if isinstance(row.get("eval_return"), float)]
        final, best = (standardised.undone(x) if other else x for x in (scores[-1], max(scores)))
        print(f"| {name} | {final:.2f} | {best:.2f} | {time.perf_counter() - began:.0f} |", flush=True)


if __name__ == "__main__":
    main()
