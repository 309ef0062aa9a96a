"""Rovers that observe points of interest together (after Agogino and Tumer 2008, tightly coupled), on a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.settings import whole

MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])
"""Stay, up, down, left, right, as (rows, columns)."""


class Field(NamedTuple):
    """rovers: [N, 2] and points: [P, 2] row and column; seen: [P] which points were observed; step: so far."""

    rovers: Array
    points: Array
    seen: Array
    step: Array


class Rover:
    """n rovers move on a grid of `size` cells by `size`. A point of interest is observed when at least `coupling`
    rovers are within `radius` (rows and columns) at the same time; each pays 1 / points once, to everyone.

    So the return is the share of points that the team observed, at most 1. The episode ends when all are observed, and
    is cut after `steps` steps. Rovers and points begin in random cells. Everyone sees where all rovers and points are,
    relative to itself, and which points are left. A rover that is not there does not count.
    """

    best = 1.0

    def __init__(self, n: int = 6, points: int = 4, coupling: int = 3, radius: int = 1, size: int = 8, steps: int = 50):
        whole("credit/rover", 2, 50, n=n)
        whole("credit/rover", 1, 50, points=points)
        whole("credit/rover", 1, 50, coupling=coupling)
        whole("credit/rover", 0, 20, radius=radius)
        whole("credit/rover", 2, 100, size=size)
        whole("credit/rover", 1, 10_000, steps=steps)
        if coupling > n:
            raise UsageError(f"credit/rover: coupling ({coupling}) must be at most n ({n}).")
        self.n, self.points, self.coupling, self.radius, self.size, self.steps = (
            n,
            points,
            coupling,
            radius,
            size,
            steps,
        )
        names = tuple(f"rover_{i}" for i in range(n))
        seen, does = (Box((2 * n + 3 * points,), -1.0, 1.0),) * n, (Discrete(len(MOVES)),) * n
        self.spec = EnvSpec("credit/rover", names, seen, does, max_steps=steps, counterfactual=True)
        self.policies = {"best": self._together, "nearest": self._nearest}

    def reset(self, key: Array) -> tuple[Field, Observation]:
        places = jax.random.randint(key, (self.n + self.points, 2), 0, self.size)
        state = Field(places[: self.n], places[self.n :], jnp.zeros(self.points, bool), jnp.int32(0))
        return state, self._observe(state)

    def step(self, key: Array, state: Field, action: Array) -> tuple[Field, Observation, Array, Array, Array]:
        rovers = self._move(state, action)
        seen = state.seen | self._observed(rovers, state.points, np.ones(self.n, bool))
        paid = (seen & ~state.seen).sum() / self.points
        after = Field(rovers, state.points, seen, state.step + 1)
        over = seen.all()
        return after, self._observe(after), jnp.broadcast_to(paid, self.n), over, ~over & (after.step >= self.steps)

    def counterfactual_reward(self, state: Field, action: Array, present: Array) -> Array:
        """What the step would pay if only the rovers in `present` [N] counted."""
        found = self._observed(self._move(state, action), state.points, present)
        return (found & ~state.seen).sum() / self.points

    def measures(self, state: Field) -> dict[str, Array]:
        return {"success": state.seen.all(), "observed": state.seen.sum()}

    def render(self, states: Sequence[Field], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.credit.render import rover_frames

        return rover_frames(states, self.size, self.radius, self.coupling, size)

    def _move(self, state: Field, action: Array) -> Array:
        return jnp.clip(state.rovers + jnp.asarray(MOVES)[action], 0, self.size - 1)

    def _observed(self, rovers: Array, points: Array, present: Array | np.ndarray) -> Array:
        """[P] which points enough of the present rovers are near."""
        near = jnp.abs(rovers[:, None] - points).max(-1) <= self.radius
        return (near & present[:, None]).sum(0) >= self.coupling

    def _observe(self, state: Field) -> Observation:
        """Own place, where the others and the points are from there, and which points are left."""
        own = state.rovers[:, None]
        places = jnp.concatenate(
            [own / (self.size - 1), self._away(own, state.rovers), self._away(own, state.points)], 1
        )
        others = np.array([[0, *(1 + j for j in range(self.n) if j != i)] for i in range(self.n)])
        rows = np.concatenate([others, np.broadcast_to(self.n + 1 + np.arange(self.points), (self.n, self.points))], 1)
        relative = jnp.take_along_axis(places, jnp.asarray(rows)[..., None], 1).reshape(self.n, -1)
        left = jnp.broadcast_to(~state.seen, (self.n, self.points))
        return Observation(jnp.concatenate([relative, left], 1).astype(jnp.float32))

    def _away(self, own: Array, places: Array) -> Array:
        return (places - own) / (self.size - 1)

    def _head(self, state: Field, goal: Array) -> Array:
        """[N] the move that brings each rover nearer to its `goal` [N, 2]: along the longer way first."""
        away = goal - state.rovers
        down = jnp.abs(away[:, 0]) >= jnp.abs(away[:, 1])
        rows, columns = jnp.where(away[:, 0] < 0, 1, 2), jnp.where(away[:, 1] < 0, 3, 4)
        return jnp.where((away == 0).all(1), 0, jnp.where(down, rows, columns)).astype(jnp.int32)

    def _goals(self, state: Field, leaders: np.ndarray) -> Array:
        """[N, 2] the point that is left and nearest to each rover's leader."""
        apart = jnp.abs(state.rovers[leaders][:, None] - state.points).sum(-1)
        return state.points[jnp.where(state.seen, self.size * 4, apart).argmin(1)]

    def _together(self, state: Field, seen: Observation, key: Array) -> Array:
        """Teams of `coupling` rovers go to the point nearest to their first one; who is left over joins the last."""
        team = np.minimum(np.arange(self.n) // self.coupling, self.n // self.coupling - 1)
        return self._head(state, self._goals(state, team * self.coupling))

    def _nearest(self, state: Field, seen: Observation, key: Array) -> Array:
        """Every rover goes to the point that is nearest to it, whatever the others do."""
        return self._head(state, self._goals(state, np.arange(self.n)))
