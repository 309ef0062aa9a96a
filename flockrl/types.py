"""The vocabulary: spaces, specs, observations, trajectories, algorithms.

Axis letters used in every docstring: T time, B parallel environments, N agents, O observation size,
A number of actions (discrete) or action dimensions (continuous), S size of the global state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.errors import UsageError

Array = jax.Array
PyTree = Any
Metrics = Mapping[str, Array]


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


class Observation(NamedTuple):
    """What a team sees at one moment. A field that an environment does not need is None.

    obs: [..., N, O]; avail: [..., N, A] bool, legal actions, None when all are legal;
    state: [..., S] global state, None when the environment has none of its own;
    alive: [..., N] bool, None when agents never die.
    """

    obs: Array
    avail: Array | None = None
    state: Array | None = None
    alive: Array | None = None


class Trajectory(NamedTuple):
    """A stretch of experience of B environments over T steps, wherever it came from.

    obs, avail, state, alive: what the team saw before acting, as in `Observation`, with axes [T, B].
    action: [T, B, N] int32 or [T, B, N, A] float32, as the policy emitted it (before clipping to bounds).
    reward: [T, B, N]. terminated, truncated: [T, B, N] bool; an agent's own life ended for good, or
    its episode was cut short. next_obs, next_avail, next_state: what followed, before any reset: the
    final observation of an ended episode, never the first of the next one.
    first: [T, B] bool, whether `obs` opens an episode (memory is cleared there).
    memory: the policy's memory before the first step, [B, ...], or () for a policy without one.
    extras: what `act` wants to remember, e.g. {"logp": [T, B, N]}.
    """

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Array
    first: Array
    avail: Array | None = None
    state: Array | None = None
    alive: Array | None = None
    next_avail: Array | None = None
    next_state: Array | None = None
    memory: PyTree = ()
    extras: Mapping[str, Array] = {}

    @property
    def observation(self) -> Observation:
        return Observation(self.obs, self.avail, self.state, self.alive)

    @property
    def next_observation(self) -> Observation:
        return Observation(self.next_obs, self.next_avail, self.next_state, None)

    @property
    def weight(self) -> Array:
        """[T, B, N] float32: 1 where an agent lived and acted, 0 where it did not."""
        return jnp.ones_like(self.reward) if self.alive is None else self.alive.astype(self.reward.dtype)


class Algorithm(NamedTuple):
    """A learner as pure functions. It never steps an environment.

    init(key) -> state
        A state is a pytree with everything that learning changes.
    params(state) -> params
        The part of the state that acting needs, what would travel to another machine.
    act(params, observation, memory, key, explore) -> (action, memory, extras)
        `observation` has a batch axis: obs [B, N, O]. `explore` is a Python bool; False is greedy.
    update(state, trajectory, key) -> (state, metrics)
        Metrics are scalars.
    memory(batch) -> memory
        The memory of `batch` teams at the start of an episode, leaves [batch, ...]; () when there is none.
    rollout_steps
        T: how many steps of each environment one update consumes.
    note
        What a user should know before training, e.g. the memory that a replay takes; may be empty.
    kl(old, new, observation, memory) -> [B, N]
        How far the policy of params `new` is from that of `old`, KL(old || new); None when there is no such number
        because policies are deterministic.
    """

    init: Callable[[Array], PyTree]
    params: Callable[[PyTree], PyTree]
    act: Callable[[PyTree, Observation, PyTree, Array, bool], tuple[Array, PyTree, Mapping[str, Array]]]
    update: Callable[[PyTree, Trajectory, Array], tuple[PyTree, Metrics]]
    memory: Callable[[int], PyTree]
    rollout_steps: int
    note: str = ""
    kl: Callable[[PyTree, PyTree, Observation, PyTree], Array] | None = None


class Actor(NamedTuple):
    """What it takes to act: the two functions of an `Algorithm` that playing needs."""

    act: Callable[[PyTree, Observation, PyTree, Array, bool], tuple[Array, PyTree, Mapping[str, Array]]]
    memory: Callable[[int], PyTree]


@dataclass(frozen=True)
class EvalResult:
    """Scores of whole evaluation episodes. `mean` is the undiscounted episode return, mean over agents."""

    mean: float
    std: float
    episodes: int
    returns: np.ndarray = field(repr=False)
    """[episodes, N] each agent's return in each episode."""
    lengths: np.ndarray = field(repr=False)
    """[episodes] steps until the episode ended."""

    @property
    def per_agent(self) -> np.ndarray:
        """[N] mean return of each agent."""
        return self.returns.mean(axis=0)
