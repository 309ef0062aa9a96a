"""A box that only two agents can move together: `push_box` of CMAE."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array
from flockrl.envs.explore.grid import AGENTS, MOVES, GridTask, Place


class PushBox(GridTask):
    """A box of 3 x 3 cells in the middle of the grid. Success: the box touches a wall.

    CMAE's `push_box` with size=15: the box's middle is at (7, 7), agents start at (11, 11) and (9, 9). The box moves by
    one cell when both agents stand at the same side of it and push in the same step; then agents move, so that those
    who pushed follow it. One agent alone cannot move it, and nobody can walk through it.
    """

    def __init__(self, size: int = 15, steps: int = 300):
        super().__init__("push_box", size, steps, (size, size))

    def _begin(self) -> tuple[np.ndarray, np.ndarray]:
        middle = self.size // 2
        return np.array([[middle + 4] * 2, [middle + 2] * 2]), np.array([middle, middle])

    def _blocked(self, x: Array, y: Array, things: Array) -> Array:
        return (jnp.abs(x - things[0]) <= 1) & (jnp.abs(y - things[1]) <= 1)

    def _pushed(self, agents: Array, action: Array, things: Array) -> Array:
        way = jnp.asarray(MOVES)[action]  # [2, 2]
        touched = agents + way - things
        pushes = (jnp.abs(touched) <= 1).all(-1)
        ahead = things + way[0]
        together = pushes.all() & (action[0] == action[AGENTS - 1])
        inside = ((ahead >= 1) & (ahead <= self.size - 2)).all()
        return jnp.where(together & inside, ahead, things)

    def _after(self, agents: Array, things: Array) -> Array:
        return things

    def _done(self, agents: Array, things: Array) -> Array:
        return ((things == 1) | (things == self.size - 2)).any()

    def render(self, states: Sequence[Place], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: the box and the agents."""
        from flockrl.envs.explore.render import box_frames

        return box_frames(self.size, states, size)
