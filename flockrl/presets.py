"""The names people know: each is a family and the arguments that make it what it is."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from flockrl.config import build
from flockrl.errors import UsageError, nearest
from flockrl.types import Algorithm, EnvSpec


class Preset(NamedTuple):
    """family: module under `flockrl.algos` with `make`; config: its config class; settings: what the name fixes."""

    family: str
    config: str
    settings: Mapping[str, Any]
    summary: str
    single_agent: bool = False


OWN, CENTRAL = {"critic": "own"}, {"critic": "central"}
A2C = {"epochs": 1, "minibatches": 1, "clip": None, "rollout_steps": 25}

PRESETS: dict[str, Preset] = {
    "ppo": Preset("ppo", "PPOConfig", OWN, "proximal policy optimisation for one agent", True),
    "ippo": Preset("ppo", "PPOConfig", OWN, "independent PPO: every critic sees its agent's observation"),
    "mappo": Preset("ppo", "PPOConfig", CENTRAL, "multi-agent PPO: critics see the global state"),
    "ia2c": Preset("ppo", "PPOConfig", {**OWN, **A2C}, "independent advantage actor-critic"),
    "maa2c": Preset("ppo", "PPOConfig", {**CENTRAL, **A2C}, "advantage actor-critic with central critics"),
    "ddpg": Preset("ddpg", "DDPGConfig", OWN, "deep deterministic policy gradient for one agent", True),
    "iddpg": Preset("ddpg", "DDPGConfig", OWN, "independent DDPG"),
    "maddpg": Preset("ddpg", "DDPGConfig", CENTRAL, "DDPG with critics of all observations and actions"),
    "td3": Preset("td3", "TD3Config", OWN, "twin delayed DDPG for one agent", True),
    "itd3": Preset("td3", "TD3Config", OWN, "independent TD3"),
    "matd3": Preset("td3", "TD3Config", CENTRAL, "TD3 with critics of all observations and actions"),
    "sac": Preset("sac", "SACConfig", OWN, "soft actor-critic for one agent", True),
    "isac": Preset("sac", "SACConfig", OWN, "independent SAC"),
    "masac": Preset("sac", "SACConfig", CENTRAL, "SAC with critics of all observations and actions"),
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
    if chosen.single_agent and spec.num_agents != 1:
        raise UsageError(
            f"{name} trains one agent, and {spec.name} has {spec.num_agents}: use i{name} or ma{name} instead."
        )
    module = importlib.import_module(f"flockrl.algos.{chosen.family}")
    return module.make(spec, config, envs=envs, updates=updates)
