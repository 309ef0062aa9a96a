"""What PPO and REINFORCE have in common: critics, values of a rollout, their scale, running moments.

A critic reads its agent's own observation ("own") or the global state, else all observations ("central"). There
may be none. Each family says how a rollout becomes a gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.parts import Schedule, adam, joint, lr_factor, mean, require, var
from flockrl.core.groups import Group, Share, merge, pooling, take
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.nets.network import Network
from flockrl.nets.normalisation import Moments, moments, observe
from flockrl.nets.torsos import Activation
from flockrl.policies.network import ids, make_network
from flockrl.policies.stochastic import StochasticPolicy

Reads = Literal["none", "own", "central"]


@dataclass(frozen=True)
class PolicyConfig:
    """Settings of every learner of a stochastic policy."""

    share: Share = "groups"
    """Who shares parameters: all agents, agents of one kind, or none."""
    agent_ids: bool = True
    """Tell agents that share parameters apart by a learned bias of their own."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers of each network."""
    activation: Activation = "tanh"
    """Activation after each hidden layer."""
    kernel: str | None = None
    """A flax module of your own in place of the hidden layers, as package.module:Class."""
    memory: Literal["none", "gru"] = "none"
    """Whether networks remember past observations."""
    memory_size: int = 64
    """Size of the GRU's memory."""
    rollout_steps: int = 100
    """Steps of every environment between updates."""
    lr: float = 2e-3
    """Adam's learning rate."""
    lr_schedule: Schedule = "linear"
    """How the learning rate falls to zero over the run, if at all."""
    max_grad_norm: float | None = 0.5
    """Gradients of each network are scaled down to this norm; None for never."""
    normalize_obs: bool = False
    """Scale observations by their running mean and deviation."""

    def __post_init__(self) -> None:
        require(
            self,
            hidden=len(self.hidden) > 0 and min(self.hidden) > 0,
            memory_size=self.memory_size > 0,
            rollout_steps=self.rollout_steps > 0,
            lr=self.lr > 0,
            max_grad_norm=self.max_grad_norm is None or self.max_grad_norm > 0,
        )


@dataclass(frozen=True)
class OnPolicyConfig(PolicyConfig):
    """Settings that the on-policy families share."""

    gamma: float = 0.95
    """Discount factor."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""
    normalize_advantage: bool = True
    """Scale advantages to mean 0 and deviation 1 within each group of agents."""
    normalize_value: bool = True
    """Let the critic predict returns scaled by their running mean and deviation (PopArt)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, gamma=0 <= self.gamma <= 1, entropy=self.entropy >= 0)


class OnPolicyState(NamedTuple):
    """Everything that learning changes. params: {"actor", "critic"}, a tuple with one entry per group each.

    Without a critic there is no "critic" in `params`, and `value_moments` and `critic_memory` are empty.
    """

    params: PyTree
    optimiser: PyTree
    obs_moments: Moments | tuple[()]
    state_moments: Moments | tuple[()]
    value_moments: Moments | tuple[()]
    critic_memory: PyTree
    updates: Array


class ValueEstimates(NamedTuple):
    """What the critics estimate along a rollout. value, next_value: [T, B, N] of each step and of what followed it, in
    units of returns; scale: mean and deviation [N] of the critics' own units; memories: theirs after each step."""

    value: Array
    next_value: Array
    scale: tuple[Array, Array]
    memories: PyTree


class OnPolicy(StochasticPolicy, ABC):
    """A team's policies and critics of their states' values. Its methods are pure. Families say how to learn."""

    def __init__(self, spec: EnvSpec, config: Any, envs: int, updates: int, critic: Reads):
        super().__init__(spec, config)
        self.envs, self.updates, self.critic = envs, updates, critic
        self.critics: list[Network] = []
        if critic == "central":
            self.critics = [make_network(spec, config, group.size) for group in self.groups]
        elif critic == "own":
            self.critics = [make_network(spec, config, 1, ids=ids(group, config.agent_ids)) for group in self.groups]
        self.pool = pooling(self.groups, spec.num_agents)
        self.optimiser = adam(config.max_grad_norm, eps=1e-5)

    def algorithm(self) -> Algorithm:
        act, update, steps = self.act, self.update, self.config.rollout_steps
        return Algorithm(self.init, self.policy, act, update, self.memory, steps, kl=self.kl)

    @abstractmethod
    def update(self, state: OnPolicyState, trajectory: Trajectory, key: Array) -> tuple[OnPolicyState, Metrics]:
        """Learn from one rollout."""

    # State

    def init(self, key: Array) -> OnPolicyState:
        spec = self.spec
        obs = jnp.zeros((1, 1, spec.num_agents, spec.obs_size))
        state = jnp.zeros((1, 1, spec.state_size)) if spec.state_size else None
        first = jnp.zeros((1, 1), bool)
        keys = jax.random.split(key, (2, self.groups[0].of))[:, np.array([group.number for group in self.groups])]
        params = {"actor": self.actor.init(keys[0])}
        if self.critics:
            params["critic"] = tuple(
                net.init(k, self._critic_input(group, obs, state), h, first)["params"]
                for net, k, group, h in zip(self.critics, keys[1], self.groups, self._critic_memory(1), strict=True)
            )
        normal = self.config.normalize_obs
        return OnPolicyState(
            params=params,
            optimiser={name: tuple(map(self.optimiser.init, nets)) for name, nets in params.items()},
            obs_moments=moments((spec.num_agents, spec.obs_size)) if normal else (),
            state_moments=moments((1, spec.state_size)) if normal and spec.state_size and self.critics else (),
            value_moments=moments((spec.num_agents,)) if self.critics else (),
            critic_memory=self._critic_memory(self.envs),
            updates=jnp.int32(0),
        )

    def policy(self, state: OnPolicyState) -> PyTree:
        return {"actor": state.params["actor"], "obs_moments": state.obs_moments}

    def _critic_memory(self, batch: int) -> PyTree:
        if self.critic == "none":
            return ()
        if self.critic == "own" or not self.recurrent:
            return self.actor.blank(batch)
        return tuple(jnp.zeros((batch, 1, self.config.memory_size)) for _ in self.groups)

    # Networks

    def _critic_input(self, group: Group, obs: Array, state: Array | None) -> Array:
        """[..., n, O] own observations, or [..., S] the state, as one pseudo-agent [..., 1, S] for a GRU."""
        if self.critic == "own":
            return take(obs, group, obs.ndim - 2, group.obs_size)
        return joint(self.spec, obs, state)[..., None, :]

    def _values(
        self, params: PyTree, obs: Array, state: Array | None, memory: PyTree, first: Array | None
    ) -> tuple[Array, PyTree]:
        """Values [..., N] in the critic's own units and each group's memory after each step."""
        outs, memories = [], []
        for net, p, group, h in zip(self.critics, params, self.groups, memory, strict=True):
            out, after = net.apply({"params": p}, self._critic_input(group, obs, state), h, first)
            outs.append(out[..., 0] if self.critic == "own" else out[..., 0, :])
            memories.append(after)
        return merge(outs, self.groups, axis=outs[0].ndim - 1), tuple(memories)

    # What a rollout is worth

    def _seen(self, state: OnPolicyState, seen: Observation) -> Observation:
        """An observation as the networks read it, normalised."""
        central = None if seen.state is None else self._normal(seen.state, state.state_moments)
        return seen._replace(obs=self._normal(seen.obs, state.obs_moments), state=central)

    def _estimate(self, state: OnPolicyState, trajectory: Trajectory, seen: Observation) -> ValueEstimates:
        critic, memory = state.params["critic"], state.critic_memory
        raw, memories = self._values(critic, seen.obs, seen.state, memory, trajectory.first)
        offset, std = self._value_scale(state.value_moments)
        value = raw * std + offset
        next_value = self._next_values(state, trajectory, raw, memories) * std + offset
        return ValueEstimates(value, next_value, (offset, std), memories)

    def _value_scale(self, stats: Any) -> tuple[Array, Array]:
        """Mean and deviation [N] that turn the critic's units into returns."""
        return stats.mean, stats.std if self.config.normalize_value else jnp.ones_like(stats.std)

    def _next_values(self, state: OnPolicyState, trajectory: Trajectory, raw: Array, memories: PyTree) -> Array:
        """[T, B, N] value of what followed each step, in the critic's units.

        Inside an episode that is the next row. Final observations are looked at only in the steps
        where some episode was cut, which is rare.
        """
        shifted = jnp.concatenate([raw[1:], jnp.zeros_like(raw[:1])])
        cut = trajectory.truncated.any(-1)
        cut = cut.at[-1].set(True)

        def final(now: tuple[Array, Observation, PyTree]) -> Array:
            seen = jax.tree.map(lambda x: x[None], self._seen(state, now[1]))
            first = jnp.zeros((1, raw.shape[1]), bool)
            return self._values(state.params["critic"], seen.obs, seen.state, now[2], first)[0][0]

        def step(now: tuple[Array, Observation, PyTree]) -> Array:
            return jax.lax.cond(now[0].any(), final, lambda _: jnp.zeros_like(raw[0]), now)

        memories = memories if self.recurrent else state.critic_memory
        following = Observation(trajectory.next_obs, state=trajectory.next_state)
        finals = jax.lax.map(step, (cut, following, memories))
        return jnp.where(cut[..., None], finals, shifted)

    def _rescaled(
        self, state: OnPolicyState, estimates: ValueEstimates, returns: Array, weight: Array | None
    ) -> tuple[PyTree, Any, tuple[Array, Array]]:
        """Critics in units that know these returns [T, B, N], the moments of those, and their scale."""
        stats: Any = state.value_moments
        if self.config.normalize_value:
            stats = observe(stats, returns, weight, self.pool, slowest=0.01)
        (mean, std), (new_mean, new_std) = estimates.scale, self._value_scale(stats)
        return self._popart(state.params["critic"], std, mean, new_std, new_mean), stats, (new_mean, new_std)

    def _popart(self, critic: PyTree, std: Array, mean: Array, new_std: Array, new_mean: Array) -> PyTree:
        """Rescale the last layers so that the values they stand for do not move (van Hasselt et al. 2016)."""
        if not self.config.normalize_value:
            return critic
        scaled = []
        for group, p in zip(self.groups, critic, strict=True):
            i = group.agents[0]
            ratio = std[i] / new_std[i]
            bias = ratio * p["head"]["bias"] + (mean[i] - new_mean[i]) / new_std[i]
            scaled.append({**p, "head": {"kernel": p["head"]["kernel"] * ratio, "bias": bias}})
        return tuple(scaled)

    def _normal_advantage(self, advantage: Array, weight: Array | None) -> Array:
        if not self.config.normalize_advantage:
            return advantage
        parts = []
        for group in self.groups:
            a = take(advantage, group, 2)
            w = None if weight is None else take(weight, group, 2)
            parts.append((a - mean(a, w)) / (jnp.sqrt(var(a, w)) + 1e-8))
        return merge(parts, self.groups, 2)

    # The end of an update

    def _lr(self, state: OnPolicyState) -> Array:
        return self.config.lr * lr_factor(self.config.lr_schedule, state.updates / self.updates)

    def _explained(self, returns: Array, value: Array, weight: Array | None) -> Array:
        """The part of the returns' variance that the critic foresaw."""
        return 1 - mean((returns - value) ** 2, weight) / (var(returns, weight) + 1e-8)

    def _moved(
        self, state: OnPolicyState, trajectory: Trajectory, weight: Array | None, memories: PyTree
    ) -> OnPolicyState:
        """One update further: observations' moments, the critics' memory after the rollout, the counter."""
        obs_moments, state_moments = state.obs_moments, state.state_moments
        if isinstance(obs_moments, Moments):
            obs_moments = observe(obs_moments, trajectory.obs, weight, self.pool, slowest=0.001)
        if isinstance(state_moments, Moments) and trajectory.state is not None:
            one, there = jnp.ones((1, 1)), None if weight is None else weight.max(-1, keepdims=True)
            state_moments = observe(state_moments, trajectory.state[:, :, None], there, one, slowest=0.001)
        memory = jax.tree.map(lambda h: h[-1], memories)
        return state._replace(
            obs_moments=obs_moments, state_moments=state_moments, critic_memory=memory, updates=state.updates + 1
        )
