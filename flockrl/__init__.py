"""flockrl: multi-agent deep reinforcement learning on JAX.

run = flockrl.train("mappo", "mpe/simple_spread", steps=1_000_000, seed=0)
run.evaluate(episodes=100)
policy = run.policy()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flockrl.callbacks import Callback
    from flockrl.envs import make as make_env
    from flockrl.errors import UsageError
    from flockrl.portable.write import export
    from flockrl.run import Run
    from flockrl.spec import Box, Discrete, EnvSpec
    from flockrl.trainer import Trainer
    from flockrl.training import resume, train
    from flockrl.types import EvalResult, Observation, Trajectory

__version__ = "0.1.0"
__all__ = [
    "Box",
    "Callback",
    "Discrete",
    "EnvSpec",
    "EvalResult",
    "Observation",
    "Run",
    "Trainer",
    "Trajectory",
    "UsageError",
    "export",
    "make_env",
    "resume",
    "train",
]

_HOMES = {
    "Box": "spec", "Callback": "callbacks", "Discrete": "spec", "EnvSpec": "spec", "EvalResult": "types",
    "Observation": "types", "Run": "run", "Trainer": "trainer", "Trajectory": "types", "UsageError": "errors",
    "export": "portable.write",
    "make_env": "envs", "resume": "training", "train": "training",
}  # fmt: skip
"""Where each name lives. It is imported when it is first asked for, so that `flockrl.relay` needs no JAX."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        if name in ("callbacks", "envs", "types"):  # parts that people reach through the package
            return importlib.import_module(f"flockrl.{name}")
        raise AttributeError(f"module 'flockrl' has no attribute {name!r}")
    home = importlib.import_module(f"flockrl.{_HOMES[name]}")
    value = globals()[name] = getattr(home, "make" if name == "make_env" else name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
