"""simple_line: N agents stand evenly on the line between two landmarks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array
from flockrl.envs.mpe.core import BLUE, Body, ParticleEnv, World
from flockrl.envs.mpe.geometry import pick
from flockrl.envs.mpe.settings import at_least
from flockrl.envs.mpe.simple_formation import Formation

LENGTH = 1.25


class SimpleLine(Formation):
    """The places lie evenly from one landmark to the other; a single agent's place is the first landmark."""

    name = "simple_line"
    landmark_range = 0.25

    def __init__(self, n: int, terminate_on_success: bool = False):
        super().__init__(n, terminate_on_success)
        self.agents = tuple(Body(f"agent_{i}", size=0.03, movable=True, color=BLUE) for i in range(n))
        self.landmarks = tuple(Body(f"landmark_{i}", size=0.02, collide=False) for i in range(2))

    def reset(self, key: Array) -> World:
        """The second landmark lies at a fixed distance from the first, at a random angle. The angle is increased in
        steps of 5 degrees until the landmark is in the square."""
        key, angle_key = jax.random.split(key)
        world = super().reset(key)
        turns = np.arange(0, 360, 5) * (np.pi / 180)
        angles = jax.random.uniform(angle_key, maxval=2 * np.pi) + turns
        ends = world.pos[self.n] + LENGTH * jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        end = pick(ends, jnp.argmax(jnp.all(jnp.abs(ends) < 1.0, axis=1)))
        return world._replace(pos=jnp.concatenate([world.pos[: self.n + 1], end[None]]))

    def places(self, world: World) -> Array:
        start, end = world.pos[self.n], world.pos[self.n + 1]
        return start + np.arange(self.n)[:, None] * (end - start) / max(self.n - 1, 1)


def simple_line(
    N: int = 4, max_cycles: int = 25, continuous_actions: bool = False, terminate_on_success: bool = False
) -> ParticleEnv:
    """Success is all agents within 0.05 of their places."""
    at_least("simple_line", 1, N=N)
    return ParticleEnv(SimpleLine(N, terminate_on_success), max_cycles, continuous_actions)
