"""TD3 with behaviour cloning, for recorded teams: TD3+BC.

Fujimoto and Gu 2021 (arXiv 2106.06860). TD3 whose policies also stay near what was recorded:

    J_i = E[-lambda q_i + behaviour |mu_i(o_i) - a_i|^2],   q_i = Q_i(s, mu_i(o_i), a_-i),   lambda = q_scale / E|q_i|

over observations with mean 0 and deviation 1. The square is a mean over the dimensions of the action, in units of half
their range. Where agents choose, -log pi_i(a_i) stands in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flockrl.algos.family import Family
from flockrl.algos.off_policy_config import JOINT
from flockrl.algos.parts import mean
from flockrl.algos.td3 import TD3, TD3Config
from flockrl.core.groups import Group
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec
from flockrl.nets.actions import choices
from flockrl.nets.heads import ILLEGAL

SMALLEST = 1e-6
"""Added to the mean size of values, so that it is never 0."""


@dataclass(frozen=True)
class TD3BCConfig(TD3Config):
    """Settings of TD3+BC."""

    behaviour: float = 1.0
    """Weight of the distance between what policies do and what was recorded; 0 leaves it out."""
    q_scale: float | None = 2.5
    """Weight of the values, divided by their mean size; None leaves values as they are."""
    normalize_obs: bool = True
    """Scale observations, and the global state, by the mean and deviation of the recording as far as it was read;
    pictures stay as they are."""
    normalize_reward: bool = False
    """Count rewards in units of a tenth of the largest discounted sum so far; `q_scale` makes up for their size
    anyway."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "behaviour", "q_scale", least=0)


def make(spec: EnvSpec, config: TD3BCConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for rollouts of `envs` columns and a run of `updates` updates."""
    return TD3BC(spec, config, envs, updates).algorithm()


FAMILY = Family(make, TD3BCConfig, **JOINT, factorised=True)


class TD3BC(TD3):
    """TD3 that stays near the recording."""

    def _cost(self, group: Group, out: Array, legal: Array, q: Array, done: Array, alive: Array) -> Array:
        scale, behaviour = self.config.q_scale, self.config.behaviour
        if scale is not None:
            q = q * jax.lax.stop_gradient(scale / (mean(jnp.abs(q), alive) + SMALLEST))
        cost = super()._cost(group, out, legal, q, done, alive)
        return cost + behaviour * distance(group, out, legal, done) if behaviour else cost


def distance(group: Group, out: Array, legal: Array, done: Array) -> Array:
    """[..., n] how far a policy with outputs [..., n, A] is from the codes `done` [..., n, A]: the mean square over an
    agent's dimensions, or minus the log-probability of its choices."""
    if group.continuous:
        own = jnp.asarray(group.legal, jnp.float32)
        return (own * (jnp.tanh(out) - done) ** 2).sum(-1) / own.sum(-1)
    parts = zip(choices(jnp.where(legal, out, ILLEGAL), group), choices(done, group), strict=True)
    losses: list[Array] = [-(jax.nn.log_softmax(logits) * code).sum(-1) for logits, code in parts]
    return sum(losses[1:], losses[0])
