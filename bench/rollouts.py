"""The three executors of host environments on one machine: this process, worker processes, Ray actors.

Training (MAPPO, default settings) on a real PettingZoo environment, in turns. One JSON line: steps per second of
each, and the ratio of Ray's actors to as many worker processes.

    python bench/rollouts.py
    python bench/rollouts.py --workers 4 --envs 32
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import jax

from flockrl.algos.presets import make_config
from flockrl.envs import make
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program

MODULE = "mpe2.simple_spread_v3"


def prepare(module: str, envs: int, how: dict[str, Any]) -> tuple[Any, Any]:
    """A program that is compiled, and its state after one iteration."""
    name = f"pettingzoo/{module}"
    options = TrainOptions(envs=envs, steps=10**9, eval_episodes=1, **how)
    program = make_program(RunConfig("mappo", name, options, make_config("mappo", {})), make(name))
    program.compile(0)
    state, *_ = jax.block_until_ready(program.run(program.start_state(0), 0, 1))
    return program, state


def measure(module: str, envs: int, workers: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Steps per second of each executor."""
    ways: dict[str, dict[str, Any]] = {
        "in process": {"workers": 0}, "workers": {"workers": workers}, "ray": {"workers": workers, "ray": "auto"},
    }  # fmt: skip
    ready = {name: prepare(module, envs, how) for name, how in ways.items()}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (program, state) in ready.items():
            began, steps = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                state, *_ = jax.block_until_ready(program.run(state, 0, 1))
                steps += program.setting.iteration_steps
            speeds[name].append(steps / (time.perf_counter() - began))
            ready[name] = program, state
    for program, _ in ready.values():
        program.close()
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    told = {name: round(speed) for name, speed in medians.items()}
    return {"case": f"mappo-{envs} on {module}", **told, "ratio": round(medians["ray"] / medians["workers"], 3)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", default=MODULE, help="a PettingZoo module with discrete actions")
    parser.add_argument("--envs", type=int, default=16, help="parallel environments")
    parser.add_argument("--workers", type=int, default=2, help="worker processes, and Ray actors")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    given = parser.parse_args()
    found = measure(given.module, given.envs, given.workers, given.rounds, given.seconds)
    print(json.dumps(found), flush=True)
