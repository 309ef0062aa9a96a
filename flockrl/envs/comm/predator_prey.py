"""Predator and prey as in IC3Net (Singh et al. 2019): predators who see little look for prey that does not move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.comm.window import OUTSIDE, look, offsets, window_size
from flockrl.envs.emergence import apart
from flockrl.envs.settings import one_of

SIZES = {5: (3, 0, 20), 10: (5, 1, 40), 20: (10, 1, 80)}
"""Size of the grid -> predators, how far they see, steps of an episode."""
MODES = ("mixed", "cooperative", "competitive", "joint")
MOVES = np.array([[-1, 0], [0, 1], [1, 0], [0, -1], [0, 0]], np.int32)
"""Rows and columns of the actions up, right, down, left, stay."""
UP, RIGHT, DOWN, LEFT, STAY = range(5)


class Hunt(NamedTuple):
    """t: steps so far; predators: [N, 2] row and column; prey: [2]; found: [N] who has had the prey in view by now;
    reached: [N] who is on it; steps: how many it took until all were."""

    t: Array
    predators: Array
    prey: Array
    found: Array
    reached: Array
    steps: Array


class PredatorPrey:
    """Predators on a grid with one prey that stays where it is; all begin on cells of their own.

    Predators may share cells, walls stop them, and one that has reached the prey stays there. Each step costs a
    predator 0.05 until it is on the prey. There it gets 0 (`mixed`), 0.05 k (`cooperative`) or 0.05 / k
    (`competitive`), where k predators are on the prey. In `joint`, which is not IC3Net's, each step costs everyone 0.05
    until all are on it, so that returns follow the steps that the papers count. In `mixed` and `joint` the episode
    terminates when all are; it is truncated after 20, 40 or 80 steps (grids of 5, 10 or 20). Predators see a square of
    1 cell (grid of 5) or 9 cells: the one-hot of each cell's number, whether it is outside, how many prey and how many
    predators are there. `compact` leaves out the numbers of all cells but the own one, from which they follow. The
    global state, for central critics, has of each predator [row, column, rows and columns to the prey, how many those
    are, whether it has found it], in parts of the grid's size.
    """

    def __init__(self, size: int = 5, mode: str = "mixed", compact: bool = False):
        one_of("comm/predator_prey", SIZES, size=size)
        one_of("comm/predator_prey", MODES, mode=mode)
        self.size, self.mode, self.compact = size, mode, compact
        self.n, self.vision, self.steps = SIZES[size]
        numbers = window_size(size * size, self.vision, 2, compact)
        self.spec = EnvSpec(
            name="comm/predator_prey",
            agents=tuple(f"predator_{i}" for i in range(self.n)),
            observations=(Box((numbers,), 0.0, float(self.n)),) * self.n,
            actions=(Discrete(5),) * self.n,
            max_steps=self.steps,
            state_size=7 * self.n,
        )
        self.policies = {"stay": self._stay, "full_information": self._full_information}

    def reset(self, key: Array) -> tuple[Hunt, Observation]:
        chosen = jax.lax.top_k(jax.random.uniform(key, (self.size**2,)), self.n + 1)[1]
        places = jnp.stack([chosen // self.size, chosen % self.size], -1)
        none = jnp.zeros(self.n, bool)
        state = Hunt(jnp.int32(0), places[:-1], places[-1], self._sees(places[:-1], places[-1]), none, jnp.int32(0))
        return state, self._observe(state)

    def step(self, key: Array, state: Hunt, action: Array) -> tuple[Hunt, Observation, Array, Array, Array]:
        move = (jax.nn.one_hot(action, 5, dtype=jnp.int32)[:, :, None] * MOVES).sum(1)
        moved = jnp.clip(state.predators + move, 0, self.size - 1)
        predators = jnp.where(state.reached[:, None], state.predators, moved)
        reached = (predators == state.prey).all(-1)
        k = reached.sum()
        there = {"cooperative": k, "competitive": 1 / jnp.maximum(k, 1), "joint": jnp.where(reached.all(), 0, -1)}
        reward = 0.05 * jnp.where(reached, there.get(self.mode, 0), -1)
        t, found = state.t + 1, state.found | self._sees(predators, state.prey)
        state = Hunt(t, predators, state.prey, found, reached, jnp.where(state.reached.all(), state.steps, t))
        over = reached.all() & (self.mode in ("mixed", "joint"))
        return state, self._observe(state), reward, over, (t >= self.steps) & ~over

    def distances(self, state: Hunt) -> Array:
        """[N, N] how far predators are from each other, in cells."""
        return apart(state.predators.astype(jnp.float32))

    def measures(self, state: Hunt) -> dict[str, Array]:
        return {"success": state.reached.all(), "steps": state.steps}

    def render(self, states: Sequence[Hunt], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: the grid, what predators see of it, and who has arrived."""
        from flockrl.envs.comm.render import hunt_frames

        return hunt_frames(states, self.size, self.vision, size)

    def _observe(self, state: Hunt) -> Observation:
        around = state.predators[:, None] + offsets(self.vision)  # [N, K, 2]
        inside = ((around >= 0) & (around < self.size)).all(-1)
        window = jnp.where(inside, around[..., 0] * self.size + around[..., 1], OUTSIDE)
        own = state.predators[:, 0] * self.size + state.predators[:, 1]
        prey = window == state.prey[0] * self.size + state.prey[1]
        predators = (window[..., None] == own).sum(-1)
        away = state.prey - state.predators
        whole = jnp.concatenate([state.predators, away, jnp.abs(away)], -1) / self.size
        whole = jnp.concatenate([whole, state.found[:, None]], -1).reshape(-1)
        return Observation(look(self.size**2, window, (prey, predators), self.compact), state=whole)

    def _sees(self, predators: Array, prey: Array) -> Array:
        """[N] who has the prey in view."""
        return (jnp.abs(predators - prey) <= self.vision).all(-1)

    def _stay(self, state: Hunt, seen: Observation, key: Array) -> Array:
        """Nobody moves."""
        return jnp.full(self.n, STAY)

    def _full_information(self, state: Hunt, seen: Observation, key: Array) -> Array:
        """Everyone knows where the prey is and takes a shortest way: nobody can be faster."""
        down, right = (state.prey - state.predators).T
        across = jnp.where(right > 0, RIGHT, jnp.where(right < 0, LEFT, STAY))
        return jnp.where(down > 0, DOWN, jnp.where(down < 0, UP, across))
