"""COMA's critic: the value of each of an agent's choices, while the others do what they did.

Foerster et al. 2018 (arXiv 1705.08926).

    A_i = Q_i(s, a) - sum_c pi_i(c | o_i) Q_i(s, a with c for a_i)

The critic of agent i reads the state, the agent's own observation and what the others did, and has an output for each
own action: one pass tells them all. Its output is what is left of the value once the state's is taken off, so that
Q_i = V_i(s) + output; it learns what is left of lambda returns, and begins near 0: as good as the state's value alone.
It learns from a quarter of the steps of a rollout, drawn at random, in as many gradient steps as other networks make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flockrl.algos.parts import descend, joint, mean
from flockrl.core.devices import spread
from flockrl.core.errors import UsageError
from flockrl.core.groups import Group, merge, take
from flockrl.core.types import Array, EnvSpec, Observation, PyTree
from flockrl.nets.heads import pick
from flockrl.nets.network import Network
from flockrl.policies.network import ids


def check_choices(spec: EnvSpec) -> None:
    """Refuse teams that have no use for a counterfactual critic."""
    if spec.num_agents == 1:
        raise UsageError(f"credit counterfactual needs a team, and {spec.name} has one agent: use --credit none.")
    if not spec.discrete:
        raise UsageError(
            "credit counterfactual looks at all choices of an agent and needs one choice per agent: use --credit none."
        )


class ChoiceCritic:
    """One network per group. Holds what is static; its methods are pure. Parameters: an entry per group."""

    part = 4
    """One of how many steps of a rollout it learns from."""

    def __init__(self, spec: EnvSpec, config: Any, groups: Sequence[Group]):
        check_choices(spec)
        self.spec, self.groups = spec, groups
        self.nets = [
            Network(
                config.hidden, group.action_size, config.activation, ids=ids(spec, group, config, whose=True),
                kernel=config.kernel, out_scale=0.01,
            )
            for group in groups
        ]  # fmt: skip

    def init(self, keys: Any, seen: Observation) -> tuple[PyTree, ...]:
        """keys: one for each group."""
        action = jnp.zeros(seen.obs.shape[:-1], jnp.int32)
        return tuple(
            net.init(k, *self._reads(group, seen, action))["params"]
            for net, k, group in zip(self.nets, keys, self.groups, strict=True)
        )

    def _reads(self, group: Group, seen: Observation, action: Array) -> tuple[Array, Any, None, Array]:
        """What a network takes: the state [..., 1, S], which its first layer multiplies once for all agents, and beside
        it [..., n, O + N A] own observations and what the others did, with zeros for the own action."""
        does = jax.nn.one_hot(action, self.spec.action_size)
        if seen.alive is not None:
            does = does * seen.alive[..., None]
        others: Any = 1.0 - np.eye(self.spec.num_agents, dtype=np.float32)[list(group.agents)]
        does = does[..., None, :, :] * others[..., None]
        own = take(seen.obs, group, seen.obs.ndim - 2, group.obs_size)
        whole = joint(self.spec, seen.obs, seen.state)[..., None, :]
        return whole, (), None, jnp.concatenate([own, does.reshape(*own.shape[:-1], -1)], -1)

    def values(self, params: Sequence[PyTree], seen: Observation, action: Array) -> Array:
        """[..., N, A] of every choice of every agent beyond the state's value, in the critics' units, where the others
        do `action` [..., N]."""
        outs: list[Any] = [
            net.apply({"params": p}, *self._reads(group, seen, action))[0]
            for net, p, group in zip(self.nets, params, self.groups, strict=True)
        ]
        return merge(outs, self.groups, outs[0].ndim - 2, self.spec.action_size)

    def chosen(self, params: Sequence[PyTree], seen: Observation, action: Array) -> Array:
        """[..., N] of what each agent did."""
        return pick(self.values(params, seen, action), action)

    def fit(
        self,
        optimiser: optax.GradientTransformation,
        networks: tuple[tuple[PyTree, ...], tuple[PyTree, ...]],
        rollout: tuple[Observation, Array, Array, Array | None],
        steps: int,
        lr: Array,
        key: Array,
    ) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...]]:
        """Parameters and states of optimisers after this many gradient steps, each on other rows of a rollout: one in
        `part` of all rows, drawn anew each time.

        rollout: what was seen and done [T, B, ...], what was left of returns [T, B, N] once the state's value is taken
        off, in the critics' units, and the weight of each, None for 1. Without memory, steps in time are rows alike.
        """
        seen, action, left, weight = rollout
        read = Observation(seen.obs, state=seen.state, alive=seen.alive)
        count = left.shape[0] * left.shape[1]
        rows = jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), (read, action, left, weight))
        steps = min(steps, count)
        size = max(count // (self.part * steps), 1)
        order = jax.random.permutation(key, count)[: steps * size].reshape(steps, size)

        def loss(params: Sequence[PyTree], part: tuple[Observation, Array, Array, Array | None]) -> Array:
            error = 0.5 * (self.chosen(params, part[0], part[1]) - part[2]) ** 2
            known = [None if part[3] is None else take(part[3], group, 1) for group in self.groups]
            return sum((mean(take(error, g, 1), w) for g, w in zip(self.groups, known, strict=True)), jnp.float32(0))

        def step(carry: Any, places: Array) -> tuple[Any, None]:
            nets, states = carry
            grads = jax.grad(loss)(nets, spread(jax.tree.map(lambda x: x[places], rows)))
            return descend(optimiser, nets, states, grads, lr), None

        return jax.lax.scan(step, networks, order)[0]


def counterfactual(values: Array, pi: Array, action: Array, returns: Array | None = None) -> Array:
    """[..., N] the advantage of `action` [..., N] over what the policy pi [..., N, A] does on average, by the values
    [..., N, A] of all choices; with returns [..., N], these take the place of the value of what was done.

    The average does not depend on the own action, so with returns the policy's gradient has no bias, whatever the
    values.
    """
    done = pick(values, action) if returns is None else returns
    return done - (pi * values).sum(-1)
