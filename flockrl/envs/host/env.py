"""Environments that run in Python on the host: a simulator, PettingZoo, Gymnasium, anything that is not compiled.

A `HostEnv` is one team, in NumPy, with the arrays of `types.Observation` (agents are an axis, spaces are padded):

    reset(seed) -> Observation
    step(action, seed) -> (Observation, reward [N], terminated [N], truncated [N])

Everything random follows from the seed of the last reset, which names the episode: the same seed and the same
actions must give the same episode. That is what makes a run repeatable, with worker processes or without, and what
lets a team be rebuilt in the middle of an episode, after a crash or in a resumed run. The seed of a step is for
environments that keep no generator of their own; most ignore it.

A `Host` is what the rest of flockrl sees: the spec, the form of the observations, and how to build teams. `Slots` are
the arrays through which teams are driven, one row each, in plain memory or in memory that processes share.
"""

from __future__ import annotations

import contextlib
import copy
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from flockrl.core.actions import action_bounds
from flockrl.core.types import EnvSpec, Observation
from flockrl.data.choices import choices

HISTORY_BYTES = 2**20
"""A team's running episode is remembered, to be played again after a crash or a resume, unless it takes more."""

TeamStep = tuple[Observation, Any, Any, Any]
"""Observation, reward [N], terminated, truncated; the last two [N] or one bool for all."""


class HostEnv(ABC):
    """One team. `masked`: observations carry legal actions; `mortal`: they say who is alive. Both hold always or never.

    A field that the environment does not have is None, as in compiled environments. `step` never resets.
    An episode that reaches `spec.max_steps` is truncated by the caller.
    """

    spec: EnvSpec
    masked = False
    mortal = False
    codec: Any = None
    """Translates between dicts of named agents and arrays, where the original environment speaks in dicts."""

    @abstractmethod
    def reset(self, seed: int) -> Observation:
        """Begin the episode that `seed` (64 bits) names."""

    @abstractmethod
    def step(self, action: np.ndarray, seed: int) -> TeamStep:
        """action: [N] int32 where all agents are Discrete, else [N, W] float32 within its bounds."""

    distances: Callable[[], Any] | None = None
    """How far agents are from each other now, [N, N], where the environment tells (`envs.reach`)."""

    def render(self) -> np.ndarray | None:
        """What it looks like now, [H, W, 3] uint8, or None when it cannot be drawn."""
        return None

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Let go of what the environment holds."""


class Host:
    """A host environment as training sees it. `build(draw)` makes one team; `draw` asks for one that can be drawn.

    `build` travels to worker processes. `first` is a team that was built to learn the spec from.
    """

    def __init__(self, build: Callable[[bool], HostEnv]):
        # Acting is a small program that is called at every step. Handed to another thread, as JAX does by default, it
        # waits for a core that the workers keep busy. This has its effect where JAX has not computed anything yet.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self.build = build
        self.first = build(False)
        self.codec = self.first.codec
        self.take(self.first.spec)

    def take(self, spec: EnvSpec) -> None:
        """Be known by this spec, which `build` must give to new teams as well."""
        self.spec = self.first.spec = spec
        self.form = Form(spec, self.first.masked, self.first.mortal)

    def __repr__(self) -> str:
        return f"Host({self.spec.name!r})"


def words_seed(words: np.ndarray) -> int:
    """Two words [2] uint32 as one seed."""
    return int(words[0]) << 32 | int(words[1])


def short_seed(seed: int) -> int:
    """A seed that every generator takes: 31 bits."""
    return (seed >> 32 ^ seed) & 0x7FFFFFFF


@dataclass(frozen=True)
class Form:
    """What the arrays of a host environment look like."""

    spec: EnvSpec
    masked: bool
    mortal: bool

    @property
    def action(self) -> tuple[tuple[int, ...], str]:
        return self.spec.action_shape, self.spec.action_dtype

    @property
    def history(self) -> int:
        """Steps of the running episode that are remembered: all of them, or none."""
        shape, _ = self.action
        step = 4 * int(np.prod(shape)) + 8
        return self.spec.max_steps if step * self.spec.max_steps <= HISTORY_BYTES else 0

    def clip(self, action: np.ndarray) -> np.ndarray:
        """Actions that are rows of numbers [N, W], within their bounds; discrete ones [N] pass through."""
        return action if self.spec.discrete else np.clip(action, *action_bounds(self.spec))

    def observation(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each field that is there."""
        spec, n = self.spec, self.spec.num_agents
        fields: dict[str, tuple[tuple[int, ...], str]] = {"obs": ((n, spec.obs_size), spec.observations[0].dtype)}
        if self.masked:
            fields["avail"] = (n, spec.action_size), "bool"
        if spec.state_size:
            fields["state"] = (spec.state_size,), "float32"
        if self.mortal:
            fields["alive"] = (n,), "bool"
        if spec.neighbours:
            fields["neighbours"] = (n, n), "bool"
        return fields

    def blank(self, *batch: int) -> Observation:
        """An observation of zeros."""
        fields = self.observation().items()
        zeros: dict[str, Any] = {name: np.zeros((*batch, *shape), dtype) for name, (shape, dtype) in fields}
        return Observation(**zeros)

    def slots(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Everything one team needs: what it is told, what it answers, and its running episode."""
        n, (action, kind) = self.spec.num_agents, self.action
        seen = self.observation()
        return {
            "command": ((), "uint8"), "busy": ((), "bool"),
            "seed": ((2,), "uint32"), "draw": ((2,), "uint32"), "action": (action, kind),
            "episode": ((2,), "uint32"), "length": ((), "int32"),
            "actions": ((self.history, *action), kind), "draws": ((self.history, 2), "uint32"),
            **seen, **{f"final_{name}": form for name, form in seen.items()},
            "reward": ((n,), "float32"), "terminated": ((n,), "bool"), "truncated": ((n,), "bool"),
            "done": ((), "bool"),
        }  # fmt: skip


IDLE, RESET, STEP, REPLAY = range(4)
"""Commands to a team: nothing; begin the episode `seed`; take `action`, and begin the episode `seed` if that ends it;
begin the episode `episode` and take the first `length` of its `actions` again."""


class Slots:
    """Rows for `count` teams, as arrays with that leading axis: `self.obs`, `self.reward`, ... see `Form.slots`."""

    command: np.ndarray
    busy: np.ndarray
    seed: np.ndarray
    draw: np.ndarray
    action: np.ndarray
    episode: np.ndarray
    length: np.ndarray
    actions: np.ndarray
    draws: np.ndarray
    obs: np.ndarray
    avail: np.ndarray
    state: np.ndarray
    alive: np.ndarray
    final_alive: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    done: np.ndarray

    def __init__(self, form: Form, count: int, memory: Any = None):
        self.form, self.count = form, count
        whole = np.zeros(self.size(form, count), np.uint8) if memory is None else np.frombuffer(memory, np.uint8)
        at = 0
        for name, (shape, dtype) in form.slots().items():
            bytes_ = count * int(np.prod(shape)) * np.dtype(dtype).itemsize
            setattr(self, name, whole[at : at + bytes_].view(dtype).reshape(count, *shape))
            at += -(-bytes_ // 64) * 64
        self.fields = tuple(form.observation())
        self.bounds = None if form.spec.discrete else action_bounds(form.spec)

    @staticmethod
    def size(form: Form, count: int) -> int:
        """Bytes in all, every array beginning at a multiple of 64."""
        sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in form.slots().values()]
        return sum(-(-count * size // 64) * 64 for size in sizes)

    def part(self, start: int, count: int) -> Slots:
        """Some of the rows, as views."""
        part = copy.copy(self)
        part.count = count
        for name in self.form.slots():
            setattr(part, name, getattr(self, name)[start : start + count])
        return part

    def observation(self, rows: slice | np.ndarray, final: bool = False) -> Observation:
        """What the teams of these rows see now, or saw at the end of their last step; of a slice, as views."""
        prefix = "final_" if final else ""
        return Observation(**{name: getattr(self, prefix + name)[rows] for name in self.fields})

    def put(self, row: int, seen: Observation, final: bool = False) -> None:
        prefix = "final_" if final else ""
        for name in self.fields:
            getattr(self, prefix + name)[row] = getattr(seen, name)

    def keep(self, row: int) -> None:
        """The episode goes on: what the step led to is what to act on next."""
        for name in self.fields:
            getattr(self, name)[row] = getattr(self, f"final_{name}")[row]


def serve(slots: Slots, teams: dict[int, HostEnv], build: Callable[[bool], HostEnv], rows: Iterable[int]) -> dict:
    """Do what the rows' commands say. A command that is done becomes IDLE; of the others, row -> traceback."""
    failures: dict[int, str] = {}
    for row in rows:
        if slots.command[row] == IDLE:
            continue
        slots.busy[row] = True  # whoever is busy when a process dies is the likely reason
        try:
            if row not in teams:
                teams[row] = build(False)
            COMMANDS[int(slots.command[row])](slots, row, teams[row])
            slots.command[row] = IDLE
        except Exception:
            failures[row] = traceback.format_exc()
            discard(teams.pop(row, None))
        slots.busy[row] = False
    return failures


def discard(team: HostEnv | None) -> None:
    """Close a team that may be broken."""
    with contextlib.suppress(Exception):
        if team is not None:
            team.close()


def _reset(slots: Slots, row: int, team: HostEnv) -> None:
    slots.put(row, team.reset(words_seed(slots.seed[row])))


def _step(slots: Slots, row: int, team: HostEnv) -> None:
    form = slots.form
    _advance(slots, row, team, slots.action[row], words_seed(slots.draw[row]))
    over = slots.terminated[row] | slots.truncated[row]
    if not over.all() and slots.length[row] + 1 >= form.spec.max_steps:
        slots.truncated[row] |= ~over & (slots.final_alive[row] if form.mortal else True)
        over = slots.terminated[row] | slots.truncated[row]
    done = bool((over | ~slots.final_alive[row] if form.mortal else over).all())
    slots.done[row] = done
    if done:
        slots.put(row, team.reset(words_seed(slots.seed[row])))
    else:
        slots.keep(row)


def _replay(slots: Slots, row: int, team: HostEnv) -> None:
    slots.put(row, team.reset(words_seed(slots.episode[row])))
    for t in range(int(slots.length[row])):
        _advance(slots, row, team, slots.actions[row, t], words_seed(slots.draws[row, t]))
        slots.keep(row)


def _advance(slots: Slots, row: int, team: HostEnv, action: np.ndarray, draw: int) -> None:
    """One step; what comes of it is written to the row, and what the step led to apart from what is acted on."""
    if slots.bounds is not None:
        action = np.clip(action, *slots.bounds)
    seen, reward, terminated, truncated = team.step(action, draw)
    slots.put(row, seen, final=True)
    slots.reward[row] = reward
    slots.terminated[row] = terminated
    slots.truncated[row] = truncated
    if slots.form.mortal:
        slots.terminated[row] &= slots.alive[row]
        slots.truncated[row] &= slots.alive[row]


COMMANDS: dict[int, Callable[[Slots, int, HostEnv], None]] = {RESET: _reset, STEP: _step, REPLAY: _replay}


def random_action(form: Form, seen: Observation, rng: np.random.Generator) -> np.ndarray:
    """Any legal action of every agent of one team, [N] or [N, W]."""
    spec = form.spec
    legal = spec.own_actions
    if seen.avail is not None:
        legal = legal & np.asarray(seen.avail)
    if spec.discrete:
        return _random_option(legal, rng).astype(np.int32)
    low, high = action_bounds(spec)
    action = rng.uniform(np.maximum(low, -1e3), np.minimum(high, 1e3)).astype(np.float32)
    for choice in choices(spec.actions):
        action[choice.agent, choice.entry] = _random_option(legal[choice.agent, choice.start : choice.stop], rng)
    return action


def _random_option(legal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[...] the number of a random legal option, 0 where none is legal. legal: [..., A] bool."""
    return np.where(legal, rng.random(legal.shape), -1.0).argmax(-1)
