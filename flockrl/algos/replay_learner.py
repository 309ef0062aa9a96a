"""What all learners that replay have in common: the ring, its memory, the pace of gradient steps, target networks.

A family says what is learned (`init`), how to act, and what one gradient step on a sample does (`learn`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from flockrl.algos.parts import Schedule, adam, descend, lr_factor, require, require_room
from flockrl.core.errors import UsageError
from flockrl.core.groups import Share, make_groups
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.nets.torsos import Activation
from flockrl.replay.ring import Replay, add, draw, make_replay, prioritize, replay_bytes

STRETCH = 25
"""Length of replayed sequences where there is memory and the user says nothing."""


@dataclass(frozen=True)
class ReplayConfig:
    """Settings of every learner with a replay."""

    share: Share = "groups"
    """Who shares parameters: all agents, agents of one kind, or none."""
    agent_ids: bool = True
    """Tell agents that share parameters apart by a learned bias of their own."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers of each network."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    kernel: str | None = None
    """A flax module of your own in place of the hidden layers, as package.module:Class."""
    memory: Literal["none", "gru"] = "none"
    """Whether agents remember past observations."""
    memory_size: int = 64
    """Size of the GRU's memory."""
    sequence: int | None = None
    """Steps in a row that a sample learns from; by default 1, or 25 with memory."""
    burn_in: int = 0
    """Steps before them that only fill the memory."""
    rollout_steps: int = 25
    """Steps of every environment between updates."""
    steps_per_update: int = 25
    """Environment steps for each gradient step; must divide envs x rollout_steps."""
    batch_size: int = 256
    """Transitions of the whole team in each gradient step."""
    buffer_size: int = 200_000
    """Transitions that the replay holds, rounded up to whole rollouts."""
    learning_starts: int = 5_000
    """Environment steps with random actions before learning begins."""
    n_step: int = 1
    """Steps of reward before the learner's own estimate takes over."""
    prioritized: bool = False
    """Replay transitions in proportion to their last error instead of uniformly."""
    priority_alpha: float = 0.6
    """How strongly errors shape the sampling: 0 is uniform."""
    priority_beta: float = 0.4
    """How far the bias of prioritised sampling is corrected at first; it goes to 1 over the run."""
    gamma: float = 0.95
    """Discount factor."""
    tau: float = 0.02
    """How far the target networks move towards the online ones when they move."""
    lr: float = 1e-3
    """Adam's learning rate."""
    lr_schedule: Schedule = "linear"
    """How the learning rate falls to zero over the run, if at all."""
    max_grad_norm: float | None = 0.5
    """Gradients of each network are scaled down to this norm; None for never."""

    def __post_init__(self) -> None:
        require(
            self,
            hidden=len(self.hidden) > 0 and min(self.hidden) > 0,
            rollout_steps=self.rollout_steps > 0,
            steps_per_update=self.steps_per_update > 0,
            batch_size=self.batch_size > 0,
            buffer_size=self.buffer_size > 0,
            learning_starts=self.learning_starts >= 0,
            n_step=self.n_step > 0,
            priority_alpha=self.priority_alpha >= 0,
            priority_beta=0 <= self.priority_beta <= 1,
            gamma=0 <= self.gamma <= 1,
            tau=0 < self.tau <= 1,
            lr=self.lr > 0,
            max_grad_norm=self.max_grad_norm is None or self.max_grad_norm > 0,
            memory_size=self.memory_size > 0,
            sequence=self.sequence is None or self.sequence > 0,
            burn_in=self.burn_in >= 0,
        )
        if self.burn_in and self.memory == "none":
            raise UsageError("burn_in fills a memory: use it with memory=gru.")
        if self.steps > self.batch_size:
            raise UsageError(f"batch_size ({self.batch_size}) must hold a whole sequence of {self.steps} steps.")

    @property
    def steps(self) -> int:
        """Steps in a row that a sample learns from."""
        return self.sequence or (STRETCH if self.memory == "gru" else 1)


class Learned(NamedTuple):
    """What gradient steps change, apart from priorities.

    params, targets, optimiser: dicts from a kind of network to a tuple of them. extra: what a family adds, e.g.
    SAC's temperatures. updates: gradient steps so far.
    """

    params: PyTree
    targets: PyTree
    optimiser: PyTree
    extra: PyTree
    updates: Array


class ReplayState(NamedTuple):
    """Everything that learning changes, the replay included. iterations: updates of the loop so far."""

    learned: Learned
    replay: Replay
    iterations: Array


class ReplayLearner(ABC):
    """Holds what is static (networks, groups, settings). Its methods are pure. Families override what differs.

    window: steps in a row that a sample reaches over; samples: how many are drawn for a gradient step.
    """

    def __init__(self, spec: EnvSpec, config: Any, envs: int, updates: int):
        self.spec, self.config, self.envs, self.iterations = spec, config, envs, updates
        self.steps, self.recurrent = config.steps, config.memory == "gru"
        self.window = window = config.burn_in + self.steps + config.n_step - 1
        self.samples = config.batch_size // self.steps
        steps = config.rollout_steps
        if envs * steps % config.steps_per_update:
            raise UsageError(
                f"steps_per_update ({config.steps_per_update}) must divide the {envs * steps} steps of an iteration "
                f"({envs} envs x {steps} rollout_steps): change one of the three."
            )
        self.updates = envs * steps // config.steps_per_update
        self.rows = max(-(-config.buffer_size // (envs * steps)), -(-window // steps) + 1) * steps
        self.bytes = replay_bytes(spec, self.rows, envs, config.prioritized)
        require_room(self.bytes, f"A replay of {self.rows * envs:,} transitions takes", "buffer_size")
        self.groups = make_groups(spec, config.share)
        self.optimiser = adam(config.max_grad_norm, eps=1e-8)

    def algorithm(self) -> Algorithm:
        note = f"replay of {self.rows * self.envs:,} transitions, {self.bytes / 1e6:,.0f} MB"
        return Algorithm(
            self.init, self.policy, self.act, self.update, self.memory, self.config.rollout_steps, note
        )  # fmt: skip

    # What a family says

    followed: tuple[str, ...] = ()
    """Kinds of networks that have targets; by default all of them."""

    @abstractmethod
    def networks(self, key: Array) -> PyTree:
        """Fresh parameters: a dict from a kind of network to a tuple of them."""

    @abstractmethod
    def policy(self, state: ReplayState) -> PyTree: ...

    @abstractmethod
    def act(
        self, params: PyTree, observation: Observation, memory: PyTree, key: Array, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]: ...

    @abstractmethod
    def learn(
        self, learned: Learned, replay: Replay, place: tuple[Array, Array, Array], factor: Array, key: Array
    ) -> tuple[Learned, Array, dict[str, Array]]:
        """One gradient step on the samples at (row, env, importance weight), each [b].

        Returns the new state, the size of each sample's error [b], and metrics. `factor` scales learning rates.
        """

    def memory(self, batch: int) -> PyTree:
        return ()

    def _extra(self) -> PyTree:
        return ()

    # State

    def init(self, key: Array) -> ReplayState:
        params = self.networks(key)
        optimiser = {name: tuple(map(self.optimiser.init, nets)) for name, nets in params.items()}
        # A copy: the targets start equal and must not share memory with what is donated.
        targets = jax.tree.map(jnp.copy, {name: params[name] for name in self.followed or params})
        learned = Learned(params, targets, optimiser, self._extra(), jnp.int32(0))
        replay = make_replay(self.spec, self.rows, self.envs, self.config.prioritized)
        return ReplayState(learned, replay, jnp.int32(0))

    def _steps(self, state: ReplayState) -> Array:
        return state.iterations * (self.envs * self.config.rollout_steps)

    # Learning

    def update(self, state: ReplayState, trajectory: Trajectory, key: Array) -> tuple[ReplayState, Metrics]:
        config = self.config
        replay = add(state.replay, trajectory)
        after = state._replace(iterations=state.iterations + 1)
        progress = state.iterations / self.iterations
        ready = (self._steps(after) >= config.learning_starts) & (replay.filled >= self.window)
        count = jnp.where(ready, self.updates, 0)
        factor = lr_factor(config.lr_schedule, progress)
        beta = config.priority_beta + (1 - config.priority_beta) * progress

        def learn(learned: Learned, priority: Any, key: Array) -> tuple[Learned, Any, dict[str, Array]]:
            draw_key, step_key = jax.random.split(key)
            place = draw(replay._replace(priority=priority), draw_key, self.samples, self.window, beta)
            learned, error, metrics = self.learn(learned, replay, place, factor, step_key)
            if config.prioritized:
                priority = prioritize(priority, *place[:2], error, config.priority_alpha)
            return learned, priority, metrics

        def once(i: Array, carry: tuple[Learned, Any, Any]) -> tuple[Learned, Any, Any]:
            learned, priority, metrics = learn(*carry[:2], jax.random.fold_in(key, i))
            return learned, priority, jax.tree.map(jnp.add, carry[2], metrics)

        begin = state.learned, replay.priority
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(learn, *begin, key)[2])
        learned, priority, totals = jax.lax.fori_loop(0, count, once, (*begin, zeros))
        metrics = jax.tree.map(lambda x: x / jnp.maximum(count, 1), totals)
        metrics |= {"updates": learned.updates.astype(jnp.float32), "lr": config.lr * factor}
        return after._replace(learned=learned, replay=replay._replace(priority=priority)), metrics

    def _descend(self, learned: Learned, name: str, grads: Any, lr: Array) -> Learned:
        nets, states = descend(self.optimiser, learned.params[name], learned.optimiser[name], grads, lr)
        params, optimiser = {**learned.params, name: nets}, {**learned.optimiser, name: states}
        return learned._replace(params=params, optimiser=optimiser)

    def _follow(self, learned: Learned) -> Learned:
        """Targets move by tau towards the online networks."""
        tau = self.config.tau
        params = {name: learned.params[name] for name in learned.targets}
        return learned._replace(targets=jax.tree.map(lambda t, p: t + tau * (p - t), learned.targets, params))
