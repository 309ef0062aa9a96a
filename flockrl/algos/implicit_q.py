"""Implicit Q-learning for recorded teams: values of the best recorded actions, without asking for any other.

Kostrikov et al. 2021 (arXiv 2110.06169), IQL there; here `iql` is independent Q-learning. Besides critics Q_k with
targets Q'_k there are values V of states, and policies that clone what turned out well:

    L(V_i) = E[|expectile - 1(u < 0)| u^2],   u = min_k Q'_k,i(s, a) - V_i(s)
    y_i = r_i + gamma V_i(s'),                L(Q_i) = E[w (Q_k,i(s, a) - y_i)^2]
    J_i = -E[min(exp(advantage_scale A_i), advantage_limit) log pi_i(a_i | o_i)],   A_i = min_k Q'_k,i(s, a) - V_i(s)

Q and V observe what critics do: their agent's observation (`critic="own"`), or everything (`critic="central"`). Only
recorded actions are ever valued, so that choices, several at once, and real actions are one and the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.family import Family
from flockrl.algos.off_policy import OffPolicy
from flockrl.algos.off_policy_config import JOINT, OffPolicyConfig
from flockrl.algos.parts import mean
from flockrl.algos.replay_learner import Learned
from flockrl.algos.views import View
from flockrl.core.groups import merge, read_actions, take, write_actions
from flockrl.core.lives import learning_weight
from flockrl.core.random import Source, split
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec, Observation, PyTree
from flockrl.nets.heads import make_head
from flockrl.policies.network import TeamNetwork, make_network
from flockrl.policies.stochastic import legal


@dataclass(frozen=True)
class ImplicitQConfig(OffPolicyConfig):
    """Settings of implicit Q-learning."""

    expectile: float = 0.7
    """Which expectile of the recorded actions' values a state is worth: 0.5 is their mean, 1 would be their best."""
    advantage_scale: float = 3.0
    """How strongly policies prefer actions that are better than their state is worth; 0 clones all alike."""
    advantage_limit: float = 100.0
    """The largest weight of an action in the policies' loss."""
    normalize_reward: bool = False
    """Count rewards in units of a tenth of the largest discounted sum so far; `advantage_scale` then refers to
    advantages in this unit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "expectile", above=0, below=1)
        check_numbers(self, "advantage_scale", least=0)
        check_numbers(self, "advantage_limit", above=0)


def make(spec: EnvSpec, config: ImplicitQConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for rollouts of `envs` columns and a run of `updates` updates."""
    return ImplicitQ(spec, config, envs, updates).algorithm()


FAMILY = Family(make, ImplicitQConfig, **JOINT, factorised=True)


class ImplicitQ(OffPolicy):
    """Two critics, a value and a stochastic policy per group. params: also {"value": one per group}."""

    twins = 2
    followed = ("critic",)

    def __init__(self, spec: EnvSpec, config: ImplicitQConfig, envs: int, updates: int):
        super().__init__(spec, config, envs, updates)
        self.heads = [make_head(spec, group) for group in self.groups]
        self.actor = TeamNetwork(
            spec, self.groups, config, [head.width for head in self.heads],
            log_std=[head.log_std for head in self.heads],
        )  # fmt: skip
        self.values = [make_network(spec, config, 1, self._whose(group), ids=self._ids(group)) for group in self.groups]

    def algorithm(self) -> Algorithm:
        return super().algorithm()._replace(kl=self.kl)

    def networks(self, key: Array) -> PyTree:
        spec, lead = self.spec, (1, 1) if self.recurrent else (1,)
        obs = jnp.zeros((*lead, spec.num_agents, spec.obs_size))
        state = jnp.zeros((*lead, spec.state_size)) if spec.state_size else None
        first = jnp.zeros((1, 1), bool) if self.recurrent else None
        keys = jax.random.split(jax.random.fold_in(key, 1), self.groups[0].of)
        values = tuple(
            net.init(keys[group.number], self._observed(group, obs, state), self._critic_memory(group, 1), first)
            for net, group in zip(self.values, self.groups, strict=True)
        )
        return {**super().networks(key), "value": tuple(found["params"] for found in values)}

    # Policies

    def _greedy(self, outs: list[Array], avail: Array | None) -> Array:
        rows = zip(self.groups, self.heads, outs, strict=True)
        modes = [head.mode(out, legal(group, avail)) for group, head, out in rows]
        return self.code.encode(write_actions(self.spec, self.groups, modes))

    def _behave(
        self, params: PyTree, outs: list[Array], seen: Observation, noise: PyTree, key: Source
    ) -> tuple[Array, PyTree]:
        rows = zip(split(key, len(outs)), self.groups, self.heads, outs, strict=True)
        drawn = [head.sample(k, out, legal(group, seen.avail))[0] for k, group, head, out in rows]
        return self.code.encode(write_actions(self.spec, self.groups, drawn)), noise

    def kl(
        self, old: PyTree, new: PyTree, seen: Observation, memory: PyTree, other: Observation | None = None
    ) -> Array:
        """[B, N] divergence from the policy of `old` to that of `new`, which sees `other` where that is given."""
        remembered = self._apart(memory)[0]
        before = self.actor.step(old["actor"], self.seen(old, seen), remembered)[0]
        after = self.actor.step(new["actor"], self.seen(new, seen if other is None else other), remembered)[0]
        parts = [
            head.kl(a, b, legal(group, seen.avail))
            for group, head, a, b in zip(self.groups, self.heads, before, after, strict=True)
        ]
        return merge(parts, self.groups, 1)

    # Learning

    def _worth(self, values: Sequence[PyTree], view: View) -> list[Array]:
        """[..., n] of each group: what the moments of a view are worth."""
        rows = zip(self.values, self.groups, values, strict=True)
        return [self._judge(net, group, params, view, None)[..., 0] for net, group, params in rows]

    def _next_values(self, learned: Learned, view: View, key: Array) -> Array:
        values = self._worth(learned.params["value"], view)
        return merge(values, self.groups, values[0].ndim - 1)

    def _improve(
        self, learned: Learned, view: View, action: Array, key: Array, factor: Array
    ) -> tuple[Learned, dict[str, Array]]:
        done = [
            self._smallest(learned.targets["critic"], g, view, self._actions(group, action))[..., 0]
            for g, group in enumerate(self.groups)
        ]
        loss = jax.value_and_grad(self._value_loss, has_aux=True)
        (value, advantages), grads = loss(learned.params["value"], view, done)
        learned = self._descend(learned, "value", grads, self.config.critic_lr * factor)
        cost, policy_grads = jax.value_and_grad(self._policy_loss)(learned.params["actor"], view, action, advantages)
        learned = self._follow(self._descend(learned, "actor", policy_grads, self.config.lr * factor))
        whole = merge(advantages, self.groups, advantages[0].ndim - 1)
        metrics = {"value_loss": value, "policy_loss": cost, "advantage": mean(whole, view.alive)}
        return learned, metrics

    def _value_loss(self, values: Sequence[PyTree], view: View, done: list[Array]) -> tuple[Array, list[Array]]:
        """Expectile regression on the values `done` of what was done, each group's mean added up; and by how much they
        lie above what their states are worth. Each is [..., n] of a group."""
        total, gaps, known = jnp.float32(0), [], learning_weight(self.spec, view.alive)
        for group, worth, q in zip(self.groups, self._worth(values, view), done, strict=True):
            gap = q - worth
            total = total + mean(expectile_loss(gap, self.config.expectile), take(known, group, gap.ndim - 1))
            gaps.append(gap)
        return total, gaps

    def _policy_loss(self, actors: Sequence[PyTree], view: View, action: Array, advantages: list[Array]) -> Array:
        """-log pi of what was done, weighed by how well it turned out; each group's mean added up."""
        flat = self.code.decode(action.reshape(-1, *action.shape[-2:]))
        done = flat.reshape(*action.shape[:-2], *flat.shape[1:])
        total = jnp.float32(0)
        rows = zip(self.groups, self.heads, self._outputs(actors, view), advantages, strict=True)
        for group, head, out, advantage in rows:
            logp, _ = head.evaluate(out, legal(group, view.seen.avail), read_actions(self.spec, group, done))
            cost = -self._weights(advantage) * logp
            total = total + mean(cost, take(view.alive, group, cost.ndim - 1))
        return total

    def _weights(self, advantage: Array) -> Array:
        """How much an action counts in the policies' loss."""
        # Cut before exp, so that nothing overflows.
        return jnp.exp(jnp.minimum(self.config.advantage_scale * advantage, np.log(self.config.advantage_limit)))


def expectile_loss(gap: Array, expectile: float) -> Array:
    """|expectile - 1(gap < 0)| gap^2."""
    return jnp.where(gap < 0, 1 - expectile, expectile) * gap**2
