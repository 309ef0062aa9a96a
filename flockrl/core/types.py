"""The vocabulary: spaces, specs, observations, trajectories, algorithms.

Axis letters used in every docstring: T time, B parallel environments, N agents, O observation size,
A number of actions (discrete) or action dimensions (continuous), S size of the global state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.spec import Box, Discrete, EnvSpec, MultiDiscrete, Space  # noqa: F401 - part of the vocabulary, kept where no JAX is needed

Array = jax.Array
PyTree = Any
Metrics = Mapping[str, Array]


class Observation(NamedTuple):
    """What a team sees at one moment. A field that an environment does not need is None.

    obs: [..., N, O]; avail: [..., N, A] bool, legal actions, None when all are legal;
    state: [..., S] global state, None when the environment has none of its own;
    alive: [..., N] bool, None when agents never die; neighbours: [..., N, N] bool, whether the agent of the row can
    perceive the agent of the column, None when everyone perceives everyone.
    """

    obs: Array
    avail: Array | None = None
    state: Array | None = None
    alive: Array | None = None
    neighbours: Array | None = None


class Trajectory(NamedTuple):
    """A stretch of experience of B environments over T steps, wherever it came from.

    obs, avail, state, alive, neighbours: what the team saw before acting, as in `Observation`, with axes [T, B].
    action: [T, B, N] int32 or [T, B, N, W] float32, as the policy emitted it (before clipping to bounds).
    reward: [T, B, N]. terminated, truncated: [T, B, N] bool; an agent's own life ended for good, or
    its episode was cut short. next_obs, next_avail, next_state, next_neighbours: what followed, before any reset: the
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
    neighbours: Array | None = None
    next_neighbours: Array | None = None
    memory: PyTree = ()
    extras: Mapping[str, Array] = {}

    @property
    def observation(self) -> Observation:
        return Observation(self.obs, self.avail, self.state, self.alive, self.neighbours)

    @property
    def next_observation(self) -> Observation:
        return Observation(self.next_obs, self.next_avail, self.next_state, None, self.next_neighbours)

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
        `observation` has a batch axis: obs [B, N, O]. `explore` is a Python bool; False is greedy. Random numbers
        come from `flockrl.draw`, so that `key` may be a tape of given numbers, as in an exported policy.
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


def choose(where: Any, new: PyTree, old: PyTree, module: Any = jnp) -> PyTree:
    """`new` where the flags [B] hold, else `old`: trees of arrays [B, ...] of any type, by `jnp` or `np`."""

    def one(a: Any, b: Any) -> Any:
        return module.where(where.reshape(-1, *(1,) * (b.ndim - 1)), a, b)

    return jax.tree.map(one, new, old)
