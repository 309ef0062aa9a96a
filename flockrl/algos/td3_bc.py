"""TD3 with behaviour cloning, for recorded teams: TD3+BC.

Fujimoto and Gu 2021 (arXiv 2106.06860). TD3 whose policies also stay near what was recorded:

    J_i = E[-lambda q_i + behaviour |mu_i(o_i) - a_i|^2],   q_i = Q_i(s, mu_i(o_i), a_-i),   lambda = q_scale / E|q_i|

over observations with mean 0 and deviation 1. The square is a mean over the dimensions of the action, in units of half
their range. Where agents choose, -log pi_i(a_i) stands in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.family import Family
from flockrl.algos.off_policy_config import JOINT
from flockrl.algos.parts import mean
from flockrl.algos.replay_learner import Learned, ReplayState
from flockrl.algos.td3 import TD3, TD3Config
from flockrl.core.groups import Group, pooling
from flockrl.core.random import Source
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.nets.actions import choices
from flockrl.nets.heads import ILLEGAL
from flockrl.nets.normalisation import Moments, moments, observe
from flockrl.replay.ring import Batch

SMALLEST = 1e-6
"""Added to the mean size of values, so that it is never 0."""
LIMIT = 10.0
"""Normalised observations are cut off here."""


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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "behaviour", "q_scale", least=0)


def make(spec: EnvSpec, config: TD3BCConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for rollouts of `envs` columns and a run of `updates` updates."""
    return TD3BC(spec, config, envs, updates).algorithm()


FAMILY = Family(make, TD3BCConfig, **JOINT, factorised=True)


class TD3BC(TD3):
    """TD3 that stays near the recording. `extra`: moments of observations [N, O] and of the global state [1, S]."""

    def __init__(self, spec: EnvSpec, config: TD3BCConfig, envs: int, updates: int):
        super().__init__(spec, config, envs, updates)
        self.normal = config.normalize_obs and not spec.sight.pictures
        self.pool = pooling(self.groups, spec.num_agents)

    # Policies

    def _cost(self, group: Group, out: Array, legal: Array, q: Array, done: Array, alive: Array) -> Array:
        scale, behaviour = self.config.q_scale, self.config.behaviour
        if scale is not None:
            q = q * jax.lax.stop_gradient(scale / (mean(jnp.abs(q), alive) + SMALLEST))
        cost = super()._cost(group, out, legal, q, done, alive)
        return cost + behaviour * distance(group, out, legal, done) if behaviour else cost

    # Observations in units of their deviation

    def _extra(self) -> PyTree:
        if not self.normal:
            return ()
        size = self.spec.state_size
        seen = moments((self.spec.num_agents, self.spec.obs_size))
        return seen, moments((1, size)) if size else ()

    def policy(self, state: ReplayState) -> PyTree:
        params = super().policy(state)
        return {**params, "moments": state.learned.extra} if self.normal else params

    def act(
        self, params: PyTree, observation: Observation, memory: PyTree, key: Source, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        return super().act(params, self._seen(params, observation), memory, key, explore)

    def says(self, params: PyTree, observation: Observation, memory: PyTree) -> Array:
        return super().says(params, self._seen(params, observation), memory)

    def attends(self, params: PyTree, observation: Observation, memory: PyTree) -> Array:
        return super().attends(params, self._seen(params, observation), memory)

    def _seen(self, params: PyTree, observation: Observation) -> Observation:
        """An observation as the networks read it."""
        if not self.normal:
            return observation
        return observation._replace(obs=_scaled(observation.obs, params["moments"][0]))

    def values_along(self, learned: Learned, trajectory: Trajectory) -> Array:
        return super().values_along(learned, _scaled_fields(trajectory, *learned.extra) if self.normal else trajectory)

    def update(self, state: ReplayState, trajectory: Trajectory, key: Array) -> tuple[ReplayState, Metrics]:
        if self.normal:
            seen, central = state.learned.extra
            weight = None if trajectory.alive is None else trajectory.weight
            seen = observe(seen, trajectory.obs, weight, self.pool, slowest=0.0)
            if isinstance(central, Moments) and trajectory.state is not None:
                there = None if weight is None else weight.max(-1, keepdims=True)
                central = observe(central, trajectory.state[:, :, None], there, np.zeros(1, np.int32), slowest=0.0)
            state = state._replace(learned=state.learned._replace(extra=(seen, central)))
        return super().update(state, trajectory, key)

    def step(
        self, learned: Learned, batch: Batch, factor: Array, key: Array
    ) -> tuple[Learned, Array, dict[str, Array]]:
        if self.normal:
            batch = _scaled_fields(batch, *learned.extra)
            if batch.stretch is not None:
                batch = batch._replace(stretch=_scaled_fields(batch.stretch, *learned.extra))
        return super().step(learned, batch, factor, key)


def distance(group: Group, out: Array, legal: Array, done: Array) -> Array:
    """[..., n] how far a policy with outputs [..., n, A] is from the codes `done` [..., n, A]: the mean square over an
    agent's dimensions, or minus the log-probability of its choices."""
    if group.continuous:
        own = jnp.asarray(group.legal, jnp.float32)
        return (own * (jnp.tanh(out) - done) ** 2).sum(-1) / own.sum(-1)
    parts = zip(choices(jnp.where(legal, out, ILLEGAL), group), choices(done, group), strict=True)
    losses: list[Array] = [-(jax.nn.log_softmax(logits) * code).sum(-1) for logits, code in parts]
    return sum(losses[1:], losses[0])


def _scaled(x: Array, stats: Moments) -> Array:
    return jnp.clip((x - stats.mean) / stats.std, -LIMIT, LIMIT)


def _scaled_fields(batch: Any, seen: Moments, central: Moments | tuple[()]) -> Any:
    """A `Batch` or `Trajectory` with scaled observations and states."""
    batch = batch._replace(obs=_scaled(batch.obs, seen), next_obs=_scaled(batch.next_obs, seen))
    if not isinstance(central, Moments):
        return batch
    whole = Moments(central.mean[0], central.var[0], central.batches)
    return batch._replace(state=_scaled(batch.state, whole), next_state=_scaled(batch.next_state, whole))
