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

from flockrl.algos.family import Family
from flockrl.algos.off_policy import OffPolicy
from flockrl.algos.off_policy_config import JOINT, OffPolicyConfig
from flockrl.algos.parts import mean
from flockrl.algos.replay_learner import Learned
from flockrl.algos.views import View
from flockrl.core.errors import UsageError
from flockrl.core.groups import Group, is_continuous, merge, take
from flockrl.core.random import Source, gumbel, normal, split
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec, Observation, PyTree
from flockrl.nets.actions import hard
from flockrl.nets.heads import ILLEGAL, categorical_kl, gaussian_kl, log_slope

LOG_STD = (-5.0, 2.0)
"""Limits of the log standard deviation before tanh."""
DISCRETE_ENTROPY = 0.3
"""Part of the largest possible entropy that discrete policies aim for by default."""


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Settings of the SAC family. Try first: --lr, --critic-lr, --gamma, --steps-per-update, --hidden, --memory."""

    temperature: float | None = None
    """What an entropy of 1 is worth, in rewards of the environment; None lets every agent learn it."""
    temperature_start: float = 0.1
    """Where learned temperatures begin; with normalize_reward in its units."""
    target_entropy: float | None = None
    """Entropy that learned temperatures aim for; by default minus the number of action dimensions (in units of half
    their range), or 0.3 ln(number of legal actions) for discrete actions."""
    temperature_lr: float = 1e-3
    """Adam's learning rate for the logarithm of the temperatures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "temperature", least=0)
        check_numbers(self, "temperature_start", "temperature_lr", above=0)
        check_numbers(self, "target_entropy")


def make(spec: EnvSpec, config: SACConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` iterations."""
    return SAC(spec, config, envs, updates).algorithm()


FAMILY = Family(make, SACConfig, **JOINT)


class SAC(OffPolicy):
    """Two critics per group, a stochastic policy, a temperature per agent."""

    twins = 2
    followed = ("critic",)

    def __init__(self, spec: EnvSpec, config: SACConfig, envs: int, updates: int):
        super().__init__(spec, config, envs, updates)
        if any(len(group.factors) > 1 for group in self.groups):
            raise UsageError(
                f"SAC takes one choice or real actions, and agents of {spec.name} make several choices at once: use "
                "ippo, mappo, maddpg or matd3 instead."
            )
        self.tempering = optax.adam(1.0)

    def algorithm(self) -> Algorithm:
        return super().algorithm()._replace(kl=self.kl)

    def _actor_width(self, group: Group) -> int:
        return group.action_size * (2 if group.continuous else 1)

    def _critic_width(self, group: Group) -> int:
        return 1 if group.continuous else group.action_size

    def _extra(self) -> PyTree:
        if self.config.temperature is not None:
            return ()
        log_alpha = jnp.full(self.spec.num_agents, np.log(self.config.temperature_start), jnp.float32)
        return log_alpha, self.tempering.init(log_alpha)

    def _alpha(self, learned: Learned) -> Array:
        """[N] temperatures, in units of rewards."""
        if self.config.temperature is None:
            return jnp.exp(learned.extra[0])
        return learned.scales.units(jnp.full(self.spec.num_agents, self.config.temperature))

    def _target_entropy(self, avail: Array | None) -> Array:
        """[N] or [..., N] entropies that temperatures aim for. Where little is legal, little entropy is possible."""
        if self.config.target_entropy is not None:
            return jnp.full(self.spec.num_agents, self.config.target_entropy)
        dimensions = -jnp.asarray(self.code.own.sum(-1), jnp.float32)
        if avail is None:
            return dimensions
        options = DISCRETE_ENTROPY * jnp.log(jnp.maximum((avail & self.code.own).sum(-1), 1))
        return options if self.spec.discrete else jnp.where(is_continuous(self.spec), dimensions, options)

    # Policies

    def _sample(self, key: Source, out: Array, legal: Array, group: Group) -> tuple[Array, Array]:
        """A continuous group's codes [..., n, A] and their log-densities [..., n], both with gradients.

        u = tanh(z), z ~ N(m, s^2): log pi(u) = log N(z; m, s^2) - log(1 - u^2).
        """
        middle, log_std = _normal(out)
        noise = normal(key, middle.shape, group.agents)
        z = middle + jnp.exp(log_std) * noise
        density = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
        return jnp.tanh(z) * legal, jnp.where(legal, density - log_slope(z), 0.0).sum(-1)

    def _log_probs(self, out: Array, legal: Array) -> Array:
        """A discrete group's log-probabilities [..., n, A]; illegal actions stay near -1e9."""
        return jax.nn.log_softmax(jnp.where(legal, out, ILLEGAL))

    def _draw(self, outs: Sequence[Array], avail: Array | None, key: Source) -> list[tuple[Array, Array]]:
        """Each group's (codes [..., n, A], log-densities [..., n] or all log-probabilities [..., n, A])."""
        drawn = []
        for k, group, out, legal in zip(split(key, len(outs)), self.groups, outs, self._legal(avail), strict=True):
            if group.continuous:
                drawn.append(self._sample(k, out, legal, group))
                continue
            logp = self._log_probs(out, legal)
            best = (logp + gumbel(k, logp.shape, group.agents)).argmax(-1)
            drawn.append((jax.nn.one_hot(best, out.shape[-1]), logp))
        return drawn

    def _greedy(self, outs: list[Array], avail: Array | None) -> Array:
        parts = []
        for group, out, legal in zip(self.groups, outs, self._legal(avail), strict=True):
            if group.continuous:
                parts.append(jnp.tanh(out[..., : out.shape[-1] // 2]) * legal)
            else:
                parts.append(hard(jnp.where(legal, out, ILLEGAL), group))
        return self._team(parts)

    def kl(
        self, old: PyTree, new: PyTree, seen: Observation, memory: PyTree, other: Observation | None = None
    ) -> Array:
        """[B, N] divergence from the policy of `old` to that of `new`, which sees `other` where that is given.
        Squashing by tanh leaves it as it is."""
        remembered, views = self._apart(memory)[0], ((old, seen), (new, seen if other is None else other))
        outs = (self.actor.step(params["actor"], self.seen(params, view), remembered)[0] for params, view in views)
        pairs = zip(*outs, strict=True)
        parts = []
        for group, (before, after), legal in zip(self.groups, pairs, self._legal(seen.avail), strict=True):
            if group.continuous:
                parts.append(gaussian_kl(_normal(before), _normal(after), legal))
            else:
                parts.append(categorical_kl(*(jnp.where(legal, out, ILLEGAL) for out in (before, after))))
        return merge(parts, self.groups, 1)

    def _behave(
        self, params: PyTree, outs: list[Array], seen: Observation, noise: PyTree, key: Source
    ) -> tuple[Array, PyTree]:
        return self._team([code for code, _ in self._draw(outs, seen.avail, key)]), noise

    # Values

    def _reads(self, group: Group, action: Array) -> Array:
        """What critics read of codes [..., N, A]; for discrete actions with the agent's own action left out."""
        if group.continuous:
            return self._actions(group, action)
        nothing = jnp.zeros((*action.shape[:-2], group.size, group.action_size))
        return self._actions_with(group, action, nothing)

    def _predict(self, critic: PyTree, index: int, view: View, action: Array, own: Array) -> Array:
        group = self.groups[index // self.twins]
        q = self._q(index, critic, view, self._reads(group, action))
        if group.continuous:
            return q[..., 0]
        return (q * take(own, group, own.ndim - 2, group.action_size)).sum(-1)

    def _next_values(self, learned: Learned, view: View, key: Array) -> Array:
        drawn = self._draw(self._outputs(learned.params["actor"], view), view.seen.avail, key)
        action = self._team([code for code, _ in drawn], view.seen.alive)
        alpha, values = self._alpha(learned), []
        for g, (group, (_, logp)) in enumerate(zip(self.groups, drawn, strict=True)):
            q = self._smallest(learned.targets["critic"], g, view, self._reads(group, action))
            own = alpha[np.array(group.agents)] * take(view.alive, group, view.alive.ndim - 1)  # the dead draw nothing
            if group.continuous:
                values.append(q[..., 0] - own * logp)
            else:
                values.append((jnp.exp(logp) * (q - own[..., None] * logp)).sum(-1))
        return merge(values, self.groups, values[0].ndim - 1)

    # Learning

    def _policy_loss(
        self, actors: Sequence[PyTree], learned: Learned, view: View, action: Array, key: Array
    ) -> tuple[Array, Array]:
        """The soft policy objective, each group's mean added up; and each agent's entropy estimate [..., N]."""
        drawn = self._draw(self._outputs(actors, view), view.seen.avail, key)
        alpha, critics = self._alpha(learned), learned.params["critic"]
        total, entropies = jnp.float32(0), []
        for g, (group, (own_action, logp)) in enumerate(zip(self.groups, drawn, strict=True)):
            own = alpha[np.array(group.agents)]
            if group.continuous:
                reads = self._actions_with(group, action, own_action)
                cost = own * logp - self._smallest(critics, g, view, reads)[..., 0]
                entropies.append(-logp)
            else:
                q = self._smallest(critics, g, view, self._reads(group, action))
                cost = (jnp.exp(logp) * (own[:, None] * logp - q)).sum(-1)
                entropies.append(-(jnp.exp(logp) * logp).sum(-1))
            total = total + mean(cost, take(view.alive, group, cost.ndim - 1))
        return total, merge(entropies, self.groups, entropies[0].ndim - 1)

    def _improve_actors(
        self, learned: Learned, view: View, action: Array, key: Array, lr: Array
    ) -> tuple[Learned, Array, Array]:
        """All policies one step better, the objective before it, and each agent's entropy estimate [..., N]."""
        loss = jax.value_and_grad(self._policy_loss, has_aux=True)
        (value, entropy), grads = loss(learned.params["actor"], learned, view, action, key)
        return self._descend(learned, "actor", grads, lr), value, entropy

    def _improve(
        self, learned: Learned, view: View, action: Array, key: Array, factor: Array
    ) -> tuple[Learned, dict[str, Array]]:
        alive = view.alive
        learned, value, entropy = self._improve_actors(learned, view, action, key, self.config.lr * factor)
        learned = self._follow(learned)
        metrics = {"policy_loss": value, "entropy": mean(entropy, alive)}
        if self.config.temperature is None:
            log_alpha, state = learned.extra
            axes = tuple(range(entropy.ndim - 1))
            surplus = (entropy - self._target_entropy(view.seen.avail)) * alive
            gradient = surplus.sum(axes) / jnp.maximum(alive.sum(axes), 1.0)
            step, state = self.tempering.update(gradient, state)
            learned = learned._replace(extra=(log_alpha + self.config.temperature_lr * factor * step, state))
        given = self.config.temperature
        return learned, {**metrics, "temperature": self._alpha(learned).mean() if given is None else jnp.float32(given)}


def _normal(out: Array) -> tuple[Array, Array]:
    """Means and log deviations [..., A] before tanh that a network's output [..., 2 A] stands for."""
    middle, log_std = jnp.split(out, 2, axis=-1)
    return middle, jnp.clip(log_std, *LOG_STD)
