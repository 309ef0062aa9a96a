"""Lever pulling (CommNet, Sukhbaatar et al. 2016): the cheapest test of communication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.settings import whole


class Pull(NamedTuple):
    """ids: [N] who was drawn; pulled: [N] each agent's lever, -1 before it pulled."""

    ids: Array
    pulled: Array


class Levers:
    """n agents are drawn from `ids` with replacement, each observes the one-hot of its own id alone and pulls one of n
    levers; then the game ends.

    Everyone is paid (distinct levers - 1) / (n - 1), as in CommNet's code (its text says "proportional to distinct
    levers"). Best: 1. Random play, and every rule that looks at the own id alone: 0.5904 for n = 5. Agents are
    anonymous: those that knew their place in the team would pull the lever of that number.
    """

    best = 1.0

    def __init__(self, n: int = 5, ids: int = 500):
        whole("comm/levers", 2, 100, n=n)
        whole("comm/levers", 1, 10_000, ids=ids)
        self.n, self.ids = n, ids
        names = tuple(f"agent_{i}" for i in range(n))
        sees, does = (Box((ids,), 0.0, 1.0),) * n, (Discrete(n),) * n
        self.spec = EnvSpec("comm/levers", names, sees, does, 1, anonymous=True, counterfactual=True)
        self.policies = {"id_mod": self._id_mod, "by_rank": self._by_rank}

    def reset(self, key: Array) -> tuple[Pull, Observation]:
        state = Pull(jax.random.randint(key, (self.n,), 0, self.ids), jnp.full(self.n, -1, jnp.int32))
        return state, self._observe(state)

    def step(self, key: Array, state: Pull, action: Array) -> tuple[Pull, Observation, Array, Array, Array]:
        state = Pull(state.ids, action.astype(jnp.int32))
        reward = self.counterfactual_reward(state, action, jnp.ones(self.n, bool))
        return state, self._observe(state), jnp.broadcast_to(reward, self.n), jnp.bool_(True), jnp.bool_(False)

    def counterfactual_reward(self, state: Pull, action: Array, present: Array) -> Array:
        """What is paid if only the agents in `present` [N] pull."""
        return (self._distinct(action, present) - 1) / (self.n - 1)

    def measures(self, state: Pull) -> dict[str, Array]:
        distinct = self._distinct(state.pulled, True)
        return {"success": distinct == self.n, "distinct": distinct}

    def render(self, states: Sequence[Pull], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: who was drawn, and who pulled which lever."""
        from flockrl.envs.comm.render import lever_frames

        return lever_frames(states, size)

    def _distinct(self, pulled: Array, present: Array | bool) -> Array:
        """How many levers those who are `present` [N] pull."""
        return ((jnp.where(present, pulled, -1)[:, None]) == np.arange(self.n)).any(0).sum()

    def _observe(self, state: Pull) -> Observation:
        return Observation((state.ids[:, None] == np.arange(self.ids)).astype(jnp.float32))

    def _id_mod(self, state: Pull, seen: Observation, key: Array) -> Array:
        """The lever number id mod n: as good as any rule without messages."""
        return state.ids % self.n

    def _by_rank(self, state: Pull, seen: Observation, key: Array) -> Array:
        """The place of the own id among those drawn, which knows all of them; equal ids by their place in the team."""
        number = state.ids * self.n + np.arange(self.n)
        return (number[None, :] < number[:, None]).sum(1)
