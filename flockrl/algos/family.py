"""What a family of learners is: one small description beside its `make`, which everything else reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from flockrl.core.types import Algorithm


def _no(config: Any) -> bool:
    return False


def _has_memory(config: Any) -> bool:
    words = getattr(config, "memory", "none") != "none" or getattr(config, "recurrent", False)
    return words or getattr(config, "mean_field", False)


@dataclass(frozen=True)
class Family:
    """A family of learners. The functions take the family's config.

    make(spec, config, *, envs, updates) -> Algorithm
    """

    make: Callable[..., Algorithm]
    config: type
    on_policy: bool = False
    """It learns from its own fresh experience only, so neither from recordings nor from late trajectories."""
    logp: bool = False
    """It needs the log-probability of every action in `Trajectory.extras`."""
    discrete: bool = True
    """It takes discrete actions."""
    continuous: bool = True
    """It takes continuous actions."""
    factorised: bool = False
    """It takes several discrete actions at once (MultiDiscrete)."""
    memory: Callable[[Any], bool] = _has_memory
    """Whether its agents remember, so that it learns from whole episodes or stretches of them."""
    central: Callable[[Any], bool] = _no
    """Whether it reads the global state."""
    joint_actions: Callable[[Any], bool] = _no
    """Whether it reads the actions of all agents."""
    bonus: Literal["advantage", "replay", "reward"] = "reward"
    """How it takes an exploration bonus, see `algos.wrappers.bonus`."""
    grows: Callable[[Any], bool] = _no
    """Whether another agent can join while it learns."""
    live: tuple[str, ...] = ()
    """Settings that may change while it learns: numbers that its updates compute with, and that nothing is compiled
    for."""
