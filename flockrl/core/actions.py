"""Arrays of actions: bounds, clipping, and who has a choice."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.core.types import Array


def action_bounds(spec: EnvSpec) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of actions that are rows of numbers, (low, high), each [N, W]; padding is bounded by 0 and 0.

    A choice among n lies between 0 and n - 1.
    """
    low, high = np.zeros((2, spec.num_agents, spec.action_width), np.float32)
    for i, space in enumerate(spec.actions):
        if isinstance(space, Box):
            low[i, : space.width], high[i, : space.width] = space.low, space.high
        else:
            choices = (space.n,) if isinstance(space, Discrete) else space.choices
            high[i, : space.width] = np.array(choices) - 1
    return low, high


def clip_action(spec: EnvSpec, action: Array) -> Array:
    """Bring actions that are rows of numbers [..., N, W] inside their bounds; discrete ones [..., N] pass through."""
    if spec.discrete:
        return action
    low, high = action_bounds(spec)
    return jnp.clip(action, low, high)


def has_choice(spec: EnvSpec, avail: Array) -> Array:
    """[..., N] bool: agents that have more than one option in any of their choices, or real actions. avail: [..., N, A]
    legal options."""
    forced = np.array([0 if isinstance(space, Box) else space.width for space in spec.actions])
    return (avail & spec.own_actions).sum(-1) > forced
