"""simple_adversary: N agents go to a landmark without revealing to an adversary which one it is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.entities import Entities, layout
from flockrl.core.types import Array
from flockrl.envs.mpe.core import BLUE, RED, Body, Color, ParticleEnv, Scenario, World
from flockrl.envs.mpe.geometry import beside, drop_self, length, nearest, pick, relative
from flockrl.envs.mpe.settings import at_least, neighbors

MARK: Color = (0.15, 0.15, 0.15)
GOAL: Color = (0.15, 0.65, 0.15)


class SimpleAdversary(Scenario):
    """The adversary's reward is minus its distance to the goal. The others' reward is the adversary's distance
    minus the smallest of their own distances. Agents do not collide. `World.info` is the index of the goal."""

    name = "simple_adversary"
    dim_c = 2

    def __init__(self, n: int, agent_neighbors: int | None = None, landmark_neighbors: int | None = None):
        adversary = Body("adversary_0", size=0.15, collide=False, movable=True, color=RED)
        good = (Body(f"agent_{i}", size=0.15, collide=False, movable=True, color=BLUE) for i in range(n))
        self.agents = (adversary, *good)
        self.landmarks = tuple(Body(f"landmark_{i}", size=0.08, collide=False, color=MARK) for i in range(n))
        self.sides = ("adversary",) + ("agent",) * n
        self.n = n + 1
        self.agent_neighbors, self.landmark_neighbors = agent_neighbors, landmark_neighbors

    def draw(self, key: Array) -> Array:
        return jax.random.randint(key, (), 0, len(self.landmarks))

    def observe(self, world: World) -> list[Array]:
        """Adversary: [landmarks, other agents]. Others: [goal, landmarks, other agents]."""
        agents, landmarks = world.pos[: self.n], world.pos[self.n :]
        (marks,) = nearest(self.landmark_neighbors, relative(landmarks, agents))
        (rest,) = nearest(self.agent_neighbors, drop_self(relative(agents, agents)))
        goal = pick(landmarks, world.info) - agents
        return [beside(marks[:1], rest[:1]), beside(goal[1:], marks[1:], rest[1:])]

    def entities(self) -> list[Entities]:
        if self.agent_neighbors is not None or self.landmark_neighbors is not None:
            return []  # the adversary stands among the neighbours, and zeros may fill them up
        good, marks = self.n - 1, ("landmark", len(self.landmarks), 2)
        hunter = layout(marks, ("agent", good, 2))
        return [hunter] + [layout(("own", 2), marks, ("adversary", 1, 2), ("agent", good - 1, 2))] * good

    def reward(self, world: World) -> Array:
        away = length(world.pos[: self.n] - pick(world.pos[self.n :], world.info))
        good = away[0] - away[1:].min()
        return jnp.where(np.arange(self.n) == 0, -away[0], good)

    def paint(self, world: World) -> np.ndarray:
        colors = super().paint(world)
        colors[self.n + int(world.info), :3] = GOAL
        return colors


def simple_adversary(
    N: int = 2,
    max_cycles: int = 25,
    continuous_actions: bool = False,
    num_agent_neighbors: int | None = None,
    num_landmark_neighbors: int | None = None,
) -> ParticleEnv:
    """One adversary against N agents among N landmarks; neighbours as in simple_spread."""
    at_least("simple_adversary", 1, N=N)
    neighbors(
        "simple_adversary", num_agent_neighbors=num_agent_neighbors, num_landmark_neighbors=num_landmark_neighbors
    )
    scenario = SimpleAdversary(N, num_agent_neighbors, num_landmark_neighbors)
    return ParticleEnv(scenario, max_cycles, continuous_actions)
