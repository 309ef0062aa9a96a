"""Proximal policy optimisation for teams: PPO, IPPO, MAPPO, and their one-epoch relatives A2C.

Schulman et al. 2017 (arXiv 1707.06347), de Witt et al. 2020 (IPPO), Yu et al. 2022 (MAPPO).

    L = -E[min(rho A, clip(rho, 1 - eps, 1 + eps) A)] - c H[pi],   rho = pi(a | o) / pi_old(a | o)

IPPO and MAPPO differ in one argument: what the critic reads (`critic`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from flockrl.algos.parts import Schedule, adam, descend, falling, ids, joint, legal, mean, require, var
from flockrl.errors import UsageError
from flockrl.nets.actor_critic import Network
from flockrl.nets.heads import make_head
from flockrl.nets.torsos import Activation
from flockrl.normalize import Moments, moments, observe
from flockrl.returns import gae
from flockrl.sharing import Group, Share, make_groups, merge, pooling, take
from flockrl.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory


@dataclass(frozen=True)
class PPOConfig:
    """Settings of the PPO family."""

    critic: Literal["own", "central"] = "central"
    """What the critic reads: the agent's own observation, or the global state (else all observations)."""
    share: Share = "groups"
    """Who shares parameters: all agents, agents of one kind, or none."""
    agent_ids: bool = True
    """Tell agents that share parameters apart by a learned bias of their own."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers of actor and critic."""
    activation: Activation = "tanh"
    """Activation after each hidden layer."""
    memory: Literal["none", "gru"] = "none"
    """Whether actor and critic remember past observations."""
    memory_size: int = 64
    """Size of the GRU's memory."""
    rollout_steps: int = 100
    """Steps of every environment between updates."""
    epochs: int = 5
    """Passes over each rollout."""
    minibatches: int = 4
    """Parts that the environments are split into for each gradient step; must divide the number of environments."""
    lr: float = 2e-3
    """Adam's learning rate."""
    lr_schedule: Schedule = "linear"
    """How the learning rate falls to zero over the run, if at all."""
    gamma: float = 0.95
    """Discount factor."""
    gae_lambda: float = 0.9
    """Lambda of generalised advantage estimation."""
    clip: float | None = 0.2
    """How far the probability ratio may leave 1; None for no clipping."""
    value_clip: float | None = None
    """How far a value may move per update, in units of the returns' deviation; None for no clipping."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float | None = 0.5
    """Gradients of each network are scaled down to this norm; None for never."""
    target_kl: float | None = None
    """Stop an update's epochs once the policy has moved by this much; None for never."""
    normalize_advantage: bool = True
    """Scale advantages to mean 0 and deviation 1 within each group of agents."""
    normalize_value: bool = True
    """Let the critic predict returns scaled by their running mean and deviation (PopArt)."""
    normalize_obs: bool = False
    """Scale observations by their running mean and deviation."""

    def __post_init__(self) -> None:
        require(
            self,
            hidden=len(self.hidden) > 0 and min(self.hidden) > 0,
            memory_size=self.memory_size > 0,
            rollout_steps=self.rollout_steps > 0,
            epochs=self.epochs > 0,
            minibatches=self.minibatches > 0,
            lr=self.lr > 0,
            gamma=0 <= self.gamma <= 1,
            gae_lambda=0 <= self.gae_lambda <= 1,
            clip=self.clip is None or self.clip > 0,
            value_clip=self.value_clip is None or self.value_clip > 0,
            entropy=self.entropy >= 0,
            max_grad_norm=self.max_grad_norm is None or self.max_grad_norm > 0,
            target_kl=self.target_kl is None or self.target_kl > 0,
        )


class PPOState(NamedTuple):
    """Everything that learning changes. params: {"actor", "critic"}, a tuple with one entry per group each."""

    params: PyTree
    optimiser: PyTree
    obs_moments: Moments | tuple[()]
    state_moments: Moments | tuple[()]
    value_moments: Moments
    critic_memory: PyTree
    updates: Array


class Batch(NamedTuple):
    """A rollout prepared for learning. Leaves have axes [B, T, ...], memories [B, ...]."""

    obs: Array
    avail: Array | None
    state: Array | None
    weight: Array | None
    first: Array
    action: Array
    logp: Array
    advantage: Array
    target: Array
    value: Array
    actor_memory: PyTree
    critic_memory: PyTree


def make(spec: EnvSpec, config: PPOConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` updates."""
    if envs % config.minibatches:
        raise UsageError(
            f"minibatches ({config.minibatches}) must divide the number of environments ({envs}): "
            "change --minibatches or --envs."
        )
    learner = _PPO(spec, config, envs, updates)
    return Algorithm(learner.init, learner.policy, learner.act, learner.update, learner.memory, config.rollout_steps)


class _PPO:
    """Holds what is static (networks, groups, settings). Its methods are pure."""

    def __init__(self, spec: EnvSpec, config: PPOConfig, envs: int, updates: int):
        self.spec, self.config, self.envs, self.updates = spec, config, envs, updates
        self.groups = make_groups(spec, config.share)
        self.pool = pooling(self.groups, spec.num_agents)
        self.recurrent = config.memory == "gru"
        size = config.memory_size if self.recurrent else 0
        self.heads = [make_head(spec, group) for group in self.groups]

        def network(**options: Any) -> Network:
            return Network(config.hidden, activation=config.activation, memory=size, **options)

        self.actors = [
            network(outputs=head.width, ids=ids(group, config.agent_ids), log_std=head.log_std, out_scale=0.01)
            for group, head in zip(self.groups, self.heads, strict=True)
        ]
        if config.critic == "central":
            self.critics = [network(outputs=group.size) for group in self.groups]
        else:
            self.critics = [network(outputs=1, ids=ids(group, config.agent_ids)) for group in self.groups]
        self.optimiser = adam(config.max_grad_norm, eps=1e-5)

    # State

    def init(self, key: Array) -> PPOState:
        spec = self.spec
        obs = jnp.zeros((1, 1, spec.num_agents, spec.obs_size))
        state = jnp.zeros((1, 1, spec.state_size)) if spec.state_size else None
        memory, first = self._memory(self.groups, 1), jnp.zeros((1, 1), bool)
        critic_memory = self._critic_memory(1)
        keys = jax.random.split(key, (2, len(self.groups)))
        actor = tuple(
            net.init(k, take(obs, group, 2, group.obs_size), h, first)["params"]
            for net, k, group, h in zip(self.actors, keys[0], self.groups, memory, strict=True)
        )
        critic = tuple(
            net.init(k, self._critic_input(group, obs, state), h, first)["params"]
            for net, k, group, h in zip(self.critics, keys[1], self.groups, critic_memory, strict=True)
        )
        params = {"actor": actor, "critic": critic}
        normal = self.config.normalize_obs
        return PPOState(
            params=params,
            optimiser={name: tuple(map(self.optimiser.init, nets)) for name, nets in params.items()},
            obs_moments=moments((spec.num_agents, spec.obs_size)) if normal else (),
            state_moments=moments((1, spec.state_size)) if normal and spec.state_size else (),
            value_moments=moments((spec.num_agents,)),
            critic_memory=self._critic_memory(self.envs),
            updates=jnp.int32(0),
        )

    def policy(self, state: PPOState) -> PyTree:
        return {"actor": state.params["actor"], "obs_moments": state.obs_moments}

    def memory(self, batch: int) -> PyTree:
        return self._memory(self.groups, batch) if self.recurrent else ()

    def _memory(self, groups: tuple[Group, ...], batch: int) -> PyTree:
        if not self.recurrent:
            return ((),) * len(groups)
        return tuple(jnp.zeros((batch, group.size, self.config.memory_size)) for group in groups)

    def _critic_memory(self, batch: int) -> PyTree:
        if self.config.critic == "own" or not self.recurrent:
            return self._memory(self.groups, batch)
        return tuple(jnp.zeros((batch, 1, self.config.memory_size)) for _ in self.groups)

    # Networks

    def _normal(self, x: Array, stats: Moments | tuple[()]) -> Array:
        if isinstance(stats, Moments):
            return jnp.clip((x - stats.mean) / stats.std, -10.0, 10.0)
        return x

    def _actor(self, params: PyTree, obs: Array, memory: PyTree, first: Array | None) -> list[tuple[Array, Any]]:
        """Output and memory of each group's policy for normalised obs [T, B, N, O]."""
        axis = obs.ndim - 2
        memory = memory if self.recurrent else ((),) * len(self.groups)
        return [
            net.apply({"params": p}, take(obs, group, axis, group.obs_size), h, first)
            for net, p, group, h in zip(self.actors, params, self.groups, memory, strict=True)
        ]

    def _critic_input(self, group: Group, obs: Array, state: Array | None) -> Array:
        """[..., n, O] own observations, or [..., S] the state, as one pseudo-agent [..., 1, S] for a GRU."""
        if self.config.critic == "own":
            return take(obs, group, obs.ndim - 2, group.obs_size)
        return joint(self.spec, obs, state)[..., None, :]

    def _values(
        self, params: PyTree, obs: Array, state: Array | None, memory: PyTree, first: Array | None
    ) -> tuple[Array, PyTree]:
        """Values [..., N] in the critic's own units and each group's memory after each step."""
        outs, memories = [], []
        for net, p, group, h in zip(self.critics, params, self.groups, memory, strict=True):
            out, after = net.apply({"params": p}, self._critic_input(group, obs, state), h, first)
            outs.append(out[..., 0] if self.config.critic == "own" else out[..., 0, :])
            memories.append(after)
        return merge(outs, self.groups, axis=outs[0].ndim - 1), tuple(memories)

    # Acting

    def act(
        self, params: PyTree, observation: Observation, memory: PyTree, key: Array, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        obs = self._normal(observation.obs, params["obs_moments"])
        if self.recurrent:
            first = jnp.zeros((1, obs.shape[0]), bool)
            outs = [(out[0], h[0]) for out, h in self._actor(params["actor"], obs[None], memory, first)]
        else:
            outs = self._actor(params["actor"], obs, (), None)
        actions, logps = [], []
        for i, (group, head, (out, _)) in enumerate(zip(self.groups, self.heads, outs, strict=True)):
            avail = legal(group, observation.avail)
            k = key if len(self.groups) == 1 else jax.random.fold_in(key, i)
            action, logp = head.sample(k, out, avail) if explore else (head.mode(out, avail), out[..., 0])
            actions.append(action)
            logps.append(logp)
        size = None if self.spec.discrete else self.spec.action_size
        action = merge(actions, self.groups, 1, size)
        extras = {"logp": merge(logps, self.groups, 1)} if explore else {}
        return action, tuple(h for _, h in outs) if self.recurrent else (), extras

    # Learning

    def update(self, state: PPOState, trajectory: Trajectory, key: Array) -> tuple[PPOState, Metrics]:
        obs = self._normal(trajectory.obs, state.obs_moments)
        central = None if trajectory.state is None else self._normal(trajectory.state, state.state_moments)
        weight = None if trajectory.alive is None else trajectory.weight
        critic = state.params["critic"]
        raw, memories = self._values(critic, obs, central, state.critic_memory, trajectory.first)
        offset, std = self._value_scale(state.value_moments)
        value = raw * std + offset
        next_value = self._next_values(state, trajectory, raw, memories) * std + offset
        over = trajectory.terminated | trajectory.truncated
        advantage = gae(
            trajectory.reward, value, next_value, trajectory.terminated, over, self.config.gamma, self.config.gae_lambda
        )
        returns = advantage + value
        stats = state.value_moments
        if self.config.normalize_value:
            stats = observe(stats, returns, weight, self.pool, slowest=0.01)
        new_mean, new_std = self._value_scale(stats)
        params = {**state.params, "critic": self._popart(critic, std, offset, new_std, new_mean)}
        batch = Batch(
            obs, trajectory.avail, central, weight, trajectory.first, trajectory.action, trajectory.extras["logp"],
            self._normal_advantage(advantage, weight), (returns - new_mean) / new_std, (value - new_mean) / new_std,
            trajectory.memory, state.critic_memory,
        )  # fmt: skip
        lr = self.config.lr * falling(self.config.lr_schedule, state.updates / self.updates)
        params, optimiser, metrics = self._epochs(params, state.optimiser, batch, lr, key)
        metrics["explained_variance"] = 1 - mean((returns - value) ** 2, weight) / (var(returns, weight) + 1e-8)
        metrics["lr"] = lr
        obs_moments, state_moments = state.obs_moments, state.state_moments
        if isinstance(obs_moments, Moments):
            obs_moments = observe(obs_moments, trajectory.obs, weight, self.pool, slowest=0.001)
        if isinstance(state_moments, Moments) and trajectory.state is not None:
            one = jnp.ones((1, 1))
            state_moments = observe(state_moments, trajectory.state[:, :, None], None, one, slowest=0.001)
        critic_memory = jax.tree.map(lambda h: h[-1], memories)
        return PPOState(params, optimiser, obs_moments, state_moments, stats, critic_memory, state.updates + 1), metrics

    def _value_scale(self, stats: Moments) -> tuple[Array, Array]:
        return stats.mean, stats.std if self.config.normalize_value else jnp.ones_like(stats.std)

    def _next_values(self, state: PPOState, trajectory: Trajectory, raw: Array, memories: PyTree) -> Array:
        """[T, B, N] value of what followed each step, in the critic's units.

        Inside an episode that is the next row. Final observations are looked at only in the steps
        where some episode was cut, which is rare.
        """
        shifted = jnp.concatenate([raw[1:], jnp.zeros_like(raw[:1])])
        cut = trajectory.truncated.any(-1)
        cut = cut.at[-1].set(True)

        def final(now: tuple[Array, Array, Array | None, PyTree]) -> Array:
            _, obs, central, memory = now
            obs = self._normal(obs, state.obs_moments)[None]
            central = None if central is None else self._normal(central, state.state_moments)[None]
            first = jnp.zeros((1, obs.shape[1]), bool)
            return self._values(state.params["critic"], obs, central, memory, first)[0][0]

        def step(now: tuple[Array, Array, Array | None, PyTree]) -> Array:
            return jax.lax.cond(now[0].any(), final, lambda _: jnp.zeros_like(raw[0]), now)

        memories = memories if self.recurrent else state.critic_memory
        finals = jax.lax.map(step, (cut, trajectory.next_obs, trajectory.next_state, memories))
        return jnp.where(cut[..., None], finals, shifted)

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

    def _epochs(
        self, params: PyTree, optimiser: PyTree, batch: Batch, lr: Array, key: Array
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """Several passes over the batch, environments shuffled into minibatches anew for each."""
        parts, envs = self.config.minibatches, self.envs
        arrays, memories = batch[:-2], batch[-2:]
        arrays = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), arrays)
        gradient = jax.value_and_grad(self._loss, has_aux=True)

        def minibatch(carry: tuple[PyTree, PyTree], part: Batch) -> tuple[tuple[PyTree, PyTree], dict[str, Array]]:
            params, optimiser = carry
            (_, metrics), grads = gradient(params, part)
            metrics["grad_norm"] = optax.tree.norm(grads["actor"])
            both = {name: descend(self.optimiser, params[name], optimiser[name], grads[name], lr) for name in params}
            after = tuple({name: pair[i] for name, pair in both.items()} for i in (0, 1))
            return (after[0], after[1]), metrics

        def epoch(carry: tuple[PyTree, PyTree], key: Array) -> tuple[tuple[PyTree, PyTree], dict[str, Array]]:
            order = jax.random.permutation(key, envs) if parts > 1 else None
            pick = (lambda x: x[order]) if parts > 1 else (lambda x: x)
            split = jax.tree.map(lambda x: pick(x).reshape(parts, envs // parts, *x.shape[1:]), (arrays, memories))
            carry, metrics = jax.lax.scan(minibatch, carry, Batch._make((*split[0], *split[1])))
            return carry, jax.tree.map(jnp.mean, metrics)

        def guarded(carry: tuple[Any, Array], key: Array) -> tuple[tuple[Any, Array], tuple[dict[str, Array], Array]]:
            state, going = carry
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(epoch, state, key)[1])
            state, metrics = jax.lax.cond(going, epoch, lambda s, _: (s, zeros), state, key)
            return (state, going & (metrics["approx_kl"] <= self.config.target_kl)), (metrics, going)

        keys = jax.random.split(key, self.config.epochs)
        carry = (params, optimiser)
        if self.config.target_kl is None:
            carry, metrics = jax.lax.scan(epoch, carry, keys)
            return *carry, jax.tree.map(jnp.mean, metrics)
        (carry, _), (metrics, ran) = jax.lax.scan(guarded, (carry, jnp.bool_(True)), keys)
        metrics = jax.tree.map(lambda m: (m * ran).sum() / ran.sum(), metrics)
        return *carry, {**metrics, "epochs": ran.sum().astype(jnp.float32)}

    def _loss(self, params: PyTree, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The clipped surrogate and the value error of one minibatch, each group's mean added up."""
        first = None
        if self.recurrent:
            time_first = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch[:-2])
            batch = Batch._make((*time_first, *batch[-2:]))
            first = batch.first
        outs = self._actor(params["actor"], batch.obs, batch.actor_memory, first)
        values, _ = self._values(params["critic"], batch.obs, batch.state, batch.critic_memory, first)
        total = jnp.float32(0)
        rows: list[dict[str, Array]] = []
        for group, head, (out, _) in zip(self.groups, self.heads, outs, strict=True):
            action = take(batch.action, group, 2, None if self.spec.discrete else group.action_size)
            logp, entropy = (x.reshape(-1) for x in head.evaluate(out, legal(group, batch.avail), action))
            old, advantage, value, target, old_value = (
                take(x, group, 2).reshape(-1) for x in (batch.logp, batch.advantage, values, batch.target, batch.value)
            )
            weight = None if batch.weight is None else take(batch.weight, group, 2).reshape(-1)
            surrogate, log_ratio, clipped = self._surrogate(logp, old, advantage)
            policy_loss, bonus = -mean(surrogate, weight), mean(entropy, weight)
            value_loss = mean(self._value_error(value, target, old_value), weight)
            total = total + policy_loss - self.config.entropy * bonus + value_loss
            kl = mean(jnp.exp(log_ratio) - 1 - log_ratio, weight)
            rows.append(
                {
                    "policy_loss": policy_loss,
                    "value_loss": value_loss,
                    "entropy": bonus,
                    "approx_kl": kl,
                    "clip_fraction": mean(clipped, weight),
                }
            )
        return total, {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}  # type: ignore[misc]

    def _surrogate(self, logp: Array, old: Array, advantage: Array) -> tuple[Array, Array, Array]:
        log_ratio = logp - old
        ratio = jnp.exp(log_ratio)
        if self.config.clip is None:
            return ratio * advantage, log_ratio, jnp.zeros_like(ratio)
        eps = self.config.clip
        clipped = jnp.clip(ratio, 1 - eps, 1 + eps)
        return jnp.minimum(ratio * advantage, clipped * advantage), log_ratio, (jnp.abs(ratio - 1) > eps) * 1.0

    def _value_error(self, value: Array, target: Array, old: Array) -> Array:
        error = 0.5 * (value - target) ** 2
        if self.config.value_clip is None:
            return error
        clipped = old + jnp.clip(value - old, -self.config.value_clip, self.config.value_clip)
        return jnp.maximum(error, 0.5 * (clipped - target) ** 2)
