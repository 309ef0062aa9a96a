"""The executors of host environments on one machine: this process, worker processes, Ray actors that act, and Ray
actors that step while the learner acts.

Training (MAPPO, default settings) on a real PettingZoo environment, in turns, every other round in the opposite order;
whoever is not measured waits. One JSON line: steps per second of each, median and range, and Ray's actors of both kinds
over as many worker processes: the median of the ratios of all rounds, and their range. Needs the extra `ray`.

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
import ray

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
        "in process": {"workers": 0},
        "workers": {"workers": workers},
        "ray": {"workers": workers, "ray": "auto", "acting": "actors"},
        "ray, acting on the learner": {"workers": workers, "ray": "auto", "acting": "learner"},
    }
    # Actors of both kinds must find room, though those of one always wait.
    ray.init("local", num_cpus=2 * workers, include_dashboard=False, log_to_driver=False)
    ready = {name: prepare(module, envs, how) for name, how in ways.items()}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(rounds):
        for name in list(ways)[:: -1 if i % 2 else 1]:
            program, state = ready[name]
            began, steps = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                state, *_ = jax.block_until_ready(program.run(state, 0, 1))
                steps += program.setting.iteration_steps
            speeds[name].append(steps / (time.perf_counter() - began))
            ready[name] = program, state
    for program, _ in ready.values():
        program.close()
    told = {name: f"{statistics.median(x):.0f} ({min(x):.0f} to {max(x):.0f})" for name, x in speeds.items()}
    case = f"mappo-{envs} on {module}, {workers} workers"
    over = {f"{name} / workers": _ratio(x, speeds["workers"]) for name, x in speeds.items() if name.startswith("ray")}
    return {"case": case, **told, **over}


def _ratio(ours: list[float], theirs: list[float]) -> str:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", default=MODULE, help="a PettingZoo module with discrete actions")
    parser.add_argument("--envs", type=int, default=16, help="parallel environments")
    parser.add_argument("--workers", type=int, default=2, help="worker processes, and Ray actors")
    parser.add_argument("--rounds", type=int, default=6, help="measurements of each kind")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    given = parser.parse_args()
    found = measure(given.module, given.envs, given.workers, given.rounds, given.seconds)
    print(json.dumps(found), flush=True)
