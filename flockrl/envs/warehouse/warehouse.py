"""The multi-robot warehouse by the rules of rware 2.0 (Papoudakis et al. 2021), compiled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import flockrl.envs.warehouse.layout as of
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.emergence import apart
from flockrl.envs.settings import one_of, whole
from flockrl.envs.warehouse.layout import NONE, make_layout
from flockrl.envs.warehouse.moves import moving
from flockrl.envs.warehouse.plan import Planner

DIFFICULTIES = {"easy": 2.0, "normal": 1.0, "hard": 0.5}
"""Requests for each robot."""
OWN, CELL = 8, 7
"""Numbers that a robot observes of itself, and of each cell around it."""


class Floor(NamedTuple):
    """t: steps so far. Of each robot, [N]: cell; way: the direction that it faces; carried: the shelf on it, or NONE;
    delivered: how many shelves so far. standing: [P] the shelf at each place, or NONE; requested: [R] shelves."""

    t: Array
    cell: Array
    way: Array
    carried: Array
    delivered: Array
    standing: Array
    requested: Array


class Warehouse:
    """Robots that carry requested shelves to a goal, for 1 each to the robot that does, and may then put them back.

    In a step a robot stays, drives forward, turns left or right, or loads: it takes the shelf above it, or puts its own
    down, which it can where shelves stand at first. Robots without a shelf drive under shelves; those with one do not,
    and nobody drives where another robot stays (`moves.moving`). A requested shelf that is on a goal is delivered, and
    a random one of those that are not requested is requested in its place, goal by goal. An episode begins with robots
    in random cells and all shelves at their places, and is truncated after `max_steps`.

    A robot observes its x and y, whether it carries a shelf, the one-hot of its direction (up, down, left, right) and
    whether it is on a road; then, for each of the (2 sight + 1)^2 cells around it, row by row: whether a robot is
    there, the one-hot of that robot's direction (up where there is none), whether a shelf is there, and whether that is
    requested.
    """

    def __init__(
        self,
        size: str,
        agents: int = 2,
        difficulty: str = "normal",
        sight: int = 1,
        max_steps: int = 500,
        height: int = 8,
    ):
        """size: one of `layout.SIZES`; height: of a block of shelves."""
        name = f"warehouse/{size}"
        one_of(name, DIFFICULTIES, difficulty=difficulty)
        whole(name, 1, 19, agents=agents)
        whole(name, 1, 5, sight=sight)
        whole(name, 1, 15, height=height)
        whole(name, 1, 100_000, max_steps=max_steps)
        self.n, self.size, self.max_steps = agents, size, max_steps
        self.layout = layout = make_layout(size, height, sight)
        self.shelves, self.requests = len(layout.cells), int(agents * DIFFICULTIES[difficulty])
        if not 1 <= self.requests < self.shelves:
            raise UsageError(
                f"{name}: {agents} agents and difficulty={difficulty} make {self.requests} requests, and with "
                f"{self.shelves} shelves there must be 1 to {self.shelves - 1}."
            )
        most = float(max(layout.rows, layout.columns) - 1)
        self.spec = EnvSpec(
            name=name,
            agents=tuple(f"agent_{i}" for i in range(agents)),  # as of rware, so that teams can play there
            observations=(Box((OWN + CELL * layout.around.shape[1],), 0.0, most),) * agents,
            actions=(Discrete(5),) * agents,
            max_steps=max_steps,
        )
        self.policies = {"still": self._still}
        if agents <= self.shelves:  # whoever plans gives each robot a place of its own to put a shelf down
            self.policies["planned"] = self._planned

    # The environment

    def reset(self, key: Array) -> tuple[Floor, Observation]:
        where, way, wish = jax.random.split(key, 3)
        layout, n = self.layout, self.n
        state = Floor(
            t=jnp.int32(0),
            cell=jax.random.permutation(where, layout.rows * layout.columns)[:n].astype(jnp.int32),
            way=jax.random.randint(way, (n,), 0, 4),
            carried=jnp.full(n, NONE),
            delivered=jnp.zeros(n, jnp.int32),
            standing=jnp.arange(self.shelves),
            requested=jax.random.permutation(wish, self.shelves)[: self.requests].astype(jnp.int32),
        )
        return state, self.observe(state)

    def step(self, key: Array, state: Floor, action: Array) -> tuple[Floor, Observation, Array, Array, Array]:
        state, reward = self.advance(state, action, jax.random.uniform(key, (len(self.layout.goals),)))
        return state, self.observe(state), reward, jnp.bool_(False), state.t >= self.max_steps

    def advance(self, state: Floor, action: Array, luck: Array) -> tuple[Floor, Array]:
        """The floor after a step, and what robots earn [N]. luck: [2] numbers from 0 to 1, which decide what is
        requested where a shelf is delivered at either goal."""
        layout, loaded = self.layout, state.carried != NONE
        ahead = jnp.asarray(layout.ahead.reshape(-1))[state.cell * 4 + state.way]
        target = jnp.where(action == of.FORWARD, ahead, state.cell)
        blocked = loaded & (target != state.cell) & (self._shelf_at(state.standing, target) != NONE)
        target = jnp.where(blocked, state.cell, target)
        cell = jnp.where(moving(state.cell, target), target, state.cell)
        turned = jnp.where(action == of.TURN_LEFT, jnp.asarray(of.TO_THE_LEFT)[state.way], state.way)
        turned = jnp.where(action == of.TURN_RIGHT, jnp.asarray(of.TO_THE_RIGHT)[state.way], turned)
        standing, carried = self._toggled(state, action == of.TOGGLE)
        requested, reward = self._delivered(cell, carried, state.requested, luck)
        delivered = state.delivered + reward.astype(jnp.int32)
        return Floor(state.t + 1, cell, turned, carried, delivered, standing, requested), reward

    def _shelf_at(self, standing: Array, cell: Array) -> Array:
        """The shelves that stand at cells, any shape, NONE where none does."""
        place = jnp.asarray(self.layout.place)[cell]
        return jnp.where(place < self.shelves, standing[jnp.minimum(place, self.shelves - 1)], NONE)

    def _toggled(self, state: Floor, toggles: Array) -> tuple[Array, Array]:
        """What stands and what is carried after these robots took a shelf or put theirs down."""
        loaded, found = state.carried != NONE, self._shelf_at(state.standing, state.cell)
        here = jnp.asarray(self.layout.place)[state.cell][:, None] == np.arange(self.shelves)  # [N, P]
        acts = toggles & here.any(1) & (loaded | (found != NONE))
        changes = acts[:, None] & here
        put = jnp.where(changes, state.carried[:, None], NONE).max(0)
        carried = jnp.where(acts, jnp.where(loaded, NONE, found), state.carried)
        return jnp.where(changes.any(0), put, state.standing), carried

    def _delivered(self, cell: Array, carried: Array, requested: Array, luck: Array) -> tuple[Array, Array]:
        """What is requested after deliveries, goal by goal, and what robots earn, [N]."""
        reward, spare = jnp.zeros(self.n), self.shelves - self.requests
        for goal, chance in zip(self.layout.goals.tolist(), luck, strict=True):
            there = cell == goal
            shelf = jnp.where(there, carried, NONE).max()
            match = requested == shelf
            # The number k of those that are not requested: each requested shelf with at most k others before it is
            # skipped.
            k = jnp.minimum((chance * spare).astype(jnp.int32), spare - 1)
            others = requested - (requested < requested[:, None]).sum(1)
            drawn = k + (others <= k).sum()
            requested = jnp.where(match, drawn, requested)
            reward = reward + (there & match.any())
        return requested, reward

    def observe(self, state: Floor) -> Observation:
        layout, n = self.layout, self.n
        seen = jnp.asarray(layout.around)[state.cell]  # [N, K]
        there = seen[..., None] == state.cell  # [N, K, N]
        facing = jnp.where(there, state.way + 1, 0).max(-1)  # 0 where no robot is
        shelf = jnp.maximum(self._shelf_at(state.standing, seen), jnp.where(there, state.carried, NONE).max(-1))
        wanted = ((shelf[..., None] == state.requested) & (shelf != NONE)[..., None]).any(-1)
        ways = jnp.maximum(facing, 1)[..., None] == np.arange(1, 5)
        cells = jnp.concatenate([(facing > 0)[..., None], ways, (shelf != NONE)[..., None], wanted[..., None]], -1)
        own = [
            state.cell % layout.columns, state.cell // layout.columns, state.carried != NONE,
            *(state.way == way for way in range(4)), jnp.asarray(layout.road)[state.cell],
        ]  # fmt: skip
        numbers = jnp.stack([x.astype(jnp.float32) for x in own], -1)
        return Observation(jnp.concatenate([numbers, cells.astype(jnp.float32).reshape(n, -1)], -1))

    # What goes with it

    def measures(self, state: Floor) -> dict[str, Array]:
        return {"deliveries": state.delivered.sum()}

    def distances(self, state: Floor) -> Array:
        """[N, N] how far robots are from each other, in cells."""
        columns = self.layout.columns
        return apart(jnp.stack([state.cell % columns, state.cell // columns], -1).astype(jnp.float32))

    def render(self, states: Sequence[Floor], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: roads, shelves, those that are requested, robots."""
        from flockrl.envs.warehouse.render import floor_frames

        return floor_frames(self.layout, states, size)

    @cached_property
    def planner(self) -> Planner:
        return Planner(self.layout)

    def _still(self, state: Floor, seen: Observation, key: Array) -> Array:
        """Nobody moves."""
        return jnp.full(self.n, of.STAY)

    def _planned(self, state: Floor, seen: Observation, key: Array) -> Array:
        """Shortest ways that keep clear of each other, see `plan`."""
        return self.planner.actions(state)
