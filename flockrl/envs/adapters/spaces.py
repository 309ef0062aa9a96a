"""Dicts of named agents as arrays and back: observations by their layouts, and what an action number stands for.

Of a Dict with the entries `observation` and `action_mask` the row holds the former, and the latter says which
actions are legal. A MultiDiscrete or MultiBinary action of few combinations becomes one number that counts them, the
last entry fastest; one of more combinations stays several choices at once.

A mask has one entry per action, or per option of all choices side by side; for several choices it may also be a
sequence with one mask per choice. Masks of agents with real actions are not used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Box, Discrete, EnvSpec, MultiDiscrete, Space
from flockrl.data.choices import choices, own_action
from flockrl.envs.adapters.images import Stack
from flockrl.envs.adapters.layouts import bound, kind, observation_parts
from flockrl.envs.adapters.options import PLAIN, Options

COMBINATIONS = 256
"""A MultiDiscrete or MultiBinary action of at most so many combinations becomes one Discrete action."""


class ActionCode(NamedTuple):
    """One action space: what it is here, and a function from our action to the environment's.

    Our action is a number for Discrete, and the agent's row of numbers [W] for the others.
    """

    space: Space
    decode: Callable[[Any], Any]


def action_code(space: Any, where: str) -> ActionCode:
    """What an action of ours means to the environment. `where` names the space in errors."""
    word = kind(space)
    if word == "Discrete":
        start = int(space.start)
        return ActionCode(Discrete(int(space.n)), lambda a: int(a) + start)
    if word == "Box":
        shape, dtype = tuple(space.shape), space.dtype
        size = int(np.prod(shape))
        low, high = (bound(np.broadcast_to(np.asarray(x, np.float32), shape).ravel()) for x in (space.low, space.high))
        return ActionCode(Box((size,), low, high), lambda a: np.asarray(a[:size], dtype).reshape(shape))
    if word in ("MultiDiscrete", "MultiBinary"):
        sizes = np.asarray(space.nvec) if word == "MultiDiscrete" else np.full(space.shape, 2)
        starts = np.asarray(getattr(space, "start", 0))
        few = math.prod(sizes.ravel().tolist()) <= COMBINATIONS
        return (_one_number if few else _several_choices)(sizes, starts, space.dtype)
    raise UsageError(f"{where} is a {word} space, and only Discrete, Box, MultiDiscrete and MultiBinary work.")


def _one_number(sizes: np.ndarray, starts: np.ndarray, dtype: Any) -> ActionCode:
    """Several choices of few combinations, as one number that counts the combinations."""
    combinations = math.prod(sizes.ravel().tolist())
    numbers = np.stack(np.unravel_index(np.arange(combinations), sizes.ravel()), axis=-1)
    table = (numbers.reshape(combinations, *sizes.shape) + starts).astype(dtype)
    return ActionCode(Discrete(combinations), lambda a: table[int(a)].copy())


def _several_choices(sizes: np.ndarray, starts: np.ndarray, dtype: Any) -> ActionCode:
    """Several choices of many combinations, as a number for each choice."""
    space = MultiDiscrete(tuple(sizes.ravel().tolist()))

    def decode(a: Any) -> np.ndarray:
        return (np.asarray(a[: space.width], int).reshape(sizes.shape) + starts).astype(dtype)

    return ActionCode(space, decode)


class Codec:
    """Dicts of named agents <-> arrays, for agents with the given spaces.

    acts: an action space for each agent, or its `ActionCode`. observations, actions: the spec's entries. masked:
    whether observations carry `action_mask`. legal: [N, A] bool, the actions (or action dimensions) that each agent
    has at all. waiting: [N, A] bool, the mask of agents that have to wait: the first option of each choice.
    """

    def __init__(
        self, name: str, agents: Sequence[str], seen: Mapping[str, Any], acts: Mapping[str, Any],
        options: Options = PLAIN,
    ):  # fmt: skip
        self.name, self.agents = name, tuple(agents)
        self.index = {agent: i for i, agent in enumerate(self.agents)}
        inner = {agent: _inside(seen[agent]) for agent in self.agents}
        self.masked = any(kind(seen[a]) == "Dict" and "action_mask" in seen[a].spaces for a in self.agents)
        self._inside = {a: inner[a] is not seen[a] for a in self.agents}
        parts, self.observations, self.dtype = observation_parts(name, inner, options)
        self._frame = getattr(parts[0], "shape", None) if options.stack > 1 else None
        self._frames = options.stack
        codes = [_code(acts[a], f"{name}: agent {a!r}: its action space") for a in self.agents]
        self.actions = tuple(code.space for code in codes)
        self._write = [part.write for part in parts]
        self._size = [part.size for part in parts]
        self._decode = [code.decode for code in codes]
        self.obs_size = max(self._size)
        self.action_size = max(space.size for space in self.actions)
        self.legal = np.arange(self.action_size) < np.array([space.size for space in self.actions])[:, None]
        self.waiting = self.legal.copy()
        for choice in choices(self.actions):
            self.waiting[choice.agent, choice.start + 1 : choice.stop] = False
        numbers = [isinstance(space, Discrete) for space in self.actions]
        self._entry: list[Any] = [(i, 0) if n and not all(numbers) else i for i, n in enumerate(numbers)]

    def obs(self, observations: Mapping[str, Any]) -> np.ndarray:
        """[N, O] float32, or uint8 for one frame of pictures; zeros for agents that are not there."""
        out = np.zeros((len(self.agents), self.obs_size), self.dtype)
        for agent, value in observations.items():
            i = self._place(agent)
            self._write[i](value["observation"] if self._inside[agent] else value, out[i, : self._size[i]])
        return out

    def stack(self) -> Stack | None:
        """What puts frames together, for one team."""
        return None if self._frame is None else Stack(len(self.agents), self._frame, self._frames)

    def avail(self, observations: Mapping[str, Any], infos: Mapping[str, Any]) -> np.ndarray:
        """[N, A] bool: legal actions, where observation or info has an `action_mask`; all own ones elsewhere."""
        out = self.legal.copy()
        for agent, value in observations.items():
            i = self._place(agent)
            info = infos.get(agent)
            mask = value.get("action_mask") if isinstance(value, Mapping) else None
            if mask is None and isinstance(info, Mapping):
                mask = info.get("action_mask")
            if mask is not None and not isinstance(self.actions[i], Box):
                out[i, : self.actions[i].size] = self._mask(mask, i)
        return out

    def _mask(self, mask: Any, i: int) -> np.ndarray:
        """An agent's `action_mask` as one vector."""
        space, where = self.actions[i], f"{self.name}: agent {self.agents[i]!r}: its action_mask"
        if isinstance(space, MultiDiscrete):
            parts = _parts_of_mask(mask)
            if len(parts) > 1 and tuple(part.size for part in parts) != space.choices:
                sizes = [part.size for part in parts]
                raise UsageError(f"{where} has parts of {sizes}, but its choices have {list(space.choices)} options.")
            mask = np.concatenate(parts)
        mask = np.asarray(mask)
        if mask.shape != (space.size,):
            what = "options in all" if isinstance(space, MultiDiscrete) else "actions"
            raise UsageError(f"{where} has shape {list(mask.shape)}, but it has {space.size} {what}.")
        return mask

    def act(self, action: np.ndarray, agents: Sequence[str]) -> dict[str, Any]:
        """Our actions [N] or [N, W] as the environment takes them, for these agents."""
        return {agent: self._decode[i](action[self._entry[i]]) for agent in agents for i in (self._place(agent),)}

    def numbers(self, values: Mapping[str, Any], dtype: Any, what: str) -> np.ndarray:
        """[N] rewards or flags from a dict; 0 for agents that are not in it."""
        out = np.zeros(len(self.agents), dtype)
        with np.errstate(over="ignore"):  # what is too large becomes infinite, which is told elsewhere
            for agent, value in values.items():
                try:
                    out[self._place(agent)] = value
                except (TypeError, ValueError) as error:
                    raise UsageError(f"{self.name}: agent {agent!r}: its {what} is {value!r}, not a number.") from error
        return out

    def _place(self, agent: str) -> int:
        try:
            return self.index[agent]
        except KeyError:
            raise UsageError(
                f"{self.name}: agent {agent!r} is not among its possible_agents ({', '.join(self.agents)})."
            ) from None


class _Plain(NamedTuple):
    """A space as Gymnasium would describe it, without needing Gymnasium."""

    shape: tuple[int, ...]
    low: Any = 0.0
    high: Any = 0.0
    dtype: Any = np.float32


def plain_codec(spec: EnvSpec) -> Codec:
    """The codec of an environment of flockrl's own: agents by name, everything else as it is."""
    boxes = type("Box", (_Plain,), {})
    seen = {
        agent: boxes((space.size,), np.asarray(space.low, np.float32), np.asarray(space.high, np.float32))
        for agent, space in zip(spec.agents, spec.observations, strict=True)
    }
    acts = {
        agent: ActionCode(space, functools.partial(own_action, space))
        for agent, space in zip(spec.agents, spec.actions, strict=True)
    }
    return Codec(spec.name, spec.agents, seen, acts)


def _parts_of_mask(mask: Any) -> list[np.ndarray]:
    """The vectors in a mask: one, or one for each choice where they are nested in a sequence."""
    nested = isinstance(mask, list | tuple | np.ndarray) and np.iterable(mask) and len(mask) > 0
    if not nested or np.isscalar(mask[0]):
        return [np.ravel(mask)]
    return [vector for part in mask for vector in _parts_of_mask(part)]


def _code(space: Any, where: str) -> ActionCode:
    return space if isinstance(space, ActionCode) else action_code(space, where)


def _inside(space: Any) -> Any:
    """The observation proper of a space with an action mask beside it."""
    if kind(space) == "Dict" and "action_mask" in space.spaces and "observation" in space.spaces:
        return space.spaces["observation"]
    return space
