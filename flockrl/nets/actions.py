"""Actions as critics read them: numbers between -1 and 1 for continuous actions, one-hot vectors for choices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.actions import action_bounds
from flockrl.core.errors import UsageError
from flockrl.core.groups import Group, is_continuous, make_groups, write_actions
from flockrl.core.random import Source, gumbel, split, uniform
from flockrl.core.types import Array, EnvSpec
from flockrl.nets.heads import ILLEGAL


class ActionCode:
    """Translates the agents' actions. `own`: [N, A], which entries each agent has; the others are padding."""

    def __init__(self, spec: EnvSpec):
        self.spec, self.size, self.own = spec, spec.action_size, spec.own_actions
        self.agents = make_groups(spec, "none")
        if spec.discrete:
            return
        low, high = action_bounds(spec)
        real = is_continuous(spec)
        self.real: Any = real[:, None]
        """[N, 1]: whether an agent's actions are real numbers."""
        if not (np.isfinite(low) & np.isfinite(high))[real].all():
            raise UsageError(f"{spec.name} has actions without bounds: give them finite bounds, or use ippo or mappo.")
        self.middle: Any = (low + high) / 2
        self.half: Any = np.where(spec.own_numbers & (high > low), (high - low) / 2, 1.0).astype(np.float32)

    def encode(self, action: Array) -> Array:
        """[..., N] int or [..., N, W] float, as the environment takes them -> [..., N, A] code."""
        if self.spec.discrete:
            return jax.nn.one_hot(action, self.size)
        scaled = jnp.clip((action - self.middle) / self.half, -1.0, 1.0)
        if self.spec.continuous:
            return scaled * self.own
        rows = []
        for i, agent in enumerate(self.agents):
            row = scaled[..., i, : agent.width]
            if not agent.continuous:
                number = action[..., i, : agent.width].astype(jnp.int32)
                row = jnp.concatenate([jax.nn.one_hot(number[..., k], n) for k, n in enumerate(agent.factors)], -1)
            rows.append(jnp.pad(row, [(0, 0)] * (row.ndim - 1) + [(0, self.size - row.shape[-1])]))
        return jnp.stack(rows, -2)

    def decode(self, code: Array) -> Array:
        """[B, N, A] code -> the environment's action."""
        if self.spec.discrete:
            return code.argmax(-1).astype(jnp.int32)
        if self.spec.continuous:
            return self.middle + self.half * self.own * code
        parts = []
        for i, agent in enumerate(self.agents):
            own = code[:, i : i + 1, : agent.action_size]
            if agent.continuous:
                parts.append(self.middle[i, : agent.width] + self.half[i, : agent.width] * own)
            else:
                numbers = [part.argmax(-1) for part in choices(own, agent)]
                parts.append(numbers[0] if len(numbers) == 1 else jnp.stack(numbers, -1))
        return write_actions(self.spec, self.agents, parts)

    def random(self, key: Source, batch: int, avail: Array | None) -> Array:
        """Codes [B, N, A] of actions that are uniformly random among the legal ones."""
        shape, agents = (batch, *self.own.shape), range(len(self.own))
        if self.spec.continuous:
            return (2 * uniform(key, shape, agents) - 1) * self.own
        legal = self.own if avail is None else self.own & avail
        if self.spec.discrete:
            logits = jnp.where(legal, gumbel(key, shape, agents), ILLEGAL)
            return jax.nn.one_hot(logits.argmax(-1), self.size)
        first, second = split(key)
        real = (2 * uniform(first, shape, agents) - 1) * self.own
        logits = jnp.where(legal, gumbel(second, shape, agents), ILLEGAL)
        rows = [
            jnp.pad(hard(logits[:, i : i + 1, : agent.action_size], agent), self._room(agent))
            if not agent.continuous
            else real[:, i : i + 1]
            for i, agent in enumerate(self.agents)
        ]
        return jnp.concatenate(rows, 1)

    def _room(self, agent: Group) -> list[tuple[int, int]]:
        return [(0, 0), (0, 0), (0, self.size - agent.action_size)]


def choices(x: Array, group: Group) -> list[Array]:
    """The parts of [..., A] that belong to each of the group's choices."""
    return [x] if len(group.factors) == 1 else jnp.split(x, np.cumsum(group.factors)[:-1].tolist(), axis=-1)


def hard(logits: Array, group: Group) -> Array:
    """One-hot codes [..., A] of the best option of each choice."""
    parts = [jax.nn.one_hot(part.argmax(-1), part.shape[-1]) for part in choices(logits, group)]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)


def soft(logits: Array, group: Group) -> Array:
    """Probabilities [..., A] of the options of each choice."""
    parts = [jax.nn.softmax(part) for part in choices(logits, group)]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)
