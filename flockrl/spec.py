"""What an environment looks like from outside: spaces and specs, and both as JSON. Needs numpy alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flockrl.errors import UsageError


@dataclass(frozen=True)
class Discrete:
    """Actions 0 .. n-1."""

    n: int

    @property
    def size(self) -> int:
        return self.n


@dataclass(frozen=True)
class Box:
    """Real numbers with bounds: one number for all entries, or one per entry of a vector."""

    shape: tuple[int, ...]
    low: float | tuple[float, ...] = -np.inf
    high: float | tuple[float, ...] = np.inf
    dtype: str = "float32"

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


Space = Discrete | Box


@dataclass(frozen=True)
class EnvSpec:
    """What an environment looks like from outside. All of it is static: nothing here is traced.

    `agents` gives the names and with them N and the order of the agent axis. `observations` and
    `actions` give each agent's own spaces; arrays are padded with zeros to the largest of them.
    `groups[i]` is the kind of agent i (agents of one kind have equal spaces and may share
    parameters), `teams[i]` the side it plays for. `state_size` is the size of the global state, or
    0 when the environment has none of its own and the concatenated observations stand for it.
    `max_steps` is the length after which an episode is truncated at the latest.
    """

    name: str
    agents: tuple[str, ...]
    observations: tuple[Box, ...]
    actions: tuple[Space, ...]
    max_steps: int
    groups: tuple[int, ...] = ()
    teams: tuple[int, ...] = ()
    state_size: int = 0

    def __post_init__(self) -> None:
        n = len(self.agents)
        if not n or len(self.observations) != n or len(self.actions) != n:
            raise UsageError(
                f"{self.name}: agents, observations and actions must have one entry per agent, "
                f"not {n}, {len(self.observations)} and {len(self.actions)}."
            )
        if len({type(space) for space in self.actions}) != 1:
            raise UsageError(f"{self.name}: all agents must have discrete actions, or all continuous ones.")
        object.__setattr__(self, "teams", tuple(self.teams) or (0,) * n)
        object.__setattr__(self, "groups", tuple(self.groups) or self._kinds())
        if len(self.teams) != n or len(self.groups) != n:
            raise UsageError(f"{self.name}: teams and groups must have one entry per agent ({n}).")

    def _kinds(self) -> tuple[int, ...]:
        """Agents are of one kind when team, spaces and the name before its number agree."""
        seen: dict[Any, int] = {}
        stems = [re.sub(r"[_ ]?\d+$", "", agent) for agent in self.agents]
        keys = zip(self.teams, stems, self.observations, self.actions, strict=True)
        return tuple(seen.setdefault(key, len(seen)) for key in keys)

    @property
    def picture(self) -> tuple[int, ...]:
        """[height, width, channels] of the agents' observations when they are pictures, else ()."""
        shapes = {
            space.shape if space.dtype == "uint8" and len(space.shape) == 3 else () for space in self.observations
        }
        return shapes.pop() if len(shapes) == 1 else ()

    @property
    def num_agents(self) -> int:
        """N."""
        return len(self.agents)

    @property
    def obs_size(self) -> int:
        """O: the largest observation, to which the others are padded."""
        return max(space.size for space in self.observations)

    @property
    def action_size(self) -> int:
        """A: the largest number of actions, or of action dimensions."""
        return max(space.size for space in self.actions)

    @property
    def own_actions(self) -> np.ndarray:
        """[N, A] bool: the actions (or action dimensions) that each agent has at all; the others are padding."""
        return np.arange(self.action_size) < np.array([space.size for space in self.actions])[:, None]

    @property
    def discrete(self) -> bool:
        return isinstance(self.actions[0], Discrete)

    @property
    def central_size(self) -> int:
        """Size of what a centralised critic reads: the global state, or all observations side by side."""
        return self.state_size or sum(space.size for space in self.observations)


def spec_to_json(spec: EnvSpec) -> dict[str, Any]:
    """A spec as plain values that JSON can hold; null stands for a bound that is not there."""
    return {
        "name": spec.name,
        "agents": list(spec.agents),
        "observations": [_space_to_json(space) for space in spec.observations],
        "actions": [_space_to_json(space) for space in spec.actions],
        "max_steps": spec.max_steps,
        "groups": list(spec.groups),
        "teams": list(spec.teams),
        "state_size": spec.state_size,
    }


def _space_to_json(space: Space) -> dict[str, Any]:
    if isinstance(space, Discrete):
        return {"kind": "discrete", "n": space.n}
    low, high = _bound_to_json(space.low), _bound_to_json(space.high)
    return {"kind": "box", "shape": list(space.shape), "low": low, "high": high, "dtype": space.dtype}


def _bound_to_json(bound: Any) -> Any:
    if isinstance(bound, tuple):
        return [_bound_to_json(x) for x in bound]
    return float(bound) if math.isfinite(bound) else None


def spec_from_json(saved: Any) -> EnvSpec:
    """The spec that `spec_to_json` wrote. Anything else is an error that names what is wrong."""
    if not isinstance(saved, Mapping):
        raise UsageError(f"An environment's spec must be an object, not {_short(saved)}.")
    names = ("name", "agents", "observations", "actions", "max_steps", "groups", "teams", "state_size")
    for name in names:
        if name not in saved:
            raise UsageError(f"The environment's spec has no {name!r}.")
    groups, teams = (tuple(_whole(x, what, 0) for x in _list(saved[what], what)) for what in ("groups", "teams"))
    return EnvSpec(
        name=_text(saved["name"], "name"),
        agents=tuple(_text(x, "agents") for x in _list(saved["agents"], "agents")),
        observations=tuple(_box(x) for x in _list(saved["observations"], "observations")),
        actions=tuple(_space(x) for x in _list(saved["actions"], "actions")),
        max_steps=_whole(saved["max_steps"], "max_steps", 1),
        groups=groups,
        teams=teams,
        state_size=_whole(saved["state_size"], "state_size", 0),
    )


def _space(saved: Any) -> Space:
    if isinstance(saved, Mapping) and saved.get("kind") == "discrete":
        return Discrete(_whole(saved.get("n"), "n", 1))
    return _box(saved)


def _box(saved: Any) -> Box:
    if not isinstance(saved, Mapping) or saved.get("kind") != "box":
        raise UsageError(f'A space must be an object of kind "box" (or "discrete" for actions), not {_short(saved)}.')
    shape = tuple(_whole(x, "shape", 0) for x in _list(saved.get("shape"), "shape"))
    low, high = _bound(saved.get("low"), "low", -np.inf), _bound(saved.get("high"), "high", np.inf)
    dtype = saved.get("dtype")
    if dtype not in ("float32", "uint8"):
        raise UsageError(f"A space's dtype must be float32 or uint8, not {_short(dtype)}.")
    for what, bound in (("low", low), ("high", high)):
        if isinstance(bound, tuple) and len(bound) != math.prod(shape):
            raise UsageError(f"A space of shape {list(shape)} has {len(bound)} numbers in {what!r}.")
    return Box(shape, low, high, dtype)


def _bound(saved: Any, what: str, missing: float) -> float | tuple[float, ...]:
    if isinstance(saved, list | tuple):
        return tuple(_number(x, what, missing) for x in saved)
    return _number(saved, what, missing)


def _number(x: Any, what: str, missing: float) -> float:
    if x is None:
        return missing
    if isinstance(x, bool) or not isinstance(x, int | float) or not abs(x) < 2.0**128:  # nor nan
        raise UsageError(f"{what!r} of a space must be finite numbers or null, not {_short(x)}.")
    return float(x)


def _whole(x: Any, what: str, least: int) -> int:
    if isinstance(x, bool) or not isinstance(x, int) or not least <= x < 2**31:
        raise UsageError(f"{what!r} of the environment's spec must be whole numbers from {least} on, not {_short(x)}.")
    return x


def _text(x: Any, what: str) -> str:
    if not isinstance(x, str):
        raise UsageError(f"{what!r} of the environment's spec must be text, not {_short(x)}.")
    return x


def _list(x: Any, what: str) -> list[Any] | tuple[Any, ...]:
    if not isinstance(x, list | tuple):
        raise UsageError(f"{what!r} of the environment's spec must be a list, not {_short(x)}.")
    return x


def _short(x: Any) -> str:
    """A value in an error message, cut where it is long."""
    text = repr(x)
    return text if len(text) <= 60 else text[:57] + "..."
