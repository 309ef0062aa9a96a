"""The bar problem (Wolpert and Tumer 2001, El Farol with a world utility): who goes on which night?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.settings import between, whole


class Week(NamedTuple):
    """chosen: [N] each agent's night, -1 before it chose."""

    chosen: Array


class Bar:
    """n agents see nothing, each chooses one of `nights`, then the game ends.

    Everyone is paid G = sum over nights of x exp(-x / capacity), where x agents came. The best team parks the crowd on
    one night and spreads the rest; `best` is exact, by dynamic programming. An agent that is not there adds nothing.
    """

    def __init__(self, n: int = 60, nights: int = 6, capacity: float = 3):
        whole("credit/bar", 2, 1000, n=n)
        whole("credit/bar", 2, 100, nights=nights)
        between("credit/bar", 0.1, 1000, capacity=capacity)
        self.n, self.nights, self.capacity = n, nights, float(capacity)
        names = tuple(f"agent_{i}" for i in range(n))
        self.spec = EnvSpec(
            "credit/bar", names, (Box((1,), 0.0, 1.0),) * n, (Discrete(nights),) * n, max_steps=1, counterfactual=True
        )
        self.best, counts = best_attendance(n, nights, self.capacity)
        self._assigned = np.repeat(np.arange(nights), counts)
        self.policies = {"best": self._best, "spread": self._spread}

    def reset(self, key: Array) -> tuple[Week, Observation]:
        state = Week(jnp.full(self.n, -1, jnp.int32))
        return state, self._observe()

    def step(self, key: Array, state: Week, action: Array) -> tuple[Week, Observation, Array, Array, Array]:
        state = Week(action.astype(jnp.int32))
        paid = self._utility(self._attendance(state.chosen)).sum()
        return state, self._observe(), jnp.broadcast_to(paid, self.n), jnp.bool_(True), jnp.bool_(False)

    def counterfactual_reward(self, state: Week, action: Array, present: Array) -> Array:
        """G if only the agents in `present` [N] had come."""
        return self._utility(((action[:, None] == np.arange(self.nights)) & present[:, None]).sum(0)).sum()

    def alternatives(self, state: Week, action: Array) -> Array:
        """[N, nights + 1] G if an agent had come on each night, or not at all (last), in closed form."""
        came = self._attendance(action)
        gains = self._utility(came + 1) - self._utility(came)  # of one more
        loss = (self._utility(came) - self._utility(came - 1))[action]  # of this one: its difference reward
        rest = self._utility(came).sum() - loss
        own = action[:, None] == np.arange(self.nights)
        return jnp.concatenate([rest[:, None] + jnp.where(own, loss[:, None], gains), rest[:, None]], 1)

    def measures(self, state: Week) -> dict[str, Array]:
        return {"share_of_best": self._utility(self._attendance(state.chosen)).sum() / self.best}

    def render(self, states: Sequence[Week], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: how many came on each night."""
        from flockrl.envs.credit.render import bar_frames

        return bar_frames(states, self.nights, self.capacity, self.best, size)

    def _attendance(self, chosen: Array) -> Array:
        return (chosen[:, None] == np.arange(self.nights)).sum(0)

    def _utility(self, came: Array) -> Array:
        return came * jnp.exp(-came / self.capacity)

    def _observe(self) -> Observation:
        return Observation(jnp.ones((self.n, 1)))

    def _best(self, state: Week, seen: Observation, key: Array) -> Array:
        """Everyone goes where the best attendance has a place for it."""
        return jnp.asarray(self._assigned, jnp.int32)

    def _spread(self, state: Week, seen: Observation, key: Array) -> Array:
        """The same number on every night."""
        return jnp.arange(self.n, dtype=jnp.int32) % self.nights


def best_attendance(n: int, nights: int, capacity: float) -> tuple[float, np.ndarray]:
    """The highest G, and how many come on each night then [nights]: dynamic programming over nights, in float64."""
    x = np.arange(n + 1)
    night = x * np.exp(-x / capacity)
    worth, plans = night, [x]  # of m agents on the nights so far, and how many of them come on the last of these
    for _ in range(nights - 1):
        table = np.where(x[None, :] <= x[:, None], worth[np.maximum(x[:, None] - x[None, :], 0)] + night, -np.inf)
        plans.append(table.argmax(1))
        worth = table.max(1)
    counts, left = [], n
    for plan in reversed(plans):
        counts.append(int(plan[left]))
        left -= counts[-1]
    return float(worth[n]), np.array(sorted(counts))
