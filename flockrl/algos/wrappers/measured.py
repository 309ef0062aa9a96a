"""How far an update moved a team's policy: measured once per update, on what the teams saw as the rollout began."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.parts import mean
from flockrl.core.actions import action_bounds, clip_action
from flockrl.core.groups import is_continuous
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, PyTree, Trajectory, choose


def measured(algorithm: Algorithm, spec: EnvSpec) -> Algorithm:
    """The same learner, whose updates also tell `policy_change` and, of stochastic policies, `policy_kl`.

    One step of every environment is looked at, so that it costs as much as two steps of acting. What learning
    computes stays as it is.
    """

    def update(state: PyTree, trajectory: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
        began = jax.tree.map(lambda x: x[0], trajectory.observation)
        first = trajectory.first[0]
        memory = choose(first, algorithm.memory(len(first)), trajectory.memory)
        weight = None if trajectory.alive is None else trajectory.weight[0]
        old = algorithm.params(state)
        before, _, _ = algorithm.act(old, began, memory, key, False)
        state, metrics = algorithm.update(state, trajectory, key)
        new = algorithm.params(state)
        after, _, _ = algorithm.act(new, began, memory, key, False)
        found = {"policy_change": mean(distance(spec, before, after), weight)}
        if algorithm.kl is not None:
            found["policy_kl"] = mean(algorithm.kl(old, new, began, memory), weight)
        return state, {**metrics, **found}

    return algorithm._replace(update=update)


def distance(spec: EnvSpec, before: Array, after: Array) -> Array:
    """[B, N] between actions: the mean over their numbers of 1 where choices differ, and of |a - b| of real ones, as a
    part of their range where that is bounded."""
    if spec.discrete:
        return (before != after).astype(jnp.float32)
    low, high = action_bounds(spec)
    own, real = spec.own_numbers, is_continuous(spec)[:, None]
    bounded = np.isfinite(low) & np.isfinite(high) & own & real
    width = np.where(bounded, high - low, 1.0).astype(np.float32)
    apart = jnp.abs(clip_action(spec, after) - clip_action(spec, before)) / width
    if not spec.continuous:
        apart = jnp.where(real, apart, before != after)
    return (apart * own).sum(-1) / own.sum(-1)
