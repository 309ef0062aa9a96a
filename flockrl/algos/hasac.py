"""HASAC: soft actor-critic for agents that share nothing, one agent after the other. With one agent, SAC.

Liu et al. 2024 (arXiv 2306.10715).

    J_i = E[alpha_i log pi_i(a_i | o_i) - min_k Q_k(s, a)],   a: fresh of those before i, its own, as before of the rest

Critics learn the team's reward as in SAC. In each gradient step a random order of agents is drawn; all actions come
from the present policies, and those of an agent that has learned are drawn anew before the next one learns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from flockrl.algos.family import Family
from flockrl.algos.happo import check_team
from flockrl.algos.off_policy_config import JOINT
from flockrl.algos.parts import as_team, descend
from flockrl.algos.replay_learner import Learned, ReplayState
from flockrl.algos.sac import SAC, SACConfig
from flockrl.algos.views import View
from flockrl.core.errors import UsageError
from flockrl.core.groups import Share
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Trajectory


@dataclass(frozen=True)
class HASACConfig(SACConfig):
    """Settings of HASAC: those of SAC, for one agent after the other."""

    share: Share = "none"
    """Who shares parameters, and learns together: none, agents of one kind, or all."""
    critic: Literal["own", "central"] = "central"
    """What a critic reads: all agents' observations and actions (central)."""
    order: Literal["random", "fixed"] = "random"
    """The order in which agents learn: another one in each gradient step, or that of their numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic != "central":
            raise UsageError(
                "Agents that learn one after the other need critics of all: use --critic central, or isac."
            )
        if self.comm != "none":
            raise UsageError("Agents that learn one after the other cannot learn to talk: use --comm none, or masac.")
        if self.credit != "none":
            raise UsageError("Agents that learn one after the other share one reward: use --credit none, or masac.")


def make(spec: EnvSpec, config: HASACConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` iterations."""
    return HASAC(spec, config, envs, updates).algorithm()


FAMILY = Family(make, HASACConfig, **{**JOINT, "grows": lambda config: False})


class HASAC(SAC):
    """SAC whose groups of agents (by default each agent) improve in turn."""

    def __init__(self, spec: EnvSpec, config: HASACConfig, envs: int, updates: int):
        check_team(spec, "hasac", "hasac")
        super().__init__(spec, config, envs, updates)

    def update(self, state: ReplayState, trajectory: Trajectory, key: Array) -> tuple[ReplayState, Metrics]:
        return super().update(state, as_team(trajectory), key)

    def _improve_actors(
        self, learned: Learned, view: View, action: Array, key: Array, lr: Array
    ) -> tuple[Learned, Array, Array]:
        count, (before, fresh) = len(self.groups), jax.random.split(jax.random.fold_in(key, 1))
        codes = tuple(self._codes(learned.params["actor"], view, before))
        value, entropy = self._policy_loss(
            learned.params["actor"], learned, view, self._team([*codes], view.alive), key
        )

        def turn_of(g: int) -> Any:
            def turn(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
                actors, states, codes = carry
                team = jax.lax.stop_gradient(self._team([*codes], view.alive))
                grads = jax.grad(lambda a: self._policy_loss(a, learned, view, team, key)[0])(actors)
                nets, own = descend(self.optimiser, actors[g : g + 1], states[g : g + 1], grads[g : g + 1], lr)
                actors, states = (_with(old, g, new[0]) for old, new in ((actors, nets), (states, own)))
                return actors, states, _with(codes, g, self._codes(actors, view, fresh)[g])

            return turn

        turns = [turn_of(g) for g in range(count)]
        order = jnp.arange(count)
        if self.config.order == "random":
            order = jax.random.permutation(jax.random.fold_in(key, 2), count)
        carry = learned.params["actor"], learned.optimiser["actor"], codes
        (actors, states, _), _ = jax.lax.scan(lambda c, g: (jax.lax.switch(g, turns, c), None), carry, order)
        params, optimiser = {**learned.params, "actor": actors}, {**learned.optimiser, "actor": states}
        return learned._replace(params=params, optimiser=optimiser), value, entropy

    def _codes(self, actors: Any, view: View, key: Array) -> list[Array]:
        """What each group would do now."""
        return [code for code, _ in self._draw(self._outputs(actors, view), view.seen.avail, key)]


def _with(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])
