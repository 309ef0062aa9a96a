"""Foraging: ants that look for food on a grid and carry it to the nest, with pheromone as their memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.emergence import apart, coverage, division_of_labour
from flockrl.envs.settings import share, whole

MOVES = np.array([[0, 0], [-1, 0], [0, 1], [1, 0], [0, -1]], np.int32)
"""Rows and columns of the actions stay, up, right, down, left."""
SIGHT, HEARING = 2, 3
"""Cells within which (in rows and in columns) an ant sees food and perceives other ants."""
TAKEN, BROUGHT = 0.5, 0.5
"""What an ant gets for taking food and for bringing it to the nest."""
SCENT = 0.05
"""An ant follows pheromone above this."""
NAME = "swarm/foraging"


class Colony(NamedTuple):
    """t: steps so far; pos: [N, 2] row and column; loaded: [N] who carries; depots: [D, 2]; food: [D] what is left
    there; scent: [G, G] pheromone; seen: [G, G] cells where ants were; work: [N, D] what each took from where; brought:
    units."""

    t: Array
    pos: Array
    loaded: Array
    depots: Array
    food: Array
    scent: Array
    seen: Array
    work: Array
    brought: Array


class Foraging:
    """`n` ants on a grid of `size` x `size` cells bring food from `depots` depots to the nest in the middle.

    Each step an ant stays or goes one cell up, right, down or left; the edge stops it, other ants do not. An ant
    without food on a depot that has some takes a unit and gets 0.5; at the nest it leaves it and gets another 0.5.
    Depots stand at least a third of the grid from the nest and hold `food` units each. An ant that carries leaves
    pheromone, 1 on its cell; all of it fades by `evaporation` per step. Ants start at the nest. Truncated after
    `steps`.

    Observed: [whether it carries, rows and columns to the nest / size, whether food is seen (within 2 cells), rows and
    columns to the nearest such depot / 2, pheromone on its own cell and on the four around it, the share of time left].
    Ants perceive others within 3 cells.
    """

    def __init__(
        self,
        n: int = 8,
        size: int = 15,
        depots: int = 3,
        food: int = 20,
        evaporation: float = 0.02,
        steps: int = 200,
    ):
        whole(NAME, 1, 1000, n=n)
        whole(NAME, 5, 200, size=size)
        whole(NAME, 1, 50, depots=depots)
        whole(NAME, 1, 100_000, food=food, steps=steps)
        share(NAME, evaporation=evaporation)
        self.n, self.size, self.depots, self.food = n, size, depots, food
        self.keep, self.steps, self.nest = 1 - evaporation, steps, np.array([size // 2, size // 2], np.int32)
        cells = np.stack(np.meshgrid(*[np.arange(size)] * 2, indexing="ij"), -1).reshape(-1, 2)
        self.far = cells[np.abs(cells - self.nest).max(1) >= size / 3].astype(np.int32)
        """[F, 2] cells where a depot may stand."""
        self.spec = EnvSpec(
            name=NAME,
            agents=tuple(f"ant_{i}" for i in range(n)),
            observations=(Box((12,), -1.0, 1.0),) * n,
            actions=(Discrete(len(MOVES)),) * n,
            max_steps=steps,
            neighbours=True,
        )
        self.policies = {"trail": self._trail, "known": self._known}
        self.best = depots * food * (TAKEN + BROUGHT) / n
        """All food at the nest, which is within reach where there is time enough."""

    def reset(self, key: Array) -> tuple[Colony, Observation]:
        chosen = jax.lax.top_k(jax.random.uniform(key, (len(self.far),)), self.depots)[1]
        field = jnp.zeros((self.size, self.size))
        state = Colony(
            t=jnp.int32(0), pos=jnp.broadcast_to(self.nest, (self.n, 2)).astype(jnp.int32),
            loaded=jnp.zeros(self.n, bool), depots=jnp.asarray(self.far)[chosen],
            food=jnp.full(self.depots, self.food, jnp.int32), scent=field, seen=field > 0,
            work=jnp.zeros((self.n, self.depots)), brought=jnp.int32(0),
        )  # fmt: skip
        return state, self._observe(state)

    def step(self, key: Array, state: Colony, action: Array) -> tuple[Colony, Observation, Array, Array, Array]:
        move = (jax.nn.one_hot(action, len(MOVES), dtype=jnp.int32)[..., None] * MOVES).sum(1)
        pos = jnp.clip(state.pos + move, 0, self.size - 1)
        home = (pos == self.nest).all(-1)
        brings = state.loaded & home
        there = (pos[:, None] == state.depots).all(-1) & ~state.loaded[:, None]
        takes = there & (jnp.cumsum(there, 0) <= state.food)  # the first ones in order while there is food
        loaded = (state.loaded & ~brings) | takes.any(1)
        scent = (self.keep * state.scent).at[pos[:, 0], pos[:, 1]].max(jnp.where(loaded, 1.0, 0.0))
        state = Colony(
            t=state.t + 1, pos=pos, loaded=loaded, depots=state.depots, food=state.food - takes.sum(0), scent=scent,
            seen=state.seen.at[pos[:, 0], pos[:, 1]].set(True), work=state.work + takes,
            brought=state.brought + brings.sum(),
        )  # fmt: skip
        reward = TAKEN * takes.any(1) + BROUGHT * brings
        return state, self._observe(state), reward, jnp.bool_(False), state.t >= self.steps

    def distances(self, state: Colony) -> Array:
        """[N, N] how far ants are from each other, in cells."""
        return apart(state.pos.astype(jnp.float32))

    def measures(self, state: Colony) -> dict[str, Array]:
        """brought: units at the nest; coverage: the share of cells where ants were; division_of_labour: how far ants
        keep to depots of their own, from 0 to 1."""
        return {
            "brought": state.brought, "coverage": coverage(state.seen.reshape(-1)),
            "division_of_labour": division_of_labour(state.work),
        }  # fmt: skip

    def render(self, states: Sequence[Colony], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.swarm.render import colony_frames

        return colony_frames(states, self.nest, self.food, size)

    def _around(self, state: Colony) -> Array:
        """[N, 5] pheromone where each move leads; 0 outside."""
        rows, columns = ((state.pos[:, None] + MOVES)[..., axis] for axis in (0, 1))
        padded = jnp.pad(state.scent, 1)
        return padded[rows + 1, columns + 1]

    def _nearest(self, state: Colony, reach: int) -> tuple[Array, Array]:
        """[N, 2] ways to the nearest depot with food within `reach` cells, and [N] whether there is one."""
        way = state.depots - state.pos[:, None]
        far = jnp.where((jnp.abs(way).max(-1) <= reach) & (state.food > 0), jnp.abs(way).sum(-1), 10_000)
        chosen = jnp.take_along_axis(way, far.argmin(1)[:, None, None], 1)[:, 0]
        return chosen, far.min(1) < 10_000

    def _observe(self, state: Colony) -> Observation:
        way, sees = self._nearest(state, SIGHT)
        home = (self.nest - state.pos) / self.size
        left = jnp.broadcast_to(1 - state.t / self.steps, (self.n, 1))
        parts = (
            state.loaded[:, None], home, sees[:, None], jnp.where(sees[:, None], way / SIGHT, 0.0),
            self._around(state), left,
        )  # fmt: skip
        near = (jnp.abs(state.pos[:, None] - state.pos).max(-1) <= HEARING) & ~np.eye(self.n, dtype=bool)
        return Observation(jnp.concatenate([part.astype(jnp.float32) for part in parts], -1), neighbours=near)

    def _towards(self, way: Any) -> Array:
        """[N] the move that shortens the longer part of a way [N, 2]."""
        rows, columns = way[:, 0], way[:, 1]
        down = jnp.where(rows > 0, 3, 1)
        across = jnp.where(columns > 0, 2, 4)
        move = jnp.where(jnp.abs(rows) >= jnp.abs(columns), down, across)
        return jnp.where((way == 0).all(1), 0, move)

    def _known(self, state: Colony, seen: Observation, key: Array) -> Array:
        """Everybody knows where food is left and goes to the nearest."""
        way, some = self._nearest(state, self.size)
        return self._towards(jnp.where((state.loaded | ~some)[:, None], self.nest - state.pos, way))

    def _trail(self, state: Colony, seen: Observation, key: Array) -> Array:
        """Home with food; to food that is seen; along pheromone away from the nest; else at random, rather away from
        it."""
        way, sees = self._nearest(state, SIGHT)
        after = jnp.clip(state.pos[:, None] + MOVES, 0, self.size - 1)
        gains = jnp.abs(after - self.nest).sum(-1) - jnp.abs(state.pos - self.nest).sum(-1)[:, None]
        scent = jnp.where(gains > 0, self._around(state), 0.0)
        draw = jax.random.uniform(key, (self.n, len(MOVES))) + 0.3 * (gains > 0) - (np.arange(len(MOVES)) == 0)
        move = jnp.where(scent.max(1) > SCENT, scent.argmax(1), draw.argmax(1))
        move = jnp.where(sees, self._towards(way), move)
        return jnp.where(state.loaded, self._towards(self.nest - state.pos), move)
