"""Drones that cover an area: as near as possible to wherever something may happen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Observation
from flockrl.envs.fleet.control import steer
from flockrl.envs.fleet.flight import DT, SIDE, Air, Flight, apart, distance, fly, neighbours, senses, take_off
from flockrl.envs.settings import between, whole

CELLS = 16
"""The area is a grid of so many by so many points."""
WIDTH, FLOOR = 120.0, 0.1
"""Standard deviation (m) of a hotspot, and the share of the density that is even."""
POINTS = (np.stack(np.meshgrid(*[np.arange(CELLS)] * 2, indexing="ij"), -1).reshape(-1, 2) + 0.5) * (SIDE / CELLS)
POINTS = POINTS.astype(np.float32)
LINE = POINTS[:CELLS, 1]
"""[CELLS] coordinates (m) of the points along one edge."""
ROUGH = LINE.reshape(-1, 2).mean(1)
"""The same for the coarser grid on which a drone estimates its own cell."""
ACROSS = 1.5 * SIDE
"""More than the area's diagonal: who hears or sees as far hears or sees everything."""
LANE = 40.0
"""Seconds that a sweeping drone takes from one edge to the other."""


class Patrol(NamedTuple):
    """t: steps so far; air: the drones; spots: [H, 2] hotspots; weight: [H] their shares; density: [P] of the points,
    sum 1; rough: [P / 4] the same on the coarser grid; cost: the sum over steps of the mean squared distance (km²)."""

    t: Array
    air: Air
    spots: Array
    weight: Array
    density: Array
    rough: Array
    cost: Array


class Coverage:
    """`drones` fly over a square kilometre so that the nearest of them is near wherever something may happen.

    Where that is, is a density: a tenth of it even, the rest around `hotspots`, which are drawn in each episode with
    their weights. Everybody is paid -10 times the mean over the density of the squared distance (km²) to the nearest
    drone that flies, and 0.1 less for each near miss (under 20 m) and each step in a no-fly zone of its own. Drones
    begin anywhere. A step is 2 s; truncated after `steps`. wind: m/s; battery: seconds of hover (full thrust takes
    twice as much); zones: no-fly zones of 100 m; radio: m within which drones hear each other; sensing: m within which
    they see hotspots; failures: the share of drones that fail somewhere in an episode, and are down.

    Thrust is continuous ([x, y], at most 1 long) or, with `continuous_actions=false`, one of stay, left, right, down,
    up. A drone whose battery is empty is down, and dead. Observed are `flight.senses`, the own cell [way to its centre
    of mass (km), its mass], for each hotspot [way (km), weight], and whether each is seen. The cell is what is nearer
    to the drone than to any other that it hears, under the density of the hotspots that it sees, on a grid of 125 m.
    """

    def __init__(
        self,
        drones: int = 5,
        hotspots: int = 3,
        wind: float = 0.0,
        battery: float = 600.0,
        zones: int = 0,
        radio: float = 2000.0,
        sensing: float = 2000.0,
        failures: float = 0.0,
        steps: int = 100,
        continuous_actions: bool = True,
    ):
        self.flight = Flight("fleet/coverage", drones, wind, battery, zones, radio, failures, steps, continuous_actions)
        whole(self.flight.name, 0, 20, hotspots=hotspots)
        between(self.flight.name, 0, 1e6, sensing=sensing)
        self.hotspots, self.sensing = hotspots, sensing
        self.spec = self.flight.spec(3, "hotspot", hotspots, 3)
        self.policies = {
            "lloyd": self._lloyd, "lloyd_radio": self._lloyd_radio, "sweep": self._sweep, "stay": self._stay,
        }  # fmt: skip

    def reset(self, key: Array) -> tuple[Patrol, Observation]:
        air_key, spot_key, weight_key = jax.random.split(key, 3)
        spots = SIDE * (0.1 + 0.8 * jax.random.uniform(spot_key, (self.hotspots, 2)))
        weight = 0.5 + jax.random.uniform(weight_key, (self.hotspots,))
        weight = weight / weight.sum()
        fine, rough = (_even(self.hotspots, line) + _bumps(spots, weight, line).sum(0) for line in (LINE, ROUGH))
        state = Patrol(jnp.int32(0), take_off(self.flight, air_key), spots, weight, fine, rough, jnp.float32(0))
        return state, self._observe(state)

    def step(self, key: Array, state: Patrol, action: Array) -> tuple[Patrol, Observation, Array, Array, Array]:
        before = state.air.alive
        air, penalty = fly(self.flight, key, state.air, action)
        cost = self.cost(air, state.density)
        state = state._replace(t=state.t + 1, air=air, cost=state.cost + cost)
        cut = state.t >= self.flight.steps
        return state, self._observe(state), -10 * cost - penalty, before & ~air.alive & ~cut, cut

    def cost(self, air: Air, density: Array) -> Array:
        """The mean squared distance (km²) to the nearest drone that flies; 2, the diagonal's square, if none does."""
        return (jnp.minimum(_squared(air, LINE).min(0), 2.0) * density).sum()

    def distances(self, state: Patrol) -> Array:
        """[N, N] km between drones: the unit of what they observe."""
        return apart(state.air.pos) / SIDE

    def measures(self, state: Patrol) -> dict[str, Array]:
        """distance: root mean square distance (m) to the nearest drone over the episode; near_misses: pairs times
        steps; inside: drones times steps in no-fly zones; down: drones with an empty battery."""
        air = state.air
        return {
            "distance": SIDE * jnp.sqrt(state.cost / jnp.maximum(state.t, 1)), "near_misses": air.near,
            "inside": air.inside, "down": (~air.alive).sum(),
        }  # fmt: skip

    def render(self, states: Sequence[Patrol], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.fleet.render import coverage_frames

        return coverage_frames(states, self.flight.radio, self.flight.battery, size)

    def _observe(self, state: Patrol) -> Observation:
        air, n = state.air, self.flight.drones
        near = neighbours(self.flight, air)
        way = state.spots - air.pos[:, None]
        seen = distance(way, jnp.zeros(2)) <= self.sensing
        weight = jnp.broadcast_to(state.weight[:, None], (n, self.hotspots, 1))
        spots = jnp.where(seen[..., None], jnp.concatenate([way / SIDE, weight], -1), 0.0)
        known = state.rough
        if self.sensing < ACROSS:
            bumps = _bumps(state.spots, state.weight, ROUGH)
            known = _even(self.hotspots, ROUGH) + (seen[..., None] * bumps).sum(1)
        mass, centre = self._cells(air, near, known, ROUGH)
        cell = jnp.concatenate([(centre - air.pos) / SIDE, mass], -1)
        obs = jnp.concatenate([senses(self.flight, air, near), cell, spots.reshape(n, -1), seen], -1)
        obs = jnp.where(air.alive[:, None], obs, 0.0)
        return Observation(obs, alive=air.alive, neighbours=near)

    def _cells(self, air: Air, heard: Array | None, density: Array, line: np.ndarray) -> tuple[Array, Array]:
        """The mass [N, 1] of each drone's Voronoi cell among those it hears [N, N] (None: all that fly), and its centre
        of mass [N, 2]; the drone's place if the cell is empty. density: [P], or [N, P] as each drone knows it, of a
        grid with these coordinates along an edge."""
        squared = _squared(air, line)
        rivals = squared.min(0)
        if heard is not None and self.flight.radio < ACROSS:
            rivals = jnp.where(heard[..., None], squared, jnp.inf).min(1)
        mine = squared <= rivals + 1e-6  # the same distance may be rounded differently in two places of a program
        mine = jnp.where(mine, density, 0.0).reshape(-1, len(line), len(line))
        rows, moments = mine.sum(1), (mine * line[:, None]).sum(1)  # sums over the last axis would be slow
        mass = rows.sum(1, keepdims=True)
        centre = jnp.stack([moments.sum(1), rows @ line], -1) / jnp.maximum(mass, 1e-6)
        return mass, jnp.where(mass > 1e-6, centre, air.pos)

    def _lloyd(self, state: Patrol, seen: Observation, key: Array) -> Array:
        """Lloyd's rule (Cortés et al. 2004) by drones that know the density and all others: fly to the centre of mass
        of one's own Voronoi cell."""
        return steer(self.flight, state.air, self._cells(state.air, None, state.density, LINE)[1])

    def _lloyd_radio(self, state: Patrol, seen: Observation, key: Array) -> Array:
        """Lloyd's rule where each knows only of the drones that it hears."""
        heard = neighbours(self.flight, state.air)
        return steer(self.flight, state.air, self._cells(state.air, heard, state.density, LINE)[1])

    def _sweep(self, state: Patrol, seen: Observation, key: Array) -> Array:
        """Boustrophedon: each drone goes up and down over its own strip."""
        n, time = self.flight.drones, state.t * DT / LANE
        up = 1 - jnp.abs(time % 2 - 1)
        x = (np.arange(n) + 0.25 + 0.5 * (jnp.floor(time / 2) % 2)) / n
        return steer(self.flight, state.air, SIDE * jnp.stack([x, jnp.full(n, 0.05 + 0.9 * up)], -1))

    def _stay(self, state: Patrol, seen: Observation, key: Array) -> Array:
        """Everybody stays where it is."""
        return steer(self.flight, state.air, state.air.pos, avoid=False)


def _squared(air: Air, line: np.ndarray) -> Array:
    """[N, P] squared distances (km²) of points from drones, more than any distance for drones that are down. line: the
    coordinates of the points along an edge."""
    # Points are a grid, so that squares of either coordinate make all distances.
    x, y = ((jnp.asarray(line) - air.pos[:, axis, None]) ** 2 / SIDE**2 for axis in (0, 1))
    x = jnp.where(air.alive[:, None], x, 2.0)
    return (x[:, :, None] + y[:, None]).reshape(-1, len(line) ** 2)


def _even(hotspots: int, line: np.ndarray) -> float:
    """The density of a point far from every hotspot."""
    return (FLOOR if hotspots else 1.0) / len(line) ** 2


def _bumps(spots: Array, weight: Array, line: np.ndarray) -> Array:
    """[H, P] the density around each hotspot [H, 2], by its weight [H]."""
    x, y = (jnp.exp(-((line - spots[:, axis, None]) ** 2) / (2 * WIDTH**2)) for axis in (0, 1))
    x, y = x / x.sum(1, keepdims=True), y / y.sum(1, keepdims=True)
    share = (1 - FLOOR) * weight[:, None, None]
    return (share * x[:, :, None] * y[:, None]).reshape(-1, len(line) ** 2)
