"""What all learners that replay have in common: the ring, its memory, the pace of gradient steps, target networks.

A family says what is learned (`init`), how to act, and what one gradient step on a sample does (`learn`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flockrl.algos.credit import CreditConfig
from flockrl.algos.defaults import STRETCH, settle
from flockrl.algos.learner_config import LearnerConfig
from flockrl.algos.parts import adam, check_layers, descend, require_room, schedule_factor
from flockrl.algos.scales import Scales, earn, in_deviations, look, no_unit
from flockrl.comm.settings import draws_lots
from flockrl.core.devices import spread
from flockrl.core.errors import UsageError
from flockrl.core.groups import make_groups, pooling
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, Critic, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.nets.normalisation import moments
from flockrl.replay.ring import Replay, add, draw, make_replay, prioritize, replay_bytes

TRANSITIONS, SEQUENCES = 256, 32
"""Samples of a gradient step where the user says nothing: single transitions, or sequences of them."""


@dataclass(frozen=True)
class ReplayConfig(LearnerConfig, CreditConfig):
    """Settings of every learner with a replay."""

    hidden: tuple[int, ...] = (128, 128)
    """Sizes of the hidden layers of each network."""
    sequence: int | None = None
    """Steps in a row that a sample learns from; by default 1, or 25 with memory and as many as a rollout
    has where that is more."""
    burn_in: int | None = None
    """Steps before them that only fill the memory; by default 0, or 8 for actors and critics with memory."""
    steps_per_update: int | None = None
    """Environment steps for each gradient step, which must divide envs x rollout_steps; by default 2 to 25, so that a
    run has about 40,000 gradient steps."""
    batch_size: int | None = None
    """Transitions of the whole team in each gradient step; by default 256, or 32 sequences where sequences are learned
    from, and fewer in teams of more than 256."""
    buffer_size: int | None = None
    """Transitions that the replay holds, rounded up to whole rollouts; by default 200,000, or as many as take 2 GB."""
    learning_starts: int | None = None
    """Environment steps with random actions before learning begins; by default 5,000, at most a tenth of the run."""
    n_step: int = 1
    """Steps of reward before the learner's own estimate takes over."""
    prioritized: bool = False
    """Replay transitions in proportion to their last error instead of uniformly."""
    priority_alpha: float = 0.6
    """How strongly errors shape the sampling: 0 is uniform."""
    priority_beta: float = 0.4
    """How far the bias of prioritised sampling is corrected at first; it goes to 1 over the run."""
    fingerprint: bool = False
    """Let agents observe how far the team had learned when it acted, so that old experience is told from new."""
    gamma: float | None = None
    """Discount factor; by default 1 - 1 / (0.4 h) for episodes of up to h steps, with h between 25 and 250, and 1 in
    games that are won or lost."""
    tau: float = 0.02
    """How far the target networks move towards the online ones when they move."""
    normalize_reward: bool = True
    """Count rewards in units of a tenth of the largest discounted sum so far, so that learning does not depend
    on the size of rewards."""
    normalize_obs: bool = False
    """Scale observations, and the global state, by their running mean and deviation; pictures stay as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "steps_per_update", "batch_size", "buffer_size", "n_step", "sequence", least=1)
        check_numbers(self, "learning_starts", "priority_alpha", "burn_in", least=0)
        check_numbers(self, "priority_beta", "gamma", least=0, most=1)
        check_numbers(self, "tau", above=0, most=1)
        if self.normalize_obs and self.net != "flat":
            raise UsageError("normalize_obs scales every place of a row, and a set has no places: use --net flat.")
        if self.burn_in and not self.recurrent:
            raise UsageError("burn_in fills a memory: use it with memory=gru.")
        if self.batch_size is not None and self.steps > self.batch_size:
            raise UsageError(f"batch_size ({self.batch_size}) must hold a whole sequence of {self.steps} steps.")

    @property
    def steps(self) -> int:
        """Steps in a row that a sample learns from."""
        return self.sequence or (STRETCH if self.recurrent else 1)

    @property
    def filling(self) -> int:
        """Steps before a sequence that only fill the memory."""
        return self.burn_in or 0

    @property
    def samples(self) -> int:
        """Transitions, or sequences of them, in each gradient step."""
        if self.batch_size is None:
            return TRANSITIONS if self.steps == 1 else SEQUENCES
        return self.batch_size // self.steps


class Learned(NamedTuple):
    """What gradient steps change, apart from priorities.

    params, targets, optimiser: dicts from a kind of network to a tuple of them. extra: what a family adds, e.g.
    SAC's temperatures. updates: gradient steps so far. scales: those on which rewards and observations are read.
    """

    params: PyTree
    targets: PyTree
    optimiser: PyTree
    extra: PyTree
    updates: Array
    scales: Scales = Scales()


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
        config, self.note = settle(config, spec, envs, updates)
        self.spec, self.config, self.envs, self.iterations = spec, config, envs, updates
        self.steps, self.recurrent = config.steps, config.recurrent
        self.window = window = config.filling + self.steps + config.n_step - 1
        self.samples = config.samples
        steps = config.rollout_steps
        if self.recurrent and self.steps < steps:
            raise UsageError(
                f"Sequences begin with rollouts, with what was remembered then, and those of {self.steps} steps would "
                f"skip part of rollouts of {steps}: set --rollout-steps {self.steps} or --sequence {steps}."
            )
        if envs * steps % config.steps_per_update:
            raise UsageError(
                f"steps_per_update ({config.steps_per_update}) must divide the {envs * steps} steps of an iteration "
                f"({envs} envs x {steps} rollout_steps): change one of the three."
            )
        self.updates = envs * steps // config.steps_per_update
        wanted, least = -(-config.buffer_size // (envs * steps)), -(-window // steps) + 1
        self.rows, self.lengthy = max(wanted, least) * steps, least > wanted
        self.seeds = draws_lots(config)
        self.groups = make_groups(spec, config.share)
        self.pool = pooling(self.groups, spec.num_agents)
        self.normal = config.normalize_obs and not spec.sight.pictures
        self.optimiser = adam(config.max_grad_norm, eps=1e-8, freeze=config.freeze)

    def algorithm(self) -> Algorithm:
        self.bytes = replay_bytes(self._replay)
        cause = "rollout_steps, sequence or burn_in" if self.lengthy else "buffer_size"
        require_room(self.bytes, f"A replay of {self.rows * self.envs:,} transitions takes", cause)
        about = f"{self.note}, " if self.note else ""
        note = f"{about}replay of {self.rows * self.envs:,} transitions, {self.bytes / 1e6:,.0f} MB"
        talks, weighs = self.talk is not None, self.talk is not None and self.talk.weighs
        return Algorithm(
            self.init, self._acting, self._read(self.act), self.update, self.memory, self.config.rollout_steps, note,
            says=self._read(self.says) if talks else None, talk=self.talk, scores=self._read(self.scores),
            attends=self._read(self.attends) if weighs else None, critic=Critic(self._valuing, self._returns),
        )  # fmt: skip

    # What a family says

    scores: Any = None
    """What acting goes by, as in `Algorithm`."""
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

    @property
    @abstractmethod
    def talk(self) -> Any:
        """How agents talk, None where they do not."""

    @abstractmethod
    def says(self, params: PyTree, observation: Observation, memory: PyTree) -> Array:
        """[B, N, C] what agents would tell each other."""

    @abstractmethod
    def attends(self, params: PyTree, observation: Observation, memory: PyTree) -> Array:
        """[B, R, H, N, N] who attends to whom."""

    @abstractmethod
    def values_along(self, learned: Learned, trajectory: Trajectory) -> Array:
        """[T, B, N] values of what was done, by networks that remember nothing from before."""

    def _valuing(self, state: ReplayState) -> Learned:
        """What of a state values need."""
        return state.learned._replace(targets=(), optimiser=())

    def _returns(self, learned: Learned, trajectory: Trajectory) -> Array:
        """[T, B, N] the same values as returns."""
        scales = learned.scales
        return scales.values(self.values_along(learned, scales.experience(trajectory)))

    def _acting(self, state: ReplayState) -> PyTree:
        """The policy, with what it needs to read observations."""
        params = self.policy(state)
        return {**params, "seen": state.learned.scales.seen} if self.normal else params

    def seen(self, params: PyTree, observation: Observation) -> Observation:
        """An observation as networks read it."""
        if not self.normal:
            return observation
        return observation._replace(obs=in_deviations(observation.obs, params["seen"]))

    def _read(self, ask: Any) -> Any:
        """A method (params, observation, ...) that is given observations as networks read them."""
        if not self.normal or ask is None:
            return ask
        return lambda params, observation, *rest: ask(params, self.seen(params, observation), *rest)

    def paid(self, reward: Array) -> Array:
        """[T, B, N] what each agent learns from, of its rewards."""
        return reward

    def memory(self, batch: int) -> PyTree:
        return ()

    def remembered(self, memory: PyTree) -> PyTree:
        """The part of a `memory` that networks read, which is stored with the replay."""
        return memory

    def _extra(self) -> PyTree:
        return ()

    # State

    def init(self, key: Array) -> ReplayState:
        params = self.networks(key)
        check_layers("freeze", self.config.freeze, [net for nets in params.values() for net in nets])
        optimiser = {name: tuple(map(self.optimiser.init, nets)) for name, nets in params.items()}
        # A copy: the targets start equal and must not share memory with what is donated.
        targets = jax.tree.map(jnp.copy, {name: params[name] for name in self.followed or params})
        learned = Learned(params, targets, optimiser, self._extra(), jnp.int32(0), self._scales())
        return ReplayState(learned, self._replay(), jnp.int32(0))

    def _scales(self) -> Scales:
        count, size = self.spec.num_agents, self.spec.state_size
        return Scales(
            reward=no_unit(self.envs, count) if self.config.normalize_reward else (),
            seen=moments((count, self.spec.obs_size)) if self.normal else (),
            central=moments((1, size)) if self.normal and size else (),
        )

    def _measured(self, learned: Learned, trajectory: Trajectory) -> Learned:
        """With scales that know a rollout."""
        scales = look(learned.scales, trajectory, self.pool)
        if self.config.normalize_reward:
            bonus: Any = trajectory.extras.get("bonus", ())
            reward = trajectory.reward if bonus == () else trajectory.reward + bonus(trajectory)
            args = self.paid(reward), trajectory.first, self.config.gamma, self.pool
            scales = scales._replace(reward=earn(scales.reward, *args))
        return learned._replace(scales=scales)

    def _replay(self) -> Replay:
        memory = self.remembered(self.memory(self.envs)) if self.recurrent else ()
        prioritized, steps = self.config.prioritized, self.config.rollout_steps
        chances = getattr(self.config, "importance", False)
        return make_replay(self.spec, self.rows, self.envs, prioritized, memory, steps, self.seeds, chances)

    def _steps(self, state: ReplayState) -> Array:
        return state.iterations * (self.envs * self.config.rollout_steps)

    # Learning

    def update(self, state: ReplayState, trajectory: Trajectory, key: Array) -> tuple[ReplayState, Metrics]:
        config = self.config
        memory = self.remembered(trajectory.memory) if self.recurrent else ()
        replay = add(state.replay, trajectory._replace(memory=memory))
        replay = replay._replace(bonus=trajectory.extras.get("bonus", ()))
        after = state._replace(iterations=state.iterations + 1)
        progress = state.iterations / self.iterations
        ready = (self._steps(after) >= config.learning_starts) & (replay.filled >= self.window)
        count = jnp.where(ready, self.updates, 0)
        factor = schedule_factor(config.lr_schedule, progress)
        beta = config.priority_beta + (1 - config.priority_beta) * progress

        def learn(learned: Learned, priority: Any, key: Array) -> tuple[Learned, Any, dict[str, Array]]:
            draw_key, step_key = jax.random.split(key)
            place = draw(replay._replace(priority=priority), draw_key, self.samples, self.window, beta)
            learned, error, metrics = self.learn(learned, replay, spread(place), factor, step_key)
            if config.prioritized:
                row, env, _ = place
                priority = prioritize(priority, row, env, error, config.priority_alpha)
            return learned, priority, metrics

        def once(i: Array, carry: tuple[Learned, Any, Any]) -> tuple[Learned, Any, Any]:
            learned, priority, metrics = learn(*carry[:2], jax.random.fold_in(key, i))
            return learned, priority, jax.tree.map(jnp.add, carry[2], metrics)

        begin = self._measured(state.learned, trajectory), replay.priority
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(learn, *begin, key)[2])
        learned, priority, totals = jax.lax.fori_loop(0, count, once, (*begin, zeros))
        metrics = jax.tree.map(lambda x: x / jnp.maximum(count, 1), totals)
        metrics |= {"updates": learned.updates.astype(jnp.float32), "lr": config.lr * factor}
        if config.normalize_reward:
            metrics["reward_unit"] = learned.scales.reward.size.mean()
        return after._replace(learned=learned, replay=replay._replace(priority=priority, bonus=())), metrics

    def _descend(self, learned: Learned, name: str, grads: Any, lr: Array) -> Learned:
        nets, states = descend(self.optimiser, learned.params[name], learned.optimiser[name], grads, lr)
        params, optimiser = {**learned.params, name: nets}, {**learned.optimiser, name: states}
        return learned._replace(params=params, optimiser=optimiser)

    def _follow(self, learned: Learned) -> Learned:
        """Targets move by tau towards the online networks."""
        tau = self.config.tau
        params = {name: learned.params[name] for name in learned.targets}
        return learned._replace(targets=jax.tree.map(lambda t, p: t + tau * (p - t), learned.targets, params))
