"""The k-step matrix game of MAVEN (Mahajan et al. 2019, arXiv 1910.07483): the best end is easily missed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.settings import whole

LAST = np.array([[1.0, 1.0], [1.0, 4.0]], np.float32)
"""What the last step pays in the branch of (0, 0), by both actions."""


class Walk(NamedTuple):
    """t: steps so far; branch: the first joint action, 2 a_0 + a_1, and 0 before it; earned: so far."""

    t: Array
    branch: Array
    earned: Array


class KStep:
    """Two agents, two actions, up to k steps. The first joint action is the branch; repeating it pays 1 in each step in
    the branches (0, 0) and (1, 1), anything else pays 0 and ends the game.

    In branch (0, 0) the last step pays 1, and 4 for (1, 1). So the best return is k + 3, that of branch (1, 1) is k,
    and whoever deviates early in branch (0, 0) loses. With `branches=4` the branches (0, 1) and (1, 0) pay 1 too.
    Everyone sees the one-hots of the step and of the branch; that is also the global state. Every game terminates.
    """

    def __init__(self, k: int = 10, branches: int = 2):
        whole("explore/k_step", 2, 1000, k=k)
        whole("explore/k_step", 2, 4, branches=branches)
        self.k, self.best = k, float(k + 3)
        self.pays = np.array([True, branches == 4, branches == 4, True])
        names, size = ("agent_0", "agent_1"), k + 1 + 4
        self.spec = EnvSpec(
            "explore/k_step", names, (Box((size,), 0.0, 1.0),) * 2, (Discrete(2),) * 2, max_steps=k, state_size=size
        )  # fmt: skip
        self.policies = {"ones": self._ones, "best": self._best}

    def reset(self, key: Array) -> tuple[Walk, Observation]:
        state = Walk(jnp.int32(0), jnp.int32(0), jnp.float32(0))
        return state, self._observe(state)

    def step(self, key: Array, state: Walk, action: Array) -> tuple[Walk, Observation, Array, Array, Array]:
        now = 2 * action[0] + action[1]
        branch = jnp.where(state.t == 0, now, state.branch)
        paid = (jnp.asarray(self.pays)[branch] & (branch == now)).astype(jnp.float32)
        end = (state.t == self.k - 1) & (branch == 0)
        paid = jnp.where(end, jnp.asarray(LAST).reshape(-1)[now], paid)
        state = Walk(state.t + 1, branch, state.earned + paid)
        over = (state.t >= self.k) | (paid == 0)
        return state, self._observe(state), jnp.full(2, paid), over, jnp.bool_(False)

    def measures(self, state: Walk) -> dict[str, Array]:
        return {"success": state.earned == self.best, "steps": state.t}

    def render(self, states: Sequence[Walk], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: the steps of the branch, and what they paid."""
        from flockrl.envs.explore.render import walk_frames

        return walk_frames(self.k, states, size)

    def _observe(self, state: Walk) -> Observation:
        row = jnp.concatenate([state.t == np.arange(self.k + 1), state.branch == np.arange(4)]).astype(jnp.float32)
        return Observation(jnp.stack([row, row]), state=row)

    def _ones(self, state: Walk, seen: Observation, key: Array) -> Array:
        """Everyone chooses 1 throughout, which is safe: k."""
        return jnp.ones(2, jnp.int32)

    def _best(self, state: Walk, seen: Observation, key: Array) -> Array:
        """Everyone chooses 0, and 1 in the last step: k + 3."""
        return jnp.full(2, (state.t == self.k - 1).astype(jnp.int32))
