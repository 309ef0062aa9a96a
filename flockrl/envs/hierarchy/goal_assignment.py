"""Goal assignment: n agents on a grid cover n landmarks; the best team follows the cheapest assignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.entities import layout
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.assignment import assign
from flockrl.envs.settings import whole

NAME = "hierarchy/goal_assignment"
MOVES = np.array([[0, 0], [-1, 0], [0, 1], [1, 0], [0, -1]], np.int32)
"""Rows and columns of the actions stay, up, right, down, left."""


class Grid(NamedTuple):
    """t: steps so far; agents, landmarks: [n, 2] row and column; covered: [n] which landmarks were covered in the last
    step; optimum: the highest return of this episode."""

    t: Array
    agents: Array
    landmarks: Array
    covered: Array
    optimum: Array


class GoalAssignment:
    """n agents and n landmarks on a grid of `size` x `size` cells; landmarks stand on cells of their own.

    Agents stay or move one cell, walls stop them, and they may share cells. A landmark is covered in a step in which an
    agent on it stays: who passes by covers nothing. Everyone is paid (covered landmarks) / n - 1 in each step, so that
    an agent who is d moves away from the landmark that it covers costs the team d / n. Return: the sum, mean over
    agents; the best one is minus the cost of the cheapest assignment (Hungarian algorithm) / n, since whoever covers a
    landmark on the way loses as much at its own. An episode is truncated after `steps` steps, by default 2 size.

    With `owner` landmark k counts only for agent (k + owner) mod n: who does what is then given, and another number
    gives everyone another task. Nothing that agents see tells it.

    An agent observes [its row and column, of every landmark its offset and whether it was covered in the last step, the
    offset of every other agent], all in units of the grid's size; these are its entities. Measures: `optimum`, the
    highest return of the episode, `covered`, the share of landmarks that were covered in the last step.
    """

    def __init__(self, n: int = 4, size: int = 8, steps: int | None = None, owner: int | None = None):
        whole(NAME, 1, 100, n=n)
        whole(NAME, 2, 100, size=size)
        self.n, self.size, self.steps = n, size, 2 * size if steps is None else steps
        whole(NAME, 1, 100_000, steps=self.steps)
        if n > size * size:
            raise UsageError(f"{NAME}: {n} landmarks need more than {size * size} cells.")
        if owner is not None:
            whole(NAME, 0, n - 1, owner=owner)
        self.may = np.ones((n, n), bool) if owner is None else np.roll(np.eye(n, dtype=bool), owner, 0)
        """[agents, landmarks] who can cover what."""
        described = layout(("own", 2), ("landmark", n, 2), ("landmark", n, 1), ("agent", n - 1, 2))
        self.spec = EnvSpec(
            name=NAME,
            agents=tuple(f"agent_{i}" for i in range(n)),
            observations=(Box((2 + 3 * n + 2 * (n - 1),), -1.0, 1.0),) * n,
            actions=(Discrete(len(MOVES)),) * n,
            max_steps=self.steps,
            entities=(described,) * n,
        )
        self.policies = {"hungarian": self._hungarian, "nearest": self._nearest}

    def reset(self, key: Array) -> tuple[Grid, Observation]:
        agent_key, mark_key = jax.random.split(key)
        agents = jax.random.randint(agent_key, (self.n, 2), 0, self.size)
        cells = jax.random.permutation(mark_key, self.size**2)[: self.n]
        landmarks = jnp.stack(jnp.divmod(cells, self.size), -1)
        away = jnp.minimum(distances(agents, landmarks), self.steps)
        optimum = -away[self._assigned(agents, landmarks)].sum() / self.n
        state = Grid(jnp.int32(0), agents, landmarks, jnp.zeros(self.n, bool), optimum)
        return state, self._observe(state)

    def step(self, key: Array, state: Grid, action: Array) -> tuple[Grid, Observation, Array, Array, Array]:
        agents = jnp.clip(state.agents + jnp.asarray(MOVES)[action], 0, self.size - 1)
        stands = (distances(agents, state.landmarks) == 0) & (action == 0)[:, None] & self.may
        covered = stands.any(0)
        state = state._replace(t=state.t + 1, agents=agents, covered=covered)
        reward = jnp.broadcast_to(covered.mean() - 1.0, (self.n,))
        return state, self._observe(state), reward, jnp.bool_(False), state.t >= self.steps

    def measures(self, state: Grid) -> dict[str, Array]:
        return {"optimum": state.optimum, "covered": state.covered.mean()}

    def render(self, states: Sequence[Grid], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: landmarks as squares, agents as numbered discs."""
        from flockrl.envs.sketch import GOLD, GREEN, LINE, Sketch, color_of, mix

        pictures, cell = [], 1 / self.size
        for state in states:
            sketch = Sketch(size)
            for k in range(self.size + 1):
                sketch.line([(k * cell, 0), (k * cell, 1)], LINE)
                sketch.line([(0, k * cell), (1, k * cell)], LINE)
            for (row, column), covered in zip(state.landmarks.tolist(), state.covered.tolist(), strict=True):
                fill = mix(GREEN if covered else GOLD, 0.4)
                sketch.box(column * cell, row * cell, (column + 1) * cell, (row + 1) * cell, fill=fill)
            for i, (row, column) in enumerate(state.agents.tolist()):
                x, y = (column + 0.5) * cell, (row + 0.5) * cell
                sketch.disc(x, y, 0.35 * cell, color_of(i))
                sketch.text(x, y, str(i), 0.4 * cell, (255, 255, 255))
            pictures.append(sketch.picture())
        return pictures

    def _observe(self, state: Grid) -> Observation:
        n, scale = self.n, 1.0 / self.size
        marks = (state.landmarks[None] - state.agents[:, None]).reshape(n, -1) * scale
        covered = jnp.broadcast_to(state.covered * 1.0, (n, n))
        others = np.array([[j for j in range(n) if j != i] for i in range(n)], int).reshape(n, n - 1)
        rest = (state.agents[others] - state.agents[:, None]).reshape(n, -1) * scale
        return Observation(jnp.concatenate([state.agents * scale, marks, covered, rest], -1))

    def _towards(self, state: Grid, goals: Array) -> Array:
        """[n] a move towards each agent's landmark, first along the longer way."""
        way = state.landmarks[goals] - state.agents
        along = jnp.abs(way[:, 0]) >= jnp.abs(way[:, 1])
        vertical, horizontal = jnp.where(way[:, 0] < 0, 1, 3), jnp.where(way[:, 1] > 0, 2, 4)
        return jnp.where((way == 0).all(-1), 0, jnp.where(along, vertical, horizontal)).astype(jnp.int32)

    def _hungarian(self, state: Grid, seen: Observation, key: Array) -> Array:
        """Everyone goes to its landmark of the cheapest assignment: the best."""
        return self._towards(state, self._assigned(state.agents, state.landmarks)[1])

    def _assigned(self, agents: Array, landmarks: Array) -> tuple[Array, Array]:
        """The cheapest assignment of those that count: agents in order, and the landmark of each."""
        away = jnp.minimum(distances(agents, landmarks), self.steps)
        return assign(jnp.where(self.may, away, 4 * self.size * self.n))

    def _nearest(self, state: Grid, seen: Observation, key: Array) -> Array:
        """Everyone goes to the nearest landmark, whoever else does."""
        return self._towards(state, jnp.argmin(distances(state.agents, state.landmarks), 1))


def distances(agents: Array, landmarks: Array) -> Array:
    """[n, n] moves from each agent to each landmark."""
    return jnp.abs(agents[:, None] - landmarks[None]).sum(-1)
