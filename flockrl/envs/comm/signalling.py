"""One-shot signalling: only a message can make the team better than a coin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.settings import whole


class Signal(NamedTuple):
    """bit: what the leader sees; chosen: [N] what each agent chose, -1 before it did."""

    bit: Array
    chosen: Array


class Signalling:
    """The first of n agents, the leader, sees a fair bit; each agent chooses 0 or 1; then the game ends.

    Everyone is paid 1 if all chose the bit, else 0, so that the mean return is the success rate. An agent observes
    [whether it is the leader, the bit as -1 or +1 for the leader and 0 for the others]. Best: 1. Without messages: 0.5,
    if all others agree on one choice.
    """

    best = 1.0

    def __init__(self, n: int = 3):
        whole("comm/signalling", 2, 100, n=n)
        self.n = n
        names = ("leader", *(f"follower_{i}" for i in range(n - 1)))
        kinds = (0,) * n  # all see alike, and may share a network
        self.spec = EnvSpec(
            "comm/signalling", names, (Box((2,), -1.0, 1.0),) * n, (Discrete(2),) * n, max_steps=1, groups=kinds
        )
        self.policies = {"leader_only": self._leader_only, "told": self._told}

    def reset(self, key: Array) -> tuple[Signal, Observation]:
        state = Signal(jax.random.bernoulli(key).astype(jnp.int32), jnp.full(self.n, -1, jnp.int32))
        return state, self._observe(state)

    def step(self, key: Array, state: Signal, action: Array) -> tuple[Signal, Observation, Array, Array, Array]:
        state = Signal(state.bit, action.astype(jnp.int32))
        reward = jnp.broadcast_to((action == state.bit).all().astype(jnp.float32), self.n)
        return state, self._observe(state), reward, jnp.bool_(True), jnp.bool_(False)

    def measures(self, state: Signal) -> dict[str, Array]:
        return {"success": (state.chosen == state.bit).all()}

    def render(self, states: Sequence[Signal], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: what the leader sees and what all choose."""
        from flockrl.envs.comm.render import signalling_frames

        return signalling_frames(states, size)

    def _observe(self, state: Signal) -> Observation:
        leads = np.arange(self.n) == 0
        return Observation(jnp.stack([jnp.asarray(leads, jnp.float32), leads * (2.0 * state.bit - 1.0)], -1))

    def _leader_only(self, state: Signal, seen: Observation, key: Array) -> Array:
        """The leader chooses what it sees, the others always choose 0: the best without messages."""
        return jnp.where(np.arange(self.n) == 0, state.bit, 0)

    def _told(self, state: Signal, seen: Observation, key: Array) -> Array:
        """Everyone knows the bit."""
        return jnp.full(self.n, state.bit)
