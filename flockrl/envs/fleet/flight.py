"""How drones fly: inertia, wind, batteries, no-fly zones, near misses. Positions in metres, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.entities import Entities, Kind
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Space
from flockrl.envs.others import from_next
from flockrl.envs.settings import between, share, whole

SIDE = 1000.0
"""The airspace is a square of this many metres, seen from above; all fly at one height."""
DT = 2.0
"""Seconds of a step."""
THRUST, DRAG = 4.0, 0.2
"""Acceleration of full thrust (m/s²) and drag per second: the fastest flight through the air is 20 m/s."""
FAST = THRUST / DRAG
ZONE = 100.0
"""Radius of a no-fly zone."""
MISS = 20.0
"""Two drones nearer than this are a near miss."""
PAD, CHARGING = 50.0, 10.0
"""Within PAD metres of the charging pad, which is in the middle, a battery gains CHARGING seconds of hover per
second."""
GUSTS = 0.9
"""How much of a gust is left after a step."""
MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float32)
"""Thrust of the discrete actions stay, left, right, down, up."""


@dataclass(frozen=True)
class Flight:
    """What both tasks of a fleet have in common: the settings of the drones and of the air."""

    name: str
    drones: int
    wind: float
    battery: float
    zones: int
    radio: float
    failures: float
    steps: int
    continuous: bool

    def __post_init__(self) -> None:
        whole(self.name, 1, 100, drones=self.drones)
        whole(self.name, 0, 20, zones=self.zones)
        whole(self.name, 1, 100_000, steps=self.steps)
        between(self.name, 0, FAST, wind=self.wind)
        between(self.name, 1, 1e6, battery=self.battery)
        between(self.name, 0, 1e6, radio=self.radio)
        share(self.name, failures=self.failures)

    @property
    def falls(self) -> float:
        """The chance that a drone fails in a step, so that `failures` of them do in an episode."""
        return 1 - (1 - self.failures) ** (1 / self.steps)

    def spec(self, own: int, kind: str, count: int, width: int) -> EnvSpec:
        """own: how many numbers about itself a drone observes beside those of `senses`. kind, count, width: what it
        perceives besides, each with so many numbers and then, of all of them, whether they are there."""
        action: Space = Box((2,), -1.0, 1.0) if self.continuous else Discrete(len(MOVES))
        others, zones = self.drones - 1, 9 + 3 * (self.drones - 1)
        more = zones + 2 * self.zones
        size = more + own + count * (width + 1)
        entities = Entities(
            ((0, 9), (more, own)),
            (Kind("drone", others, ((9, 2),), 9 + 2 * others), Kind("zone", self.zones, ((zones, 2),)),
             Kind(kind, count, ((more + own, width),), size - count)),
        )  # fmt: skip
        return EnvSpec(
            name=self.name,
            agents=tuple(f"drone_{i}" for i in range(self.drones)),
            observations=(Box((size,)),) * self.drones,
            actions=(action,) * self.drones,
            max_steps=self.steps,
            neighbours=True,
            entities=(entities,) * self.drones,
        )


class Air(NamedTuple):
    """pos, vel: [N, 2]; charge: [N] seconds of hover left; mean, gust: [2] the wind of the episode and how it differs
    now (m/s); zones: [Z, 2] middles; near, inside: counts so far of near misses (pairs and steps) and of steps of
    drones in no-fly zones."""

    pos: Array
    vel: Array
    charge: Array
    mean: Array
    gust: Array
    zones: Array
    near: Array
    inside: Array

    @property
    def wind(self) -> Array:
        return self.mean + self.gust

    @property
    def alive(self) -> Array:
        return self.charge > 0


def take_off(flight: Flight, key: Array) -> Air:
    """Drones anywhere, at rest, with full batteries; zones anywhere but at the pad."""
    place, wind, zone = jax.random.split(key, 3)
    turn = 2 * jnp.pi * jax.random.uniform(wind)
    around = jax.random.uniform(zone, (flight.zones, 2))
    reach = 2 * PAD + ZONE + (SIDE / 2 - 2 * PAD - ZONE) * around[:, :1]
    way = 2 * jnp.pi * around[:, 1:]
    return Air(
        pos=jax.random.uniform(place, (flight.drones, 2)) * SIDE,
        vel=jnp.zeros((flight.drones, 2)),
        charge=jnp.full(flight.drones, float(flight.battery)),
        mean=flight.wind * jnp.stack([jnp.cos(turn), jnp.sin(turn)]),
        gust=jnp.zeros(2),
        zones=SIDE / 2 + reach * jnp.concatenate([jnp.cos(way), jnp.sin(way)], -1),
        near=jnp.int32(0),
        inside=jnp.int32(0),
    )


def thrust_of(flight: Flight, action: Array) -> Array:
    """[N, 2] thrust of at most 1 from actions."""
    if not flight.continuous:
        return jax.nn.one_hot(action, len(MOVES)) @ MOVES
    return action / jnp.maximum(jnp.sqrt((action**2).sum(-1, keepdims=True)), 1.0)


def fly(flight: Flight, key: Array, air: Air, action: Array) -> tuple[Air, Array]:
    """One step. Returns the air after it and [N] penalties: 0.1 for each near miss and for being in a no-fly zone.

    dv/dt = 4 thrust - 0.2 (v - wind). A battery loses 1 + |thrust|² seconds of hover per second; a drone whose battery
    is empty is down for good and stays where it is; so is one that fails, whose battery counts as empty.
    """
    up = air.alive
    key, fall_key = jax.random.split(key) if flight.failures else (key, key)
    thrust = jnp.where(up[:, None], thrust_of(flight, action), 0.0)
    gust = air.gust
    if flight.wind:
        gust = GUSTS * gust + flight.wind * 0.2 * jax.random.normal(key, (2,))
    vel = air.vel + DT * (THRUST * thrust - DRAG * (air.vel - air.mean - gust))
    pos = air.pos + DT * vel
    held = jnp.clip(pos, 0.0, SIDE)
    vel = jnp.where(up[:, None] & (held == pos), vel, 0.0)
    pos = jnp.where(up[:, None], held, air.pos)
    used = DT * (1 + (thrust**2).sum(-1))
    gained = DT * CHARGING * (distance(pos, jnp.full(2, SIDE / 2)) < PAD)
    charge = jnp.where(up, jnp.clip(air.charge - used + gained, 0.0, flight.battery), 0.0)
    if flight.failures:
        charge = jnp.where(jax.random.uniform(fall_key, charge.shape) < flight.falls, 0.0, charge)
    close = (apart(pos) < MISS) & up & up[:, None] & ~np.eye(flight.drones, dtype=bool)
    within = (distance(pos[:, None], air.zones) < ZONE) & up[:, None]
    after = air._replace(
        pos=pos, vel=vel, charge=charge, gust=gust, near=air.near + close.sum() // 2, inside=air.inside + within.sum()
    )
    return after, 0.1 * (close.sum(1) + within.sum(1))


def neighbours(flight: Flight, air: Air) -> Array:
    """[N, N] whether drone i hears drone j: both fly, and at most `radio` metres apart."""
    near = apart(air.pos) <= flight.radio
    return near & air.alive & air.alive[:, None] & ~np.eye(flight.drones, dtype=bool)


def senses(flight: Flight, air: Air, near: Array) -> Array:
    """[N, 9 + 3 (N - 1) + 2 Z]: position from the middle, speed, battery, wind, way to the pad; ways to the others, and
    whether they are heard (near: [N, N], zeros where not); ways to the zones. Lengths in km, speeds / 20 m/s, battery
    from 0 to 1."""
    n = flight.drones
    pad = (SIDE / 2 - air.pos) / SIDE
    wind = jnp.broadcast_to(air.wind / FAST, (n, 2))
    zones = ((air.zones - air.pos[:, None]) / SIDE).reshape(n, -1)
    ways = jnp.where(near[..., None], (air.pos - air.pos[:, None]) / SIDE, 0.0)
    own = (-pad, air.vel / FAST, air.charge[:, None] / flight.battery, wind, pad)
    return jnp.concatenate([*own, from_next(ways).reshape(n, -1), from_next(near), zones], -1)


def distance(a: Array, b: Array) -> Array:
    return jnp.sqrt(((a - b) ** 2).sum(-1))


def apart(pos: Array) -> Array:
    """[N, N] metres between drones at pos [N, 2]."""
    x, y = pos[:, 0], pos[:, 1]
    return jnp.sqrt((x[:, None] - x) ** 2 + (y[:, None] - y) ** 2)
