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


A2C = {"epochs": 1, "minibatches": 1, "clip": None, "rollout_steps": 25}

PRESETS: dict[str, Preset] = {
    "ppo": Preset("ppo", "PPOConfig", {"critic": "own"}, "proximal policy optimisation for one agent", True),
    "ippo": Preset("ppo", "PPOConfig", {"critic": "own"}, "independent PPO: every critic sees its agent's observation"),
    "mappo": Preset("ppo", "PPOConfig", {"critic": "central"}, "multi-agent PPO: critics see the global state"),
    "ia2c": Preset("ppo", "PPOConfig", {"critic": "own", **A2C}, "independent advantage actor-critic"),
    "maa2c": Preset("ppo", "PPOConfig", {"critic": "central", **A2C}, "advantage actor-critic with central critics"),
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
        raise UsageError(f"{name} trains one agent, and {spec.name} has {spec.num_agents}: use ippo or mappo instead.")
    module = importlib.import_module(f"flockrl.algos.{chosen.family}")
    return module.make(spec, config, envs=envs, updates=updates)
