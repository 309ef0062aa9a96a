"""Stochastic policies of a team: one network per group of agents that share, acting, log-probabilities."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from flockrl.algos.parts import blank_memory, ids, legal
from flockrl.draw import Source, fold_in
from flockrl.nets.actor_critic import Network
from flockrl.nets.heads import Head, make_head
from flockrl.normalize import Moments
from flockrl.sharing import Group, make_groups, merge, take
from flockrl.types import Array, EnvSpec, Observation, PyTree


class TeamPolicy:
    """Holds what is static (networks, groups, settings). Its methods are pure.

    config: a `TeamConfig`. What `act` takes as params: {"actor": one entry per group, "obs_moments"}.
    """

    def __init__(self, spec: EnvSpec, config: Any):
        self.spec, self.config = spec, config
        self.groups = make_groups(spec, config.share)
        self.recurrent = config.memory == "gru"
        self.heads = [make_head(spec, group) for group in self.groups]
        self.actors = [
            self._network(head.width, ids(group, config.agent_ids), log_std=head.log_std, out_scale=0.01)
            for group, head in zip(self.groups, self.heads, strict=True)
        ]

    def _network(self, outputs: int, ids: int = 0, **options: Any) -> Network:
        config = self.config
        size = config.memory_size if self.recurrent else 0
        return Network(
            config.hidden, outputs, config.activation, ids=ids, memory=size, picture=self.spec.picture,
            kernel=config.kernel, **options,
        )  # fmt: skip

    def _init_actors(self, keys: Array) -> tuple[PyTree, ...]:
        """Fresh parameters of each group's policy, one key for each."""
        obs, first = jnp.zeros((1, 1, self.spec.num_agents, self.spec.obs_size)), jnp.zeros((1, 1), bool)
        return tuple(
            net.init(k, take(obs, group, 2, group.obs_size), h, first)["params"]
            for net, k, group, h in zip(self.actors, keys, self.groups, self._memory(1), strict=True)
        )

    def memory(self, batch: int) -> PyTree:
        return self._memory(batch) if self.recurrent else ()

    def _memory(self, batch: int) -> PyTree:
        return blank_memory(self.groups, self.config.memory_size if self.recurrent else 0, batch)

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

    def _chosen(self, group: Group, head: Head, out: Array, action: Array, avail: Array | None) -> tuple[Array, Array]:
        """Log-probability and entropy of the group's part of the team's actions [T, B, N(, A)], as rows [T B n]."""
        action = take(action, group, 2, None if self.spec.discrete else group.action_size)
        logp, entropy = head.evaluate(out, legal(group, avail), action)
        return logp.reshape(-1), entropy.reshape(-1)

    def _out(self, params: PyTree, observation: Observation, memory: PyTree) -> list[tuple[Array, Any]]:
        """Output [B, n, width] and memory of each group's policy for one moment."""
        obs = self._normal(observation.obs, params["obs_moments"])
        if not self.recurrent:
            return self._actor(params["actor"], obs, (), None)
        first = jnp.zeros((1, obs.shape[0]), bool)
        return [(out[0], h[0]) for out, h in self._actor(params["actor"], obs[None], memory, first)]

    def kl(self, old: PyTree, new: PyTree, observation: Observation, memory: PyTree) -> Array:
        """[B, N] divergence from the policy of `old` to that of `new`."""
        outs = zip(self._out(old, observation, memory), self._out(new, observation, memory), strict=True)
        parts = [
            head.kl(before, after, legal(group, observation.avail))
            for group, head, ((before, _), (after, _)) in zip(self.groups, self.heads, outs, strict=True)
        ]
        return merge(parts, self.groups, 1)

    def act(
        self, params: PyTree, observation: Observation, memory: PyTree, key: Source, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        outs = self._out(params, observation, memory)
        actions, logps = [], []
        for i, (group, head, (out, _)) in enumerate(zip(self.groups, self.heads, outs, strict=True)):
            avail = legal(group, observation.avail)
            k = key if len(self.groups) == 1 else fold_in(key, i)
            action, logp = head.sample(k, out, avail) if explore else (head.mode(out, avail), out[..., 0])
            actions.append(action)
            logps.append(logp)
        size = None if self.spec.discrete else self.spec.action_size
        action = merge(actions, self.groups, 1, size)
        extras = {"logp": merge(logps, self.groups, 1)} if explore else {}
        return action, tuple(h for _, h in outs) if self.recurrent else (), extras
