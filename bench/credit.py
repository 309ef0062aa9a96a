"""What credit costs: environment steps per second of the standard PPO workload with each, as a ratio to none.

Cases are measured in turns in one process, so that a busy machine slows all of them alike; the ratio of medians is
printed, one JSON line per case. The workload is that of bench/speed.py (128 environments x 128 steps, 4 epochs, 4
minibatches, 64x64), on simple_spread, where rewards are learned, and on credit/rover, which tells them.

    python bench/credit.py                    # every case
    python bench/credit.py --only shapley     # cases whose name contains the word
    python bench/credit.py --rounds 2         # a short look
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from flockrl.algos.presets import make_config
from flockrl.envs import make
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program

WORK = {"rollout_steps": 128, "epochs": 4, "minibatches": 4, "hidden": (64, 64)}
SPREAD, ROVER, MANY = "mpe/simple_spread", "credit/rover", "credit/rover:n=12"
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{f"spread-{c}": ("mappo", SPREAD, {"credit": c}) for c in ("none", "difference", "aristocrat", "shapley")},
    "spread-counterfactual": ("mappo", SPREAD, {"credit": "counterfactual"}),
    "spread-happo": ("happo", SPREAD, {}),
    "spread-hatrpo": ("hatrpo", SPREAD, {}),
    **{f"rover-{c}": ("mappo", ROVER, {"credit": c}) for c in ("none", "difference", "aristocrat", "shapley")},
    **{f"rover12-{c}": ("mappo", MANY, {"credit": c}) for c in ("none", "shapley")},  # 16 sampled orderings
}
"""Name -> algorithm, environment, settings. The first case of each environment is what the others are compared with."""
ENVS, ROUNDS = 128, 7


def prepared(algorithm: str, env: str, settings: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The compiled program of a case, a state and a key."""
    config = make_config(algorithm, {**WORK, **settings})
    options = TrainOptions(steps=ENVS * WORK["rollout_steps"] * 1000, envs=ENVS)  # type: ignore[operator]
    program: Any = make_program(RunConfig(algorithm, env, options, config), make(env))
    state, key = program.init(jax.random.key(0)), jax.random.key(1)
    advance = jax.jit(program.advance, donate_argnums=0)
    state, *_ = jax.block_until_ready(advance(state, key, jnp.int32(1)))
    return advance, state, key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this word")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="times that each case is measured")
    given = parser.parse_args()
    only = given.only
    chosen = {name: case for name, case in CASES.items() if only in name or name.endswith("-none")}
    running = {name: prepared(*case) for name, case in chosen.items()}
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(given.rounds):
        for name, (advance, state, key) in running.items():
            began = time.perf_counter()
            state, *_ = jax.block_until_ready(advance(state, key, jnp.int32(1)))
            seconds[name].append(time.perf_counter() - began)
            running[name] = advance, state, key
    middle = {name: statistics.median(found) for name, found in seconds.items()}
    for name, found in middle.items():
        base = middle[f"{name.partition('-')[0]}-none"]
        rate = ENVS * 128 / found
        print(json.dumps({"case": name, "steps_per_s": round(rate), "times_none": round(found / base, 2)}))


if __name__ == "__main__":
    main()
