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

from flockrl.algos.exploration import Explore, alike, kinds_of, level, perturb
from flockrl.algos.family import Family
from flockrl.algos.off_policy import OffPolicy
from flockrl.algos.off_policy_config import JOINT, OffPolicyConfig
from flockrl.algos.parts import mean
from flockrl.algos.replay_learner import Learned
from flockrl.algos.views import View
from flockrl.core.groups import Group, is_continuous, merge, take
from flockrl.core.random import Source, gumbel, split, uniform
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec, Observation, PyTree
from flockrl.nets.actions import hard, soft
from flockrl.nets.heads import ILLEGAL


@dataclass(frozen=True)
class DDPGConfig(OffPolicyConfig):
    """Settings of the DDPG family. Try first: --lr, --critic-lr, --gamma, --steps-per-update, --hidden, --memory."""

    explore: Explore = "auto"
    """Noise on actions: gaussian, ou (Ornstein-Uhlenbeck), epsilon (now and then a random action), gumbel (sample
    a discrete policy); auto is gaussian for continuous actions and gumbel for discrete ones."""
    explore_start: float | None = None
    """The noise's level at first: deviation in half ranges, probability, or Gumbel scale; by default 0.3, 1 or 1."""
    explore_end: float | None = None
    """The noise's level at the end of its schedule; by default 0.1, 0.05 or 1."""
    explore_part: float = 0.5
    """Part of the run over which the level goes from start to end."""
    explore_together: bool = False
    """Let agents share the random numbers of their noise: the same noise, and random actions in the same steps."""
    sample_targets: bool = True
    """Draw the next choices in targets from the policy, as acting does, instead of taking the best."""
    output_penalty: float = 1e-3
    """Weight of the squared outputs of the policy before tanh or softmax, which keeps them from saturating."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "explore_start", "explore_end", "output_penalty", least=0)
        check_numbers(self, "explore_part", above=0)


def make(spec: EnvSpec, config: DDPGConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` iterations."""
    return DDPG(spec, config, envs, updates).algorithm()


FAMILY = Family(make, DDPGConfig, **JOINT, factorised=True)


class DDPG(OffPolicy):
    """One critic per group, deterministic targets."""

    def __init__(self, spec: EnvSpec, config: Any, envs: int, updates: int):
        super().__init__(spec, config, envs, updates)
        self.kinds = kinds_of(config.explore, spec)
        """The noise of agents with real actions, and of those with choices."""
        self.noisy = "ou" in self.kinds

    def _noise(self, batch: int) -> PyTree:
        return jnp.zeros((batch, *self.code.own.shape)) if self.noisy else ()

    # From a policy's outputs to codes

    def _codes(
        self, outs: Sequence[Array], avail: Array | None, alive: Array | None = None,
        noise: Sequence[Array] | None = None,
    ) -> Array:  # fmt: skip
        """Codes [..., N, A]: tanh of the outputs, or the best legal options after `noise` on each group's logits."""
        parts = []
        for g, (group, out, mask) in enumerate(zip(self.groups, outs, self._legal(avail), strict=True)):
            if group.continuous:
                parts.append(jnp.tanh(out) * mask)
            else:
                logits = out if noise is None else out + noise[g]
                parts.append(hard(jnp.where(mask, logits, ILLEGAL), group))
        return self._team(parts, alive)

    def _gumbel(self, key: Source, lead: tuple[int, ...]) -> list[Array]:
        """Gumbel noise for each group's logits [..., n, A]: the best noisy logit is a sample of the policy."""
        keys = split(key, len(self.groups))
        return [
            jnp.zeros((*lead, group.size, group.action_size))
            if group.continuous
            else gumbel(k, (*lead, group.size, group.action_size), group.agents)
            for k, group in zip(keys, self.groups, strict=True)
        ]

    def _greedy(self, outs: list[Array], avail: Array | None) -> Array:
        return self._codes(outs, avail)

    def _behave(
        self, params: PyTree, outs: list[Array], seen: Observation, noise: PyTree, key: Source
    ) -> tuple[Array, PyTree]:
        first, second = split(key)
        real, choice = self.kinds
        together = self.config.explore_together
        batch = len(seen.obs)
        drawn = None
        if choice == "gumbel":
            drawn = [self._level(choice, params) * alike(g, together) for g in self._gumbel(first, (batch,))]
        chosen = self._codes(outs, seen.avail, noise=drawn)
        if "epsilon" in self.kinds:
            chance = alike(uniform(first, (*chosen.shape[:2], 1), range(chosen.shape[1])), together)
            random = self.code.random(second, batch, seen.avail)
            chosen = jnp.where(self._those("epsilon") & (chance < self._level("epsilon", params)), random, chosen)
        if real in ("gaussian", "ou"):
            noise_key = first if choice == "" else second
            moved, noise = perturb(real, noise_key, chosen, noise, self._level(real, params), together)
            chosen = jnp.where(self._those(real), moved, chosen)
        return chosen, noise

    def _level(self, kind: str, params: PyTree) -> Array:
        config = self.config
        return level(kind, config.explore_start, config.explore_end, config.explore_part, params["progress"])

    def _those(self, kind: str) -> Any:
        """[N, 1] bool: the agents that explore in this way."""
        real = is_continuous(self.spec)[:, None]
        return (real & (self.kinds[0] == kind)) | (~real & (self.kinds[1] == kind))

    # Learning

    def _next_action(self, learned: Learned, view: View, key: Array) -> Array:
        """[..., N, A] what the target policies do next: choices are drawn, as those who act draw them."""
        outs, drawn = self._outputs(learned.targets["actor"], view), None
        if self.config.sample_targets and self.spec.maskable:
            drawn = self._gumbel(key, view.seen.obs.shape[:-2])
        return self._codes(outs, view.seen.avail, view.seen.alive, drawn)

    def _next_values(self, learned: Learned, view: View, key: Array) -> Array:
        action = self._next_action(learned, view, key)
        values = [
            self._smallest(learned.targets["critic"], g, view, self._actions(group, action))[..., 0]
            for g, group in enumerate(self.groups)
        ]
        return merge(values, self.groups, values[0].ndim - 1)

    def _relaxed(self, group: Group, out: Array, legal: Array, noise: Any) -> Array:
        """A group's codes [..., n, A] that gradients pass through."""
        if group.continuous:
            return jnp.tanh(out) * legal
        logits = jnp.where(legal, out + noise, ILLEGAL)
        smooth = soft(logits, group)
        return hard(logits, group) + smooth - jax.lax.stop_gradient(smooth)

    def _policy_loss(
        self, actors: Sequence[PyTree], critics: Sequence[PyTree], view: View, action: Array, noise: Sequence[Any]
    ) -> Array:
        """-Q of each agent's own choice beside the others' replayed actions; each group's mean added up."""
        total = jnp.float32(0)
        outs, masks = self._outputs(actors, view), self._legal(view.seen.avail)
        for g, (group, out, legal) in enumerate(zip(self.groups, outs, masks, strict=True)):
            own, first = self._relaxed(group, out, legal, noise[g]), g * self.twins
            q = self._q(first, critics[first], view, self._actions_with(group, action, own))[..., 0]
            done, alive = take(action, group, action.ndim - 2, group.action_size), take(view.alive, group, q.ndim - 1)
            total = total + mean(self._cost(group, out, legal, q, done, alive), alive)
        return total

    def _cost(self, group: Group, out: Array, legal: Array, q: Array, done: Array, alive: Array) -> Array:
        """[..., n] what a group's policy is to make small. out: its outputs [..., n, A]; q: the value [..., n] of its
        choice; done: the replayed codes [..., n, A] of its agents."""
        return self.config.output_penalty * jnp.where(legal, out**2, 0.0).mean(-1) - q

    def _improve(
        self, learned: Learned, view: View, action: Array, key: Array, factor: Array
    ) -> tuple[Learned, dict[str, Array]]:
        lead = view.seen.obs.shape[:-2]
        noise = [0.0] * len(self.groups) if self.spec.continuous else self._gumbel(key, lead)
        loss = jax.value_and_grad(self._policy_loss)
        value, grads = loss(learned.params["actor"], learned.params["critic"], view, action, noise)
        learned = self._descend(learned, "actor", grads, self.config.lr * factor)
        return self._follow(learned), {"policy_loss": value}
