"""What DDPG, TD3 and SAC have in common: replay, critics of state and action, targets, the order of an update.

    y = r + gamma^n Q'(s', a'),   L(Q) = E[w (Q(s, a) - y)^2]

A critic reads its agent's observation and action (`critic="own"`), or the global state (else all observations)
and all actions (`critic="central"`, Lowe et al. 2017, arXiv 1706.02275). Each family says what a' is and how
the policy improves.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flockrl.algos.parts import Schedule, adam, descend, falling, ids, joint, legal, mean, require
from flockrl.data.replay import Batch, Replay, add, draw, gather, make_replay, prioritize, replay_bytes
from flockrl.errors import UsageError
from flockrl.nets.actions import ActionCode
from flockrl.nets.actor_critic import Network
from flockrl.nets.heads import ILLEGAL
from flockrl.nets.torsos import Activation
from flockrl.sharing import Group, Share, make_groups, merge, take
from flockrl.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory


@dataclass(frozen=True)
class OffPolicyConfig:
    """Settings that the off-policy families share."""

    critic: Literal["own", "central"] = "central"
    """What a critic reads: its agent's observation and action, or everyone's."""
    share: Share = "groups"
    """Who shares parameters: all agents, agents of one kind, or none."""
    agent_ids: bool = True
    """Tell agents that share parameters apart by a learned bias of their own."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers of actor and critic."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
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
    """Steps of reward before the critic's own estimate takes over."""
    prioritized: bool = False
    """Replay transitions in proportion to their last error instead of uniformly."""
    priority_alpha: float = 0.6
    """How strongly errors shape the sampling: 0 is uniform."""
    priority_beta: float = 0.4
    """How far the bias of prioritised sampling is corrected at first; it goes to 1 over the run."""
    gamma: float = 0.95
    """Discount factor."""
    tau: float = 0.02
    """How far the target networks move towards the online ones in each update."""
    lr: float = 1e-3
    """Adam's learning rate for actors."""
    critic_lr: float = 1e-3
    """Adam's learning rate for critics."""
    lr_schedule: Schedule = "linear"
    """How the learning rates fall to zero over the run, if at all."""
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
            critic_lr=self.critic_lr > 0,
            max_grad_norm=self.max_grad_norm is None or self.max_grad_norm > 0,
        )


class Learned(NamedTuple):
    """What gradient steps change, apart from priorities.

    params, targets: {"actor": one per group, "critic": `twins` per group in a row}; optimiser: the same shape.
    extra: what a family adds, e.g. SAC's temperatures. updates: gradient steps so far.
    """

    params: PyTree
    targets: PyTree
    optimiser: PyTree
    extra: PyTree
    updates: Array


class OffPolicyState(NamedTuple):
    """Everything that learning changes, the replay included. iterations: updates of the loop so far."""

    learned: Learned
    replay: Replay
    iterations: Array


class OffPolicy(ABC):
    """Holds what is static (networks, groups, settings). Its methods are pure. Families override what differs."""

    twins = 1
    """Critics per group; the smallest estimate counts."""

    def __init__(self, spec: EnvSpec, config: Any, envs: int, updates: int):
        self.spec, self.config, self.envs, self.iterations = spec, config, envs, updates
        steps = config.rollout_steps
        if envs * steps % config.steps_per_update:
            raise UsageError(
                f"steps_per_update ({config.steps_per_update}) must divide the {envs * steps} steps of an iteration "
                f"({envs} envs x {steps} rollout_steps): change one of the three."
            )
        self.updates = envs * steps // config.steps_per_update
        self.rows = max(-(-config.buffer_size // (envs * steps)), -(-config.n_step // steps) + 1) * steps
        self.bytes = replay_bytes(spec, self.rows, envs, config.prioritized)
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if self.bytes > 0.8 * available:
            raise UsageError(
                f"A replay of {self.rows * envs:,} transitions takes {self.bytes / 1e9:.1f} GB, and this machine has "
                f"{available / 1e9:.1f} GB: choose a smaller buffer_size."
            )
        self.groups = make_groups(spec, config.share)
        self.code = ActionCode(spec)
        self.optimiser = adam(config.max_grad_norm, eps=1e-8)
        self.actors = [self._network(group, self._actor_width(group), 0.01) for group in self.groups]
        self.critics = [
            self._network(group, self._critic_width(group), 1.0) for group in self.groups for _ in range(self.twins)
        ]

    def algorithm(self) -> Algorithm:
        note = f"replay of {self.rows * self.envs:,} transitions, {self.bytes / 1e6:,.0f} MB"
        return Algorithm(
            self.init, self.policy, self.act, self.update, self.memory, self.config.rollout_steps, note
        )  # fmt: skip

    def _network(self, group: Group, outputs: int, scale: float) -> Network:
        number = ids(group, self.config.agent_ids)
        return Network(self.config.hidden, outputs, self.config.activation, ids=number, out_scale=scale)

    # What a family says

    def _actor_width(self, group: Group) -> int:
        return group.action_size

    def _critic_width(self, group: Group) -> int:
        return 1

    def _extra(self) -> PyTree:
        return ()

    @abstractmethod
    def _behave(self, params: PyTree, seen: Observation, memory: PyTree, key: Array) -> tuple[Array, PyTree]:
        """Exploring codes [B, N, A] and the exploration's memory."""

    @abstractmethod
    def _greedy(self, params: PyTree, seen: Observation) -> Array:
        """Codes [B, N, A] without exploration."""

    @abstractmethod
    def _next_values(self, learned: Learned, batch: Batch, key: Array) -> Array:
        """[b, N] value of what followed, by the target networks."""

    def _predict(self, critic: PyTree, index: int, batch: Batch, action: Array) -> Array:
        """[b, n] Q of the replayed actions (codes `action` [b, N, A]) by critic number `index`."""
        group = self.groups[index // self.twins]
        return self._q(index, critic, self._seen(group, batch.obs, batch.state, action))[..., 0]

    @abstractmethod
    def _improve(
        self, learned: Learned, batch: Batch, action: Array, key: Array, factor: Array
    ) -> tuple[Learned, dict[str, Array]]:
        """Policies one step better, targets one step closer. `factor` scales the learning rate."""

    # State

    def init(self, key: Array) -> OffPolicyState:
        spec = self.spec
        obs = jnp.zeros((1, spec.num_agents, spec.obs_size))
        state = jnp.zeros((1, spec.state_size)) if spec.state_size else None
        action = jnp.zeros((1, spec.num_agents, spec.action_size))
        keys = jax.random.split(key, len(self.actors) + len(self.critics))
        actor = tuple(
            net.init(k, take(obs, group, 1, group.obs_size))["params"]
            for net, k, group in zip(self.actors, keys, self.groups, strict=False)
        )
        critic = tuple(
            net.init(k, self._seen(self.groups[i // self.twins], obs, state, action))["params"]
            for i, (net, k) in enumerate(zip(self.critics, keys[len(actor) :], strict=True))
        )
        params = {"actor": actor, "critic": critic}
        optimiser = {name: tuple(map(self.optimiser.init, nets)) for name, nets in params.items()}
        # A copy: the targets start equal and must not share memory with what is donated.
        targets = jax.tree.map(jnp.copy, params)
        learned = Learned(params, targets, optimiser, self._extra(), jnp.int32(0))
        replay = make_replay(spec, self.rows, self.envs, self.config.prioritized)
        return OffPolicyState(learned, replay, jnp.int32(0))

    def policy(self, state: OffPolicyState) -> PyTree:
        """The actors, how far the run is (exploration falls with it), and whether the random warm-up is over."""
        return {
            "actor": state.learned.params["actor"],
            "progress": state.iterations / self.iterations,
            "warm": self._steps(state) >= self.config.learning_starts,
        }

    def _steps(self, state: OffPolicyState) -> Array:
        return state.iterations * (self.envs * self.config.rollout_steps)

    def memory(self, batch: int) -> PyTree:
        return ()

    # Networks

    def _outputs(self, params: Sequence[PyTree], obs: Array) -> list[Array]:
        """What each group's policy network says, [..., n, width]."""
        return [
            net.apply({"params": p}, take(obs, group, obs.ndim - 2, group.obs_size))[0]
            for net, p, group in zip(self.actors, params, self.groups, strict=True)
        ]

    def _seen(self, group: Group, obs: Array, state: Array | None, action: Array) -> Array:
        """A critic's input for codes [b, N, A]: [b, n, O + A] own, or [b, 1, S + N A] the same for the whole group."""
        if self.config.critic == "own":
            own = take(obs, group, 1, group.obs_size), take(action, group, 1, group.action_size)
            return jnp.concatenate(own, axis=-1)
        return jnp.concatenate([joint(self.spec, obs, state), action.reshape(len(action), -1)], axis=-1)[:, None]

    def _seen_with(self, group: Group, obs: Array, state: Array | None, action: Array, own: Array) -> Array:
        """The same where each agent of the group does `own` [b, n, A] and the others' `action` is held: [b, n, F]."""
        if self.config.critic == "own":
            return jnp.concatenate([take(obs, group, 1, group.obs_size), own], axis=-1)
        pad = self.spec.action_size - own.shape[-1]
        own = jnp.pad(own, ((0, 0), (0, 0), (0, pad)))
        mine: Any = np.eye(self.spec.num_agents, dtype=bool)[list(group.agents)][:, :, None]  # [n, N, 1]
        actions = jnp.where(mine, own[:, :, None], action[:, None])
        wide = joint(self.spec, obs, state)[:, None]
        wide = jnp.broadcast_to(wide, (len(own), group.size, wide.shape[-1]))
        return jnp.concatenate([wide, actions.reshape(*own.shape[:2], -1)], axis=-1)

    def _q(self, index: int, params: PyTree, x: Array) -> Array:
        """[b, n, width] outputs of critic number `index` (`twins` per group in a row)."""
        out = self.critics[index].apply({"params": params}, x)[0]
        return jnp.broadcast_to(out, (len(out), self.groups[index // self.twins].size, out.shape[-1]))

    def _smallest(self, critics: Sequence[PyTree], group_index: int, x: Array) -> Array:
        """[b, n, width] the smaller of the twins' outputs."""
        first = group_index * self.twins
        values = [self._q(i, critics[i], x) for i in range(first, first + self.twins)]
        return values[0] if self.twins == 1 else jnp.minimum(*values)

    def _team(self, parts: list[Array], alive: Array | None) -> Array:
        """Codes of groups as codes of the team, [b, N, A]; those of dead agents are 0."""
        whole = merge(parts, self.groups, 1, self.spec.action_size)
        return whole if alive is None else whole * alive[..., None]

    def _best(self, outs: Sequence[Array], avail: Array | None, alive: Array | None = None) -> Array:
        """One-hot codes [b, N, A] of each group's best legal discrete action."""
        masks = self._legal(avail)
        best = [jnp.where(mask, out, ILLEGAL).argmax(-1) for out, mask in zip(outs, masks, strict=True)]
        return self._team([jax.nn.one_hot(b, out.shape[-1]) for b, out in zip(best, outs, strict=True)], alive)

    def _legal(self, avail: Array | None) -> list[Array]:
        """[..., n, A] of each group: the actions that exist, and are legal now."""
        masks = [legal(group, avail) for group in self.groups]
        return [
            jnp.asarray(group.legal) if mask is None else mask & group.legal
            for group, mask in zip(self.groups, masks, strict=True)
        ]

    # Acting

    def act(
        self, params: PyTree, observation: Observation, memory: PyTree, key: Array, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        if not explore:
            return self.code.decode(self._greedy(params, observation)), memory, {}
        random_key, key = jax.random.split(key)
        chosen, memory = self._behave(params, observation, memory, key)
        random = self.code.random(random_key, len(chosen), observation.avail)
        return self.code.decode(jnp.where(params["warm"], chosen, random)), memory, {}

    # Learning

    def update(self, state: OffPolicyState, trajectory: Trajectory, key: Array) -> tuple[OffPolicyState, Metrics]:
        config = self.config
        replay = add(state.replay, trajectory)
        after = state._replace(iterations=state.iterations + 1)
        progress = state.iterations / self.iterations
        ready = (self._steps(after) >= config.learning_starts) & (replay.filled >= config.n_step)
        count = jnp.where(ready, self.updates, 0)
        factor = falling(config.lr_schedule, progress)
        beta = config.priority_beta + (1 - config.priority_beta) * progress

        def learn(learned: Learned, priority: Any, key: Array) -> tuple[Learned, Any, dict[str, Array]]:
            draw_key, step_key = jax.random.split(key)
            place = draw(replay._replace(priority=priority), draw_key, config.batch_size, config.n_step, beta)
            batch = gather(replay, *place, config.n_step, config.gamma)
            learned, error, metrics = self.step(learned, batch, factor, step_key)
            if config.prioritized:
                priority = prioritize(priority, batch, error, config.priority_alpha)
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

    def step(
        self, learned: Learned, batch: Batch, factor: Array, key: Array
    ) -> tuple[Learned, Array, dict[str, Array]]:
        """One gradient step on one batch: the new state, the critics' errors [b, N], and metrics."""
        target_key, policy_key = jax.random.split(key)
        follows = self._next_values(learned, batch, target_key)
        target = jax.lax.stop_gradient(batch.reward + batch.discount * follows)
        action = self.code.encode(batch.action) * batch.alive[..., None]
        loss = jax.value_and_grad(self._critic_loss, has_aux=True)
        (value, (error, q)), grads = loss(learned.params["critic"], batch, action, target)
        learned = self._descend(learned, "critic", grads, self.config.critic_lr * factor)
        learned, metrics = self._improve(learned, batch, action, policy_key, factor)
        metrics |= {"critic_loss": value, "q": q, "critic_grad_norm": optax.tree.norm(grads)}
        return learned._replace(updates=learned.updates + 1), error, metrics

    def _critic_loss(
        self, critics: Sequence[PyTree], batch: Batch, action: Array, target: Array
    ) -> tuple[Array, tuple[Array, Array]]:
        """Squared errors of all critics, each critic's mean added up; the first twins' errors and mean value."""
        total, errors, values = jnp.float32(0), [], []
        for i, critic in enumerate(critics):
            group = self.groups[i // self.twins]
            q = self._predict(critic, i, batch, action)
            error, alive = q - take(target, group, 1), take(batch.alive, group, 1)
            total = total + mean(batch.weight[:, None] * error**2, alive)
            if i % self.twins == 0:
                errors.append(error)
                values.append(mean(q, alive))
        return total, (merge(errors, self.groups, 1), jnp.stack(values).mean())

    def _descend(self, learned: Learned, name: str, grads: Any, lr: Array) -> Learned:
        nets, states = descend(self.optimiser, learned.params[name], learned.optimiser[name], grads, lr)
        params, optimiser = {**learned.params, name: nets}, {**learned.optimiser, name: states}
        return learned._replace(params=params, optimiser=optimiser)

    def _follow(self, learned: Learned) -> Learned:
        """Targets move by tau towards the online networks."""
        tau = self.config.tau
        return learned._replace(targets=jax.tree.map(lambda t, p: t + tau * (p - t), learned.targets, learned.params))
