"""Potential-based shaping: hints that make learning faster and leave the best policy as it is.

Ng, Harada and Russell 1999; for teams Devlin and Kudenko 2011.

    r' = r + gamma Phi(s') - Phi(s),   Phi = 0 once an episode has terminated

Along an episode the hints add up to -Phi of its first state, whatever is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from flockrl.algos.defaults import settle
from flockrl.core.code import load_function
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory

Potential = Callable[[EnvSpec, Observation], Array]
"""(the agents' spec, what they see [T, B, ...]) -> Phi [T, B], or [T, B, N] of each agent. Compiled: written in JAX."""


def shaped(algorithm: Algorithm, spec: EnvSpec, config: Any, envs: int, updates: int) -> Algorithm:
    """The same learner, whose rewards have the hints of `config.shaping`; as it is where that is empty."""
    name = getattr(config, "shaping", "")
    if not name:
        return algorithm
    potential: Potential = load_function(name, "potential")
    settled: Any = settle(config, spec, envs, updates)[0]

    def update(state: PyTree, trajectory: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
        hints = hint(potential, spec, trajectory, settled.gamma)
        state, metrics = algorithm.update(state, trajectory._replace(reward=trajectory.reward + hints), key)
        return state, {**metrics, "shaping": hints.mean()}

    return algorithm._replace(update=update)


def hint(potential: Potential, spec: EnvSpec, trajectory: Trajectory, gamma: float) -> Array:
    """[T, B, N] what is added to rewards."""
    now, following = (_phi(potential, spec, x) for x in (trajectory.observation, trajectory.next_observation))
    return gamma * jnp.where(trajectory.terminated, 0.0, following) - now


def _phi(potential: Potential, spec: EnvSpec, seen: Observation) -> Array:
    """[T, B, N], or [T, B, 1] where it is the same for all agents."""
    found, lead = jnp.asarray(potential(spec, seen), jnp.float32), seen.obs.shape[:2]
    if found.shape not in (lead, (*lead, spec.num_agents)):
        raise UsageError(
            f"A potential must return an array of shape {list(lead)}, or one more axis for {spec.num_agents} agents, "
            f"not {list(found.shape)}."
        )
    return found if found.ndim == 3 else found[..., None]
