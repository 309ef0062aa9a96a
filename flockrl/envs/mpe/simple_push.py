"""simple_push: an adversary keeps an agent away from a landmark that only the agent knows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array
from flockrl.envs.mpe.core import Body, ParticleEnv, Scenario, World
from flockrl.envs.mpe.geometry import beside, length, pick, relative

MARKS = np.array([[0.1, 0.9, 0.1], [0.1, 0.1, 0.9]])
"""[2, 3] the landmarks' colours."""
COATS = np.array([[0.25, 0.75, 0.25], [0.25, 0.25, 0.75]])
"""[2, 3] the agent's colour for each goal."""


class SimplePush(Scenario):
    """The agent's reward is minus its distance to the goal, the adversary's is the agent's distance minus its own.
    `World.info` is the index of the goal."""

    name = "simple_push"
    dim_c = 2
    sides = ("adversary", "agent")
    agents = (
        Body("adversary_0", movable=True, color=(0.75, 0.25, 0.25)),
        Body("agent_0", movable=True),
    )
    landmarks = (
        Body("landmark_0", collide=False, color=(0.1, 0.9, 0.1)),
        Body("landmark_1", collide=False, color=(0.1, 0.1, 0.9)),
    )

    def draw(self, key: Array) -> Array:
        return jax.random.randint(key, (), 0, len(MARKS))

    def observe(self, world: World) -> list[Array]:
        """Adversary: [velocity, landmarks, agent].
        Agent: [velocity, goal, own colour, landmarks, their colours, adversary]."""
        agents, landmarks = world.pos[:2], world.pos[2:]
        marks, rest = relative(landmarks, agents), agents[::-1] - agents
        goal = pick(landmarks, world.info) - agents
        coat = pick(COATS, world.info)[None]
        colors = jnp.asarray(MARKS).reshape(1, -1)
        return [
            beside(world.vel[:1], marks[:1], rest[:1]),
            beside(world.vel[1:], goal[1:], coat, marks[1:], colors, rest[1:]),
        ]

    def reward(self, world: World) -> Array:
        away = length(world.pos[:2] - pick(world.pos[2:], world.info))
        return jnp.stack([away[1] - away[0], -away[1]])

    def paint(self, world: World) -> np.ndarray:
        colors = super().paint(world)
        colors[1, :3] = COATS[int(world.info)]
        return colors


def simple_push(max_cycles: int = 25, continuous_actions: bool = False) -> ParticleEnv:
    """One adversary, one agent, two landmarks."""
    return ParticleEnv(SimplePush(), max_cycles, continuous_actions)
