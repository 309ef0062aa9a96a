"""Behaviour cloning: do what the recorded team did. The honest baseline for learning from recorded data.

    L = -E[log pi(a | o)]

It can be as good as the data and hardly better; it needs no rewards.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from flockrl.algos.family import Family
from flockrl.algos.on_policy import OnPolicy, OnPolicyState
from flockrl.algos.on_policy_config import PolicyConfig
from flockrl.algos.parts import descend, mean
from flockrl.core.groups import take
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, PyTree, Trajectory


@dataclass(frozen=True)
class BCConfig(PolicyConfig):
    """Settings of behaviour cloning."""

    rollout_steps: int = 25
    """Recorded steps in each of `envs` columns, which make a gradient step together."""


def make(spec: EnvSpec, config: BCConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for rollouts of `envs` columns and a run of `updates` updates."""
    return BehaviourCloning(spec, config, envs, updates, "none").algorithm()


FAMILY = Family(make, BCConfig, factorised=True, grows=lambda config: True)


class BehaviourCloning(OnPolicy):
    """One gradient step on each stretch of recorded experience."""

    def update(self, state: OnPolicyState, trajectory: Trajectory, key: Array) -> tuple[OnPolicyState, Metrics]:
        weight = None if trajectory.alive is None else trajectory.weight
        grads, metrics = jax.grad(self._loss, has_aux=True)(state.params["actor"], state, trajectory, weight)
        lr = self._lr(state)
        actor, optimiser = descend(self.optimiser, state.params["actor"], state.optimiser["actor"], grads, lr)
        state = self._moved(state, trajectory, weight, ())
        metrics |= {"grad_norm": optax.tree.norm(grads), "lr": lr}
        return state._replace(params={"actor": actor}, optimiser={"actor": optimiser}), metrics

    def _loss(
        self, actors: PyTree, state: OnPolicyState, trajectory: Trajectory, weight: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        """Each group's mean of -log pi, added up, and the mean over groups for the eye."""
        seen = self._seen(state, trajectory.observation)
        outs, _ = self.actor(actors, seen, trajectory.memory, trajectory.first)
        losses, entropies = [], []
        for group, head, out in zip(self.groups, self.heads, outs, strict=True):
            logp, entropy = self._chosen(group, head, out, trajectory.action, trajectory.avail)
            own = None if weight is None else take(weight, group, 2).reshape(-1)
            losses.append(-mean(logp, own))
            entropies.append(mean(entropy, own))
        parts, spread = jnp.stack(losses), jnp.stack(entropies)
        return parts.sum(), {"loss": parts.mean(), "entropy": spread.mean()}
