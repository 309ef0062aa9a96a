"""Stochastic policies of a team: acting, log-probabilities, divergences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from flockrl.core.errors import UsageError
from flockrl.core.groups import Group, make_groups, merge, read_actions, take, write_actions
from flockrl.core.random import Source, fold_in, gumbel
from flockrl.core.types import Array, EnvSpec, Observation, PyTree, Trajectory
from flockrl.nets.heads import ILLEGAL, Head, make_head
from flockrl.nets.normalisation import Moments
from flockrl.policies.listening import attention
from flockrl.policies.network import TeamNetwork


class StochasticPolicy:
    """Holds what is static (the team's network, groups, settings). Its methods are pure.

    config: a `PolicyConfig`; foreseen: see `TeamNetwork`. What `act` takes as params: {"actor": one entry per group,
    "obs_moments"}.
    """

    def __init__(self, spec: EnvSpec, config: Any, foreseen: int = 0):
        self.spec, self.config = spec, config
        self.groups = make_groups(spec, config.share)
        self.heads = [make_head(spec, group) for group in self.groups]
        if config.log_std is not None and not any(head.log_std for head in self.heads):
            raise UsageError(f"log_std is of real actions, and agents of {spec.name} choose among some: leave it out.")
        self.actor = TeamNetwork(
            spec, self.groups, config, [head.width for head in self.heads],
            log_std=[head.log_std for head in self.heads], foreseen=foreseen,
        )  # fmt: skip
        self.recurrent = self.actor.recurrent

    def memory(self, batch: int) -> PyTree:
        return self.actor.memory(batch)

    def _normal(self, x: Array, stats: Moments | tuple[()]) -> Array:
        if isinstance(stats, Moments):
            return jnp.clip((x - stats.mean) / stats.std, -10.0, 10.0)
        return x

    def _chosen(self, group: Group, head: Head, out: Array, action: Array, avail: Array | None) -> tuple[Array, Array]:
        """Log-probability and entropy of the group's part of the team's actions [T, B, N(, W)], as rows [T B n]."""
        logp, entropy = head.evaluate(out, legal(group, avail), read_actions(self.spec, group, action))
        return logp.reshape(-1), entropy.reshape(-1)

    def _out(self, params: PyTree, seen: Observation, memory: PyTree) -> tuple[list[Array], PyTree, dict[str, Array]]:
        """Output [B, n, width] of each group's policy for one moment, memories after it, and what is noted of
        messages."""
        seen = seen._replace(obs=self._normal(seen.obs, params["obs_moments"]))
        return self.actor.step(params["actor"], seen, memory)

    def _choices(self, actor: PyTree, seen: Observation, trajectory: Trajectory) -> Array:
        """[T, B, N, A] the probabilities of all choices; seen: what the networks read."""
        outs, _ = self.actor(actor, seen, trajectory.memory, trajectory.first)
        parts = []
        for group, out in zip(self.groups, outs, strict=True):
            mask, avail = jnp.asarray(group.legal), legal(group, trajectory.avail)
            mask = mask if avail is None else mask & avail
            parts.append(jax.nn.softmax(jnp.where(mask, out, ILLEGAL)))
        return merge(parts, self.groups, 2, self.spec.action_size)

    def says(self, params: PyTree, seen: Observation, memory: PyTree) -> Array:
        """[B, N, C] what agents would tell each other."""
        seen = seen._replace(obs=self._normal(seen.obs, params["obs_moments"]))
        return self.actor.says(params["actor"], seen, memory)

    def attends(self, params: PyTree, seen: Observation, memory: PyTree) -> Array:
        """[B, R, H, N, N] who attends to whom."""
        seen = seen._replace(obs=self._normal(seen.obs, params["obs_moments"]))
        return attention(self.actor, params["actor"], seen, memory)

    def kl(
        self, old: PyTree, new: PyTree, observation: Observation, memory: PyTree, other: Observation | None = None
    ) -> Array:
        """[B, N] divergence from the policy of `old` to that of `new`, which sees `other` where that is given."""
        before = self._out(old, observation, memory)[0]
        after = self._out(new, observation if other is None else other, memory)[0]
        parts = [
            head.kl(a, b, legal(group, observation.avail))
            for group, head, a, b in zip(self.groups, self.heads, before, after, strict=True)
        ]
        return merge(parts, self.groups, 1)

    def scores(self, params: PyTree, observation: Observation, memory: PyTree, key: Source, explore: bool) -> Array:
        """[B, N, A] log-probabilities of all choices, with Gumbel noise where agents explore: the largest of an agent's
        is then a draw from its policy."""
        outs, _, _ = self._out(params, observation, memory)
        parts = []
        for group, out in zip(self.groups, outs, strict=True):
            mask, avail = jnp.asarray(group.legal), legal(group, observation.avail)
            parts.append(jax.nn.log_softmax(jnp.where(mask if avail is None else mask & avail, out, ILLEGAL)))
        found = merge(parts, self.groups, 1, self.spec.action_size)
        return found + gumbel(key, found.shape, range(self.spec.num_agents)) if explore else found

    def act(
        self, params: PyTree, observation: Observation, memory: PyTree, key: Source, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        seen = self.actor.with_luck(observation, memory, key, explore)
        outs, memory, noted = self._out(params, seen, memory)
        actions, logps = [], []
        for group, head, out in zip(self.groups, self.heads, outs, strict=True):
            avail = legal(group, observation.avail)
            k = key if group.of == 1 else fold_in(key, group.number)
            action, logp = head.sample(k, out, avail) if explore else (head.mode(out, avail), out[..., 0])
            actions.append(action)
            logps.append(logp)
        extras = {"logp": merge(logps, self.groups, 1), **noted} if explore else noted
        return write_actions(self.spec, self.groups, actions), memory, extras


def legal(group: Group, avail: Array | None) -> Array | None:
    """The group's part of the legal-action mask [..., N, A]."""
    return None if avail is None else take(avail, group, avail.ndim - 2, group.action_size)
