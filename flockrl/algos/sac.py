"""Soft actor-critic for teams: SAC, ISAC, MASAC.

Haarnoja et al. 2018 (arXiv 1812.05905); Christodoulou 2019 (discrete actions, arXiv 1910.07207).

    y_i = r_i + gamma (min_k Q'_k,i(s', a') - alpha_i log pi_i(a'_i | o'_i)),   a' ~ pi
    J_i = E[alpha_i log pi_i(a_i | o_i) - min_k Q_k,i(s, a_i, a_-i)],           a_i ~ pi_i, a_-i replayed
    J(alpha_i) = -log alpha_i E[log pi_i(a_i | o_i) + H_i]

Continuous policies are tanh-Gaussian. Discrete ones take the expectation over their own action exactly: a critic
then has one output per action, and its input leaves the agent's own action out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flockrl.algos.off_policy import OffPolicy, OffPolicyConfig, Seen
from flockrl.algos.parts import mean, require
from flockrl.algos.replay_learner import Learned
from flockrl.data.replay import Batch
from flockrl.draw import Source, gumbel, normal, split
from flockrl.nets.heads import ILLEGAL
from flockrl.sharing import Group, merge, take
from flockrl.types import Algorithm, Array, EnvSpec, Observation, PyTree

LOG_STD = (-5.0, 2.0)
"""Limits of the log standard deviation before tanh."""
DISCRETE_ENTROPY = 0.3
"""Part of the largest possible entropy that discrete policies aim for by default."""


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Settings of the SAC family."""

    temperature: float | None = None
    """Weight of the policy's entropy; None lets every agent learn its own."""
    temperature_start: float = 0.1
    """Where learned temperatures begin."""
    target_entropy: float | None = None
    """Entropy that learned temperatures aim for; by default minus the number of action dimensions (in units of half
    their range), or 0.3 ln(number of legal actions) for discrete actions."""
    temperature_lr: float = 1e-3
    """Adam's learning rate for the logarithm of the temperatures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self,
            temperature=self.temperature is None or self.temperature >= 0,
            temperature_start=self.temperature_start > 0,
            temperature_lr=self.temperature_lr > 0,
        )


def make(spec: EnvSpec, config: SACConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` iterations."""
    return SAC(spec, config, envs, updates).algorithm()


class SAC(OffPolicy):
    """Two critics per group, a stochastic policy, a temperature per agent."""

    twins = 2

    def __init__(self, spec: EnvSpec, config: SACConfig, envs: int, updates: int):
        super().__init__(spec, config, envs, updates)
        self.tempering = optax.adam(1.0)

    def _actor_width(self, group: Group) -> int:
        return group.action_size * (1 if self.spec.discrete else 2)

    def _critic_width(self, group: Group) -> int:
        return group.action_size if self.spec.discrete else 1

    def _extra(self) -> PyTree:
        if self.config.temperature is not None:
            return ()
        log_alpha = jnp.full(self.spec.num_agents, np.log(self.config.temperature_start), jnp.float32)
        return log_alpha, self.tempering.init(log_alpha)

    def _alpha(self, learned: Learned) -> Array:
        """[N] temperatures."""
        fixed = self.config.temperature
        return jnp.full(self.spec.num_agents, fixed) if fixed is not None else jnp.exp(learned.extra[0])

    def _target_entropy(self, avail: Array | None) -> Array:
        """[N] or [b, N] entropies that the temperatures aim for. Where little is legal, little entropy is possible."""
        if self.config.target_entropy is not None:
            return jnp.full(self.spec.num_agents, self.config.target_entropy)
        if avail is None:
            return -jnp.asarray(self.code.own.sum(-1), jnp.float32)
        return DISCRETE_ENTROPY * jnp.log(jnp.maximum((avail & self.code.own).sum(-1), 1))

    # Policies

    def _sample(self, key: Source, out: Array, legal: Array, group: Group) -> tuple[Array, Array]:
        """A continuous group's codes [b, n, A] and their log-densities [b, n], both with gradients.

        u = tanh(z), z ~ N(m, s^2): log pi(u) = log N(z; m, s^2) - log(1 - u^2), the latter as 2 (ln 2 - z -
        softplus(-2 z)), which does not lose its digits where tanh saturates.
        """
        middle, log_std = jnp.split(out, 2, axis=-1)
        log_std = jnp.clip(log_std, *LOG_STD)
        noise = normal(key, middle.shape, group.agents)
        z = middle + jnp.exp(log_std) * noise
        density = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
        shrink = 2 * (np.log(2.0) - z - jax.nn.softplus(-2 * z))
        return jnp.tanh(z) * legal, jnp.where(legal, density - shrink, 0.0).sum(-1)

    def _log_probs(self, out: Array, legal: Array) -> Array:
        """A discrete group's log-probabilities [b, n, A]; illegal actions stay near -1e9."""
        return jax.nn.log_softmax(jnp.where(legal, out, ILLEGAL))

    def _draw(
        self, actors: Sequence[PyTree], obs: Array, avail: Array | None, key: Source
    ) -> list[tuple[Array, Array]]:
        """Each group's (codes [b, n, A], log-densities [b, n] or all log-probabilities [b, n, A])."""
        outs, masks = self._outputs(actors, obs), self._legal(avail)
        drawn = []
        for k, group, out, legal in zip(split(key, len(outs)), self.groups, outs, masks, strict=True):
            if not self.spec.discrete:
                drawn.append(self._sample(k, out, legal, group))
                continue
            logp = self._log_probs(out, legal)
            best = (logp + gumbel(k, logp.shape, group.agents)).argmax(-1)
            drawn.append((jax.nn.one_hot(best, out.shape[-1]), logp))
        return drawn

    def _greedy(self, params: PyTree, seen: Observation) -> Array:
        outs = self._outputs(params["actor"], seen.obs)
        if self.spec.discrete:
            return self._best(outs, seen.avail)
        return self._team([jnp.tanh(out[..., : out.shape[-1] // 2]) for out in outs], None) * self.code.own

    def _behave(self, params: PyTree, seen: Observation, memory: PyTree, key: Source) -> tuple[Array, PyTree]:
        return self._team([code for code, _ in self._draw(params["actor"], seen.obs, seen.avail, key)], None), memory

    # Values

    def _inputs(self, group: Group, obs: Array, state: Array | None, action: Array) -> Seen:
        """What critics read; for discrete actions with the agent's own action left out."""
        if not self.spec.discrete:
            return self._seen(group, obs, state, action)
        nothing = jnp.zeros((len(action), group.size, group.action_size))
        return self._seen_with(group, obs, state, action, nothing)

    def _predict(self, critic: PyTree, index: int, batch: Batch, action: Array) -> Array:
        group = self.groups[index // self.twins]
        q = self._q(index, critic, self._inputs(group, batch.obs, batch.state, action))
        return (q * take(action, group, 1, group.action_size)).sum(-1) if self.spec.discrete else q[..., 0]

    def _next_values(self, learned: Learned, batch: Batch, key: Array) -> Array:
        drawn = self._draw(learned.params["actor"], batch.next_obs, batch.next_avail, key)
        action = self._team([code for code, _ in drawn], batch.next_alive)
        alpha, values = self._alpha(learned), []
        for g, (group, (_, logp)) in enumerate(zip(self.groups, drawn, strict=True)):
            x = self._inputs(group, batch.next_obs, batch.next_state, action)
            q = self._smallest(learned.targets["critic"], g, x)
            own = alpha[np.array(group.agents)]
            if self.spec.discrete:
                values.append((jnp.exp(logp) * (q - own[:, None] * logp)).sum(-1))
            else:
                values.append(q[..., 0] - own * logp)
        return merge(values, self.groups, 1)

    # Learning

    def _policy_loss(
        self, actors: Sequence[PyTree], learned: Learned, batch: Batch, action: Array, key: Array
    ) -> tuple[Array, Array]:
        """The soft policy objective, each group's mean added up; and each agent's entropy estimate [b, N]."""
        drawn = self._draw(actors, batch.obs, batch.avail, key)
        alpha, critics = self._alpha(learned), learned.params["critic"]
        total, entropies = jnp.float32(0), []
        for g, (group, (own_action, logp)) in enumerate(zip(self.groups, drawn, strict=True)):
            own = alpha[np.array(group.agents)]
            if self.spec.discrete:
                q = self._smallest(critics, g, self._inputs(group, batch.obs, batch.state, action))
                cost = (jnp.exp(logp) * (own[:, None] * logp - q)).sum(-1)
                entropies.append(-(jnp.exp(logp) * logp).sum(-1))
            else:
                x = self._seen_with(group, batch.obs, batch.state, action, own_action)
                cost = own * logp - self._smallest(critics, g, x)[..., 0]
                entropies.append(-logp)
            total = total + mean(cost, take(batch.alive, group, 1))
        return total, merge(entropies, self.groups, 1)

    def _improve(
        self, learned: Learned, batch: Batch, action: Array, key: Array, factor: Array
    ) -> tuple[Learned, dict[str, Array]]:
        loss = jax.value_and_grad(self._policy_loss, has_aux=True)
        (value, entropy), grads = loss(learned.params["actor"], learned, batch, action, key)
        learned = self._follow(self._descend(learned, "actor", grads, self.config.lr * factor))
        metrics = {"policy_loss": value, "entropy": mean(entropy, batch.alive)}
        if self.config.temperature is None:
            log_alpha, state = learned.extra
            surplus = (entropy - self._target_entropy(batch.avail)) * batch.alive
            gradient = surplus.sum(0) / jnp.maximum(batch.alive.sum(0), 1.0)
            step, state = self.tempering.update(gradient, state)
            learned = learned._replace(extra=(log_alpha + self.config.temperature_lr * factor * step, state))
        return learned, {**metrics, "temperature": self._alpha(learned).mean()}
