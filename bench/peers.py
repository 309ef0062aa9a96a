"""The speed of flockrl and of other libraries on the same work, measured in one run, with ratios. Installs nothing.

    python bench/peers.py [--jaxmarl VENV [--jaxmarl-source CHECKOUT]] [--xuance VENV] [--repeats 3]

VENV is a virtual environment in which the peer is importable; flockrl runs in the interpreter that runs this file.
Workloads, on simple_spread with three agents:

    steps     random discrete actions, all in one compiled loop, resets included
    ippo      training: 64x64 tanh networks shared by all agents, 128-step rollouts, 4 epochs of 4 minibatches
    ippo-16   the same with 16 environments and fewer steps, for peers that step environments on the host

JaxMARL ships its environments but not its learners: `ippo` needs a checkout of its repository, whose
`baselines/IPPO/ippo_ff_mpe.py` is run as it is, with these sizes and its logger off. XuanCe runs its own IPPO on
PettingZoo's simple_spread, in one process as its DummyVecMultiAgentEnv does, without layer normalisation. Compilation
and the first rollout and update are not counted. BenchMARL and AgileRL have no entry here.

XuanCe 1.3.3 runs with torch 2.13.0, numpy below 2.3 (it assigns arrays of one entry to numbers), pettingzoo[mpe] 1.24.3
(it looks for pettingzoo.mpe) and an MPI library (the package mpich brings one).
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
from flockrl.envs.api import reset_batch, step_batch
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
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.envs import make
from flockrl.algos.presets import make_config
from flockrl.training.programs import make_program
config = make_config("ippo", {"rollout_steps": 128, "epochs": 4, "minibatches": 4, "hidden": (64, 64), "share": "all"})
program = make_program(RunConfig("ippo", "mpe/simple_spread", TrainOptions(steps=B * T, envs=B), config),
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

COMPILED = """
compiled = jax.jit(play).lower(jax.random.key(0)).compile()
def run(seed):
    jax.block_until_ready(compiled(jax.random.key(seed)))
run(0)
version += ", jax " + jax.__version__
"""

XUANCE_IPPO = """
import json, os, sys, tempfile, time
from types import SimpleNamespace
size = json.loads(sys.argv[1])
B, T = size["envs"], size["steps"]
os.chdir(tempfile.mkdtemp())  # it writes logs
import torch
from importlib.metadata import version as version_of
from xuance.common import get_arguments
from xuance.environment import make_envs
from xuance.torch.agents import REGISTRY_Agents
args = get_arguments("ippo", "mpe", "simple_spread_v3", parser_args=SimpleNamespace(
    continuous_action=False, policy="Categorical_MAAC_Policy", representation_hidden_size=[64], actor_hidden_size=[64],
    critic_hidden_size=[64], activation="tanh", use_parameter_sharing=True, parallels=B,
    vectorize="DummyVecMultiAgentEnv", buffer_size=128 * B, n_epochs=4, n_minibatch=4, learning_rate=2e-3, gamma=0.95,
    gae_lambda=0.9, running_steps=B * (T + 128), render=False, render_mode=None,
))
del args.normalize  # no layer normalisation
envs = make_envs(args)
envs.reset()
agents = REGISTRY_Agents["IPPO"](args, envs)
agents.train(128)
def run(seed):
    agents.train(T)
version = version_of("xuance") + ", torch " + torch.__version__
"""

TIMED = """
began = time.perf_counter()
run(1)
print(json.dumps({"rate": B * T / (time.perf_counter() - began), "version": version}))
"""

WORK: dict[str, dict[str, str]] = {
    "steps": {"flockrl": FLOCKRL_STEPS + COMPILED, "jaxmarl": JAXMARL_STEPS + COMPILED},
    "ippo": {"flockrl": FLOCKRL_IPPO + COMPILED, "jaxmarl": JAXMARL_IPPO + COMPILED},
    "ippo-16": {"flockrl": FLOCKRL_IPPO + COMPILED, "xuance": XUANCE_IPPO},
}


def measure(python: str, code: str, size: dict[str, Any]) -> dict[str, Any]:
    """Run one workload in a process of its own. Returns its steps per second, or the error."""
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
    """Measure in turns, so that other load on the machine affects all libraries, and print medians."""
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
            about[who] = found["version"]
    ours = statistics.median(rates["flockrl"]) if "flockrl" in rates else None
    for who in pythons:
        if who not in rates:
            print(f"{name:9}{who:10}failed: {about[who]}")
            continue
        rate = statistics.median(rates[who])
        ratio = f"  flockrl / {who} = {ours / rate:.2f}" if ours and who != "flockrl" else ""
        spread = f"{min(rates[who]):,.0f} to {max(rates[who]):,.0f}"
        print(f"{name:9}{who:10}{rate:>12,.0f} steps/s ({spread})  [{about[who]}]{ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jaxmarl", type=Path, help="virtual environment in which jaxmarl is importable")
    parser.add_argument("--jaxmarl-source", type=Path, help="checkout of JaxMARL's repository, for its learners")
    parser.add_argument("--xuance", type=Path, help="virtual environment in which xuance is importable")
    parser.add_argument("--envs", type=int, default=128, help="parallel environments")
    parser.add_argument("--steps", type=int, default=128 * 20, help="steps of each environment, a multiple of 128")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if given.steps < 128 or given.steps % 128 or given.envs < 1 or given.repeats < 1:
        parser.error("steps must be a multiple of 128, envs and repeats at least 1")
    ours = {"flockrl": sys.executable}
    size = {"envs": given.envs, "steps": given.steps, "source": str(given.jaxmarl_source)}
    if given.jaxmarl:
        both = {**ours, "jaxmarl": interpreter(given.jaxmarl)}
        compare("steps", both, size, given.repeats)
        if given.jaxmarl_source:
            compare("ippo", both, size, given.repeats)
        else:
            print("ippo: JaxMARL's learners need --jaxmarl-source.")
    if given.xuance:
        both = {**ours, "xuance": interpreter(given.xuance)}
        compare("ippo-16", both, {"envs": 16, "steps": 512, "source": ""}, given.repeats)
    if not given.jaxmarl and not given.xuance:
        print("No peer given: only flockrl is measured.")
        compare("steps", ours, size, given.repeats)
        compare("ippo", ours, size, given.repeats)


if __name__ == "__main__":
    main()
