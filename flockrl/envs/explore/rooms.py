"""Rooms behind doors that somebody has to hold open: `pass` and `secret_room` of CMAE (not EITI's versions)."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array
from flockrl.envs.explore.grid import GridTask, Place


class Rooms(GridTask):
    """A wall with doors, which are open while an agent is near a switch."""

    doors: np.ndarray
    """[D, 2] x and y of the middle of each door."""
    switches: np.ndarray
    """[S, 2] x and y of each switch."""
    opens: np.ndarray
    """[S, D] which doors a switch opens."""
    near: float
    """How far from a switch one may stand to hold it."""
    half: int
    """Cells on either side of its middle that belong to a door."""

    def _begin(self) -> tuple[np.ndarray, np.ndarray]:
        tenth = self.size // 10
        return np.array([[1 + tenth] * 2, [tenth] * 2]), np.zeros(len(self.doors), np.int32)

    def _in_door(self, x: Array, y: Array) -> Array:
        """[..., D] whether cells are part of each door."""
        return (x[..., None] == self.doors[:, 0]) & (jnp.abs(y[..., None] - self.doors[:, 1]) <= self.half)

    def _pushed(self, agents: Array, action: Array, things: Array) -> Array:
        return things

    def _after(self, agents: Array, things: Array) -> Array:
        """Doors open by the first switch that is held: where several are, the others do nothing, as in CMAE's code."""
        away = ((agents[:, None] - self.switches) ** 2).sum(-1)
        held = (away <= self.near**2).any(0)
        first = held & (jnp.cumsum(held) == 1)
        return (first[:, None] & self.opens).any(0).astype(jnp.int32)

    def wall(self) -> np.ndarray:
        """[size, size] bool by y and x: the walls while all doors are shut."""
        y, x = np.indices((self.size, self.size))
        return np.asarray(self._blocked(jnp.asarray(x), jnp.asarray(y), jnp.zeros(len(self.doors), jnp.int32)))

    def render(self, states: Sequence[Place], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: walls, doors, the cells that hold a switch, agents."""
        from flockrl.envs.explore.render import room_frames

        return room_frames(self, states, size)


class Pass(Rooms):
    """Two rooms with one door between them and a switch in each. Success: both agents are in the room on the right.

    CMAE's `room30` with size=30: the wall is x = 15, agents start at (4, 4) and (3, 3), switches are at (3, 24) and
    (24, 3), and while any agent is within 4.5 of a switch, the door (15, 12 to 18) is open. Somebody must hold the
    first switch, the other walk through and hold the second. In EITI's version the door stays open for a while, agents
    start anywhere, and success pays 1000.
    """

    def __init__(self, size: int = 30, steps: int = 300):
        tenth, far = size // 10, int(size * 0.8)
        self.doors = np.array([[size // 2, size // 2]])
        self.switches = np.array([[tenth, far], [far, tenth]])
        self.opens = np.ones((2, 1), bool)
        self.near, self.half = 1.5 * tenth, tenth
        super().__init__("pass", size, steps, (2,))

    def _blocked(self, x: Array, y: Array, things: Array) -> Array:
        return (x == self.size // 2) & ~(self._in_door(x, y) & (things > 0)).any(-1)

    def _done(self, agents: Array, things: Array) -> Array:
        return (agents[:, 0] >= self.size / 2 + 1).all()


class SecretRoom(Rooms):
    """A large room on the left and three on the right, each with a door and a switch of its own behind it. Success:
    both agents are in the upper room on the right.

    CMAE's `secret_room` with size=25: walls are x = 12 and, to the right of it, y = 8 and y = 16; doors are at (12, 4),
    (12, 12) and (12, 20), three cells high; the switch (5, 20) opens all of them, those at (20, 4), (20, 12) and
    (20, 20) their own; one holds a switch from up to 1.5 away. Agents start at (3, 3) and (2, 2). As in CMAE's code,
    the upper room ends at y = 9, the first row of cells behind its wall included.
    """

    def __init__(self, size: int = 25, steps: int = 300):
        self.thirds = size // 3, 2 * size // 3
        middle = self.thirds[0] // 2, sum(self.thirds) // 2, (self.thirds[1] + size) // 2
        far, close = int(size * 0.8), int(size * 0.2)
        self.doors = np.array([[size // 2, y] for y in middle])
        self.switches = np.array([[close, far], *([far, y] for y in middle)])
        self.opens = np.array([[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]], bool)
        self.near, self.half = 1.5, 1
        super().__init__("secret_room", size, steps, (2, 2, 2))

    def _blocked(self, x: Array, y: Array, things: Array) -> Array:
        middle = self.size // 2
        wall = (x == middle) | ((x >= middle) & ((y == self.thirds[0]) | (y == self.thirds[1])))
        return wall & ~(self._in_door(x, y) & (things > 0)).any(-1)

    def _done(self, agents: Array, things: Array) -> Array:
        return ((agents[:, 0] >= self.size / 2 + 1) & (agents[:, 1] <= self.thirds[0] + 1)).all()
