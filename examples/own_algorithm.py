"""An algorithm of your own, by name: here one that learns what each action pays, blind to what agents see.

python examples/own_algorithm.py

An algorithm is pure functions of arrays. Once registered, it trains, resumes, evaluates and plays for a side of a
game like the others. Other distributions add theirs by an entry point `flockrl.algorithms`, naming a `flockrl.Family`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import flockrl


@dataclass(frozen=True)
class BlindConfig:
    """Settings of the blind learner; each becomes a flag and a keyword."""

    rollout_steps: int = 25
    """Steps of every environment between updates."""
    lr: float = 0.1
    """How far an action's value moves towards what it paid."""


def make_blind(spec: flockrl.EnvSpec, config: BlindConfig, *, envs: int, updates: int) -> flockrl.Algorithm:
    """Learns what each action pays, blind to what agents see."""

    def init(key: Any) -> Any:
        return jnp.zeros((spec.num_agents, spec.action_size))

    def act(params: Any, seen: flockrl.Observation, memory: Any, key: Any, explore: bool) -> Any:
        value = jnp.where(spec.own_actions, params, -jnp.inf)
        noise = jax.random.gumbel(key, (len(seen.obs), *value.shape)) if explore else 0.0
        best = (value + noise).argmax(-1).astype(jnp.int32)
        return jnp.broadcast_to(best, (len(seen.obs), spec.num_agents)), memory, {}

    def update(state: Any, trajectory: flockrl.Trajectory, key: Any) -> Any:
        chosen = jax.nn.one_hot(trajectory.action, spec.action_size)  # [T, B, N, A]
        paid = (chosen * trajectory.reward[..., None]).sum((0, 1)) / jnp.maximum(chosen.sum((0, 1)), 1.0)
        return state + config.lr * (paid - state), {"value": state.mean()}

    return flockrl.Algorithm(init, lambda state: state, act, update, lambda batch: (), config.rollout_steps)


if __name__ == "__main__":
    flockrl.register("blind", make_blind, BlindConfig, on_policy=True)
    pennies = "games/matching_pennies"
    run = flockrl.train("blind", pennies, steps=4_000, eval_episodes=20)
    print(run.result["final_eval_return_agent_0"], "against", run.result["final_eval_return_agent_1"])
    game = flockrl.train(
        {"agent_0": "blind", "agent_1": "random"}, "games/matching_pennies", steps=4_000, eval_episodes=20
    )
    print("against a random player:", game.result["final_eval_return_agent_0"])
