"""Trust regions for agents that share nothing: HAPPO and HAA2C, one agent after the other.

Kuba et al. 2022 (arXiv 2109.11251), Zhong et al. 2024 (HARL, arXiv 2304.09870).

All agents learn from one advantage A of the joint action, by one critic of the team's return. In each update they learn
in a random order; agent i_m maximises

    E[M min(r A, clip(r, 1 - eps, 1 + eps) A)] + c H[pi],    M = product over those before it of pi_new / pi_old

so that it knows what the others have become. M stands outside of the clipping and is held while the agent learns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from flockrl.algos.family import Family
from flockrl.algos.opponents import predicts
from flockrl.algos.parts import as_team, mean
from flockrl.algos.ppo import _PPO, Batch, Pace, PPOConfig
from flockrl.core.errors import UsageError
from flockrl.core.groups import Share, take
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.policies.network import make_network


@dataclass(frozen=True)
class HAPPOConfig(PPOConfig):
    """Settings of learners that update one agent after the other."""

    share: Share = "none"
    """Who shares parameters, and learns together: none, agents of one kind, or all."""
    critic: Literal["own", "central", "agent"] = "central"
    """What the team's critic reads: the global state, else all observations (central)."""
    order: Literal["random", "fixed"] = "random"
    """The order in which agents learn: another one in each update, or that of their numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic != "central":
            raise UsageError("Agents that learn one after the other share one critic: use --critic central.")
        if self.comm != "none":
            raise UsageError("Agents that learn one after the other cannot learn to talk: use --comm none, or mappo.")
        if self.credit != "none":
            raise UsageError("Agents that learn one after the other share one advantage: use --credit none, or mappo.")
        if self.magnet or self.net != "flat":
            raise UsageError("Agents that learn one after the other have no magnet and read rows: use mappo.")


def check_team(spec: EnvSpec, who: str, name: str) -> None:
    """Refuse environments without one return for all agents."""
    if len(set(spec.sides)) > 1:
        raise UsageError(
            f"{who} train one team, and {spec.name} has several sides: give each a learner of its own "
            f"({','.join(f'{side}={name}' for side in spec.parties)})."
        )
    if not spec.reward_after_death:
        raise UsageError(
            f"{who} need one return for all, and agents of {spec.name} have returns that end with "
            "their lives: use mappo."
        )


def make(spec: EnvSpec, config: HAPPOConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` updates."""
    return HAPPO(spec, config, envs, updates).algorithm()


FAMILY = Family(
    make, HAPPOConfig, on_policy=True, logp=True, factorised=True, bonus="advantage", central=lambda config: True
)


class HAPPO(_PPO):
    """One critic for the team; groups of agents (by default each agent) learn in turn."""

    def __init__(self, spec: EnvSpec, config: HAPPOConfig, envs: int, updates: int):
        check_team(spec, "happo, haa2c and hatrpo", "happo")
        if predicts(config):
            raise UsageError("happo, haa2c and hatrpo predict nobody's actions, returns or states: use mappo or ippo.")
        super().__init__(spec, config, envs, updates)
        self.critics = [make_network(spec, self.config, 1)]

    def update(self, state: Any, trajectory: Trajectory, key: Array) -> tuple[Any, Metrics]:
        return super().update(state, as_team(trajectory), key)

    def _values(self, params: PyTree, seen: Observation, memory: PyTree, first: Array | None) -> tuple[Array, PyTree]:
        value, memories = super()._values(params, seen, memory, first)
        return jnp.broadcast_to(value, (*value.shape[:-1], self.spec.num_agents)), memories

    # In turn

    def _fitted(
        self, params: PyTree, optimiser: PyTree, batch: Batch, pace: Pace, key: Array
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """All agents one after the other, then the critic. Minibatches are the same for all of them."""
        count = len(self.groups)
        branches = [self._turn(g, batch, pace, key) for g in range(count)]

        def turn(carry: Any, g: Array) -> tuple[Any, dict[str, Array]]:
            return jax.lax.switch(g, branches, carry)

        order = jnp.arange(count)
        if self.config.order == "random":
            order = jax.random.permutation(jax.random.fold_in(key, count), count)
        carry = params["actor"], optimiser["actor"], jnp.ones(batch.first.shape)
        (actor, actor_state, factor), metrics = jax.lax.scan(turn, carry, order)
        metrics = jax.tree.map(jnp.mean, metrics)
        own, own_state, more = self._epochs(
            {"critic": params["critic"]}, {"critic": optimiser["critic"]}, batch, pace, key, self._critic_loss
        )
        told = {**more, **metrics, "factor": factor.mean(), "factor_std": factor.std()}
        return {"actor": actor, **own}, {"actor": actor_state, **own_state}, told

    def _turn(self, g: int, batch: Batch, pace: Pace, key: Array) -> Any:
        """The turn of one group: (actors, their optimisers, factor [T, B]) -> the same after it, and metrics."""

        def turn(carry: tuple[Any, Any, Array]) -> tuple[tuple[Any, Any, Array], dict[str, Array]]:
            actors, states, factor = carry
            before = self._logp(g, actors[g], batch)
            net, state, metrics = self._learn(g, actors[g], states[g], batch, factor, pace, key)
            change = self._logp(g, net, batch) - before
            if batch.weight is not None:
                change = change * take(batch.weight, self.groups[g], 2)
            moved = _put(actors, g, net), _put(states, g, state), factor * jnp.exp(change.sum(-1))
            return moved, metrics

        return turn

    def _logp(self, g: int, params: PyTree, batch: Batch) -> Array:
        """[T, B, n] log-probabilities of what the group's agents did."""
        group, shape = self.groups[g], (*batch.first.shape, self.groups[g].size)
        out = self.actor.alone(g, params, batch.seen, batch.actor_memory, batch.first)
        return self._chosen(group, self.heads[g], out, batch.action, batch.seen.avail)[0].reshape(shape)

    def _learn(
        self, g: int, params: PyTree, state: PyTree, batch: Batch, factor: Array, pace: Pace, key: Array
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """One group's network and optimiser after its turn: PPO's epochs, with advantages times the factor."""
        loss = partial(self._group_loss, g)
        net, opt, held = {"actor": (params,)}, {"actor": (state,)}, batch._replace(factor=factor)
        nets, states, metrics = self._epochs(net, opt, held, pace, key, loss)
        return nets["actor"][0], states["actor"][0], metrics

    def _group_loss(self, g: int, params: PyTree, batch: Batch, bonus_weight: Array) -> tuple[Array, dict[str, Array]]:
        batch, first = self._in_time(batch)
        out = self.actor.alone(g, params["actor"][0], batch.seen, batch.actor_memory, first)
        return self._policy_loss(g, out, batch, bonus_weight)

    def _critic_loss(self, params: PyTree, batch: Batch, _: Array) -> tuple[Array, dict[str, Array]]:
        batch, first = self._in_time(batch)
        values, _ = self._values(params["critic"], batch.seen, batch.critic_memory, first)
        value, target, old = (x[..., 0].reshape(-1) for x in (values, batch.target, batch.value))
        known = None if batch.known is None else batch.known[..., 0].reshape(-1)
        loss = mean(self._value_error(value, target, old), known)
        return loss, {"value_loss": loss, "approx_kl": jnp.float32(0)}


def _put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])
