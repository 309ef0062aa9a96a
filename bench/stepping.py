"""Stepping speed of compiled environments: environment steps per second with random actions, observations and resets
included.

    python bench/stepping.py                       # one line of JSON for each environment of the case studies, a table
    python bench/stepping.py mpe/simple_spread     # or for those named
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from flockrl.algos.sides import random_side
from flockrl.envs.api import reset_batch, step_batch
from flockrl.envs.registry import environments, make

TARGET = 300_000
"""Steps per second that small environments should reach; the table tells the ratio."""
CASES = ("traffic", "market", "fleet", "swarm", "grid", "tasks")


def measure(name: str, rounds: int, envs: int, steps: int) -> dict[str, Any]:
    """Play `steps` steps of `envs` environments in one compiled program, `rounds` times."""
    env = make(name)
    random = random_side(env.spec)

    @jax.jit
    def play(key: jax.Array) -> jax.Array:
        reset_key, key = jax.random.split(key)
        state, seen = reset_batch(env, reset_key, envs)

        def step(carry: Any, key: jax.Array) -> Any:
            state, seen, total = carry
            act_key, env_key = jax.random.split(key)
            action, *_ = random.act((), seen, (), act_key, True)
            now = step_batch(env, env_key, state, seen, action)
            total = total + now.reward.sum() + now.observation.obs.sum() + now.final.obs.sum()
            return (now.state, now.observation, total), None

        return jax.lax.scan(step, (state, seen, jnp.float32(0)), jax.random.split(key, steps))[0][2]

    began = time.perf_counter()
    play(jax.random.key(0)).block_until_ready()
    first, speeds, busy = time.perf_counter() - began, [], time.process_time()
    for seed in range(1, rounds + 1):
        began = time.perf_counter()
        play(jax.random.key(seed)).block_until_ready()
        speeds.append(envs * steps / (time.perf_counter() - began))
    busy = time.process_time() - busy
    return {
        "case": f"stepping-{envs} {name}",
        "agents": env.spec.num_agents,
        "steps_per_second": round(statistics.median(speeds)),
        "steps_per_second_range": [round(min(speeds)), round(max(speeds))],
        "steps_per_cpu_second": round(rounds * envs * steps / busy),
        "first_call_seconds": round(first, 1),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The same as text. range: slowest and fastest round over the median; of target: the median over TARGET; per CPU
    second: what a machine that is shared with others leaves as it is."""
    lines = [f"{'environment':34} agents   steps/s   range          of target   agent steps/s   steps per CPU second"]
    for row in rows:
        name, median = row["case"].partition(" ")[2], row["steps_per_second"]
        low, high = (x / median for x in row["steps_per_second_range"])
        words = f"{name:34} {row['agents']:6} {median:9,}   {low:.2f} to {high:.2f}   {median / TARGET:9.2f}"
        lines.append(f"{words}   {median * row['agents']:13,}   {row['steps_per_cpu_second']:20,}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="environments; all case studies where none is named")
    parser.add_argument("--envs", type=int, default=128, help="environments side by side")
    parser.add_argument("--steps", type=int, default=500, help="steps of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each environment")
    given = parser.parse_args()
    rows = []
    for name in given.names or [f"{suite}/{short}" for suite in CASES for short in environments(suite)]:
        rows.append(measure(name, given.rounds, given.envs, given.steps))
        print(json.dumps(rows[-1]), flush=True)
    print(table(rows))
