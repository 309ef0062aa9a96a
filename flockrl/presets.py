"""The names people know: each is a family and the arguments that make it what it is."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from flockrl.config import build
from flockrl.errors import UsageError, nearest
from flockrl.types import Algorithm, EnvSpec


class Preset(NamedTuple):
    """family: module under `flockrl.algos` with `make`; config: its config class; settings: what the name fixes.

    instead: for a learner of one agent, what to use with more of them. recorded: whether it learns from recorded
    trajectories only.
    """

    family: str
    config: str
    settings: Mapping[str, Any]
    summary: str
    instead: str = ""
    recorded: bool = False


OWN, CENTRAL = {"critic": "own"}, {"critic": "central"}
OWN_BASE, CENTRAL_BASE = {"baseline": "own"}, {"baseline": "central"}
MIXED = {"lr": 1e-3, "tau": 0.005}
A2C = {"epochs": 1, "minibatches": 1, "clip": None, "rollout_steps": 25}

PRESETS: dict[str, Preset] = {
    "ppo": Preset("ppo", "PPOConfig", OWN, "proximal policy optimisation for one agent", "ippo or mappo"),
    "ippo": Preset("ppo", "PPOConfig", OWN, "independent PPO: every critic sees its agent's observation"),
    "mappo": Preset("ppo", "PPOConfig", CENTRAL, "multi-agent PPO: critics see the global state"),
    "ia2c": Preset("ppo", "PPOConfig", {**OWN, **A2C}, "independent advantage actor-critic"),
    "maa2c": Preset("ppo", "PPOConfig", {**CENTRAL, **A2C}, "advantage actor-critic with central critics"),
    "reinforce": Preset(
        "reinforce", "ReinforceConfig", OWN_BASE, "REINFORCE for one agent", "ireinforce or mareinforce"
    ),
    "ireinforce": Preset("reinforce", "ReinforceConfig", OWN_BASE, "independent REINFORCE, each with its own baseline"),
    "ipg": Preset("reinforce", "ReinforceConfig", OWN_BASE, "independent policy gradients: ireinforce by another name"),
    "mareinforce": Preset("reinforce", "ReinforceConfig", CENTRAL_BASE, "REINFORCE with baselines of the global state"),
    "ddpg": Preset("ddpg", "DDPGConfig", OWN, "deep deterministic policy gradient for one agent", "iddpg or maddpg"),
    "iddpg": Preset("ddpg", "DDPGConfig", OWN, "independent DDPG"),
    "maddpg": Preset("ddpg", "DDPGConfig", CENTRAL, "DDPG with critics of all observations and actions"),
    "td3": Preset("td3", "TD3Config", OWN, "twin delayed DDPG for one agent", "itd3 or matd3"),
    "itd3": Preset("td3", "TD3Config", OWN, "independent TD3"),
    "matd3": Preset("td3", "TD3Config", CENTRAL, "TD3 with critics of all observations and actions"),
    "sac": Preset("sac", "SACConfig", OWN, "soft actor-critic for one agent", "isac or masac"),
    "isac": Preset("sac", "SACConfig", OWN, "independent SAC"),
    "masac": Preset("sac", "SACConfig", CENTRAL, "SAC with critics of all observations and actions"),
    "dqn": Preset("q_learning", "QConfig", {}, "deep Q-learning for one agent", "iql, vdn or qmix"),
    "iql": Preset("q_learning", "QConfig", {}, "independent Q-learning"),
    "vdn": Preset("q_learning", "QConfig", {"mixer": "sum"}, "value decomposition: the team's value is a sum"),
    "qmix": Preset(
        "q_learning", "QConfig", {"mixer": "monotonic", **MIXED}, "values mixed monotonically by the global state"
    ),
    "qplex": Preset("q_learning", "QConfig", {"mixer": "qplex", **MIXED}, "duplex dueling: joint advantages weigh in"),
    "wqmix": Preset(
        "q_learning", "QConfig", {"mixer": "weighted", **MIXED}, "QMIX that weighs good joint actions more"
    ),
    "qtran": Preset(
        "q_learning", "QConfig", {"mixer": "qtran", **MIXED}, "a free joint value, and a sum that agrees with it"
    ),
    "bc": Preset("bc", "BCConfig", {}, "behaviour cloning: do what a recorded team did", recorded=True),
    "cql": Preset(
        "q_learning", "QConfig", {"conservative": 1.0}, "conservative Q-learning from recorded teams", recorded=True
    ),
    "iql_tabular": Preset("tabular", "TabularConfig", {}, "independent Q-learning with tables, for small games"),
}


def preset(name: str) -> Preset:
    if name not in PRESETS:
        raise UsageError(f"There is no algorithm {name!r}.{nearest(name, PRESETS)}")
    return PRESETS[name]


def make_config(name: str, settings: Mapping[str, Any]) -> Any:
    """The algorithm's config with the preset's values, changed by `settings`."""
    chosen = preset(name)
    cls = getattr(importlib.import_module(f"flockrl.algos.{chosen.family}"), chosen.config)
    return build(cls, {**chosen.settings, **settings}, name)


def make_algorithm(name: str, spec: EnvSpec, config: Any, *, envs: int, updates: int) -> Algorithm:
    """The named algorithm for an environment, as pure functions."""
    chosen = preset(name)
    if chosen.instead and spec.num_agents != 1:
        raise UsageError(
            f"{name} trains one agent, and {spec.name} has {spec.num_agents}: use {chosen.instead} instead."
        )
    module = importlib.import_module(f"flockrl.algos.{chosen.family}")
    return module.make(spec, config, envs=envs, updates=updates)
