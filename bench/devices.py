"""One CPU device with two threads against two devices with one thread each, which share out the environments.

Each is a process of its own, since XLA reads its flags once. They are measured in turns, and every other round in the
opposite order, so that what else the machine does, and what a processor does after a pause, is shared evenly; whoever
is not measured waits. One JSON line for each algorithm: steps per second of rollout and update together, median and
range, and how much faster two devices are: the median of the ratios of all rounds, and their range. Below 1, one
device is faster.

    python bench/devices.py
    python bench/devices.py --algorithms ippo --envs 256 --rounds 9
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

LAYOUTS = {
    "one device, two threads": (1, ""),
    "two devices, one thread each": (2, "--xla_force_host_platform_device_count=2 --xla_cpu_multi_thread_eigen=false"),
}


def measure(algorithm: str, envs: int, devices: int, seconds: float) -> None:
    """Answer every line on standard input with steps per second."""
    import jax

    from flockrl.algos.presets import make_config
    from flockrl.envs import make
    from flockrl.training.config import RunConfig, TrainOptions
    from flockrl.training.programs import make_program

    options = TrainOptions(envs=envs, steps=10**9, eval_episodes=2, devices=devices)
    settings = {"rollout_steps": 128, "epochs": 4, "minibatches": 4}
    run = RunConfig(algorithm, "mpe/simple_spread", options, make_config(algorithm, settings))
    program = make_program(run, make(run.env))
    program.compile(0)
    state, *_ = jax.block_until_ready(program.run(program.start_state(0), 0, 2))
    print("ready", flush=True)
    for _ in sys.stdin:
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            state, *_ = jax.block_until_ready(program.run(state, 0, 4))
            steps += 4 * program.setting.iteration_steps
        print(steps / (time.perf_counter() - began), flush=True)


def start(algorithm: str, envs: int, seconds: float, layout: str) -> subprocess.Popen[str]:
    devices, flags = LAYOUTS[layout]
    words = ["--measure", str(devices), "--algorithms", algorithm, "--envs", str(envs), "--seconds", str(seconds)]
    process = subprocess.Popen(
        [sys.executable, __file__, *words], env={**os.environ, "XLA_FLAGS": flags}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", "it could not start"
    return process


def ask(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def compare(algorithm: str, envs: int, rounds: int, seconds: float) -> dict[str, object]:
    processes = {layout: start(algorithm, envs, seconds, layout) for layout in LAYOUTS}
    speeds: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
    for i in range(rounds):
        for layout in list(LAYOUTS)[:: -1 if i % 2 else 1]:
            speeds[layout].append(ask(processes[layout]))
    for process in processes.values():
        process.communicate()
    told = {
        layout: f"{statistics.median(found):.0f} ({min(found):.0f} to {max(found):.0f})"
        for layout, found in speeds.items()
    }
    ratios = sorted(two / one for one, two in zip(*speeds.values(), strict=True))
    spread = [round(ratio, 3) for ratio in (ratios[0], ratios[-1])]
    return {"case": f"{algorithm}-{envs}", **told, "ratio": round(statistics.median(ratios), 3), "ratios": spread}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=["ippo", "mappo"])
    parser.add_argument("--envs", type=int, default=128, help="parallel environments")
    parser.add_argument("--rounds", type=int, default=6, help="measurements of each layout")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--measure", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    for name in given.algorithms:
        if given.measure:
            measure(name, given.envs, given.measure, given.seconds)
        else:
            print(json.dumps(compare(name, given.envs, given.rounds, given.seconds)), flush=True)
