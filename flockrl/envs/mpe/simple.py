"""simple: one agent walks to one landmark. It serves to find bugs in a learner."""

from __future__ import annotations

import jax.numpy as jnp

from flockrl.core.types import Array
from flockrl.envs.mpe.core import Body, ParticleEnv, Scenario, World
from flockrl.envs.mpe.geometry import beside, relative


class Simple(Scenario):
    """The reward is minus the agent's squared distance to the landmark."""

    name = "simple"
    agents = (Body("agent_0", collide=False, movable=True),)
    landmarks = (Body("landmark_0", collide=False, color=(0.75, 0.25, 0.25)),)

    def observe(self, world: World) -> Array:
        """[velocity, landmark]"""
        return beside(world.vel, relative(world.pos[1:], world.pos[:1]))

    def reward(self, world: World) -> Array:
        return -jnp.sum((world.pos[:1] - world.pos[1:]) ** 2, axis=-1)


def simple(max_cycles: int = 25, continuous_actions: bool = False) -> ParticleEnv:
    """One agent, one landmark."""
    return ParticleEnv(Simple(), max_cycles, continuous_actions)
