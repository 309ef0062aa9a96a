"""What machines beyond this one could do: costs per step and message that are measured here, and sums made with them.

Measured: a step of a simulator in Python, acting and updating, in seconds of one core, which other load on the machine
changes little; bytes of parameters, messages and trajectories; with Ray installed, what a call of an actor and a whole
rollout on one cost the learner's process, and how long a call takes, which other load does change. Assumed, and to be
set: the numbers of nodes, cores and devices, the speed of the network and of the links between devices.
Printed as tables in Markdown: where each design stops getting faster, and what stops it.

    taskset -c 0 python bench/arithmetic.py
    python bench/arithmetic.py --module pettingzoo.sisl.pursuit_v5 --nodes 16 --gbit 100
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from flockrl.algos.presets import make_config
from flockrl.envs import make
from flockrl.envs.host.env import Host, Slots
from flockrl.envs.host.executor import measure as step_seconds
from flockrl.envs.host.remote import STEPPED, TOLD, answers
from flockrl.rollouts.remote import remote_rollout
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program

SIZES = 16, 256, 4096
"""Numbers of teams that acting is timed with, to tell its price per call from that per team."""


class Costs(NamedTuple):
    """Seconds and bytes. step: of one team in Python; act_call, act_team: acting, per call and per team in it; update:
    per step of one team, all epochs; call_cpu, call_wait: a message to a Ray actor and back, in the learner's process
    and until it is there, nan without Ray; rollout_cpu: a rollout of an actor that acts, of the learner's process, per
    step of one team; down, up: of a message, per team; row: of a trajectory, per step of a team; policy, learned: of
    parameters that acting needs, and of all that have gradients; gradients: steps per update;
    rollout: steps of each team per update; epochs: passes over a rollout."""

    step: float
    act_call: float
    act_team: float
    update: float
    call_cpu: float
    call_wait: float
    rollout_cpu: float
    down: int
    up: int
    row: int
    policy: int
    learned: int
    gradients: int
    rollout: int
    epochs: int


def seconds_of(function: Callable[[], Any], rounds: int = 7, least: float = 0.1) -> float:
    """Seconds of one core for a call, the median of some rounds of at least `least` seconds."""
    jax.block_until_ready(function())
    found = []
    for _ in range(rounds):
        began, calls = time.process_time(), 0
        while time.process_time() - began < least:
            jax.block_until_ready(function())
            calls += 1
        found.append((time.process_time() - began) / calls)
    return statistics.median(found)


def own_step(host: Host) -> float:
    """Seconds of one core for a step of one team."""
    passed, worked = time.perf_counter(), time.process_time()
    found = step_seconds(host, 2.0)
    return found * (time.process_time() - worked) / (time.perf_counter() - passed)


def size_of(arrays: Any) -> int:
    """Bytes of all arrays, or of shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(arrays))


class Echo:
    """An actor that answers at once what it was made with."""

    def __init__(self, answer: dict[str, np.ndarray]):
        self.answer = answer

    def serve(self, told: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.answer


def call_seconds(slots: Slots, told: dict[str, np.ndarray], names: tuple[str, ...]) -> tuple[float, float]:
    """What a call of an actor with these rows takes of this process, and until the answer is there."""
    if importlib.util.find_spec("ray") is None:
        return math.nan, math.nan
    import ray

    ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=1)
    actor: Any = ray.remote(Echo).remote({name: np.array(getattr(slots, name)) for name in names})
    for _ in range(100):
        ray.get(actor.serve.remote(told))
    count, waited, worked = 500, time.perf_counter(), time.process_time()
    for _ in range(count):
        ray.get(actor.serve.remote(told))
    waited, worked = time.perf_counter() - waited, time.process_time() - worked
    ray.shutdown()
    return worked / count, waited / count


def rollout_seconds(config: RunConfig, host: Host) -> float:
    """What a rollout on one actor that acts takes of this process, per step of one team."""
    if importlib.util.find_spec("ray") is None:
        return math.nan
    import ray

    ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=1)
    program: Any = make_program(config, host)
    state = program.start_state(0)
    params, actors, env = program.player.params(state.learner), state.actors, program.batch(0)
    found = []
    for key in jax.random.split(jax.random.key(0), 12):
        worked = time.process_time()
        actors, *_ = remote_rollout(program.actor, params, env, actors, key)
        found.append(time.process_time() - worked)
    program.close()
    ray.shutdown()
    return statistics.median(found[2:]) / program.setting.iteration_steps


def measure(algorithm: str, module: str, envs: int, together: int) -> Costs:
    """together: teams of one actor, whose messages travel in one call."""
    name = f"pettingzoo/{module}"
    host, config = make(name), make_config(algorithm, {})
    options = TrainOptions(envs=envs, steps=10**9, eval_episodes=1, workers=0)
    setting = make_program(RunConfig(algorithm, name, options, config), host).setting
    learner = setting.algorithm
    state = learner.init(jax.random.key(0))
    params, key = learner.params(state), jax.random.key(1)
    act = jax.jit(lambda p, seen, memory, key: learner.act(p, seen, memory, key, True))

    def acting(count: int) -> float:
        seen, memory = jax.device_put(host.form.blank(count)), learner.memory(count)
        return seconds_of(lambda: act(params, seen, memory, key))

    times = [acting(count) for count in SIZES]
    per_team = max((times[-1] - times[0]) / (SIZES[-1] - SIZES[0]), 0.0)
    trajectory = _trajectory(learner, host, envs, act, params, key)
    update = jax.jit(learner.update)
    updating = seconds_of(lambda: update(state, trajectory, key), rounds=5)
    slots = Slots(host.form, together)
    asked = {name: np.array(getattr(slots, name)) for name in (*TOLD, *STEPPED)}
    names = answers(slots, asked)
    down, up = (sum(x.nbytes for x in found) for found in (asked.values(), [getattr(slots, n) for n in names]))
    call = call_seconds(slots, asked, names)
    acted = RunConfig(algorithm, name, dataclasses.replace(options, envs=together, workers=1, ray="auto"), config)
    parts = getattr(config, "minibatches", None) or 4
    return Costs(
        step=own_step(host), act_call=times[0] - SIZES[0] * per_team, act_team=per_team,
        update=updating / (envs * learner.rollout_steps), call_cpu=call[0], call_wait=call[1],
        rollout_cpu=rollout_seconds(acted, host),
        down=down // together, up=up // together, row=size_of(trajectory) // (envs * learner.rollout_steps),
        policy=size_of(params), learned=size_of(state.params), gradients=config.epochs * parts,
        rollout=learner.rollout_steps, epochs=config.epochs,
    )  # fmt: skip


def _trajectory(learner: Any, host: Any, envs: int, act: Any, params: Any, key: Any) -> Any:
    """A rollout of the right shapes: standing still, with rewards that differ."""
    from flockrl.core.types import Trajectory

    seen, memory = jax.device_put(host.form.blank(envs)), learner.memory(envs)
    action, _, extras = act(params, seen, memory, key)
    steps, agents = learner.rollout_steps, host.spec.num_agents
    long = jax.tree.map(lambda x: np.broadcast_to(x, (steps, *x.shape)), (seen, action, dict(extras)))
    reward: Any = np.random.default_rng(0).normal(size=(steps, envs, agents)).astype(np.float32)
    never: Any = np.zeros((steps, envs, agents), bool)
    first: Any = np.zeros((steps, envs), bool)
    return jax.device_put(
        Trajectory(
            obs=long[0].obs, action=long[1], reward=reward, terminated=never, truncated=never, next_obs=long[0].obs,
            first=first, avail=long[0].avail, state=long[0].state, alive=long[0].alive, next_avail=long[0].avail,
            next_state=long[0].state, next_alive=long[0].alive, memory=memory, extras=long[2],
        )
    )  # fmt: skip


def told(seconds: float) -> str:
    if math.isnan(seconds):
        return "not measured: no Ray"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def rate(steps: float) -> str:
    return "-" if math.isnan(steps) else f"{steps:,.0f}" if steps < 1e6 else f"{steps / 1e6:.3g} million"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def measured(costs: Costs, together: int) -> str:
    rows = [
        ("a step of the simulator, one team on one core", told(costs.step)),
        ("acting: a call, and each team in it", f"{told(costs.act_call)}, {told(costs.act_team)}"),
        ("updating, per step of one team, all epochs", told(costs.update)),
        (f"a call of a Ray actor with {together} teams: of the learner's process", told(costs.call_cpu)),
        (f"a call of a Ray actor with {together} teams: until the answer is there", told(costs.call_wait)),
        ("a rollout of a Ray actor, per step of one team: of the learner's process", told(costs.rollout_cpu)),
        ("a message to an actor and back, per team", f"{costs.down:,} and {costs.up:,} bytes"),
        ("a trajectory, per step of one team", f"{costs.row:,} bytes"),
        ("parameters of the policy, and all with gradients", f"{costs.policy:,} and {costs.learned:,} bytes"),
    ]
    return table(("measured", "cost"), rows)


def on_hosts(costs: Costs, nodes: int, cores: int, together: int, gbit: float) -> str:
    """Steps per second that each part of a design allows; the smallest is what the design does at most."""
    wire, actors = gbit * 1e9 / 8, nodes * cores
    per_step = 1 / costs.step
    teams = actors * together
    act_there = (costs.act_call + costs.act_team * teams) / together  # for all teams, of which each actor has its own
    acting = costs.act_call * 2 / teams + costs.act_team * 2  # half of the teams at a time, both called on all
    learner = 1 / (acting + costs.call_cpu / together + costs.update)
    version = costs.policy * nodes / (teams * costs.rollout)  # one copy to each node for every update
    designs = {
        "acting on the learner (`--acting learner`)": {
            "simulators": actors / (costs.step + (0 if math.isnan(costs.call_wait) else costs.call_wait) / together),
            "the learner's process": learner,
            "the network": wire / (costs.down + costs.up),
        },
        "acting on the actors (`--ray`)": {
            "simulators": actors / (costs.step + act_there),
            "the learner's process": 1 / (costs.update + costs.rollout_cpu),
            "the network": wire / (costs.row + version),
        },
    }
    rows = []
    for name, parts in designs.items():
        known = {part: x for part, x in parts.items() if not math.isnan(x)}
        least = min(known, key=lambda part: known[part])
        needed = math.ceil(known[least] / per_step)
        limits = (rate(parts[part]) for part in ("simulators", "the learner's process", "the network"))
        rows.append((name, *limits, f"{least}, from {min(needed, actors):,} cores on"))
    head = (f"{nodes} nodes of {cores} cores, {gbit:g} Gbit/s", "simulators", "learner", "network", "what stops it")
    return table(head, rows)


def on_devices(costs: Costs, devices: int, envs: int, links: dict[str, float], latency: float) -> str:
    """Communication of one update, and the speed of one device at which it takes a tenth of the time."""
    part, steps = (devices - 1) / devices, envs * costs.rollout
    rows = []
    for name, speed in links.items():
        sums = costs.gradients * (2 * part * costs.learned / speed + latency)
        rollouts = costs.epochs * part * costs.row * steps / devices / speed
        flags = costs.rollout * latency
        total = sums + rollouts + flags
        most = 0.1 / 0.9 / total * steps / devices
        rows.append((name, told(sums), told(rollouts), told(flags), rate(most), rate(most * devices * 0.9)))
    head = (
        f"{devices} devices, {envs:,} environments", "gradients", "rollouts, once per epoch", "has an episode ended?",
        "0.9 of ideal up to, steps/s of a device", "all together then",
    )  # fmt: skip
    return table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="mappo", help="a learner of the PPO family")
    parser.add_argument("--module", default="mpe2.simple_spread_v3", help="a PettingZoo module")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--cores", type=int, default=64, help="cores of each node")
    parser.add_argument("--together", type=int, default=8, help="teams of each core")
    parser.add_argument("--gbit", type=float, default=10.0, help="network of the learner's node, assumed")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--envs", type=int, default=8192, help="compiled environments on all devices")
    parser.add_argument("--latency", type=float, default=2e-5, help="seconds of a sum over devices, assumed")
    given = parser.parse_args()
    costs = measure(given.algorithm, given.module, 64, given.together)
    print(measured(costs, given.together))
    print(on_hosts(costs, given.nodes, given.cores, given.together, given.gbit))
    links = {"NVLink, 200 GB/s (assumed)": 2e11, "PCIe, 20 GB/s (assumed)": 2e10}
    print(on_devices(costs, given.devices, given.envs, links, given.latency))


if __name__ == "__main__":
    main()
