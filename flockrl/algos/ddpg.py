"""Deterministic policy gradients for teams: DDPG, IDDPG, MADDPG.

Lillicrap et al. 2016 (arXiv 1509.02971), Lowe et al. 2017 (MADDPG, arXiv 1706.02275).

    y_i = r_i + gamma Q'_i(s', mu'(o')),   grad J_i = E[grad mu_i(o_i) grad_{a_i} Q_i(s, a_i, a_-i) | a_i = mu_i(o_i)]

The other agents' actions a_-i are the replayed ones. Discrete policies act through straight-through
Gumbel-softmax samples (Jang et al. 2017), so that the same gradient reaches their logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from flockrl.algos.off_policy import OffPolicy, OffPolicyConfig
from flockrl.algos.parts import mean, require
from flockrl.algos.replay_learner import Learned
from flockrl.data.replay import Batch
from flockrl.draw import Source, gumbel, split, uniform
from flockrl.explore import Explore, kind_of, level, perturb
from flockrl.nets.heads import ILLEGAL
from flockrl.sharing import merge, take
from flockrl.types import Algorithm, Array, EnvSpec, Observation, PyTree


@dataclass(frozen=True)
class DDPGConfig(OffPolicyConfig):
    """Settings of the DDPG family."""

    explore: Explore = "auto"
    """Noise on actions: gaussian, ou (Ornstein-Uhlenbeck), epsilon (now and then a random action), gumbel (sample
    a discrete policy); auto is gaussian for continuous actions and gumbel for discrete ones."""
    explore_start: float | None = None
    """The noise's level at first: deviation in half ranges, probability, or Gumbel scale; by default 0.3, 1 or 1."""
    explore_end: float | None = None
    """The noise's level at the end of its schedule; by default 0.1, 0.05 or 1."""
    explore_part: float = 0.5
    """Part of the run over which the level goes from start to end."""
    output_penalty: float = 1e-3
    """Weight of the squared outputs of the policy before tanh or softmax, which keeps them from saturating."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self,
            explore_start=self.explore_start is None or self.explore_start >= 0,
            explore_end=self.explore_end is None or self.explore_end >= 0,
            explore_part=self.explore_part > 0,
            output_penalty=self.output_penalty >= 0,
        )


def make(spec: EnvSpec, config: DDPGConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` iterations."""
    return DDPG(spec, config, envs, updates).algorithm()


class DDPG(OffPolicy):
    """One critic per group, deterministic targets."""

    def __init__(self, spec: EnvSpec, config: Any, envs: int, updates: int):
        super().__init__(spec, config, envs, updates)
        self.kind = kind_of(config.explore, spec.discrete)

    def memory(self, batch: int) -> PyTree:
        return jnp.zeros((batch, *self.code.own.shape)) if self.kind == "ou" else ()

    # From a policy's outputs to codes

    def _choose(
        self,
        actors: Sequence[PyTree],
        obs: Array,
        avail: Array | None,
        alive: Array | None = None,
        noise: Sequence[Array] | None = None,
    ) -> Array:
        """Codes [b, N, A]: tanh of the outputs, or the best legal action after `noise` on each group's logits."""
        outs = self._outputs(actors, obs)
        if not self.spec.discrete:
            return self._team([jnp.tanh(out) for out in outs], alive) * self.code.own
        if noise is not None:
            outs = [out + extra for out, extra in zip(outs, noise, strict=True)]
        return self._best(outs, avail, alive)

    def _gumbel(self, key: Source, batch: int) -> list[Array]:
        """Gumbel noise for each group's logits [b, n, A]: the best noisy logit is a sample of the policy."""
        keys = split(key, len(self.groups))
        return [
            gumbel(k, (batch, group.size, group.action_size), group.agents)
            for k, group in zip(keys, self.groups, strict=True)
        ]

    def _greedy(self, params: PyTree, seen: Observation) -> Array:
        return self._choose(params["actor"], seen.obs, seen.avail)

    def _behave(self, params: PyTree, seen: Observation, memory: PyTree, key: Source) -> tuple[Array, PyTree]:
        config, (first, second) = self.config, split(key)
        scale = level(self.kind, config.explore_start, config.explore_end, config.explore_part, params["progress"])
        noise = [scale * g for g in self._gumbel(first, len(seen.obs))] if self.kind == "gumbel" else None
        chosen = self._choose(params["actor"], seen.obs, seen.avail, noise=noise)
        if self.kind == "epsilon":
            chance = uniform(first, (*chosen.shape[:2], 1), range(chosen.shape[1]))
            return jnp.where(chance < scale, self.code.random(second, len(chosen), seen.avail), chosen), memory
        if self.kind in ("gaussian", "ou"):
            return perturb(self.kind, first, chosen, memory, scale)
        return chosen, memory

    # Learning

    def _next_action(self, learned: Learned, batch: Batch, key: Array) -> Array:
        """[b, N, A] what the target policies do next."""
        return self._choose(learned.targets["actor"], batch.next_obs, batch.next_avail, batch.next_alive)

    def _next_values(self, learned: Learned, batch: Batch, key: Array) -> Array:
        action = self._next_action(learned, batch, key)
        inputs = [self._seen(group, batch.next_obs, batch.next_state, action) for group in self.groups]
        values = [self._smallest(learned.targets["critic"], g, x)[..., 0] for g, x in enumerate(inputs)]
        return merge(values, self.groups, 1)

    def _relaxed(self, out: Array, legal: Array, noise: Any) -> Array:
        """A group's codes [b, n, A] that gradients pass through."""
        if not self.spec.discrete:
            return jnp.tanh(out) * legal
        logits = jnp.where(legal, out + noise, ILLEGAL)
        soft = jax.nn.softmax(logits)
        hard = jax.nn.one_hot(logits.argmax(-1), out.shape[-1])
        return hard + soft - jax.lax.stop_gradient(soft)

    def _policy_loss(
        self, actors: Sequence[PyTree], critics: Sequence[PyTree], batch: Batch, action: Array, noise: Sequence[Any]
    ) -> Array:
        """-Q of each agent's own choice beside the others' replayed actions; each group's mean added up."""
        total = jnp.float32(0)
        outs, masks = self._outputs(actors, batch.obs), self._legal(batch.avail)
        for g, (group, out, legal) in enumerate(zip(self.groups, outs, masks, strict=True)):
            own, first = self._relaxed(out, legal, noise[g]), g * self.twins
            x = self._seen_with(group, batch.obs, batch.state, action, own)
            q = self._q(first, critics[first], x)[..., 0]
            penalty = jnp.where(legal, out**2, 0.0).mean(-1)
            total = total + mean(self.config.output_penalty * penalty - q, take(batch.alive, group, 1))
        return total

    def _improve(
        self, learned: Learned, batch: Batch, action: Array, key: Array, factor: Array
    ) -> tuple[Learned, dict[str, Array]]:
        noise = self._gumbel(key, len(batch.obs)) if self.spec.discrete else [0.0] * len(self.groups)
        loss = jax.value_and_grad(self._policy_loss)
        value, grads = loss(learned.params["actor"], learned.params["critic"], batch, action, noise)
        learned = self._descend(learned, "actor", grads, self.config.lr * factor)
        return self._follow(learned), {"policy_loss": value}
