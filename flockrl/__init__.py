"""flockrl: multi-agent deep reinforcement learning on JAX.

run = flockrl.train("mappo", "mpe/simple_spread", steps=1_000_000, seed=0)
run.evaluate(episodes=100)
policy = run.policy()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flockrl.algos.family import Family
    from flockrl.algos.presets import register
    from flockrl.core.callbacks import Callback, Moment
    from flockrl.core.errors import UsageError
    from flockrl.core.spec import Box, Discrete, EnvSpec, MultiDiscrete
    from flockrl.core.types import Actor, Algorithm, EvalResult, Observation, Trajectory
    from flockrl.envs.checks import check as check_env
    from flockrl.envs.host.env import HostEnv
    from flockrl.envs.registry import make as make_env
    from flockrl.policies.policy import Policy
    from flockrl.portable.write import export
    from flockrl.training.exploit import exploit
    from flockrl.training.players import match
    from flockrl.training.run import Run
    from flockrl.training.train import resume, train
    from flockrl.training.trainer import Trainer

__version__ = "0.1.0"

_HOMES = {
    "Actor": "core.types", "Algorithm": "core.types", "Box": "core.spec", "Callback": "core.callbacks",
    "Discrete": "core.spec", "EnvSpec": "core.spec", "EvalResult": "core.types", "Family": "algos.family",
    "HostEnv": "envs.host.env", "Moment": "core.callbacks", "MultiDiscrete": "core.spec",
    "Observation": "core.types", "Policy": "policies.policy",
    "Run": "training.run", "Trainer": "training.trainer", "Trajectory": "core.types", "UsageError": "core.errors",
    "check_env": "envs.checks:check", "exploit": "training.exploit", "export": "portable.write",
    "make_env": "envs.registry:make",
    "match": "training.players", "register": "algos.presets", "resume": "training.train", "train": "training.train",
}  # fmt: skip
"""Where each name lives. It is imported when it is first asked for, so that `flockrl.relay` needs no JAX."""
_PARTS = {
    "callbacks": "core.callbacks",
    "envs": "envs",
    "games": "games",
    "relay": "relay",
    "teams": "evaluation.matches",
    "types": "types",
}
"""Parts that people reach through the package."""

__all__ = [
    "Actor",
    "Algorithm",
    "Box",
    "Callback",
    "Discrete",
    "EnvSpec",
    "EvalResult",
    "Family",
    "HostEnv",
    "Moment",
    "MultiDiscrete",
    "Observation",
    "Policy",
    "Run",
    "Trainer",
    "Trajectory",
    "UsageError",
    "check_env",
    "exploit",
    "export",
    "make_env",
    "match",
    "register",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"flockrl.{_PARTS[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'flockrl' has no attribute {name!r}")
    home, _, called = _HOMES[name].partition(":")
    value = globals()[name] = getattr(importlib.import_module(f"flockrl.{home}"), called or name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
