"""What more agents cost: steps per second, memory and compile time of learners over the number of agents.

    python bench/agents.py --sizes 4 16 64 256 --out agents.json --plot agents.png
    python bench/agents.py --learners mappo entities --sizes 4 8

Each figure comes from a process of its own, so that its peak memory is its own. Networks of entities and mean fields
have as many parameters for 256 agents as for 4; plain MAPPO's critic reads all observations side by side. `near` is
attention over the four nearest landmarks and three nearest agents, of which there are as many in every team; where an
agent sees everything (`entities`), attention grows with the cube of the number of agents. `lines` is the length of the
program that is compiled: the time to compile it also depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

NEAR = ",num_landmark_neighbors=4,num_agent_neighbors=3"
LEARNERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "mappo": ("mappo", {}, ""),
    "entities": ("mappo", {"net": "entities"}, ""),
    "near": ("mappo", {"net": "entities"}, NEAR),
    "deep_set": ("mappo", {"net": "deep_set"}, ""),
    "mean_field": ("mfac", {"agent_ids": False}, ""),
}
"""Name -> algorithm, settings, and what its environment has beside the number of agents."""
ROLLOUT, SECONDS = 25, 5.0
"""Steps of every environment between updates, and how long the clock runs at least."""


def measure(learner: str, size: int, envs: int) -> dict[str, float]:
    """One learner with one number of agents, in this process."""
    import jax.numpy as jnp

    import flockrl
    from flockrl.training.config import RunConfig, TrainOptions
    from flockrl.training.program import seed_keys
    from flockrl.training.programs import make_program
    from flockrl.training.setup import configure

    algorithm, settings, more = LEARNERS[learner]
    name = f"mpe/simple_spread:N={size}{more}"
    env = flockrl.make_env(name)
    title, config = configure(algorithm, {**settings, "rollout_steps": ROLLOUT}, env.spec)
    program = make_program(RunConfig(title, name, TrainOptions(envs=envs, eval_episodes=2), config), env)
    train_key = seed_keys(0)[1]
    lines = program._advance.lower(program.shape(), train_key, jnp.int32(1), {}).as_text().count("\n")  # type: ignore[attr-defined]
    program.compile(0)
    state = program.start_state(0)
    state, *_ = program.run(state, 0, 1)
    began, rounds = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < SECONDS:
        state, *_ = program.run(state, 0, 1)
        rounds += int(jnp.asarray(state.iteration)) > 0  # waits for it
    return {
        "steps_per_second": rounds * program.setting.iteration_steps / seconds,
        "compile_seconds": program.compile_seconds,
        "lines": lines,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


PANELS = {"steps_per_second": "steps/s", "peak_mb": "peak memory, MB", "compile_seconds": "seconds to compile"}


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """Each figure over the number of agents, a line for each learner."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(12, 3.6), layout="constrained")
    sizes = sorted({row["agents"] for row in rows})
    for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
        for learner in dict.fromkeys(row["learner"] for row in rows):
            own = [row for row in rows if row["learner"] == learner]
            axis.plot([row["agents"] for row in own], [row[name] for row in own], marker="o", label=learner)
        axis.set(title=title, xlabel="agents", xscale="log")
        axis.set_xticks(sizes, [str(size) for size in sizes], minor=False)
        axis.set_xticks([], minor=True)
        axis.set(**({"yscale": "log"} if name == "steps_per_second" else {"ylim": (0, None)}))
    axes[0].legend(loc="lower left", fontsize="small")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", nargs="+", choices=list(LEARNERS), default=list(LEARNERS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600.0, help="time that one figure may take")
    parser.add_argument("--out", help="write the figures to this JSON file")
    parser.add_argument("--plot", help="draw the figures into this picture")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], int(given.one[1]), given.envs)))
        return
    rows = []
    print(f"{'learner':>12} {'agents':>6} {'steps/s':>10} {'compile s':>10} {'peak MB':>9} {'lines':>7}")
    for learner in given.learners:
        for size in given.sizes:
            command = [sys.executable, __file__, "--one", learner, str(size), "--envs", str(given.envs)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=given.seconds)
            except subprocess.TimeoutExpired:
                print(f"{learner:>12} {size:6} took more than {given.seconds:.0f} s", flush=True)
                continue
            except subprocess.CalledProcessError as error:
                print(f"{learner:>12} {size:6} failed: {error.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            rows.append({"learner": learner, "agents": size, **found})
            figures = f"{found['steps_per_second']:10.0f} {found['compile_seconds']:10.1f} {found['peak_mb']:9.0f}"
            print(f"{learner:>12} {size:6} {figures} {found['lines']:7}", flush=True)
    if given.out:
        with open(given.out, "w") as file:
            json.dump(rows, file, indent=1)
    if given.plot:
        draw(rows, given.plot)


if __name__ == "__main__":
    main()
