"""What messages cost: training with TarMAC against the floor of its own matrix products, and talk over team sizes.

    python bench/talk.py                             # both, figures as JSON lines
    python bench/talk.py --only floor --rounds 9
    python bench/talk.py --only agents --sizes 4 16 64 256 --plot talk.png

The floor is that of bench/speed.py, with the products of messages: those of the layers as plain sgemm calls, those of
attention, N x 16 x N and N x N x C for each environment and step, as batches of them. `agents` measures a policy's
forward and backward pass alone, on observations of 16 numbers whatever the size of the team.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from speed import WORK, Shape, products, sgemm_seconds

from flockrl.algos.presets import make_config
from flockrl.comm.attention import KEY
from flockrl.core.groups import make_groups
from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.envs import make
from flockrl.policies.network import TeamNetwork
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program

ENV, ENVS = "mpe/simple_spread:N=5", 128
TALK = {"comm": "tarmac", "comm_rounds": 2}
ROWS = 4096
"""Agents and moments together in a pass of `agents`."""
KINDS: dict[str, dict[str, Any]] = {
    "silent": {},
    "commnet": {"comm": "commnet"},
    "tarmac": {"comm": "tarmac"},
    "tarmac, ring": {"comm": "tarmac", "channel": "topology=ring"},
    "commnet, ring": {"comm": "commnet", "channel": "topology=ring"},
    "tarmac, nearest 2": {"comm": "tarmac", "channel": "nearest=2"},
    "commnet, nearest 2": {"comm": "commnet", "channel": "nearest=2"},
}


def talk_products(config: Any, agents: int, envs: int) -> tuple[Counter[Shape], Counter[tuple[int, Shape]]]:
    """Products of TarMAC's layers, and batches of products of its attention: for one rollout and its update."""
    width, size, steps = config.hidden[-1], config.message_size, config.rollout_steps
    layers = [(width, KEY), (width, size), (width, KEY), (width, width), (size, width), (width, width)]
    attention = [(agents, KEY, agents), (agents, agents, size)]
    plain: Counter[Shape] = Counter()
    batches: Counter[tuple[int, Shape]] = Counter()
    batch, times = envs // config.minibatches, config.epochs * config.minibatches
    for k, n in layers:
        rows = batch * steps * agents
        plain[envs * agents, k, n] += config.rounds * steps
        plain[rows, k, n] += config.rounds * times
        plain[k, rows, n] += config.rounds * times
        plain[rows, n, k] += config.rounds * times
    for m, k, n in attention:
        batches[envs, (m, k, n)] += config.rounds * steps
        for shape in ((m, k, n), (m, n, k), (k, m, n)):
            batches[batch * steps, shape] += config.rounds * times
    return plain, batches


def batched_seconds(batches: Counter[tuple[int, Shape]]) -> float:
    """Seconds for batches of small products."""
    total = 0.0
    for (count, (m, k, n)), times in batches.items():
        a, b, out = (np.ones((count, *shape), np.float32) for shape in ((m, k), (k, n), (m, n)))
        total += times * _least(partial(np.matmul, a, b, out=out), 5)
    return total


def _least(call: Callable[[], Any], rounds: int) -> float:
    """Seconds of the quickest of some calls."""
    call()
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def floor(rounds: int) -> dict[str, Any]:
    """Training and its floor, in turns."""
    config, env = make_config("ippo", {**WORK, **TALK}), make(ENV)
    program = make_program(RunConfig("ippo", ENV, TrainOptions(envs=ENVS, steps=10**9), config), env)
    program.compile(0)
    state, size = program.start_state(0), program.setting.iteration_steps
    state, *_ = jax.block_until_ready(program.run(state, 0, 1))
    layers, batches = talk_products(config, env.spec.num_agents, ENVS)
    layers += products(env.spec, config, ENVS)
    ours, limit = [], []
    for _ in range(rounds):
        limit.append(size / (sgemm_seconds(layers) + batched_seconds(batches)))
        began = time.perf_counter()
        state, *_ = jax.block_until_ready(program.run(state, 0, 2))
        ours.append(2 * size / (time.perf_counter() - began))
    speed, most = statistics.median(ours), statistics.median(limit)
    return {
        "case": "ippo, tarmac, 2 rounds, 5 agents, 128 environments",
        "steps_per_second": round(speed),
        "floor_steps_per_second": round(most),
        "ratio": round(speed / most, 3),
        "compile_seconds": round(program.compile_seconds, 1),
        "steps_per_second_range": [round(min(ours)), round(max(ours))],
    }


def team_seconds(agents: int, settings: dict[str, Any], rounds: int) -> float:
    """Seconds of a forward and backward pass of a team, per agent and moment."""
    names, batch = tuple(f"agent_{i}" for i in range(agents)), ROWS // agents
    near = "nearest" in settings.get("channel", "")
    spec = EnvSpec("bench", names, (Box((16,)),) * agents, (Discrete(5),) * agents, 25, neighbours=near)
    config = make_config("ippo", {"hidden": (64, 64), **settings})
    team = TeamNetwork(spec, make_groups(spec, "groups"), config, [5])
    params = team.init([jax.random.key(0)])
    seen = Observation(jax.random.normal(jax.random.key(1), (batch, agents, 16)))
    if near:
        away = (np.arange(agents)[:, None] - np.arange(agents)) % agents
        others = np.random.default_rng(0).integers(1, agents, (batch, agents, 1, 2))
        seen = seen._replace(neighbours=jax.numpy.asarray((away[..., None] == others).any(-1)))

    @jax.jit
    def learn(params: Any, seen: Observation) -> Any:
        return jax.grad(lambda p: sum((out**2).sum() for out in team(p, seen, (), None)[0]))(params)

    return _least(lambda: jax.block_until_ready(learn(params, seen)), rounds) / (batch * agents)


def over_agents(sizes: list[int], rounds: int, plot: str | None) -> None:
    """Microseconds per agent and moment, over the number of agents: flat is linear in the team, a rising line more."""
    found: dict[str, list[float]] = {}
    for kind, settings in KINDS.items():
        found[kind] = [1e6 * team_seconds(n, settings, rounds) for n in sizes]
        print(
            json.dumps({"talk": kind, "agents": sizes, "microseconds": [round(x, 3) for x in found[kind]]}), flush=True
        )
    if plot is None:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0))
    axes = figure.subplots()
    for kind, times in found.items():
        axes.plot(sizes, times, marker="o", label=kind)
    axes.set(xscale="log", xlabel="agents", ylabel="µs per agent and moment", ylim=(0, None))
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.legend(frameon=False)
    figure.savefig(plot, bbox_inches="tight", dpi=120)
    print(f"Plot: {plot}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["floor", "agents"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--plot", help="draw the cost over the number of agents to this PNG file")
    given = parser.parse_args()
    if given.only != "agents":
        print(json.dumps(floor(given.rounds)), flush=True)
    if given.only != "floor":
        over_agents(given.sizes, given.rounds, given.plot)


if __name__ == "__main__":
    main()
