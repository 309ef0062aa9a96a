"""What each exploration bonus costs: the time of the standard PPO workload with it, as a ratio to that without.

    python bench/bonus.py
    python bench/bonus.py --only rnd --rounds 2     # cases whose name contains the word, a short look

IPPO on simple_spread with 128 environments, 128 steps, 4 epochs of 4 minibatches and 64 x 64 networks. All cases are
measured in turns, and the ratio of their medians is printed.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import numpy as np

from flockrl.algos.presets import make_config
from flockrl.envs import make
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program

ENV, ENVS, COUNT, ROUNDS = "mpe/simple_spread", 128, 10, 7
WORK = {"rollout_steps": 128, "epochs": 4, "minibatches": 4, "hidden": (64, 64)}
CASES: dict[str, dict[str, Any]] = {
    "none": {},
    "count": {"bonus": "count"},
    "count, both": {"bonus": "count", "bonus_on": "both"},
    "rnd": {"bonus": "rnd"},
    "rnd, minimum": {"bonus": "rnd", "bonus_kind": "minimum"},
    "icm": {"bonus": "icm"},
    "influence": {"bonus": "influence"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this word")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="times that each case is measured")
    given = parser.parse_args()
    programs = {name: _program(own) for name, own in CASES.items() if given.only in name or name == "none"}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(given.rounds):
        for name, program in programs.items():
            state = program.start_state(0)
            began = time.perf_counter()
            jax.block_until_ready(program.run(state, 0, COUNT))
            times[name].append(time.perf_counter() - began)
    median = {name: float(np.median(x)) for name, x in times.items()}
    for name, seconds in median.items():
        print(f"{name:14} {seconds / COUNT * 1000:8.1f} ms per update {seconds / median['none']:6.2f} x")


def _program(own: dict[str, Any]) -> Any:
    config = make_config("ippo", {**WORK, **own})
    program: Any = make_program(RunConfig("ippo", ENV, TrainOptions(envs=ENVS, steps=10**9), config), make(ENV))
    program.compile(0)
    return program


if __name__ == "__main__":
    main()
