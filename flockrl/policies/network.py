"""The network of a team: torso -> memory -> exchange between agents -> head, over the agent axis.

Every group of agents that share parameters has a `nets.network.Network`; a `TeamNetwork` holds them all, so that what
lets agents perceive each other's features stands in one place for every family of learners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from flockrl.core.groups import Group, merge, take
from flockrl.core.types import Array, EnvSpec, Observation, PyTree
from flockrl.nets.network import Network


class TeamNetwork:
    """One network per group. Holds what is static; its methods are pure.

    config: has hidden, activation, kernel, agent_ids, memory and memory_size. widths: outputs of each group's network.
    Parameters are a tuple with an entry per group, memories too.

    exchange: builds, for each group, the module through which its agents read the features of others; None where they
    do not. It is called as (own [..., n, F], team [..., N, F], alive [..., N] or None, neighbours [..., N, N] or None,
    agents) -> [..., n, F'], where `agents` are the group's places in the team.
    """

    def __init__(
        self,
        spec: EnvSpec,
        groups: Sequence[Group],
        config: Any,
        widths: Sequence[int],
        *,
        log_std: Sequence[bool] | None = None,
        out_scale: float = 0.01,
        exchange: Callable[[Group], nn.Module] | None = None,
    ):
        self.spec, self.groups, self.exchange = spec, groups, exchange
        self.memory_size = config.memory_size if config.memory == "gru" else 0
        spreads = log_std or [False] * len(groups)
        self.nets = [
            make_network(
                spec, config, width, ids=ids(group, config.agent_ids), log_std=spread, out_scale=out_scale,
                exchange=None if exchange is None else exchange(group),
            )
            for group, width, spread in zip(groups, widths, spreads, strict=True)
        ]  # fmt: skip

    @property
    def recurrent(self) -> bool:
        return self.memory_size > 0

    def init(self, keys: Any) -> tuple[PyTree, ...]:
        """Fresh parameters; keys: one for each group."""
        lead = (1, 1) if self.recurrent else (1,)
        n, size = self.spec.num_agents, self.spec.obs_size
        seen = Observation(jnp.zeros((*lead, n, size)))
        first = jnp.zeros((1, 1), bool) if self.recurrent else None
        team = None
        if self.exchange is not None:
            team = jnp.zeros((*lead, n, self._feature_size(keys, seen, first)))
        return tuple(
            net.init(k, self._own(group, seen), h, first, *self._others(group, seen, team), method=_whole)["params"]
            for net, k, group, h in zip(self.nets, keys, self.groups, self.blank(1), strict=True)
        )

    def _feature_size(self, keys: Any, seen: Observation, first: Array | None) -> int:
        """F, which must be the same for all groups that talk to each other."""
        net, group = self.nets[0], self.groups[0]
        shapes = jax.eval_shape(
            lambda k: net.init_with_output(k, self._own(group, seen), self.blank(1)[0], first, method="features"),
            keys[0],
        )
        return shapes[0][0].shape[-1]

    def _own(self, group: Group, seen: Observation) -> Array:
        return take(seen.obs, group, seen.obs.ndim - 2, group.obs_size)

    def _others(self, group: Group, seen: Observation, team: Array | None) -> tuple[Any, ...]:
        if team is None:
            return ()
        alive = None if seen.alive is None else seen.alive.astype(bool)
        return team, alive, seen.neighbours, group.agents

    def blank(self, batch: int) -> PyTree:
        """Each group's memory at the start of an episode, [batch, n, H], or () where there is none."""
        size = self.memory_size
        return tuple(jnp.zeros((batch, group.size, size)) if size else () for group in self.groups)

    def memory(self, batch: int) -> PyTree:
        """`blank`, or () for a team without memory: what an `Algorithm` carries from step to step."""
        return self.blank(batch) if self.recurrent else ()

    def __call__(
        self, params: Sequence[PyTree], seen: Observation, memory: PyTree, first: Array | None
    ) -> list[tuple[Array, Any]]:
        """Output [..., n, width] and memory of each group. With memory, seen has axes [T, B] and memories come out
        after each step, [T, B, n, H]; without it, `memory` and `first` are not read."""
        if not self.recurrent:
            memory, first = ((),) * len(self.groups), None
        parts = list(zip(self.nets, params, self.groups, memory, strict=True))
        if self.exchange is None:
            return [net.apply({"params": p}, self._own(group, seen), h, first) for net, p, group, h in parts]
        found: list[Any] = [
            net.apply({"params": p}, self._own(group, seen), h, first, method="features") for net, p, group, h in parts
        ]
        team = merge([features for features, _ in found], self.groups, seen.obs.ndim - 2)
        results: list[Any] = [
            (net.apply({"params": p}, own, *self._others(group, seen, team), method="output"), after)
            for (net, p, group, _), (own, after) in zip(parts, found, strict=True)
        ]
        return results

    def step(self, params: Sequence[PyTree], seen: Observation, memory: PyTree) -> tuple[list[Array], PyTree]:
        """One moment: outputs [B, n, width] of observations [B, N, O], and what the team remembers after it."""
        if not self.recurrent:
            return [out for out, _ in self(params, seen, (), None)], ()
        rows = jax.tree.map(lambda x: x[None], seen)
        outs = self(params, rows, memory, jnp.zeros((1, len(seen.obs)), bool))
        return [out[0] for out, _ in outs], tuple(after[0] for _, after in outs)


def _whole(net: Network, x: Array, memory: Any, first: Array | None, *others: Any) -> Array:
    """Calls everything once, to create all parameters."""
    features, _ = net.features(x, memory, first)
    return net.output(features, *others)


def make_network(spec: EnvSpec, config: Any, outputs: int, **options: Any) -> Network:
    """A network with the sizes that a config asks for, for a policy or for a critic."""
    size = config.memory_size if config.memory == "gru" else 0
    return Network(
        config.hidden, outputs, config.activation, memory=size, sight=spec.sight, kernel=config.kernel, **options
    )


def ids(group: Group, wanted: bool) -> int:
    """How many agents a group's network has to tell apart: all of them, or 0 when there is no need."""
    return group.size if wanted and group.size > 1 else 0


Apply = Callable[[PyTree, PyTree, Any], tuple[Any, PyTree]]
"""(inputs [T, b, ...], memory [b, ...], first [T, b]) -> (outputs, memory after each step)."""


def unroll(apply: Apply, blank: PyTree, x: PyTree, first: Array, burn_in: int) -> tuple[Any, PyTree]:
    """Outputs along a stretch of experience and memories after each step, both after its first `burn_in` steps, which
    only fill the memory and pass no gradients."""
    memory = blank
    if burn_in:
        _, past = apply(jax.tree.map(lambda v: v[:burn_in], x), memory, first[:burn_in])
        memory = jax.tree.map(lambda h: jax.lax.stop_gradient(h[-1]), past)
    return apply(jax.tree.map(lambda v: v[burn_in:], x), memory, first[burn_in:])


def one_step(apply: Apply, x: PyTree, memories: PyTree) -> Any:
    """Outputs [T, b, ...] of one step from each of the memories [T, b, ...], all at once."""
    lead = jax.tree.leaves(x)[0].shape[:2]
    rows = jax.tree.map(lambda v: v.reshape(1, -1, *v.shape[2:]), x)
    flat = jax.tree.map(lambda h: h.reshape(-1, *h.shape[2:]), memories)
    outs, _ = apply(rows, flat, jnp.zeros((1, lead[0] * lead[1]), bool))
    return jax.tree.map(lambda out: out.reshape(*lead, *out.shape[2:]), outs)
