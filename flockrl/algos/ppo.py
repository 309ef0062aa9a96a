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

from flockrl.algos.family import Family
from flockrl.algos.on_policy import OnPolicy, OnPolicyConfig, OnPolicyState
from flockrl.algos.parts import descend, mean, require
from flockrl.algos.returns import gae
from flockrl.core.errors import UsageError
from flockrl.core.groups import take
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Settings of the PPO family."""

    critic: Literal["own", "central"] = "central"
    """What the critic reads: the agent's own observation, or the global state (else all observations)."""
    epochs: int = 5
    """Passes over each rollout."""
    minibatches: int = 4
    """Parts that the environments are split into for each gradient step; must divide the number of environments."""
    gae_lambda: float = 0.9
    """Lambda of generalised advantage estimation."""
    clip: float | None = 0.2
    """How far the probability ratio may leave 1; None for no clipping."""
    value_clip: float | None = None
    """How far a value may move per update, in units of the returns' deviation; None for no clipping."""
    target_kl: float | None = None
    """Stop an update's epochs once the policy has moved by this much; None for never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self,
            epochs=self.epochs > 0,
            minibatches=self.minibatches > 0,
            gae_lambda=0 <= self.gae_lambda <= 1,
            clip=self.clip is None or self.clip > 0,
            value_clip=self.value_clip is None or self.value_clip > 0,
            target_kl=self.target_kl is None or self.target_kl > 0,
        )


class Batch(NamedTuple):
    """A rollout prepared for learning. Leaves have axes [B, T, ...], memories [B, ...]."""

    seen: Observation
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
    return _PPO(spec, config, envs, updates).algorithm()


FAMILY = Family(
    make,
    PPOConfig,
    on_policy=True,
    logp=True,
    factorised=True,
    central=lambda config: config.critic == "central",
    grows=lambda config: True,
)


class _PPO(OnPolicy):
    """Several epochs of minibatches on each rollout, with a critic."""

    def __init__(self, spec: EnvSpec, config: PPOConfig, envs: int, updates: int):
        super().__init__(spec, config, envs, updates, config.critic)

    def update(self, state: OnPolicyState, trajectory: Trajectory, key: Array) -> tuple[OnPolicyState, Metrics]:
        seen = self._seen(state, trajectory.observation)
        weight = None if trajectory.alive is None else trajectory.weight
        estimates = self._estimate(state, trajectory, seen)
        value, ended = estimates.value, trajectory.terminated
        over = ended | trajectory.truncated
        advantage = gae(
            trajectory.reward, value, estimates.next_value, ended, over, self.config.gamma, self.config.gae_lambda
        )
        returns = advantage + value
        critic, stats, (offset, std) = self._rescaled(state, estimates, returns, weight)
        batch = Batch(
            seen, weight, trajectory.first, trajectory.action,
            trajectory.extras["logp"], self._normal_advantage(advantage, weight), (returns - offset) / std,
            (value - offset) / std, trajectory.memory, state.critic_memory,
        )  # fmt: skip
        lr = self._lr(state)
        params = {**state.params, "critic": critic}
        params, optimiser, metrics = self._epochs(params, state.optimiser, batch, lr, key)
        metrics["explained_variance"] = self._explained(returns, value, weight)
        metrics["lr"] = lr
        state = self._moved(state, trajectory, weight, estimates.memories)
        return state._replace(params=params, optimiser=optimiser, value_moments=stats), metrics

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
        outs = self.actor(params["actor"], batch.seen, batch.actor_memory, first)
        values, _ = self._values(params["critic"], batch.seen.obs, batch.seen.state, batch.critic_memory, first)
        total = jnp.float32(0)
        rows: list[dict[str, Array]] = []
        for group, head, (out, _) in zip(self.groups, self.heads, outs, strict=True):
            logp, entropy = self._chosen(group, head, out, batch.action, batch.seen.avail)
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
