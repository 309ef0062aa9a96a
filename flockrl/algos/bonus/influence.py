"""Social influence (Jaques et al. 2019, arXiv 1810.08647): agents earn by changing what others do next.

    c_i = sum_{j != i} KL( p(a_j' | a_i, a_-i, s) || sum_b pi_i(b | s) p(a_j' | b, a_-i, s) )

a' are the actions of the next step. Both p and pi_i are models that learn from what agents do: the learner's own policy
may be of any kind, and others' policies are not known to an agent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.bonus.models import BATCH, HIDDEN, LR
from flockrl.algos.bonus.novelty import Look, Measure
from flockrl.algos.parts import adam, descend, mean
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, EnvSpec, Metrics, PyTree, Trajectory
from flockrl.nets.heads import ILLEGAL
from flockrl.nets.network import Network


class InfluenceState(NamedTuple):
    """params, optimiser: of both models, "next" and "own"."""

    params: dict[str, PyTree]
    optimiser: dict[str, PyTree]


class Influence(Measure):
    """A model of what all agents do next, given the state and what they do now, and one of what they do now."""

    def __init__(self, spec: EnvSpec):
        if not spec.discrete:
            raise UsageError(
                f"bonus influence compares choices, and agents of {spec.name} have real actions or several choices at "
                "once: use --bonus rnd, icm or count."
            )
        if spec.num_agents == 1:
            raise UsageError(f"bonus influence is that on others, and {spec.name} has one agent: use another bonus.")
        self.spec, self.look = spec, Look(spec, "state")
        self.agents, self.actions = spec.num_agents, spec.action_size
        self.net = Network(HIDDEN, self.agents * self.actions, "relu", sight=spec.sight)
        self.optimiser = adam(0.5, eps=1e-8)

    def init(self, key: Array) -> InfluenceState:
        keys, size = jax.random.split(key), self.look.size
        wide = jnp.zeros((1, size + self.agents * self.actions))
        params = {
            "next": self._next_net().init(keys[0], wide)["params"],
            "own": self.net.init(keys[1], jnp.zeros((1, size)))["params"],
        }
        return InfluenceState(params, {name: self.optimiser.init(net) for name, net in params.items()})

    def _next_net(self) -> Network:
        """Pictures in the state are read as numbers there, beside actions."""
        return Network(HIDDEN, self.agents * self.actions, "relu")

    def _logits(self, net: Network, params: PyTree, x: Array) -> Array:
        """[..., N, A] of inputs [..., F]; actions that an agent does not have are impossible."""
        out: Any = net.apply({"params": params}, x)
        logits = out[0].reshape(*x.shape[:-1], self.agents, self.actions)
        return jnp.where(self.spec.own_actions, logits, ILLEGAL)

    def learn(self, state: InfluenceState, rollout: Trajectory, key: Array) -> tuple[InfluenceState, Metrics]:
        seen, code = self.look.now(rollout)[..., 0, :], jax.nn.one_hot(rollout.action, self.actions)
        goes_on = jnp.concatenate([~rollout.first[1:], jnp.zeros_like(rollout.first[:1])])[..., None]
        weight = rollout.weight
        follow = jnp.concatenate([code[1:], code[-1:]])
        later = jnp.concatenate([weight[1:], weight[-1:]]) * goes_on
        rows = [x.reshape(-1, *x.shape[2:]) for x in (seen, code, follow, weight, later)]
        count = len(rows[0])
        parts = max(1, count // BATCH)
        order = jax.random.permutation(key, count)[: count // parts * parts]
        batches = [x[order].reshape(parts, -1, *x.shape[1:]) for x in rows]

        def loss(params: dict[str, PyTree], part: list[Array]) -> Array:
            seen, code, follow, weight, later = part
            beside = jnp.concatenate([seen, code.reshape(len(code), -1)], -1)
            ahead = jax.nn.log_softmax(self._logits(self._next_net(), params["next"], beside))
            now = jax.nn.log_softmax(self._logits(self.net, params["own"], seen))
            return mean(-(follow * ahead).sum(-1), later) + mean(-(code * now).sum(-1), weight)

        def step(carry: InfluenceState, part: Any) -> tuple[InfluenceState, Array]:
            value, grads = jax.value_and_grad(loss)(carry.params, part)
            names, lr = list(grads), jnp.float32(LR)
            nets, states = (tuple(tree[name] for name in names) for tree in carry)
            nets, states = descend(self.optimiser, nets, states, [grads[name] for name in names], lr)
            return InfluenceState(*(dict(zip(names, tree, strict=True)) for tree in (nets, states))), value

        state, losses = jax.lax.scan(step, state, batches)
        return state, {"bonus_model_loss": losses.mean()}

    def own(self, state: InfluenceState, rows: Trajectory) -> Array:
        """[..., N] how much each agent's action changed what others are expected to do next."""
        seen, code = self.look.now(rows)[..., 0, :], jax.nn.one_hot(rows.action, self.actions)
        chance = jax.nn.softmax(self._logits(self.net, state.params["own"], seen))  # [..., N, A]
        earned = []
        for i in range(self.agents):
            others = jnp.broadcast_to(code[..., None, :, :], (*code.shape[:-2], self.actions, *code.shape[-2:]))
            tried = others.at[..., i, :].set(np.eye(self.actions, dtype=np.float32))
            state_too = jnp.broadcast_to(seen[..., None, :], (*tried.shape[:-2], seen.shape[-1]))
            beside = jnp.concatenate([state_too, tried.reshape(*tried.shape[:-2], -1)], -1)
            each = jax.nn.softmax(self._logits(self._next_net(), state.params["next"], beside))  # [..., b, N, A]
            taken = (each * code[..., i, :, None, None]).sum(-3)
            usual = (each * chance[..., i, :, None, None]).sum(-3)
            apart = (taken * (jnp.log(taken + 1e-12) - jnp.log(usual + 1e-12))).sum(-1)  # [..., N]
            earned.append(apart.sum(-1) - apart[..., i])
        return jnp.stack(earned, -1)
