"""Teams that talk: how much they said and heard in a rollout, and seeds for messages where experience brings none."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from flockrl.algos.parts import mean
from flockrl.comm.luck import steps_since
from flockrl.comm.settings import draws_lots
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Array, Metrics, PyTree, Trajectory

MESSAGES = "messages_sent", "messages_received", "messages_lost", "comm_bits"
"""What metrics tell, each the mean per living agent and step."""


def talking(algorithm: Algorithm, config: Any, on_policy: bool) -> Algorithm:
    """The same learner, whose updates also tell how much was said; as it is where agents do not talk."""
    if getattr(config, "comm", "none") == "none":
        return algorithm

    def update(state: PyTree, trajectory: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
        if draws_lots(config) and "channel" not in trajectory.extras:
            if on_policy:
                raise UsageError(
                    "A channel that draws lots needs to know what it did to messages while agents acted, and this "
                    "experience does not tell: use a learner with a replay, or a channel without loss, noise and turns."
                )
            seeds = _fresh_seeds(trajectory, jax.random.fold_in(key, 1))
            trajectory = trajectory._replace(extras={**trajectory.extras, "channel": seeds})
        state, metrics = algorithm.update(state, trajectory, key)
        if "messages" not in trajectory.extras:
            return state, metrics
        weight = None if trajectory.alive is None else trajectory.weight
        counts = trajectory.extras["messages"]
        return state, {**metrics, **{name: mean(counts[..., i], weight) for i, name in enumerate(MESSAGES)}}

    return algorithm._replace(update=update)


def _fresh_seeds(trajectory: Trajectory, key: Array) -> Array:
    """[T, B, N, 2] seeds for experience that was recorded without a channel."""
    seeds = jax.random.bits(key, trajectory.reward.shape, jnp.uint32)
    steps = jnp.broadcast_to(steps_since(trajectory.first)[..., None], seeds.shape)
    return jnp.stack([seeds, steps.astype(jnp.uint32)], -1)
