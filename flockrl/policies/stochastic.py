"""Stochastic policies of a team: acting, log-probabilities, divergences."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from flockrl.core.groups import Group, make_groups, merge, read_actions, take, write_actions
from flockrl.core.random import Source, fold_in
from flockrl.core.types import Array, EnvSpec, Observation, PyTree
from flockrl.nets.heads import Head, make_head
from flockrl.nets.normalisation import Moments
from flockrl.policies.network import TeamNetwork


class StochasticPolicy:
    """Holds what is static (the team's network, groups, settings). Its methods are pure.

    config: a `PolicyConfig`. What `act` takes as params: {"actor": one entry per group, "obs_moments"}.
    """

    def __init__(self, spec: EnvSpec, config: Any):
        self.spec, self.config = spec, config
        self.groups = make_groups(spec, config.share)
        self.heads = [make_head(spec, group) for group in self.groups]
        self.actor = TeamNetwork(
            spec, self.groups, config, [head.width for head in self.heads],
            log_std=[head.log_std for head in self.heads],
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

    def _out(self, params: PyTree, seen: Observation, memory: PyTree) -> tuple[list[Array], PyTree]:
        """Output [B, n, width] of each group's policy for one moment, and memories after it."""
        seen = seen._replace(obs=self._normal(seen.obs, params["obs_moments"]))
        return self.actor.step(params["actor"], seen, memory)

    def kl(self, old: PyTree, new: PyTree, observation: Observation, memory: PyTree) -> Array:
        """[B, N] divergence from the policy of `old` to that of `new`."""
        before, after = (self._out(params, observation, memory)[0] for params in (old, new))
        parts = [
            head.kl(a, b, legal(group, observation.avail))
            for group, head, a, b in zip(self.groups, self.heads, before, after, strict=True)
        ]
        return merge(parts, self.groups, 1)

    def act(
        self, params: PyTree, observation: Observation, memory: PyTree, key: Source, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        outs, memory = self._out(params, observation, memory)
        actions, logps = [], []
        for group, head, out in zip(self.groups, self.heads, outs, strict=True):
            avail = legal(group, observation.avail)
            k = key if group.of == 1 else fold_in(key, group.number)
            action, logp = head.sample(k, out, avail) if explore else (head.mode(out, avail), out[..., 0])
            actions.append(action)
            logps.append(logp)
        extras = {"logp": merge(logps, self.groups, 1)} if explore else {}
        return write_actions(self.spec, self.groups, actions), memory, extras


def legal(group: Group, avail: Array | None) -> Array | None:
    """The group's part of the legal-action mask [..., N, A]."""
    return None if avail is None else take(avail, group, avail.ndim - 2, group.action_size)
