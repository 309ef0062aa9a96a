"""The speed of training on a real PettingZoo environment, compared with stepping it with random actions only.

The limit is the speed of two processes that each step half of the environments with random actions. Training (MAPPO,
default settings) and limit are measured in turns, and the ratio of their medians is printed as one JSON line.

    python bench/host.py
    python bench/host.py --module pettingzoo.sisl.pursuit_v5 --envs 8
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import statistics
import time
import warnings
from multiprocessing.pool import Pool
from typing import Any

import jax
import numpy as np

from flockrl.algos.presets import make_config
from flockrl.envs import make
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program

PROCESSES = 2
MODULE = "mpe2.simple_spread_v3"


def step_randomly(module: str, envs: int, seconds: float) -> float:
    """Steps per second of `envs` environments in this process, one after the other, including resets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        worlds = [importlib.import_module(module).parallel_env() for _ in range(envs)]
    rng, steps = np.random.default_rng(0), 0
    for seed, world in enumerate(worlds):
        world.reset(seed=seed)
    sizes = {agent: worlds[0].action_space(agent).n for agent in worlds[0].possible_agents}
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for world in worlds:
            world.step({agent: int(rng.integers(sizes[agent])) for agent in world.agents})
            if not world.agents:
                world.reset()
        steps += envs
    return steps / (time.perf_counter() - began)


def limit(pool: Pool, module: str, envs: int, seconds: float) -> float:
    jobs = [(module, envs // PROCESSES, seconds)] * PROCESSES
    return sum(pool.starmap(step_randomly, jobs, chunksize=1))


def measure(module: str, envs: int, rounds: int, seconds: float, workers: int | None = None) -> dict[str, Any]:
    """Steps per second of training and of random stepping, measured in turns."""
    name = f"pettingzoo/{module}"
    options = TrainOptions(envs=envs, steps=10**9, eval_episodes=1, workers=workers)
    program = make_program(RunConfig("mappo", name, options, make_config("mappo", {"hidden": (64, 64)})), make(name))
    ours, theirs = [], []
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        limit(pool, module, envs, 0.1)
        program.compile(0)
        state, *_ = jax.block_until_ready(program.run(program.start_state(0), 0, 1))
        for _ in range(rounds):
            theirs.append(limit(pool, module, envs, seconds))
            began, steps = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                state, *_ = jax.block_until_ready(program.run(state, 0, 1))
                steps += program.setting.iteration_steps
            ours.append(steps / (time.perf_counter() - began))
    program.close()
    speed, most = statistics.median(ours), statistics.median(theirs)
    return {
        "case": f"mappo-{envs} on {name}",
        "stepped": program.note,
        "steps_per_second": round(speed),
        "random_steps_per_second": round(most),
        "ratio": round(speed / most, 3),
        "ratio_range": [round(f(a / b for a, b in zip(ours, theirs, strict=True)), 3) for f in (min, max)],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", default=MODULE, help="a PettingZoo module with discrete actions")
    parser.add_argument("--envs", type=int, default=16, help="parallel environments")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--workers", type=int, default=None, help="worker processes; by default chosen as in training")
    given = parser.parse_args()
    print(json.dumps(measure(given.module, given.envs, given.rounds, given.seconds, given.workers)), flush=True)
