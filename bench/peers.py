"""The speed of flockrl and of other libraries on the same work, measured in one run, with ratios. Installs nothing.

    python bench/peers.py [--jaxmarl VENV [--jaxmarl-source CHECKOUT]] [--xuance VENV] [--repeats 3] [--only WORK ...]

VENV is a virtual environment in which the peer is importable; flockrl runs in the interpreter that runs this file.
Workloads, on simple_spread with three agents; networks have layers of 64 and are shared by all agents unless said:

    steps      random discrete actions, all in one compiled loop, resets included
    ippo       tanh networks, 128-step rollouts, 4 epochs of 4 minibatches
    mappo-gru  the same with a GRU of 64 between the layers, and critics that read all observations
    vdn        16 environments, rollouts of 26 steps, then 4 gradient steps on 256 transitions each
    qmix       a GRU of 64 after one layer; 16 environments, rollouts of 26 steps, then a gradient step on 32 of these
    ippo-16    ippo with 16 environments and fewer steps, for peers that step environments on the host
    mappo-16   the same with critics that read all observations
    maddpg-16  16 environments with real actions, networks of each agent's own, a gradient step on 256 transitions for
               every step of all environments, from step 256 on

JaxMARL ships its environments but not its learners: all but `steps` needs a checkout of its repository, whose files
under `baselines/` are run as they are, with these sizes and their logger and tests off. It has no MAPPO without memory
for this environment. Its critics compute a row for each agent, ours one for the team. Install it for instance with

    python -m venv peers && peers/bin/pip install jaxmarl distrax flashbax hydra-core omegaconf
    git clone https://github.com/FLAIROx/JaxMARL

XuanCe runs its own learners on PettingZoo's simple_spread, in one process as its DummyVecMultiAgentEnv does, without
layer normalisation. Compilation and the first rollout and update are not counted. BenchMARL and AgileRL have no entry
here.

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
from typing import Any, NamedTuple

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

FLOCKRL_TRAIN = (
    STEPS
    + """
import flockrl
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.envs import make
from flockrl.algos.presets import make_config
from flockrl.training.programs import make_program
name, env, settings = size["name"], size["env"], size["settings"]
options = TrainOptions(steps=B * T, envs=B)
program = make_program(RunConfig(name, env, options, make_config(name, settings)), make(env))
def play(key):
    return program.advance(program.init(key), key, T // settings["rollout_steps"])[2]
version = flockrl.__version__
"""
)

JAXMARL_SOURCE = (
    STEPS
    + """
import types
quiet = types.ModuleType("wandb")
quiet.log = lambda metric: None
sys.modules["wandb"] = quiet
import jaxmarl
version = jaxmarl.__version__
shared = {"ENV_NAME": "MPE_simple_spread_v3", "ENV_KWARGS": {}, "NUM_ENVS": B, "TOTAL_TIMESTEPS": B * T}
"""
)

JAXMARL_PPO = """
shared |= {
    "NUM_STEPS": 128, "UPDATE_EPOCHS": 4, "NUM_MINIBATCHES": 4, "LR": 2e-3, "ANNEAL_LR": True, "GAMMA": 0.95,
    "GAE_LAMBDA": 0.9, "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh",
    "FC_DIM_SIZE": 64, "GRU_HIDDEN_DIM": 64, "SCALE_CLIP_EPS": False,
}
"""

JAXMARL_IPPO = (
    JAXMARL_SOURCE
    + JAXMARL_PPO
    + """
sys.path.insert(0, size["source"] + "/baselines/IPPO")
from ippo_ff_mpe import make_train
play = make_train(shared)
"""
)

JAXMARL_MAPPO_GRU = (
    JAXMARL_SOURCE
    + JAXMARL_PPO
    + """
sys.path.insert(0, size["source"] + "/baselines/MAPPO")
from mappo_rnn_mpe import make_train
play = make_train(shared)
"""
)

JAXMARL_Q = """
shared |= {
    "NUM_STEPS": 26, "EPS_START": 1.0, "EPS_FINISH": 0.05, "EPS_DECAY": 0.2, "MAX_GRAD_NORM": 10, "TAU": 1.0,
    "TARGET_UPDATE_INTERVAL": 200, "LR": 1e-3, "LR_LINEAR_DECAY": True, "GAMMA": 0.95, "HIDDEN_SIZE": 64,
    "LEARNING_STARTS": 32 * 26 * B, "TEST_DURING_TRAINING": False, "TEST_NUM_ENVS": 2, "TEST_NUM_STEPS": 26,
    "TEST_INTERVAL": 1.0, "WANDB_MODE": "disabled",
}
sys.path.insert(0, size["source"] + "/baselines/QLearning")
def with_words(train):
    return lambda key: train(jax.random.key_data(key))  # it reads the words of its key
"""

JAXMARL_VDN = (
    JAXMARL_SOURCE
    + JAXMARL_Q
    + """
from vdn_ff import env_from_config, make_train
more = {"NUM_LAYERS": 2, "BUFFER_SIZE": 128 * 26 * B, "BUFFER_BATCH_SIZE": 256, "NUM_EPOCHS": 4}
play = with_words(make_train({**shared, **more}, env_from_config(dict(shared))[0]))
"""
)

JAXMARL_QMIX = (
    JAXMARL_SOURCE
    + JAXMARL_Q
    + """
from qmix_rnn import env_from_config, make_train
more = {"MIXER_EMBEDDING_DIM": 32, "MIXER_HYPERNET_HIDDEN_DIM": 64, "MIXER_INIT_SCALE": 0.001, "BUFFER_SIZE": 128 * B,
        "BUFFER_BATCH_SIZE": 32, "NUM_EPOCHS": 1}
play = with_words(make_train({**shared, **more}, env_from_config(dict(shared))[0]))
"""
)

COMPILED = """
compiled = jax.jit(play).lower(jax.random.key(0)).compile()
def run(seed):
    jax.block_until_ready(compiled(jax.random.key(seed)))
run(0)
version += ", jax " + jax.__version__
"""

XUANCE = """
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
usual = dict(
    parallels=B, vectorize="DummyVecMultiAgentEnv", gamma=0.95, running_steps=B * (T + 128), render=False,
    render_mode=None,
)
def start(name, method, **own):
    args = get_arguments(method, "mpe", "simple_spread_v3", parser_args=SimpleNamespace(**usual, **own))
    if hasattr(args, "normalize"):
        del args.normalize  # no layer normalisation
    envs = make_envs(args)
    envs.reset()
    agents = REGISTRY_Agents[name](args, envs)
    agents.train(128)
    return agents
def run(seed):
    agents.train(T)
version = version_of("xuance") + ", torch " + torch.__version__
"""

XUANCE_PPO = """
ppo = dict(
    continuous_action=False, policy="Categorical_MAAC_Policy", representation_hidden_size=[64], actor_hidden_size=[64],
    critic_hidden_size=[64], activation="tanh", use_parameter_sharing=True, buffer_size=128 * B, n_epochs=4,
    n_minibatch=4, learning_rate=2e-3, gae_lambda=0.9,
)
"""

XUANCE_IPPO = XUANCE + XUANCE_PPO + 'agents = start("IPPO", "ippo", **ppo)\n'
XUANCE_MAPPO = XUANCE + XUANCE_PPO + 'agents = start("MAPPO", "mappo", **ppo)\n'

XUANCE_MADDPG = (
    XUANCE
    + """
agents = start(
    "MADDPG", "maddpg", continuous_action=True, representation_hidden_size=[], actor_hidden_size=[64, 64],
    critic_hidden_size=[64, 64], activation="relu", use_parameter_sharing=False, buffer_size=100_000, batch_size=256,
    start_training=256, training_frequency=B, n_epochs=1,
)
"""
)

TIMED = """
began = time.perf_counter()
run(1)
print(json.dumps({"rate": B * T / (time.perf_counter() - began), "version": version}))
"""

PPO = {"rollout_steps": 128, "epochs": 4, "minibatches": 4, "hidden": (64, 64), "share": "all"}
Q = {"rollout_steps": 26, "share": "all", "buffer_size": 128 * 26 * 16, "learning_starts": 32 * 26 * 16, "gamma": 0.95}
VDN = {**Q, "hidden": (64, 64), "batch_size": 256, "steps_per_update": 104}
QMIX = {
    **Q, "hidden": (64,), "memory": "gru", "memory_size": 64, "sequence": 26, "batch_size": 32, "steps_per_update": 416,
    "mixer_size": 32, "hyper_size": 64,
}  # fmt: skip
MADDPG = {
    "rollout_steps": 16, "hidden": (64, 64), "share": "none", "batch_size": 256, "steps_per_update": 16,
    "buffer_size": 100_000, "learning_starts": 256, "gamma": 0.95,
}  # fmt: skip
SPREAD, REAL = "mpe/simple_spread", "mpe/simple_spread:continuous_actions=true"


class Work(NamedTuple):
    """One workload: who runs which code; what flockrl trains, and where; environments and steps of each, 0 for those
    that were asked for."""

    codes: dict[str, str]
    name: str = ""
    settings: dict[str, Any] | None = None
    env: str = SPREAD
    envs: int = 0
    steps: int = 0


TRAIN = FLOCKRL_TRAIN + COMPILED
WORK: dict[str, Work] = {
    "steps": Work({"flockrl": FLOCKRL_STEPS + COMPILED, "jaxmarl": JAXMARL_STEPS + COMPILED}),
    "ippo": Work({"flockrl": TRAIN, "jaxmarl": JAXMARL_IPPO + COMPILED}, "ippo", PPO),
    "mappo-gru": Work(
        {"flockrl": TRAIN, "jaxmarl": JAXMARL_MAPPO_GRU + COMPILED},
        "mappo",
        {**PPO, "memory": "gru", "memory_size": 64},
    ),
    "vdn": Work({"flockrl": TRAIN, "jaxmarl": JAXMARL_VDN + COMPILED}, "vdn", VDN, envs=16, steps=26 * 160),
    "qmix": Work({"flockrl": TRAIN, "jaxmarl": JAXMARL_QMIX + COMPILED}, "qmix", QMIX, envs=16, steps=26 * 160),
    "ippo-16": Work({"flockrl": TRAIN, "xuance": XUANCE_IPPO}, "ippo", PPO, envs=16, steps=512),
    "mappo-16": Work({"flockrl": TRAIN, "xuance": XUANCE_MAPPO}, "mappo", PPO, envs=16, steps=512),
    "maddpg-16": Work({"flockrl": TRAIN, "xuance": XUANCE_MADDPG}, "maddpg", MADDPG, REAL, envs=16, steps=512),
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
    work = WORK[name]
    size = {
        **size, "envs": work.envs or size["envs"], "steps": work.steps or size["steps"], "name": work.name,
        "settings": work.settings, "env": work.env,
    }  # fmt: skip
    rates: dict[str, list[float]] = {}
    about: dict[str, str] = {}
    for _ in range(repeats):
        for who, python in pythons.items():
            found = measure(python, work.codes[who], size)
            if "error" in found:
                about[who] = found["error"]
                continue
            rates.setdefault(who, []).append(found["rate"])
            about[who] = found["version"]
    ours = statistics.median(rates["flockrl"]) if "flockrl" in rates else None
    for who in pythons:
        if who not in rates:
            print(f"{name:11}{who:10}failed: {about[who]}")
            continue
        rate = statistics.median(rates[who])
        ratio = f"  flockrl / {who} = {ours / rate:.2f}" if ours and who != "flockrl" else ""
        spread = f"{min(rates[who]):,.0f} to {max(rates[who]):,.0f}"
        print(f"{name:11}{who:10}{rate:>12,.0f} steps/s ({spread})  [{about[who]}]{ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jaxmarl", type=Path, help="virtual environment in which jaxmarl is importable")
    parser.add_argument("--jaxmarl-source", type=Path, help="checkout of JaxMARL's repository, for its learners")
    parser.add_argument("--xuance", type=Path, help="virtual environment in which xuance is importable")
    parser.add_argument("--envs", type=int, default=128, help="parallel environments")
    parser.add_argument("--steps", type=int, default=128 * 20, help="steps of each environment, a multiple of 128")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=WORK, default=list(WORK), help="workloads to measure")
    given = parser.parse_args()
    if given.steps < 128 or given.steps % 128 or given.envs < 1 or given.envs % 4 or given.repeats < 1:
        parser.error("steps must be a multiple of 128, envs one of 4, and repeats at least 1")
    size = {"envs": given.envs, "steps": given.steps, "source": str(given.jaxmarl_source)}
    peers = {"jaxmarl": given.jaxmarl, "xuance": given.xuance}
    if not any(peers.values()):
        print("No peer given: only flockrl is measured.")
    for name in given.only:
        peer = next(who for who in WORK[name].codes if who != "flockrl")
        if any(peers.values()) and not peers[peer]:
            continue
        if peer == "jaxmarl" and given.jaxmarl and name != "steps" and not given.jaxmarl_source:
            print(f"{name}: JaxMARL's learners need --jaxmarl-source.")
            continue
        pythons = {"flockrl": sys.executable}
        if peers[peer]:
            pythons[peer] = interpreter(peers[peer])
        compare(name, pythons, size, given.repeats)


if __name__ == "__main__":
    main()
