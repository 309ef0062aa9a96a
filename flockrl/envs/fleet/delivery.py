"""Drones that deliver parcels in time, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, EnvSpec, Observation
from flockrl.envs.fleet.control import steer
from flockrl.envs.fleet.flight import DT, SIDE, Air, Flight, apart, distance, fly, neighbours, senses, take_off
from flockrl.envs.settings import between, share, whole

REACH = 30.0
"""A parcel is taken or handed over within so many metres."""
FREE, WAITS, CARRIED = range(3)
PICKED, IN_TIME = 0.3, 0.7
"""What a drone gets for taking a parcel and for handing it over in time."""
HALFWAY = 0.5
"""What the potential of a drone rises by when it takes a parcel: about the way (km) to a goal."""
FAR = 1e4
"""A cost (m) beyond every distance, for pairs that must not be assigned."""


class Parcels(NamedTuple):
    """t: steps so far; air: the drones. Of each place for a parcel, [K]: status (FREE, WAITS, CARRIED), carrier, left:
    seconds until it is late; pick, drop: [K, 2]. delivered, missed: parcels in time and not, so far."""

    t: Array
    air: Air
    status: Array
    carrier: Array
    left: Array
    pick: Array
    drop: Array
    delivered: Array
    missed: Array


class Delivery:
    """`drones` pick up parcels and hand them over before their deadlines, one parcel at a time.

    In each step of 2 s a parcel appears with probability `rate`, if one of the `orders` places is free, anywhere and
    with a goal anywhere; it must be delivered within `deadline` seconds. A drone without a parcel that comes within 30
    m of one that waits takes it (the nearest drone if there are several) and gets 0.3; within 30 m of the goal it hands
    it over and gets 0.7 if in time. A parcel that is late and still waits is withdrawn; one that is carried is
    delivered late, for nothing. Each near miss (under 20 m) and each step in a no-fly zone costs 0.1. Truncated after
    `steps`. wind, battery, zones, radio and failures are as in fleet/coverage; a drone that is down loses its parcel.

    Observed are `flight.senses`, [whether one carries, way to the goal (km), time left / 300 s], without a parcel [way
    to the nearest one that waits (km), way to the nearest one of those to which no free drone that one hears is
    nearer], for each place [way to the parcel there (km), from there to its goal (km), time left / 300 s], and whether
    a parcel waits at each.
    """

    def __init__(
        self,
        drones: int = 4,
        orders: int = 8,
        rate: float = 0.2,
        deadline: float = 180.0,
        wind: float = 0.0,
        battery: float = 600.0,
        zones: int = 0,
        radio: float = 2000.0,
        failures: float = 0.0,
        steps: int = 150,
        continuous_actions: bool = True,
    ):
        self.flight = Flight("fleet/delivery", drones, wind, battery, zones, radio, failures, steps, continuous_actions)
        whole(self.flight.name, 1, 100, orders=orders)
        share(self.flight.name, rate=rate)
        between(self.flight.name, 1, 1e5, deadline=deadline)
        self.k, self.rate, self.deadline = orders, rate, float(deadline)
        self.spec = self.flight.spec(8, "parcel", orders, 5)
        self.best = rate * steps * (PICKED + IN_TIME) / drones
        """Every parcel that may come, handed over in time: a bound, since those that come at the end cannot be."""
        self.policies = {"nearest": self._nearest, "assigned": self._assigned}

    def reset(self, key: Array) -> tuple[Parcels, Observation]:
        none, there = jnp.zeros(self.k, jnp.int32), jnp.zeros((self.k, 2))
        air = take_off(self.flight, key)
        state = Parcels(jnp.int32(0), air, none, none, jnp.zeros(self.k), there, there, jnp.int32(0), jnp.int32(0))
        return state, self._observe(state)

    def step(self, key: Array, state: Parcels, action: Array) -> tuple[Parcels, Observation, Array, Array, Array]:
        fly_key, come_key, place_key = jax.random.split(key, 3)
        before = state.air.alive
        air, penalty = fly(self.flight, fly_key, state.air, action)
        state, earned = self._hand_over(state._replace(air=air, t=state.t + 1, left=state.left - DT))
        state, taken = self._take(state)
        state = self._appear(state, come_key, place_key)
        cut = state.t >= self.flight.steps
        return state, self._observe(state), earned + taken - penalty, before & ~air.alive & ~cut, cut

    def _hand_over(self, state: Parcels) -> tuple[Parcels, Array]:
        """Parcels that reach their goals, get lost or are too late; [N] what carriers get."""
        where = state.air.pos[state.carrier]
        carried, late = state.status == CARRIED, state.left <= 0
        arrived = carried & (distance(where, state.drop) < REACH)
        lost = (carried & ~state.air.alive[state.carrier]) | ((state.status == WAITS) & late)
        in_time = arrived & ~late
        earned = IN_TIME * ((state.carrier == np.arange(self.flight.drones)[:, None]) & in_time).sum(1)
        status = jnp.where(arrived | lost, FREE, state.status)
        missed = state.missed + (lost | (arrived & late)).sum()
        return state._replace(status=status, delivered=state.delivered + in_time.sum(), missed=missed), earned

    def _busy(self, state: Parcels) -> Array:
        """[N] who carries a parcel."""
        mine = (state.carrier == np.arange(self.flight.drones)[:, None]) & (state.status == CARRIED)
        return mine.any(1)

    def _take(self, state: Parcels) -> tuple[Parcels, Array]:
        """Each free drone near a parcel takes the nearest one, if no other drone is nearer to it; [N] what they get."""
        can = (~self._busy(state) & state.air.alive)[:, None] & (state.status == WAITS)
        far = jnp.where(can, distance(state.air.pos[:, None], state.pick), FAR)
        wants = (far < REACH) & (np.arange(self.k) == far.argmin(1)[:, None])
        gets = wants & (np.arange(self.flight.drones)[:, None] == jnp.where(wants, far, FAR).argmin(0))
        taken = gets.any(0)
        carrier = jnp.where(taken, gets.argmax(0), state.carrier).astype(jnp.int32)
        return state._replace(status=jnp.where(taken, CARRIED, state.status), carrier=carrier), PICKED * gets.any(1)

    def _appear(self, state: Parcels, come_key: Array, place_key: Array) -> Parcels:
        free = state.status == FREE
        new = free & (jnp.cumsum(free) == 1) & (jax.random.uniform(come_key) < self.rate)
        spots = SIDE * (0.05 + 0.9 * jax.random.uniform(place_key, (2, 2)))
        return state._replace(
            status=jnp.where(new, WAITS, state.status), left=jnp.where(new, self.deadline, state.left),
            pick=jnp.where(new[:, None], spots[0], state.pick), drop=jnp.where(new[:, None], spots[1], state.drop),
        )  # fmt: skip

    def distances(self, state: Parcels) -> Array:
        """[N, N] km between drones: the unit of what they observe."""
        return apart(state.air.pos) / SIDE

    def measures(self, state: Parcels) -> dict[str, Array]:
        """delivered: parcels in time; missed: those withdrawn, lost or late; near_misses: pairs times steps; inside:
        drones times steps in no-fly zones; down: drones with an empty battery."""
        air = state.air
        return {
            "delivered": state.delivered, "missed": state.missed, "near_misses": air.near, "inside": air.inside,
            "down": (~air.alive).sum(),
        }  # fmt: skip

    def render(self, states: Sequence[Parcels], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.fleet.render import delivery_frames

        return delivery_frames(states, self.flight.radio, self.flight.battery, size)

    def _goal(self, state: Parcels) -> tuple[Array, Array, Array]:
        """busy [N], the goal [N, 2] and the seconds left [N] of the parcel that each drone carries, 0 without one."""
        mine = (state.carrier == np.arange(self.flight.drones)[:, None]) & (state.status == CARRIED)
        return mine.any(1), mine.astype(jnp.float32) @ state.drop, (mine * state.left).sum(1)

    def _observe(self, state: Parcels) -> Observation:
        air, n = state.air, self.flight.drones
        busy, goal, left = self._goal(state)
        own = jnp.concatenate(
            [busy[:, None], jnp.where(busy[:, None], (goal - air.pos) / SIDE, 0.0), left[:, None] / 300], -1
        )
        waits, near = jnp.broadcast_to(state.status == WAITS, (n, self.k)), neighbours(self.flight, air)
        way = (state.pick - air.pos[:, None]) / SIDE
        rest = jnp.concatenate([(state.drop - state.pick) / SIDE, state.left[:, None] / 300], -1)
        orders = jnp.concatenate([way, jnp.broadcast_to(rest, (n, self.k, 3))], -1)
        orders = jnp.where(waits[..., None], orders, 0.0).reshape(n, -1)
        far = self._costs(state)
        rivals = jnp.where(near[..., None], far, FAR).min(1)
        nearest = [_to_least(cost, way) for cost in (far, jnp.where(far <= rivals, far, FAR))]
        obs = jnp.concatenate([senses(self.flight, air, near), own, *nearest, orders, waits], -1)
        obs = jnp.where(air.alive[:, None], obs, 0.0)
        return Observation(obs, alive=air.alive, neighbours=near)

    def _costs(self, state: Parcels) -> Array:
        """[N, K] metres from each drone that is free to each parcel that waits; FAR for all other pairs."""
        can = (~self._busy(state) & state.air.alive)[:, None] & (state.status == WAITS)
        return jnp.where(can, distance(state.air.pos[:, None], state.pick), FAR)

    def _fetch(self, state: Parcels, chosen: Array, good: Array) -> Array:
        """Carriers fly to their goals, others to the parcels they chose [N] where that is good, or stay."""
        busy, goal, _ = self._goal(state)
        idle = jnp.where(good[:, None], state.pick[chosen], state.air.pos)
        return steer(self.flight, state.air, jnp.where(busy[:, None], goal, idle))

    def _nearest(self, state: Parcels, seen: Observation, key: Array) -> Array:
        """Each free drone goes for the parcel that is nearest to it, whoever else does."""
        costs = self._costs(state)
        return self._fetch(state, costs.argmin(1), costs.min(1) < FAR)

    def _assigned(self, state: Parcels, seen: Observation, key: Array) -> Array:
        """Free drones are assigned to parcels so that the sum of the distances is smallest (the Hungarian method)."""
        from optax.assignment import hungarian_algorithm

        costs = self._costs(state)
        drones, parcels = hungarian_algorithm(costs)
        chosen = jnp.zeros(self.flight.drones, jnp.int32).at[drones].set(parcels.astype(jnp.int32))
        picked = jnp.zeros(self.flight.drones, bool).at[drones].set(costs[drones, parcels] < FAR)
        return self._fetch(state, chosen, picked)


def _to_least(cost: Array, way: Array) -> Array:
    """[N, 2] the way of ways [N, K, 2] whose cost [N, K] is the least of its row; 0 where none is below FAR."""
    least = (np.arange(cost.shape[1]) == cost.argmin(1)[:, None]) & (cost < FAR)
    return jnp.where(least[..., None], way, 0.0).sum(1)


def potential(spec: EnvSpec, seen: Observation) -> Array:
    """[T, B, N] hints for learning, by `--shaping flockrl.envs.fleet.delivery:potential`: minus the kilometres to the
    goal of the parcel that a drone carries, or to the nearest parcel that is its own, else to the nearest one."""
    start = spec.entities[0].own[1][0]
    busy = seen.obs[..., start] > 0.5
    goal, near, mine = (distance(seen.obs[..., start + k : start + k + 2], jnp.zeros(2)) for k in (1, 4, 6))
    return jnp.where(busy, HALFWAY - goal, -jnp.where(mine > 0, mine, near))
