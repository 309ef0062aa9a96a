"""The same work in flockrl and in other libraries, one after the other in one run, with ratios. Installs nothing.

    python bench/peers.py --jaxmarl VENV [--jaxmarl-source CHECKOUT] [--repeats 3]

VENV is a virtual environment in which the peer is importable; flockrl runs in the interpreter that runs this file.
Workloads, on simple_spread with three agents:

    steps   random discrete actions, all in one compiled loop, resets included
    ippo    training: 64x64 tanh networks shared by all agents, 128-step rollouts, 4 epochs of 4 minibatches

JaxMARL ships its environments but not its learners: `ippo` needs a checkout of its repository, whose
`baselines/IPPO/ippo_ff_mpe.py` is run as it is, with these sizes and its logger off. Compilation is not counted.
XuanCe, BenchMARL and AgileRL have no entry here yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

STEPS = """
import json, sys, time
import jax, jax.numpy as jnp
size = json.loads(sys.argv[1])
B, T = size["envs"], size["steps"]
"""

FLOCKRL_STEPS = (
    STEPS
    + """
from flockrl.envs import make
from flockrl.envs.base import reset_batch, step_batch
env = make("mpe/simple_spread")
def play(key):
    def step(carry, key):
        state, seen = carry
        act, world = jax.random.split(key)
        now = step_batch(env, world, state, seen, jax.random.randint(act, (B, 3), 0, 5))
        return (now.state, now.observation), now.reward.sum()
    start, key = jax.random.split(key)
    return jax.lax.scan(step, reset_batch(env, start, B), jax.random.split(key, T))[1].sum()
import flockrl
version = flockrl.__version__
"""
)

JAXMARL_STEPS = (
    STEPS
    + """
import jaxmarl
env = jaxmarl.make("MPE_simple_spread_v3")
def play(key):
    def step(carry, key):
        act, world = jax.random.split(key)
        moves = jax.random.randint(act, (B, 3), 0, 5)
        actions = {name: moves[:, i] for i, name in enumerate(env.agents)}
        _, state, reward, _, _ = jax.vmap(env.step)(jax.random.split(world, B), carry, actions)
        return state, sum(value.sum() for value in reward.values())
    start, key = jax.random.split(key)
    _, state = jax.vmap(env.reset)(jax.random.split(start, B))
    return jax.lax.scan(step, state, jax.random.split(key, T))[1].sum()
version = jaxmarl.__version__
"""
)

FLOCKRL_IPPO = (
    STEPS
    + """
import flockrl
from flockrl.config import RunConfig, TrainOptions
from flockrl.envs import make
from flockrl.presets import make_config
from flockrl.program import Program
config = make_config("ippo", {"rollout_steps": 128, "epochs": 4, "minibatches": 4, "hidden": (64, 64), "share": "all"})
program = Program(RunConfig("ippo", "mpe/simple_spread", TrainOptions(steps=B * T, envs=B), config),
                  make("mpe/simple_spread"))
def play(key):
    return program.advance(program.init(key), key, T // 128)[2]
version = flockrl.__version__
"""
)

JAXMARL_IPPO = (
    STEPS
    + """
import types
sys.path.insert(0, size["source"] + "/baselines/IPPO")
quiet = types.ModuleType("wandb")
quiet.log = lambda metric: None
sys.modules["wandb"] = quiet
import jaxmarl
from ippo_ff_mpe import make_train
play = make_train({
    "ENV_NAME": "MPE_simple_spread_v3", "ENV_KWARGS": {}, "NUM_ENVS": B, "NUM_STEPS": 128, "TOTAL_TIMESTEPS": B * T,
    "UPDATE_EPOCHS": 4, "NUM_MINIBATCHES": 4, "LR": 2e-3, "ANNEAL_LR": True, "GAMMA": 0.95, "GAE_LAMBDA": 0.9,
    "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh",
})
version = jaxmarl.__version__
"""
)

TIMED = """
compiled = jax.jit(play).lower(jax.random.key(0)).compile()
jax.block_until_ready(compiled(jax.random.key(0)))
began = time.perf_counter()
jax.block_until_ready(compiled(jax.random.key(1)))
print(json.dumps({"rate": B * T / (time.perf_counter() - began), "version": version, "jax": jax.__version__}))
"""

WORK: dict[str, dict[str, str]] = {
    "steps": {"flockrl": FLOCKRL_STEPS, "jaxmarl": JAXMARL_STEPS},
    "ippo": {"flockrl": FLOCKRL_IPPO, "jaxmarl": JAXMARL_IPPO},
}


def measure(python: str, code: str, size: dict[str, Any]) -> dict[str, Any]:
    """Run one piece of work in a process of its own: steps per second, or what went wrong."""
    words = [python, "-c", code + TIMED, json.dumps(size)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"ended with status {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def interpreter(venv: Path) -> str:
    found = [path for path in (venv / "bin" / "python", venv / "Scripts" / "python.exe") if path.is_file()]
    if not found:
        sys.exit(f"{venv} is not a virtual environment: it has no python.")
    return str(found[0])


def compare(name: str, pythons: dict[str, str], size: dict[str, Any], repeats: int) -> None:
    """Take turns, so that a busy moment hits everyone, and print medians."""
    code = WORK[name]
    rates: dict[str, list[float]] = {}
    about: dict[str, str] = {}
    for _ in range(repeats):
        for who, python in pythons.items():
            found = measure(python, code[who], size)
            if "error" in found:
                about[who] = found["error"]
                continue
            rates.setdefault(who, []).append(found["rate"])
            about[who] = f"{found['version']}, jax {found['jax']}"
    ours = statistics.median(rates["flockrl"]) if "flockrl" in rates else None
    for who in pythons:
        if who not in rates:
            print(f"{name:8}{who:10}failed: {about[who]}")
            continue
        rate = statistics.median(rates[who])
        ratio = f"  flockrl / {who} = {ours / rate:.2f}" if ours and who != "flockrl" else ""
        spread = f"{min(rates[who]):,.0f} to {max(rates[who]):,.0f}"
        print(f"{name:8}{who:10}{rate:>12,.0f} steps/s ({spread})  [{about[who]}]{ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jaxmarl", type=Path, help="virtual environment in which jaxmarl is importable")
    parser.add_argument("--jaxmarl-source", type=Path, help="checkout of JaxMARL's repository, for its learners")
    parser.add_argument("--envs", type=int, default=128, help="parallel environments")
    parser.add_argument("--steps", type=int, default=128 * 20, help="steps of each environment, a multiple of 128")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if given.steps < 128 or given.steps % 128 or given.envs < 1 or given.repeats < 1:
        parser.error("steps must be a multiple of 128, envs and repeats at least 1")
    pythons = {"flockrl": sys.executable}
    if given.jaxmarl:
        pythons["jaxmarl"] = interpreter(given.jaxmarl)
    size = {"envs": given.envs, "steps": given.steps, "source": str(given.jaxmarl_source)}
    compare("steps", pythons, size, given.repeats)
    if given.jaxmarl and not given.jaxmarl_source:
        print("ippo: JaxMARL's learners need --jaxmarl-source; flockrl alone is measured.")
        pythons.pop("jaxmarl")
    compare("ippo", pythons, size, given.repeats)


if __name__ == "__main__":
    main()
