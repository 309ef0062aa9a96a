"""Policy fingerprints (Foerster et al. 2017, arXiv 1702.08887): replayed experience tells how far everyone had learned.

To an agent that learns alone, the others are part of the environment, and a replay mixes environments of many ages.
With the age of the policies in the observation, the learner tells them apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Array, Box, Critic, EnvSpec, Metrics, Observation, PyTree, Trajectory


class PrintedState(NamedTuple):
    """learner: the state of the learner within; updates: so far."""

    learner: PyTree
    updates: Array


def fingerprinted(make: Callable[[EnvSpec], Algorithm], spec: EnvSpec, config: Any, updates: int) -> Algorithm:
    """The learner that `make` builds; with `config.fingerprint`, it observes one number more: how much of the run's
    `updates` the team had behind it when it acted."""
    if not getattr(config, "fingerprint", False):
        return make(spec)
    if spec.sight.pictures:
        raise UsageError(
            f"A fingerprint is a number beside others, and agents of {spec.name} see pictures: leave it out."
        )
    if config.net != "flat":
        raise UsageError("A fingerprint is a number in a row, and a set of entities has none: use --net flat.")
    algorithm = make(longer(spec))

    def age(state: PrintedState) -> Array:
        return (state.updates / updates).astype(jnp.float32)

    def init(key: Array) -> PrintedState:
        return PrintedState(algorithm.init(key), jnp.int32(0))

    def params(state: PrintedState) -> PyTree:
        return {"policy": algorithm.params(state.learner), "age": age(state)}

    def act(
        params: PyTree, observation: Observation, memory: PyTree, key: Any, explore: bool
    ) -> tuple[Array, PyTree, Any]:
        seen = observation._replace(obs=with_age(spec, observation.obs, params["age"]))
        return algorithm.act(params["policy"], seen, memory, key, explore)

    def aged(trajectory: Trajectory, age: Array) -> Trajectory:
        obs, following = (with_age(spec, x, age) for x in (trajectory.obs, trajectory.next_obs))
        return trajectory._replace(obs=obs, next_obs=following)

    def update(state: PrintedState, trajectory: Trajectory, key: Array) -> tuple[PrintedState, Metrics]:
        learner, metrics = algorithm.update(state.learner, aged(trajectory, age(state)), key)
        return PrintedState(learner, state.updates + 1), metrics

    def inside(look: Any) -> Any:
        """What goes on in agents, by a function of params, observation and memory."""

        def found(params: PyTree, observation: Observation, memory: PyTree) -> Array:
            seen = observation._replace(obs=with_age(spec, observation.obs, params["age"]))
            return look(params["policy"], seen, memory)

        return look and found

    def critic(inner: Critic) -> Critic:
        return Critic(
            lambda state: (inner.params(state.learner), age(state)),
            lambda params, trajectory: inner.values(params[0], aged(trajectory, params[1])),
        )

    return algorithm._replace(
        init=init, params=params, act=act, update=update, says=inside(algorithm.says),
        attends=inside(algorithm.attends), critic=algorithm.critic and critic(algorithm.critic),
    )  # fmt: skip


def longer(spec: EnvSpec) -> EnvSpec:
    """The spec with one number more in every observation."""
    spaces = tuple(Box((space.size + 1,), dtype=space.dtype) for space in spec.observations)
    return dataclasses.replace(spec, observations=spaces)


def with_age(spec: EnvSpec, obs: Array, age: Array) -> Array:
    """Observations [..., N, O + 1], with the age after each agent's own numbers."""
    wide = jnp.pad(obs, [(0, 0)] * (obs.ndim - 1) + [(0, 1)])
    place = jnp.arange(spec.obs_size + 1) == jnp.array([space.size for space in spec.observations])[:, None]
    return jnp.where(place, age, wide)
