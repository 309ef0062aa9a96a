"""What flockrl can do around any outside environment: settings on its name that are not the environment's own."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError, install, nearest

LIMITS = ("max_cycles", "max_steps", "max_episode_steps", "_max_episode_steps", "max_frames")
"""Attributes under which environments keep the length of an episode."""


@dataclass(frozen=True)
class Options:
    """Settings that every outside environment takes."""

    max_steps: int | None = None
    """Steps after which an episode is truncated; by default the environment's own limit, or 1,000."""
    team_reward: bool = False
    """Give every agent the sum of all rewards."""
    sides: str | None = None
    """Who plays together, as in adversary+lead/agent; `together`, or `stems`; by default by names and rewards."""
    reward_after_death: bool = False
    """Give agents that died the mean reward of the living of their side, until the last of it is dead."""
    grey: bool = False
    """Pictures without their colours."""
    resize: int | None = None
    """Side of a square to which pictures are shrunk, 0 for as they are; by default 42 where a side is above 64."""
    stack: int = 1
    """Pictures that are seen at once, the newest and those before it."""

    def reward(self, reward: np.ndarray, alive: np.ndarray | None = None, sides: tuple[str, ...] = ()) -> np.ndarray:
        """What agents are paid [N]. alive: [N] who acted; sides: of each agent."""
        reward = np.full_like(reward, reward.sum()) if self.team_reward else reward
        if not self.reward_after_death or alive is None or alive.all():
            return reward
        names, paid = np.array(sides), reward.copy()
        for i in np.flatnonzero(~alive):
            mates = alive & (names == names[i])
            paid[i] = reward[mates].mean() if mates.any() else 0.0
        return paid


PLAIN = Options()


def split(name: str, settings: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """Our options, and what is left for the environment."""
    own = {field.name: field for field in dataclasses.fields(Options)}
    least = {"max_steps": 1, "resize": 0, "stack": 1}
    for key, value in settings.items():
        if key in least and not (type(value) is int and value >= least[key]):
            raise UsageError(f"{name}: {key} must be a whole number of at least {least[key]}, not {value!r}.")
        if key == "sides" and not isinstance(value, str):
            raise UsageError(f"{name}: write sides as in sides=adversary/agent, not {value!r}.")
        if key in ("team_reward", "reward_after_death", "grey") and not isinstance(value, bool):
            raise UsageError(f"{name}: {key} must be true or false, not {value!r}.")
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


def draw_quietly() -> None:
    """Keep pygame from greeting, and from looking for a screen and loudspeakers that are not there."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")) and sys.platform == "linux":
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


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
            raise UsageError(f"{suite}/{module} needs the package {top}: {install(extra)}.") from error
        if module == missing or module.startswith(f"{missing}."):
            raise UsageError(f"There is no module {module!r} in the installed {top}.{_siblings(module)}") from error
        raise UsageError(f"{suite}/{module} needs the package {missing}: pip install {missing}.") from error
    except ImportError as error:
        raise UsageError(f"{suite}/{module} cannot be imported: {error}.") from error


def _siblings(module: str) -> str:
    import pkgutil

    parent, _, short = module.rpartition(".")
    try:
        names = [found.name for found in pkgutil.iter_modules(importlib.import_module(parent).__path__)]
    except (ImportError, AttributeError):
        return ""
    return nearest(short, [name for name in names if not name.startswith("_")])
