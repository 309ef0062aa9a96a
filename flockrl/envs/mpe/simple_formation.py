"""simple_formation: N agents stand evenly on a circle around a landmark."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from flockrl.core.entities import Entities, layout
from flockrl.core.types import Array
from flockrl.envs.mpe.core import BLUE, Body, ParticleEnv, Scenario, World
from flockrl.envs.mpe.geometry import beside, distance, relative
from flockrl.envs.mpe.matching import matched
from flockrl.envs.mpe.settings import at_least

CLOSE = 0.05


class Formation(Scenario):
    """N agents are assigned to N places, one each, such that the sum of their distances is smallest. Every agent's
    reward is minus the mean distance, where a distance above 2 counts as 2. Subclasses define the places."""

    def __init__(self, n: int, terminate_on_success: bool = False):
        self.n, self.terminate_on_success = n, terminate_on_success

    def places(self, world: World) -> Array:
        """[N, 2]"""
        raise AssertionError("a formation defines places")

    def observe(self, world: World) -> Array:
        """[velocity, position, landmarks]"""
        agents = world.pos[: self.n]
        return beside(world.vel, agents, relative(world.pos[self.n :], agents))

    def entities(self) -> list[Entities]:
        return [layout(("own", 4), ("landmark", len(self.landmarks), 2))] * self.n

    def reward(self, world: World) -> Array:
        return jnp.broadcast_to(-jnp.minimum(self._misses(world), 2.0).mean(), (self.n,))

    def terminal(self, world: World) -> Array:
        if not self.terminate_on_success:
            return super().terminal(world)
        return jnp.all(self._misses(world) < CLOSE)

    def _misses(self, world: World) -> Array:
        """[N] each agent's distance to its place."""
        return matched(distance(world.pos[: self.n], self.places(world)))


class SimpleFormation(Formation):
    """The places lie evenly on a circle of radius 0.5; the first is at the smallest angle of any agent."""

    name = "simple_formation"
    landmark_range = 0.5
    radius = 0.5

    def __init__(self, n: int, terminate_on_success: bool = False):
        super().__init__(n, terminate_on_success)
        self.agents = tuple(Body(f"agent_{i}", movable=True, color=BLUE) for i in range(n))
        self.landmarks = (Body("landmark_0", size=0.03, collide=False),)

    def places(self, world: World) -> Array:
        center = world.pos[self.n]
        x, y = (world.pos[: self.n] - center).T
        angle = jnp.arctan2(y, x)
        first = jnp.where(angle < 0, angle + 2 * np.pi, angle).min()
        angles = first + np.arange(self.n) * (2 * np.pi / self.n)
        return center + self.radius * jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)


def simple_formation(
    N: int = 4, max_cycles: int = 25, continuous_actions: bool = False, terminate_on_success: bool = False
) -> ParticleEnv:
    """Success is all agents within 0.05 of their places."""
    at_least("simple_formation", 1, N=N)
    return ParticleEnv(SimpleFormation(N, terminate_on_success), max_cycles, continuous_actions)
