"""What flockrl can do around any outside environment: settings on its name that are not the environment's own."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flockrl.errors import UsageError

LIMITS = ("max_cycles", "max_steps", "max_episode_steps", "_max_episode_steps", "max_frames")
"""Attributes under which environments keep the length of an episode."""


@dataclass(frozen=True)
class Options:
    """Settings that every outside environment takes."""

    max_steps: int | None = None
    """Steps after which an episode is truncated; by default the environment's own limit, or 1,000."""
    team_reward: bool = False
    """Give every agent the sum of all rewards."""

    def reward(self, reward: np.ndarray) -> np.ndarray:
        return np.full_like(reward, reward.sum()) if self.team_reward else reward


def split(name: str, settings: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """Our options, and what is left for the environment."""
    own = {field.name: field for field in dataclasses.fields(Options)}
    for key, value in settings.items():
        if key == "max_steps" and not (isinstance(value, int) and value > 0):
            raise UsageError(f"{name}: max_steps must be a whole number of at least 1, not {value!r}.")
        if key == "team_reward" and not isinstance(value, bool):
            raise UsageError(f"{name}: team_reward must be true or false, not {value!r}.")
    ours = {key: value for key, value in settings.items() if key in own}
    return Options(**ours), {key: value for key, value in settings.items() if key not in own}


def time_limit(env: Any) -> int | None:
    """The length of an environment's episodes, where it says it."""
    spec = getattr(env, "spec", None)
    if limit := getattr(spec, "max_episode_steps", None):
        return int(limit)
    core = getattr(env, "unwrapped", env)
    for place in (env, core, getattr(core, "env", None)):
        for word in LIMITS:
            value = getattr(place, word, None)
            if isinstance(value, int | np.integer) and not isinstance(value, bool) and value > 0:
                return int(value)
    return None


def load(module: str, suite: str, extras: Mapping[str, str] | None = None) -> Any:
    """Import a module, or say what to install or what it might be called."""
    top = module.partition(".")[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about how others would rather be imported
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or top
        if missing == top:
            extra = (extras or {}).get(top, suite)
            raise UsageError(f"{suite}/{module} needs the package {top}: pip install 'flockrl[{extra}]'.") from error
        if module == missing or module.startswith(f"{missing}."):
            raise UsageError(f"There is no module {module!r} in the installed {top}.{_siblings(module)}") from error
        raise UsageError(f"{suite}/{module} needs the package {missing}: pip install {missing}.") from error
    except ImportError as error:
        raise UsageError(f"{suite}/{module} cannot be imported: {error}.") from error


def _siblings(module: str) -> str:
    import pkgutil

    from flockrl.errors import nearest

    parent, _, short = module.rpartition(".")
    try:
        names = [found.name for found in pkgutil.iter_modules(importlib.import_module(parent).__path__)]
    except (ImportError, AttributeError):
        return ""
    return nearest(short, [name for name in names if not name.startswith("_")])
