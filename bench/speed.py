"""Training throughput compared with the machine's limit: one JSON line per case.

The limit ("floor") is the time that only the case's matrix products take, as plain sgemm calls (NumPy's
BLAS) of the same shapes in the same process: no environment, no activations, no optimiser. Training and
floor are measured in turns, and the ratio of their medians is printed.

    python bench/speed.py                      # every case
    python bench/speed.py --only ippo-128      # cases whose name contains the word
    python bench/speed.py --only host-16       # MAPPO on the real mpe2, compared with random steps: see bench/host.py
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.presets import make_config, preset
from flockrl.core.errors import install
from flockrl.core.types import EnvSpec
from flockrl.envs import make
from flockrl.envs.api import reset_batch, step_batch
from flockrl.replay.ring import draw, gather
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program

ENV = "mpe/simple_spread"
CONTINUOUS = f"{ENV}:continuous_actions=true"
WORK = {"rollout_steps": 128, "epochs": 4, "minibatches": 4, "hidden": (64, 64)}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    f"{name}-{envs}": (name, envs, {}) for name in ("ippo", "mappo") for envs in (16, 128, 1024)
} | {f"{name}-gru-128": (name, 128, {"memory": "gru"}) for name in ("ippo", "mappo")}
OFF_POLICY: dict[str, tuple[str, int]] = {
    f"{name}-per-{steps}": (name, steps) for name in ("maddpg", "matd3") for steps in (100, 8)
}
"""One gradient step per that many environment steps; unshared, 64x64, batch 1024, 16 envs x 25 steps per iteration."""
Q_LEARNING: dict[str, tuple[str, int, dict[str, Any]]] = {
    f"{name}-{kind}": (name, envs, {**shape, **({"hyper_size": 128} if name == "qmix" else {})})
    for name in ("vdn", "qmix")
    for kind, envs, shape in (
        ("ff-32", 32, {"rollout_steps": 16, "steps_per_update": 512, "batch_size": 32, "hidden": (64, 64)}),
        (
            "gru-8",
            8,
            {"rollout_steps": 26, "steps_per_update": 208, "sequence": 26, "batch_size": 832, "hidden": (64,),
             "memory": "gru"},
        ),
    )
}  # fmt: skip
"""The same work as JaxMARL's vdn_ff and ql_rnn on simple_spread: a gradient step per 512 and per 208 steps, on 32
transitions and on 32 sequences of 26."""
Shape = tuple[int, int, int]


def products(spec: EnvSpec, config: Any, envs: int) -> Counter[Shape]:
    """How often each matrix product (m, k) @ (k, n) is needed for one rollout and its update."""
    steps, agents = config.rollout_steps, spec.num_agents
    central = config.critic == "central"
    actor = (spec.obs_size, *config.hidden)
    critic = (spec.central_size if central else spec.obs_size, *config.hidden)
    per_env = 1 if central else agents
    outputs = agents if central else 1
    batch = envs // config.minibatches
    memory = config.memory_size if config.memory == "gru" else 0
    count: Counter[Shape] = Counter()

    def forward(sizes: tuple[int, ...], out: int, rows: int, times: int, length: int = 1) -> None:
        for k, n in zip(sizes, (*sizes[1:], 3 * memory or out), strict=True):
            count[rows * length, k, n] += times
        if memory:
            count[rows, memory, 3 * memory] += times * length
            count[rows * length, memory, out] += times

    def backward(sizes: tuple[int, ...], out: int, rows: int, times: int, length: int) -> None:
        layers = list(zip(sizes, (*sizes[1:], 3 * memory or out), strict=True))
        if memory:
            layers.append((memory, out))
            count[rows, 3 * memory, memory] += times * length
            count[memory, rows * length, 3 * memory] += times
        for i, (k, n) in enumerate(layers):
            count[k, rows * length, n] += times
            if i:
                count[rows * length, n, k] += times

    forward(actor, spec.action_size, envs * agents, steps)
    forward(critic, outputs, envs * per_env, 1, steps)
    times = config.epochs * config.minibatches
    for sizes, out, rows in ((actor, spec.action_size, batch * agents), (critic, outputs, batch * per_env)):
        forward(sizes, out, rows, times, steps)
        backward(sizes, out, rows, times, steps)
    return count


def update_products(spec: EnvSpec, config: Any, twins: int, delay: int) -> Counter[Shape]:
    """Matrix products of `delay` gradient steps with unshared central critics; one of them updates the policies."""
    batch, agents, width = config.batch_size, spec.num_agents, spec.action_size
    actor = [spec.obs_size, *config.hidden, width]
    critic = [spec.central_size + agents * width, *config.hidden, 1]
    count: Counter[Shape] = Counter()

    def forward(sizes: list[int], times: int) -> None:
        for k, n in itertools.pairwise(sizes):
            count[batch, k, n] += times

    def backward(sizes: list[int], times: int, weights: bool, inputs: int) -> None:
        """Gradients of the weights, of the hidden layers, and of `inputs` columns of the input."""
        for i, (k, n) in enumerate(itertools.pairwise(sizes)):
            if weights:
                count[k, batch, n] += times
            if i or inputs:
                count[batch, n, k if i else inputs] += times

    forward(actor, agents * delay)  # target policies
    forward(critic, agents * delay * twins * 2)  # target critics, critics
    backward(critic, agents * delay * twins, True, 0)
    forward(actor, agents)
    forward(critic, agents)
    backward(critic, agents, False, width)
    backward(actor, agents, True, 0)
    return count


def q_products(spec: EnvSpec, config: Any, envs: int) -> Counter[Shape]:
    """Matrix products of one rollout and one gradient step of Q-learning with shared parameters.

    Counted are online values forward and backward, target values forward and, without memory, the online choice of the
    next action. With memory, next values are counted as those of the next step, so they need no products of their own.
    """
    memory = config.memory_size if config.memory == "gru" else 0
    agents, sequences = spec.num_agents, config.batch_size // config.steps
    sizes = [spec.obs_size, *config.hidden, *([3 * memory] if memory else [spec.action_size])]
    count: Counter[Shape] = Counter()

    def forward(rows: int, steps: int, times: int) -> None:
        for k, n in itertools.pairwise(sizes):
            count[rows * steps, k, n] += times
        if memory:
            count[rows, memory, 3 * memory] += times * steps
            count[rows * steps, memory, spec.action_size] += times

    def backward(layers: list[tuple[int, int]], rows: int) -> None:
        for i, (k, n) in enumerate(layers):
            count[k, rows, n] += 1
            if i:
                count[rows, n, k] += 1

    forward(envs * agents, 1, config.rollout_steps)
    rows, steps = sequences * agents, config.steps
    forward(rows, steps, 2 if memory else 3)
    layers = [*itertools.pairwise(sizes), *([(memory, spec.action_size)] if memory else [])]
    backward(layers, rows * steps)
    if memory:
        count[rows, 3 * memory, memory] += steps
        count[memory, rows * steps, 3 * memory] += 1
    if config.mixer == "monotonic":
        state, size, hyper = spec.central_size, config.of_mixer("mixer_size"), config.of_mixer("hyper_size")
        heads = [[(state, hyper), (hyper, agents * size)], [(state, hyper), (hyper, size)], [(state, size), (size, 1)]]
        for layers in [*heads, [(state, size)]]:
            for k, n in layers:
                count[sequences * steps, k, n] += 2
            backward(layers, sequences * steps)
    return count


def sgemm_seconds(shapes: Counter[Shape]) -> float:
    """Seconds for all products. Each shape is timed over enough calls to take a few milliseconds."""
    total = 0.0
    for (m, k, n), times in shapes.items():
        a, b, out = (np.ones(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
        calls = max(3, int(2e8 / (2 * m * k * n)))
        np.matmul(a, b, out=out)
        began = time.perf_counter()
        for _ in range(calls):
            np.matmul(a, b, out=out)
        total += times * (time.perf_counter() - began) / calls
    return total


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Measure the steps per second of training and of the floor, in turns."""
    replays = name in Q_LEARNING
    algorithm, envs, extra = Q_LEARNING[name] if replays else CASES[name]
    given = {"learning_starts": 0, "buffer_size": 100_000} if replays else WORK
    config = make_config(algorithm, {**given, **extra})
    env = make(ENV)
    program = make_program(RunConfig(algorithm, ENV, TrainOptions(envs=envs, steps=10**9), config), env)
    program.compile(0)
    state = program.start_state(0)
    size = program.setting.iteration_steps
    count = max(1, 2**17 // size)
    state, *_ = jax.block_until_ready(program.run(state, 0, 1))
    ours, floor = [], []
    shapes = (q_products if replays else products)(env.spec, config, envs)
    for _ in range(rounds):
        floor.append(size / sgemm_seconds(shapes))
        began = time.perf_counter()
        state, *_ = jax.block_until_ready(program.run(state, 0, count))
        ours.append(count * size / (time.perf_counter() - began))
    speed, limit = statistics.median(ours), statistics.median(floor)
    flops = sum(2 * m * k * n * times for (m, k, n), times in shapes.items())
    return {
        "case": name,
        "steps_per_second": round(speed),
        "floor_steps_per_second": round(limit),
        "ratio": round(speed / limit, 3),
        **({"updates_per_second": round(speed / config.steps_per_update)} if replays else {}),
        "compile_seconds": round(program.compile_seconds, 1),
        "mflop_per_step": round(flops / size / 1e6, 3),
        "steps_per_second_range": [round(min(ours)), round(max(ours))],
    }


def measure_off_policy(name: str, rounds: int) -> dict[str, Any]:
    """Measure whole training; and gradient steps alone and their floor, in turns."""
    algorithm, every = OFF_POLICY[name]
    settings = {"share": "none", "hidden": (64, 64), "batch_size": 1024, "steps_per_update": every}
    config = make_config(algorithm, {**settings, "learning_starts": 0, "rollout_steps": 25, "buffer_size": 100_000})
    env = make(CONTINUOUS)
    program = make_program(RunConfig(algorithm, CONTINUOUS, TrainOptions(envs=16, steps=10**9), config), env)
    program.compile(0)
    state, *_ = jax.block_until_ready(program.run(program.start_state(0), 0, 50))
    family = importlib.import_module(f"flockrl.algos.{preset(algorithm).family!s}")
    learner = getattr(family, str(preset(algorithm).family).upper())(env.spec, config, 16, 10**6)
    steps, delay = 40, getattr(config, "policy_delay", 1)

    @jax.jit
    def learn(learned: Any, replay: Any, key: jax.Array) -> Any:
        def once(i: jax.Array, learned: Any) -> Any:
            draw_key, step_key = jax.random.split(jax.random.fold_in(key, i))
            batch = gather(replay, *draw(replay, draw_key, config.batch_size, 1, 1.0), 1, config.gamma)
            return learner.step(learned, batch, jnp.float32(1), step_key)[0]

        return jax.lax.fori_loop(0, steps, once, learned)

    def seconds(function: Any, *arguments: Any) -> float:
        began = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        return time.perf_counter() - began

    shapes = update_products(env.spec, config, learner.twins, delay)
    inside = state.learner.learned, state.learner.replay, jax.random.key(0)
    seconds(learn, *inside)
    times = [(sgemm_seconds(shapes) / delay, seconds(learn, *inside) / steps) for _ in range(rounds)]
    floor, update = (statistics.median(column) for column in zip(*times, strict=True))
    speeds, count = [], max(1, every // 2)
    for _ in range(rounds):
        began = time.perf_counter()
        state, *_ = jax.block_until_ready(program.run(state, 0, count))
        speeds.append(count * program.setting.iteration_steps / (time.perf_counter() - began))
    speed = statistics.median(speeds)
    flops = sum(2 * m * k * n * times for (m, k, n), times in shapes.items()) / delay
    return {
        "case": name,
        "steps_per_second": round(speed),
        "updates_per_second_in_training": round(speed / every),
        "updates_per_second_alone": round(1 / update),
        "floor_updates_per_second": round(1 / floor),
        "ratio": round(floor / update, 3),
        "compile_seconds": round(program.compile_seconds, 1),
        "mflop_per_update": round(flops / 1e6),
    }


def replay_capacity(rounds: int) -> Iterator[dict[str, Any]]:
    """Throughput of MADDPG with a replay of 10,000 and of 1,000,000 transitions, both full, measured in turns."""
    programs, states = {}, {}
    speeds: dict[int, list[float]] = {}
    for size in (10_000, 1_000_000):
        own = {"hidden": (64, 64), "buffer_size": size, "learning_starts": 0, "steps_per_update": 100}
        config = make_config("maddpg", own)
        run = RunConfig("maddpg", CONTINUOUS, TrainOptions(envs=16, steps=10**9), config)
        programs[size] = make_program(run, make(CONTINUOUS))
        programs[size].compile(0)
        fill = -(-size // programs[size].setting.iteration_steps)
        states[size] = jax.block_until_ready(programs[size].run(programs[size].start_state(0), 0, fill)[0])
        speeds[size] = []
    for _ in range(rounds):
        for size, program in programs.items():
            began = time.perf_counter()
            states[size] = jax.block_until_ready(program.run(states[size], 0, 50)[0])
            speeds[size].append(50 * program.setting.iteration_steps / (time.perf_counter() - began))
    for size, found in speeds.items():
        yield {"case": f"replay-{size}", "steps_per_second": round(statistics.median(found))}


def stepping(rounds: int, envs: int = 128, steps: int = 1000) -> dict[str, Any]:
    """Environment steps per second with random actions, including observations and resets."""
    env = make(ENV)

    @jax.jit
    def play(key: jax.Array) -> jax.Array:
        reset_key, key = jax.random.split(key)
        state, seen = reset_batch(env, reset_key, envs)

        def step(carry: Any, key: jax.Array) -> Any:
            state, seen, total = carry
            act_key, env_key = jax.random.split(key)
            action = jax.random.randint(act_key, (envs, env.spec.num_agents), 0, env.spec.action_size)
            now = step_batch(env, env_key, state, seen, action)
            total = total + now.reward.sum() + now.observation.obs.sum() + now.final.obs.sum()
            return (now.state, now.observation, total), None

        return jax.lax.scan(step, (state, seen, jnp.float32(0)), jax.random.split(key, steps))[0][2]

    play(jax.random.key(0)).block_until_ready()
    speeds = []
    for seed in range(rounds):
        began = time.perf_counter()
        play(jax.random.key(seed)).block_until_ready()
        speeds.append(envs * steps / (time.perf_counter() - began))
    return {"case": f"stepping-{envs}", "steps_per_second": round(statistics.median(speeds))}


def results(only: str, rounds: int) -> Iterator[dict[str, Any]]:
    for name in (*CASES, *Q_LEARNING):
        if only in name:
            yield measure(name, rounds)
    for name in OFF_POLICY:
        if only in name:
            yield measure_off_policy(name, rounds)
    if only in "replay":
        yield from replay_capacity(rounds)
    if only in "stepping-128":
        yield stepping(rounds)
    if only in "host-16":
        host = importlib.import_module("host")  # the file beside this one
        package = host.MODULE.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            print(f"host-16 is left out: it needs {package} ({install('pettingzoo')}).", file=sys.stderr)
        else:
            yield host.measure(host.MODULE, 16, rounds, 5.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="measure only the cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each case")
    given = parser.parse_args()
    for row in results(given.only, given.rounds):
        print(json.dumps(row), flush=True)
