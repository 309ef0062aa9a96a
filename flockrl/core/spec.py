"""What an environment looks like from outside: spaces and specs, and both as JSON. Needs numpy alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from flockrl.core.entities import Entities, entities_from_json, entities_to_json
from flockrl.core.errors import UsageError
from flockrl.core.spaces import Box, Discrete, MultiDiscrete, Sight, Space

ONE_SIDE = "team"
"""The name of the side of agents that all play together."""
LONGEST_NAME, MOST_AGENTS, MOST_NUMBERS, MOST_AXES, MOST_PICTURES = 200, 10_000, 1 << 24, 8, 64
"""Limits of what a spec may say that comes from a file: characters of a name, agents, numbers of a space, its axes, its
pictures."""


def stem(agent: str) -> str:
    """An agent's name without its number: adversary_2 -> adversary."""
    bare = agent.rstrip("0123456789")
    return bare[:-1] if bare != agent and bare.endswith(("_", " ")) else bare


@dataclass(frozen=True)
class EnvSpec:
    """What an environment looks like from outside. All of it is static: nothing here is traced.

    `agents` gives the names and with them N and the order of the agent axis. `observations` and
    `actions` give each agent's own spaces; arrays are padded with zeros to the largest of them.
    `groups[i]` is the kind of agent i (agents of one kind have equal spaces and may share
    parameters), `sides[i]` the name of the side it plays for: opponents are on different sides. `state_size`
    is the size of the global state, or 0 when the environment has none of its own and the concatenated
    observations stand for it. `max_steps` is the length after which an episode is truncated at the latest.
    `neighbours` says whether observations tell who perceives whom. `respawn` says whether an agent that died may live
    again in the same episode; all may be dead for a while, then. `reward_after_death` says whether a dead agent still
    earns what the environment pays it, as where a side shares its reward: then its return goes on as long as its side
    lives. Where it is false, an agent's return ends with its life. `anonymous` says that agents are alike but for what
    they observe: policies that they share then do not tell them apart. `counterfactual` says whether the
    environment tells what a step would have paid without an agent (`counterfactual_reward`, see `envs.api`).
    `entities[i]` describes agent i's observation as a set of entities, () where nobody does. `graph[i]` are the agents
    that agent i perceives where that never changes, as on a lattice; () elsewhere. `undiscounted` says that episodes
    end by themselves and only the sum of rewards counts, as in a game that is won or lost: learners then do not
    discount unless they are told to. `whole` is the spec that this one is a `part` of, or None.

    Actions are arrays [N] int32 where all agents have `Discrete` ones. Otherwise they are [N, W] float32, one row
    of numbers per agent: real ones, or the numbers of its choices.
    """

    name: str
    agents: tuple[str, ...]
    observations: tuple[Box, ...]
    actions: tuple[Space, ...]
    max_steps: int
    groups: tuple[int, ...] = ()
    sides: tuple[str, ...] = ()
    state_size: int = 0
    neighbours: bool = False
    respawn: bool = False
    reward_after_death: bool = True
    anonymous: bool = False
    counterfactual: bool = False
    entities: tuple[Entities, ...] = ()
    graph: tuple[tuple[int, ...], ...] = ()
    undiscounted: bool = False
    whole: EnvSpec | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        n = len(self.agents)
        if not n or len(self.observations) != n or len(self.actions) != n:
            raise UsageError(
                f"{self.name}: agents, observations and actions must have one entry per agent, "
                f"not {n}, {len(self.observations)} and {len(self.actions)}."
            )
        object.__setattr__(self, "sides", tuple(self.sides) or (ONE_SIDE,) * n)
        object.__setattr__(self, "groups", tuple(self.groups) or self._kinds())
        if len(self.sides) != n or len(self.groups) != n:
            raise UsageError(f"{self.name}: sides and groups must have one entry per agent ({n}).")
        if not all(isinstance(side, str) for side in self.sides):
            raise UsageError(f"{self.name}: sides are names, one for each agent, not {self.sides}.")
        if self.entities and len(self.entities) != n:
            raise UsageError(f"{self.name}: entities must be described for each agent ({n}), or for none.")
        if self.graph and (len(self.graph) != n or not all(0 <= j < n for near in self.graph for j in near)):
            raise UsageError(f"{self.name}: graph must list places of agents (0 to {n - 1}) for each agent ({n}).")
        for who, sees, does, own in zip(self.agents, self.observations, self.actions, self.entities, strict=False):
            own.check(f"{self.name}: {who}", sees.size, does.n if isinstance(does, Discrete) else 0)

    def _kinds(self) -> tuple[int, ...]:
        """Agents are of one kind when side, spaces and the name before its number agree."""
        seen: dict[Any, int] = {}
        keys = zip(self.sides, map(stem, self.agents), self.observations, self.actions, strict=True)
        return tuple(seen.setdefault(key, len(seen)) for key in keys)

    @property
    def sight(self) -> Sight:
        """The pictures that agents see and the numbers beside them, where all agents see alike; else nothing."""
        found = {space.sight for space in self.observations}
        return found.pop() if len(found) == 1 else Sight()

    @property
    def num_agents(self) -> int:
        """N."""
        return len(self.agents)

    @cached_property
    def obs_size(self) -> int:
        """O: the largest observation, to which the others are padded."""
        return max(space.size for space in self.observations)

    @cached_property
    def action_size(self) -> int:
        """A: the largest number of actions, or of action dimensions."""
        return max(space.size for space in self.actions)

    @cached_property
    def action_width(self) -> int:
        """W: the most numbers in an agent's action."""
        return max(space.width for space in self.actions)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """[N] where all agents have discrete actions, else [N, W]."""
        return (self.num_agents,) if self.discrete else (self.num_agents, self.action_width)

    @property
    def action_dtype(self) -> str:
        return "int32" if self.discrete else "float32"

    @property
    def own_numbers(self) -> np.ndarray:
        """[N, W] bool: the numbers that each agent's action has at all; the others are padding."""
        return np.arange(self.action_width) < np.array([space.width for space in self.actions])[:, None]

    @property
    def own_actions(self) -> np.ndarray:
        """[N, A] bool: the actions (or action dimensions) that each agent has at all; the others are padding."""
        return np.arange(self.action_size) < np.array([space.size for space in self.actions])[:, None]

    @property
    def discrete(self) -> bool:
        """Whether every agent chooses one of a number of actions."""
        return all(isinstance(space, Discrete) for space in self.actions)

    @property
    def continuous(self) -> bool:
        """Whether every agent's actions are real numbers."""
        return all(isinstance(space, Box) for space in self.actions)

    @property
    def maskable(self) -> bool:
        """Whether any agent has choices that a mask could forbid."""
        return not self.continuous

    @property
    def parties(self) -> dict[str, tuple[int, ...]]:
        """The sides that a user can name -> their agents: where all play together, the kinds of agents by name."""
        labels = self.sides if len(set(self.sides)) > 1 else tuple(stem(agent) or ONE_SIDE for agent in self.agents)
        found: dict[str, list[int]] = {}
        for i, label in enumerate(labels):
            found.setdefault(label, []).append(i)
        return {name: tuple(own) for name, own in found.items()}

    def part(self, agents: Sequence[int], state_size: int | None = None) -> EnvSpec:
        """The spec of some of the agents, which knows the `whole` that they are a part of."""
        columns: dict[str, Any] = {
            name: tuple(getattr(self, name)[i] for i in agents)
            for name in ("agents", "observations", "actions", "groups", "sides", "entities")
            if getattr(self, name)
        }
        if self.graph:
            seat = {j: k for k, j in enumerate(agents)}
            columns["graph"] = tuple(tuple(seat[j] for j in self.graph[i] if j in seat) for i in agents)
        size = self.state_size if state_size is None else state_size
        return dataclasses.replace(self, **columns, state_size=size, counterfactual=False, whole=self)

    @property
    def places(self) -> tuple[int, ...]:
        """Where these agents stand in the whole."""
        return tuple(range(self.num_agents)) if self.whole is None else tuple(map(self.whole.agents.index, self.agents))

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
        "sides": list(spec.sides),
        "state_size": spec.state_size,
        "neighbours": spec.neighbours,
        "reward_after_death": spec.reward_after_death,
        "respawn": spec.respawn,
        "anonymous": spec.anonymous,
        "counterfactual": spec.counterfactual,
        **({"undiscounted": True} if spec.undiscounted else {}),
        **({"entities": [entities_to_json(x) for x in spec.entities]} if spec.entities else {}),
        **({"graph": [list(near) for near in spec.graph]} if spec.graph else {}),
    }


def _space_to_json(space: Space) -> dict[str, Any]:
    if isinstance(space, Discrete):
        return {"kind": "discrete", "n": space.n}
    if isinstance(space, MultiDiscrete):
        return {"kind": "multidiscrete", "choices": list(space.choices)}
    low, high = _bound_to_json(space.low), _bound_to_json(space.high)
    pictures = {"pictures": [list(shape) for shape in space.pictures]} if space.pictures else {}
    return {"kind": "box", "shape": list(space.shape), "low": low, "high": high, "dtype": space.dtype, **pictures}


def _bound_to_json(bound: Any) -> Any:
    if isinstance(bound, tuple):
        return [_bound_to_json(x) for x in bound]
    return float(bound) if math.isfinite(bound) else None


def spec_from_json(saved: Any) -> EnvSpec:
    """The spec that `spec_to_json` wrote. Anything else is an error that names what is wrong."""
    if not isinstance(saved, Mapping):
        raise UsageError(f"An environment's spec must be an object, not {_short(saved)}.")
    names = ("name", "agents", "observations", "actions", "max_steps", "groups", "state_size")
    for name in names:
        if name not in saved:
            raise UsageError(f"The environment's spec has no {name!r}.")
    agents = tuple(_text(x, "agents") for x in _list(saved["agents"], "agents"))
    if len(set(agents)) < len(agents):
        raise UsageError("'agents' of the environment's spec names an agent twice.")
    return EnvSpec(
        name=_text(saved["name"], "name"),
        agents=agents,
        observations=tuple(_box(x) for x in _list(saved["observations"], "observations")),
        actions=tuple(_space(x) for x in _list(saved["actions"], "actions")),
        max_steps=_whole(saved["max_steps"], "max_steps", 1),
        groups=tuple(_whole(x, "groups", 0) for x in _list(saved["groups"], "groups")),
        sides=_sides(saved),
        state_size=_whole(saved["state_size"], "state_size", 0, MOST_NUMBERS),
        neighbours=saved.get("neighbours") is True,
        reward_after_death=saved.get("reward_after_death") is True,
        respawn=saved.get("respawn") is True,
        anonymous=saved.get("anonymous") is True,
        counterfactual=saved.get("counterfactual") is True,
        undiscounted=saved.get("undiscounted") is True,
        entities=tuple(entities_from_json(x) for x in _list(saved.get("entities", []), "entities")),
        graph=tuple(
            tuple(_whole(j, "graph", 0) for j in _list(near, "graph"))
            for near in _list(saved.get("graph", []), "graph")
        ),
    )


def _sides(saved: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the agents' sides; files of earlier versions number them as "teams"."""
    if "sides" in saved:
        return tuple(_text(x, "sides") for x in _list(saved["sides"], "sides"))
    numbers = [_whole(x, "teams", 0) for x in _list(saved.get("teams", []), "teams")]
    return tuple(f"{ONE_SIDE}_{x}" if len(set(numbers)) > 1 else ONE_SIDE for x in numbers)


def _space(saved: Any) -> Space:
    if isinstance(saved, Mapping) and saved.get("kind") == "discrete":
        return Discrete(_whole(saved.get("n"), "n", 1, MOST_NUMBERS))
    if isinstance(saved, Mapping) and saved.get("kind") == "multidiscrete":
        choices = tuple(_whole(x, "choices", 1) for x in _list(saved.get("choices"), "choices"))
        if not choices:
            raise UsageError("A space of several choices must have at least one.")
        _whole(sum(choices), "choices", 1, MOST_NUMBERS)
        return MultiDiscrete(choices)
    return _box(saved)


def _box(saved: Any) -> Box:
    if not isinstance(saved, Mapping) or saved.get("kind") != "box":
        raise UsageError(f'A space must be an object of kind "box" (or "discrete" for actions), not {_short(saved)}.')
    shape = tuple(_whole(x, "shape", 0) for x in _list(saved.get("shape"), "shape", MOST_AXES))
    _whole(math.prod(shape), "shape", 0, MOST_NUMBERS)
    low, high = _bound(saved.get("low"), "low", -np.inf), _bound(saved.get("high"), "high", np.inf)
    dtype = saved.get("dtype")
    if dtype not in ("float32", "uint8"):
        raise UsageError(f"A space's dtype must be float32 or uint8, not {_short(dtype)}.")
    for what, bound in (("low", low), ("high", high)):
        if isinstance(bound, tuple) and len(bound) != math.prod(shape):
            raise UsageError(f"A space of shape {list(shape)} has {len(bound)} numbers in {what!r}.")
    pictures = tuple(
        tuple(_whole(x, "pictures", 1) for x in _list(picture, "pictures", 3))
        for picture in _list(saved.get("pictures", []), "pictures", MOST_PICTURES)
    )
    return Box(shape, low, high, dtype, pictures)


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


def _whole(x: Any, what: str, least: int, most: int = 2**31 - 1) -> int:
    if isinstance(x, bool) or not isinstance(x, int) or x < least:
        raise UsageError(f"{what!r} of the environment's spec must be whole numbers from {least} on, not {_short(x)}.")
    if x > most:
        raise UsageError(f"{what!r} of the environment's spec must be whole numbers up to {most}.")
    return x


def _text(x: Any, what: str) -> str:
    if not isinstance(x, str):
        raise UsageError(f"{what!r} of the environment's spec must be text, not {_short(x)}.")
    if len(x) > LONGEST_NAME:
        raise UsageError(f"{what!r} of the environment's spec has more than {LONGEST_NAME} characters.")
    return x


def _list(x: Any, what: str, most: int = MOST_AGENTS) -> list[Any] | tuple[Any, ...]:
    if not isinstance(x, list | tuple):
        raise UsageError(f"{what!r} of the environment's spec must be a list, not {_short(x)}.")
    if len(x) > most:
        raise UsageError(f"{what!r} of the environment's spec has {len(x)} entries, and at most {most} are taken.")
    return x


def _short(x: Any) -> str:
    """A value in an error message, cut where it is long."""
    text = repr(x)
    return text if len(text) <= 60 else text[:57] + "..."
