"""What credit costs: environment steps per second of the standard PPO workload with each, as a ratio to none.

Cases are measured in turns in one process, so that a busy machine slows all of them alike; the ratio of medians is
printed, one JSON line per case. The workload is that of bench/speed.py (128 environments x 128 steps, 4 epochs, 4
minibatches, 64x64), on simple_spread, where rewards are learned, and on credit/rover, which tells them.

    python bench/credit.py                    # every case
    python bench/credit.py --only shapley     # cases whose name contains the word
    python bench/credit.py --rounds 2         # a short look
    python bench/credit.py --count            # arithmetic of all products instead of time, whatever the load
"""

from __future__ import annotations

import argparse
import json
import math
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


def prepared(algorithm: str, env: str, settings: dict[str, Any]) -> Any:
    """The program of a case."""
    config = make_config(algorithm, {**WORK, **settings})
    options = TrainOptions(steps=ENVS * WORK["rollout_steps"] * 1000, envs=ENVS)  # type: ignore[operator]
    return make_program(RunConfig(algorithm, env, options, config), make(env))


def compiled(program: Any) -> tuple[Any, Any, Any]:
    """A program after a first step, which compiles it, its state and a key."""
    state, key = program.init(jax.random.key(0)), jax.random.key(1)
    advance = jax.jit(program.advance, donate_argnums=0)
    state, *_ = jax.block_until_ready(advance(state, key, jnp.int32(1)))
    return advance, state, key


def products(jaxpr: Any) -> int:
    """Operations of a program's matrix products: those of loops as often as they run, of branches the cheapest."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (across, _), _ = eqn.params["dimension_numbers"]
            depth = math.prod(eqn.invars[0].aval.shape[i] for i in across)
            total += 2 * depth * math.prod(eqn.outvars[0].aval.shape)
        within = [
            products(getattr(found, "jaxpr", found))
            for value in eqn.params.values()
            for found in (value if isinstance(value, tuple | list) else [value])
            if hasattr(found, "eqns") or hasattr(found, "jaxpr")
        ]
        if within:
            total += min(within) if eqn.primitive.name == "cond" else sum(within) * eqn.params.get("length", 1)
    return total


def count(programs: dict[str, Any]) -> None:
    """Print the operations of an iteration of each case."""
    found, key = {}, jax.random.key(0)
    for name, program in programs.items():
        state = jax.eval_shape(program.init, key)
        found[name] = products(jax.make_jaxpr(program.advance)(state, key, jnp.int32(1)).jaxpr)
    for name, flops in found.items():
        ratio = flops / found[f"{name.partition('-')[0]}-none"]
        print(json.dumps({"case": name, "gflop": round(flops / 1e9, 2), "times_none": round(ratio, 2)}))


def measure(programs: dict[str, Any], rounds: int) -> None:
    """Print the speed of each case by the clock, and the ratio of what it uses of the processors, which waits for
    nobody."""
    running = {name: compiled(program) for name, program in programs.items()}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, (advance, state, key) in running.items():
            began, used = time.perf_counter(), time.process_time()
            state, *_ = jax.block_until_ready(advance(state, key, jnp.int32(1)))
            seconds[name].append((time.perf_counter() - began, time.process_time() - used))
            running[name] = advance, state, key
    middle = {name: [statistics.median(kind) for kind in zip(*found, strict=True)] for name, found in seconds.items()}
    for name, found in middle.items():
        ratio = [mine / none for mine, none in zip(found, middle[f"{name.partition('-')[0]}-none"], strict=True)]
        rate, times, used = round(ENVS * 128 / found[0]), round(ratio[0], 2), round(ratio[1], 2)
        print(json.dumps({"case": name, "steps_per_s": rate, "times_none": times, "cpu_times_none": used}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this word")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="times that each case is measured")
    parser.add_argument("--count", action="store_true", help="count the arithmetic of products instead of measuring")
    given = parser.parse_args()
    wanted = [name for name in CASES if given.only in name]
    bases = {f"{name.partition('-')[0]}-none" for name in wanted}
    programs = {name: prepared(*case) for name, case in CASES.items() if name in bases.union(wanted)}
    if given.count:
        count(programs)
    else:
        measure(programs, given.rounds)


if __name__ == "__main__":
    main()
