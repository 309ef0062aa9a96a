"""Classical control of drones: fly to a target, keep clear of zones and of each other, charge in time."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array
from flockrl.envs.fleet.flight import DRAG, DT, MISS, MOVES, PAD, SIDE, THRUST, ZONE, Air, Flight, distance

CRUISE = 12.0
"""Speed (m/s) that a drone wants where its target is far."""
SHY, FIELD = 60.0, 8.0
"""How near (m) a zone's edge or another drone must be to push, and the speed (m/s) of the strongest push."""


def steer(flight: Flight, air: Air, target: Array, avoid: bool = True) -> Array:
    """Actions that bring drones to their targets [N, 2]: a wanted velocity towards the target plus potential fields,
    and the thrust that reaches it within a step against drag and wind. A drone whose battery gets low flies to the
    pad."""
    home = jnp.full(2, SIDE / 2)
    far = distance(air.pos, home)
    low = air.charge < 2 * (2 * far / CRUISE) + 20
    stays = (far < PAD) & (air.charge < 0.9 * flight.battery) & (air.charge < 2 * flight.steps * DT)
    target = jnp.where((low | stays)[:, None], home, target)
    way = target - air.pos
    length = jnp.maximum(distance(way, jnp.zeros(2)), 1e-6)[:, None]
    wanted = way / length * jnp.minimum(CRUISE, length / (2 * DT))
    if avoid:
        wanted = wanted + _fields(flight, air)
    thrust = ((wanted - air.vel) / DT + DRAG * (air.vel - air.wind)) / THRUST
    return to_action(flight, thrust)


def _fields(flight: Flight, air: Air) -> Array:
    """[N, 2] pushes (m/s) away from zones and from other drones that fly."""
    push = jnp.zeros_like(air.pos)
    if flight.zones:
        push = push + _push(air.pos[:, None] - air.zones, ZONE, jnp.ones((1, flight.zones), bool))
    others = air.alive & ~np.eye(flight.drones, dtype=bool)
    return push + _push(air.pos[:, None] - air.pos, MISS, others)


def _push(away: Array, radius: float, counts: Array) -> Array:
    length = jnp.maximum(jnp.sqrt((away**2).sum(-1)), 1e-3)
    strength = FIELD * jnp.clip((radius + SHY - length) / SHY, 0.0, 1.0) * counts
    return (away / length[..., None] * strength[..., None]).sum(1)


def to_action(flight: Flight, thrust: Array) -> Array:
    """[N, 2] thrust as continuous actions, or the nearest discrete ones."""
    if flight.continuous:
        return jnp.clip(thrust, -1.0, 1.0)
    return ((thrust[:, None] - MOVES) ** 2).sum(-1).argmin(-1)
