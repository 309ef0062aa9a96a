"""simple_reference: two agents; each knows where the other should go and has to tell it."""

from __future__ import annotations

import jax
import numpy as np

from flockrl.core.types import Array
from flockrl.envs.mpe.core import Body, ParticleEnv, Scenario, World
from flockrl.envs.mpe.geometry import beside, length, pick, relative
from flockrl.envs.settings import share

COLORS = np.array([[0.75, 0.25, 0.25], [0.25, 0.75, 0.25], [0.25, 0.25, 0.75]])
"""[3, 3] the landmarks' colours: observations give goals by colour."""


class SimpleReference(Scenario):
    """An agent's own reward is minus the other agent's distance to the goal that the first one knows; the common
    reward is the mean of both. `local_ratio` mixes own and common. `World.info` [2]: the goal that each agent knows."""

    name = "simple_reference"
    dim_c = 10
    agents = tuple(Body(f"agent_{i}", collide=False, movable=True, silent=False) for i in range(2))
    landmarks = (
        Body("landmark_0", collide=False, color=(0.75, 0.25, 0.25)),
        Body("landmark_1", collide=False, color=(0.25, 0.75, 0.25)),
        Body("landmark_2", collide=False, color=(0.25, 0.25, 0.75)),
    )

    def __init__(self, local_ratio: float = 0.5):
        self.local_ratio = local_ratio

    def draw(self, key: Array) -> Array:
        return jax.random.randint(key, (2,), 0, len(COLORS))

    def observe(self, world: World) -> Array:
        """[velocity, landmarks, colour of the other's goal, what the other said]"""
        told = _goals(COLORS, world.info)
        return beside(world.vel, relative(world.pos[2:], world.pos[:2]), told, world.comm[::-1])

    def reward(self, world: World) -> Array:
        own = -length(world.pos[1::-1] - _goals(world.pos[2:], world.info))
        return own.mean() * (1 - self.local_ratio) + own * self.local_ratio

    def paint(self, world: World) -> np.ndarray:
        """Each agent has the colour of the landmark it should go to."""
        colors = super().paint(world)
        colors[:2, :3] = COLORS[np.asarray(world.info)[::-1]]
        return colors


def _goals(rows: Array | np.ndarray, goals: Array) -> Array:
    """[3, ...], [2] -> [2, ...]: the row of each agent's goal."""
    return jax.vmap(lambda goal: pick(rows, goal))(goals)


def simple_reference(local_ratio: float = 0.5, max_cycles: int = 25, continuous_actions: bool = False) -> ParticleEnv:
    """Two agents that move and speak, three landmarks, ten words."""
    share("mpe/simple_reference", local_ratio=local_ratio)
    return ParticleEnv(SimpleReference(local_ratio), max_cycles, continuous_actions)
