"""Actions as critics read them: numbers between -1 and 1 for continuous ones, one-hot vectors for discrete ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.draw import Source, gumbel, uniform
from flockrl.envs.base import action_bounds
from flockrl.errors import UsageError
from flockrl.nets.heads import ILLEGAL
from flockrl.types import Array, EnvSpec


class ActionCode:
    """Translates a team's actions. `own`: [N, A], which entries each agent has at all; the others are padding."""

    def __init__(self, spec: EnvSpec):
        self.discrete, self.size = spec.discrete, spec.action_size
        self.own = spec.own_actions
        if self.discrete:
            return
        low, high = action_bounds(spec)
        if not (np.isfinite(low) & np.isfinite(high)).all():
            raise UsageError(f"{spec.name} has actions without bounds: give them finite bounds, or use ippo or mappo.")
        self.middle: Any = (low + high) / 2
        self.half: Any = np.where(self.own & (high > low), (high - low) / 2, 1.0).astype(np.float32)

    def encode(self, action: Array) -> Array:
        """[..., N] int or [..., N, A] float, as the environment takes them -> [..., N, A] code."""
        if self.discrete:
            return jax.nn.one_hot(action, self.size)
        return jnp.clip((action - self.middle) / self.half, -1.0, 1.0) * self.own

    def decode(self, code: Array) -> Array:
        """[..., N, A] code -> the environment's action."""
        if self.discrete:
            return code.argmax(-1).astype(jnp.int32)
        return self.middle + self.half * self.own * code

    def random(self, key: Source, batch: int, avail: Array | None) -> Array:
        """Codes [B, N, A] of actions that are uniformly random among the legal ones."""
        shape, agents = (batch, *self.own.shape), range(len(self.own))
        if not self.discrete:
            return (2 * uniform(key, shape, agents) - 1) * self.own
        legal = self.own if avail is None else self.own & avail
        logits = jnp.where(legal, gumbel(key, shape, agents), ILLEGAL)
        return jax.nn.one_hot(logits.argmax(-1), self.size)
