"""What the grid tasks of CMAE (Liu et al. 2021, arXiv 2107.11444) share: two agents, four moves, one reward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.explore.plan import shortest
from flockrl.envs.settings import whole

UP, DOWN, LEFT, RIGHT = range(4)
MOVES = np.array([[0, -1], [0, 1], [-1, 0], [1, 0]], np.int32)
"""x and y of the actions up, down, left, right."""
AGENTS = 2


class Place(NamedTuple):
    """t: steps so far; agents: [2, 2] x and y; things: [K] what else there is: which doors are open, or x and y of the
    box; success: whether the task is done."""

    t: Array
    agents: Array
    things: Array
    success: Array


class GridTask(ABC):
    """A square grid on which two agents earn 1, both of them, when their task is done, and nothing before.

    Everyone sees everything: its own x and y, the other's, and the things, each as a number from 0 to 1. The global
    state is the same with the agents in their order. An episode terminates with success, and is truncated after `steps`
    steps. Agents do not stand in each other's way.
    """

    best = 1.0

    def __init__(self, name: str, size: int, steps: int, things: Sequence[int]):
        """things: how many values each thing can have."""
        whole(f"explore/{name}", 10, 60, size=size)
        whole(f"explore/{name}", 1, 100_000, steps=steps)
        self.size, self.steps = size, steps
        self.values = (*(size,) * 2 * AGENTS, *things)
        """How many values each number of a place can have: the agents' x and y, and the things."""
        numbers = len(self.values)
        self.spec = EnvSpec(
            name=f"explore/{name}",
            agents=tuple(f"agent_{i}" for i in range(AGENTS)),
            observations=(Box((numbers,), 0.0, 1.0),) * AGENTS,
            actions=(Discrete(len(MOVES)),) * AGENTS,
            max_steps=steps,
            state_size=numbers,
        )
        self.policies = {"corner": self._corner, "best": self._best}

    # What a task says

    @abstractmethod
    def _begin(self) -> tuple[np.ndarray, np.ndarray]:
        """Where agents [2, 2] and things [K] are at first."""

    @abstractmethod
    def _blocked(self, x: Array, y: Array, things: Array) -> Array:
        """Whether nobody can step on these cells."""

    @abstractmethod
    def _pushed(self, agents: Array, action: Array, things: Array) -> Array:
        """The things after agents chose their moves and before they move."""

    @abstractmethod
    def _after(self, agents: Array, things: Array) -> Array:
        """The things after agents moved."""

    @abstractmethod
    def _done(self, agents: Array, things: Array) -> Array:
        """Whether the task is done."""

    # The environment

    def reset(self, key: Array) -> tuple[Place, Observation]:
        agents, things = (jnp.asarray(x, jnp.int32) for x in self._begin())
        state = Place(jnp.int32(0), agents, things, jnp.bool_(False))
        return state, self._observe(state)

    def step(self, key: Array, state: Place, action: Array) -> tuple[Place, Observation, Array, Array, Array]:
        things = self._pushed(state.agents, action, state.things)
        wanted = state.agents + jnp.asarray(MOVES)[action]
        inside = ((wanted >= 0) & (wanted < self.size)).all(-1)
        free = inside & ~self._blocked(wanted[:, 0], wanted[:, 1], things)
        agents = jnp.where(free[:, None], wanted, state.agents)
        things = self._after(agents, things)
        success, t = self._done(agents, things), state.t + 1
        state = Place(t, agents, things, success)
        paid = jnp.full(AGENTS, success, jnp.float32)
        return state, self._observe(state), paid, success, (t >= self.steps) & ~success

    def measures(self, state: Place) -> dict[str, Array]:
        return {"success": state.success, "steps": state.t}

    def _observe(self, state: Place) -> Observation:
        rows = [jnp.concatenate([state.agents[i], state.agents[1 - i], state.things]) for i in (0, 1)]
        seen = jnp.stack(rows) / np.array([n - 1 for n in self.values], np.float32)
        return Observation(seen, state=seen[0])

    def cell(self, state: Place) -> Array:
        """The number of a place among all that there may be, whatever the time; np.prod(values) of them."""
        values, number = jnp.concatenate([state.agents.reshape(-1), state.things]), jnp.int32(0)
        for i, n in enumerate(self.values):
            number = number * n + values[i]
        return number

    # Policies

    @cached_property
    def plan(self) -> np.ndarray:
        """[L, 2] moves of a shortest way to success, found by breadth-first search over all places."""
        return shortest(self, int(np.prod(self.values)), len(MOVES))

    def _corner(self, state: Place, seen: Observation, key: Array) -> Array:
        """Everyone walks to the left, and stays there."""
        return jnp.full(AGENTS, LEFT)

    def _best(self, state: Place, seen: Observation, key: Array) -> Array:
        """A shortest way to success, move by move: episodes all begin alike, and nothing is left to chance."""
        return jnp.asarray(self.plan)[jnp.minimum(state.t, len(self.plan) - 1)]
