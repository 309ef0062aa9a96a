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
    perceive the agent of the column, None when everyone perceives everyone;
    seeds: [..., N, 2] uint32, what decides the fate of messages on a channel where chance or the number of the step
    does (`comm.luck`), None elsewhere and before acting drew it.
    """

    obs: Array
    avail: Array | None = None
    state: Array | None = None
    alive: Array | None = None
    neighbours: Array | None = None
    seeds: Array | None = None


class Trajectory(NamedTuple):
    """A stretch of experience of B environments over T steps, wherever it came from.

    obs, avail, state, alive, neighbours: what the team saw before acting, as in `Observation`, with axes [T, B].
    action: [T, B, N] int32 or [T, B, N, W] float32, as the policy emitted it (before clipping to bounds).
    reward: [T, B, N], as the environment paid it, to dead agents too. terminated, truncated: [T, B, N] bool; an agent's
    return ended (where agents respawn, another may begin in its place), or its episode was cut short: see `core.lives`.
    next_obs, next_avail, next_state, next_neighbours: what followed, before any reset: the final observation of an
    ended episode, never the first of the next one. next_alive: [T, B, N] who lived after the step, those included
    whose episode was cut there.
    first: [T, B] bool, whether `obs` opens an episode (memory is cleared there).
    memory: the policy's memory before the first step, [B, ...], or () for a policy without one.
    extras: what `act` wants to remember, e.g. {"logp": [T, B, N]}; "channel" are the seeds of an `Observation`.
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
    next_alive: Array | None = None
    memory: PyTree = ()
    extras: Mapping[str, Array] = {}

    @property
    def observation(self) -> Observation:
        return Observation(
            self.obs, self.avail, self.state, self.alive, self.neighbours, self.extras.get("channel")
        )  # fmt: skip

    @property
    def next_observation(self) -> Observation:
        seeds = next_seeds(self.extras.get("channel"))
        return Observation(
            self.next_obs, self.next_avail, self.next_state, self.next_alive, self.next_neighbours, seeds
        )  # fmt: skip

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
        come from `flockrl.core.random`, so that `key` may be a tape of given numbers, as in an exported policy.
    update(state, trajectory, key) -> (state, metrics)
        Metrics are scalars.
    memory(batch) -> memory
        The memory of `batch` teams at the start of an episode, leaves [batch, ...]; () when there is none.
    rollout_steps
        T: how many steps of each environment one update consumes.
    note
        What a user should know before training, e.g. the memory that a replay takes; may be empty.
    kl(old, new, observation, memory, other=None) -> [B, N]
        How far the policy of params `new` is from that of `old`, KL(old || new); None when there is no such number
        because policies are deterministic. other: what `new` observes instead.
    says(params, observation, memory) -> [B, N, C]
        What agents would tell each other, before any channel; None where they do not talk.
    talk
        How they do (`comm.talk.Talk`), None where they do not.
    attends(params, observation, memory) -> [B, R, H, N, N]
        How much of its attention the agent of the row gives that of the column, in each round of messages and by each
        head, itself on the diagonal: a row adds up to 1, or to 0 for the dead. None where listeners do not weigh.
    critic
        What values of states or actions there are; None where nothing is valued.
    asks(env, state, action [N], key) -> {name: array}
        What a rollout in a compiled environment asks of it before each step of one instance, and records as extras;
        None for nothing.
    choices(state, trajectory) -> [T, B, N, A]
        How likely each action was along a rollout of the present policy; None where nobody chooses or it is not known.
    scores(params, observation, memory, key, explore) -> [B, N, A]
        What `act` goes by: it chooses the action with the largest one, drawn with noise where agents explore; None
        where nobody chooses or it is not known. Not for learners that hear messages or see more than is observed.
    practice
        The same learner as it acts in the rollouts that it learns from, where that is not simply its policy: against
        past selves, or under attack. Its params, act and memory count; None where there is no difference.
    through(state, play) -> (trajectory, rest, extras)
        How a learner plays that differentiates its rollouts: `play(params) -> (trajectory, rest)` is one of a compiled
        environment as a function of the policy's parameters; extras are added to those that `update` is given. None
        for learners that need to know only what happened.
    member
        How one of several policies acts where params are a `Mixture` of them; None elsewhere.
    """

    init: Callable[[Array], PyTree]
    params: Callable[[PyTree], PyTree]
    act: Callable[[PyTree, Observation, PyTree, Array, bool], tuple[Array, PyTree, Mapping[str, Array]]]
    update: Callable[[PyTree, Trajectory, Array], tuple[PyTree, Metrics]]
    memory: Callable[[int], PyTree]
    rollout_steps: int
    note: str = ""
    kl: Callable[..., Array] | None = None
    says: Callable[[PyTree, Observation, PyTree], Array] | None = None
    talk: Any = None
    attends: Callable[[PyTree, Observation, PyTree], Array] | None = None
    critic: Critic | None = None
    asks: Callable[[Any, PyTree, Array, Array], Mapping[str, Array]] | None = None
    choices: Callable[[PyTree, Trajectory], Array] | None = None
    scores: Callable[[PyTree, Observation, PyTree, Array, bool], Array] | None = None
    practice: Algorithm | None = None
    through: Callable[[PyTree, Callable[..., Any]], tuple[Trajectory, Any, Mapping[str, Any]]] | None = None
    member: Actor | None = None

    @property
    def in_training(self) -> Algorithm:
        """What acts in rollouts that are learned from."""
        return self if self.practice is None else self.practice


class Critic(NamedTuple):
    """What a learner expects its agents to earn.

    params(state) -> what of a state that needs.
    values(params, trajectory) -> [T, B, N]
        What is earned from each moment of a trajectory on, discounted, in units of the rewards that are learned from;
        where actions are valued, after what was done. The critic remembers nothing from before the first row. NaN for
        agents that nobody values.
    """

    params: Callable[[PyTree], PyTree]
    values: Callable[[PyTree, Trajectory], Array]

    def within(self, learner: Callable[[PyTree], PyTree]) -> Critic:
        """The same in a wrapper: `learner` finds the learner's state in that of the wrapper."""
        return Critic(lambda state: self.params(learner(state)), self.values)


class Actor(NamedTuple):
    """What it takes to act: the two functions of an `Algorithm` that playing needs."""

    act: Callable[[PyTree, Observation, PyTree, Array, bool], tuple[Array, PyTree, Mapping[str, Array]]]
    memory: Callable[[int], PyTree]


class Mixture(NamedTuple):
    """Parameters of a policy that draws one of K policies as an episode begins, and keeps to it until it ends.

    params: leaves [K, ...]; odds: [K].
    """

    params: PyTree
    odds: Array


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
    measures: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    """What the environment itself measures, such as success: its name -> [episodes]."""

    @property
    def per_agent(self) -> np.ndarray:
        """[N] mean return of each agent."""
        return self.returns.mean(axis=0)


def next_seeds(seeds: Array | None) -> Array | None:
    """Seeds [..., N, 2] for the step after one with these: others, for a step whose number is one larger."""
    if seeds is None:
        return None
    return jnp.stack([seeds[..., 0] ^ jnp.uint32(0x9E3779B9), seeds[..., 1] + jnp.uint32(1)], -1)


def choose(where: Any, new: PyTree, old: PyTree, module: Any = jnp) -> PyTree:
    """`new` where the flags [B] hold, else `old`: trees of arrays [B, ...] of any type, by `jnp` or `np`."""

    def one(a: Any, b: Any) -> Any:
        return module.where(where.reshape(-1, *(1,) * (b.ndim - 1)), a, b)

    return jax.tree.map(one, new, old)
