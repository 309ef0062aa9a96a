"""The traffic junction by IC3Net's rules (Singh et al. 2019): cars that cannot see each other must not crash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.comm.routes import LEVELS, make_roads
from flockrl.envs.comm.window import OUTSIDE, look, window_size
from flockrl.envs.emergence import apart
from flockrl.envs.settings import one_of, share, whole

GAS, BRAKE = range(2)


class Traffic(NamedTuple):
    """t: steps so far. Of each place for a car, [N]: on: whether a car is on the road; route; at: how far along it;
    cell: where that is; wait: steps since it came; acted: what it did last. crashed: whether any cars ever shared a
    cell; now: [N] those that do; through: cars that have left."""

    t: Array
    on: Array
    route: Array
    at: Array
    cell: Array
    wait: Array
    acted: Array
    now: Array
    crashed: Array
    through: Array


class TrafficJunction:
    """Cars on fixed routes through crossings; each step a car gives gas (0: one cell on) or brakes (1).

    There are places for 5, 10 or 20 cars (easy, medium, hard), which are the agents; a place without a car is dead. In
    a step all cars act; those that drive past their last cell leave (terminated). Then, entry by entry, a car comes
    with probability `rate` if there is a place, a random one; its route is drawn among those of the entry, and it may
    be put onto another car. A car that acted and is still there gets -0.01 per step since it came and -10 if it shares
    a cell with another car. Crashed cars drive on. An episode begins without cars and is truncated after 20, 40 or 80
    steps; it succeeds if no cars ever shared a cell.

    A car observes [its last action, route / (routes - 1), and for its own cell (`vision=0`) or the 9 around it
    (`vision=1`) the one-hot of the cell's number, whether it is no road, and how many cars are there]. `compact` leaves
    out the numbers of all cells but the own one, from which they follow; `one_hot` tells the route by a one-hot instead
    of a number, which lets a network tell 56 of them apart at once; `ahead` adds the one-hots of that many cells that
    come next on its route. They follow from route and cell, but so a network need not learn the map. The dead see
    zeros. Agents are anonymous: any car may come to any place.
    """

    tunable = ("rate",)

    def __init__(
        self,
        difficulty: str = "easy",
        vision: int = 0,
        rate: float | None = None,
        compact: bool = False,
        one_hot: bool = False,
        ahead: int = 0,
    ):
        one_of("comm/traffic_junction", LEVELS, difficulty=difficulty)
        one_of("comm/traffic_junction", (0, 1), vision=vision)
        whole("comm/traffic_junction", 0, 8, ahead=ahead)
        self.level = level = LEVELS[difficulty]
        self.rate = level.rate if rate is None else rate
        share("comm/traffic_junction", rate=self.rate)
        self.roads, self.n, self.compact, self.one_hot = make_roads(level), level.cars, compact, one_hot
        self.paths, self.around = self.roads.paths, self.roads.around(vision)
        self.options = len(self.paths) // len(self.roads.starts)
        """Routes of each entry."""
        cells, self.ahead = len(self.roads.cells), ahead
        numbers = 1 + (len(self.paths) if one_hot else 1) + window_size(cells, vision, 1, compact) + ahead * cells
        self.spec = EnvSpec(
            name="comm/traffic_junction",
            agents=tuple(f"car_{i}" for i in range(self.n)),
            observations=(Box((numbers,), 0.0, float(self.n)),) * self.n,
            actions=(Discrete(2),) * self.n,
            max_steps=level.steps,
            respawn=True,
            reward_after_death=False,
            anonymous=True,
        )
        self.policies = {"always_gas": self._always_gas, "omniscient": self._omniscient}

    def reset(self, key: Array) -> tuple[Traffic, Observation]:
        zero, no = jnp.zeros(self.n, jnp.int32), jnp.zeros(self.n, bool)
        state = Traffic(
            jnp.int32(0), no, zero, zero, zero + OUTSIDE, zero, zero, no, jnp.bool_(False), jnp.int32(0)
        )  # fmt: skip
        return state, self._observe(state)

    def step(self, key: Array, state: Traffic, action: Array) -> tuple[Traffic, Observation, Array, Array, Array]:
        at = state.at + (state.on & (action == GAS))
        cell = jnp.where(state.on, self._cell(state.route, at), OUTSIDE)
        stays = state.on & (cell != OUTSIDE)
        left, wait = state.on & ~stays, jnp.where(stays, state.wait + 1, 0)
        came, route, start = self._arrivals(key, stays)
        on, cell = stays | came, jnp.where(came, start, cell)
        now = ((cell[:, None] == cell) & ~np.eye(self.n, dtype=bool) & on).any(1) & on
        state = Traffic(
            t=state.t + 1, on=on, route=jnp.where(came, route, state.route), at=jnp.where(came, 0, at), cell=cell,
            wait=wait, acted=jnp.where(stays, action, 0).astype(jnp.int32), now=now, crashed=state.crashed | now.any(),
            through=state.through + left.sum(),
        )  # fmt: skip
        reward = jnp.where(stays, -0.01 * wait - 10.0 * now, 0.0)
        return state, self._observe(state), reward, left, state.t >= self.level.steps

    def _cell(self, route: Array, at: Array) -> Array:
        """[N] where cars are on their routes."""
        return jnp.asarray(self.paths.reshape(-1))[route * self.paths.shape[1] + at]

    def _arrivals(self, key: Array, taken: Array) -> tuple[Array, Array, Array]:
        """[N] each: the places where a car comes, its route and its first cell. taken: [N] places with a car.

        Entries draw dead places one after the other, which is to put those into a random order first and then to serve
        the entries in turn.
        """
        entries, starts = len(self.roads.starts), self.roads.starts
        chance, choice, draw = jnp.split(jax.random.uniform(key, (2 * entries + self.n,)), (entries, 2 * entries))
        comes = chance < self.rate
        turn = jnp.cumsum(comes) - 1
        draw, each = jnp.where(taken, -1.0, draw), np.arange(self.n)
        before = (draw > draw[:, None]) | ((draw == draw[:, None]) & (each < each[:, None]))
        served = (before.sum(1)[:, None] == turn) & comes & ~taken[:, None]  # [N, E]
        route = np.arange(entries) * self.options + (choice * self.options).astype(jnp.int32)
        return served.any(1), (served * route).sum(1), (served * starts).sum(1)

    def distances(self, state: Traffic) -> Array:
        """[N, N] how far cars are from each other, in cells; the place of none is somewhere."""
        return apart(jnp.asarray(self.roads.cells, jnp.float32)[state.cell])

    def measures(self, state: Traffic) -> dict[str, Array]:
        return {"success": ~state.crashed, "throughput": state.through}

    def render(self, states: Sequence[Traffic], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: roads and cars, those that brake and those that crash."""
        from flockrl.envs.comm.render import traffic_frames

        return traffic_frames(states, self.roads.cells, self.level.size, size)

    def _observe(self, state: Traffic) -> Observation:
        window = state.cell[:, None]
        if self.around.shape[1] > 1:
            window = jnp.asarray(self.around)[state.cell]
        cars = ((window[..., None] == state.cell) & state.on).sum(-1)
        routes = len(self.paths)
        route = jax.nn.one_hot(state.route, routes) if self.one_hot else state.route[:, None] / max(routes - 1, 1)
        around = look(len(self.roads.cells), window, (cars,), self.compact)
        obs = jnp.concatenate([state.acted[:, None], route, around, *self._next_cells(state)], -1)
        return Observation(jnp.where(state.on[:, None], obs, 0.0), alive=state.on)

    def _next_cells(self, state: Traffic) -> list[Array]:
        """One-hots [N, cells] of each cell ahead on the cars' routes; zeros past a route's end."""
        steps, end = np.arange(1, self.ahead + 1), self.paths.shape[1] - 1
        cells = (self._cell(state.route, jnp.minimum(state.at + step, end)) for step in steps)
        return [jax.nn.one_hot(cell, len(self.roads.cells)) for cell in cells]

    def _always_gas(self, state: Traffic, seen: Observation, key: Array) -> Array:
        """Nobody ever brakes."""
        return jnp.full(self.n, GAS)

    def _omniscient(self, state: Traffic, seen: Observation, key: Array) -> Array:
        """Everyone knows all routes: of two cars that would meet, the one that has come less far brakes (or the other
        one, if that one brakes already), until nobody would meet."""
        each = np.arange(self.n)
        after = self._cell(state.route, state.at + 1)
        less = (state.at[:, None] < state.at) | ((state.at[:, None] == state.at) & (each[:, None] > each))

        def brake(brakes: Array) -> Array:
            cell = jnp.where(brakes, state.cell, after)
            meets = (cell[:, None] == cell) & (cell != OUTSIDE) & state.on & state.on[:, None]
            return brakes | (meets & (each[:, None] != each) & (less | brakes)).any(1)

        def unsettled(carry: tuple[Array, Array]) -> Array:
            return (carry[0] != carry[1]).any()

        none = jnp.zeros(self.n, bool)
        settled = jax.lax.while_loop(unsettled, lambda carry: (carry[1], brake(carry[1])), (none, brake(none)))
        return settled[1].astype(jnp.int32)
