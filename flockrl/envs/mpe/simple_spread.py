"""simple_spread: N agents cover N landmarks together without colliding."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from flockrl.core.entities import Entities, layout
from flockrl.core.types import Array
from flockrl.envs.assignment import assign
from flockrl.envs.mpe.core import BLUE, Body, ParticleEnv, Scenario, World
from flockrl.envs.mpe.geometry import beside, distance, drop_self, nearest, per_other, relative, touching
from flockrl.envs.mpe.settings import at_least, neighbors
from flockrl.envs.settings import share

CAPTURE_RADIUS = 0.1


class SimpleSpread(Scenario):
    """The common reward is minus the sum of each landmark's distance to its nearest agent, an agent's own reward is
    minus the number of its collisions. `local_ratio` mixes own and common."""

    name = "simple_spread"
    dim_c = 2

    def __init__(
        self,
        n: int,
        local_ratio: float = 0.5,
        terminate_on_success: bool = False,
        agent_neighbors: int | None = None,
        landmark_neighbors: int | None = None,
    ):
        self.agents = tuple(Body(f"agent_{i}", size=0.15, movable=True, color=BLUE) for i in range(n))
        self.landmarks = tuple(Body(f"landmark_{i}", collide=False) for i in range(n))
        self.n, self.local_ratio, self.terminate_on_success = n, local_ratio, terminate_on_success
        self.agent_neighbors, self.landmark_neighbors = agent_neighbors, landmark_neighbors

    def observe(self, world: World) -> Array:
        """[velocity, position, landmarks, other agents, what they said (nothing: all are silent)]"""
        agents, landmarks = world.pos[: self.n], world.pos[self.n :]
        (marks,) = nearest(self.landmark_neighbors, relative(landmarks, agents))
        rest, words = nearest(self.agent_neighbors, drop_self(relative(agents, agents)), per_other(world.comm))
        return beside(world.vel, agents, marks, rest, words)

    def entities(self) -> list[Entities]:
        marks, rest = self.landmark_neighbors or self.n, self.agent_neighbors or self.n - 1
        if marks > self.n or rest > self.n - 1:
            return []  # zeros fill up what is not there, and do not say so
        words = ("agent", rest, self.dim_c)
        return [layout(("own", 4), ("landmark", marks, 2), ("agent", rest, 2), words)] * self.n

    def goals(self, world: World) -> dict[str, Array]:
        """hungarian: everyone goes to its landmark of the assignment with the shortest ways in all."""
        agents, landmarks = world.pos[: self.n], world.pos[self.n :]
        return {"hungarian": landmarks[assign(distance(agents, landmarks))[1]]}

    def reward(self, world: World) -> Array:
        agents, landmarks = world.pos[: self.n], world.pos[self.n :]
        covered = -distance(landmarks, agents).min(axis=1).sum()
        sizes = self.sizes[: self.n]
        touch = touching(agents, agents, sizes, sizes) & ~np.eye(self.n, dtype=bool)
        return covered * (1 - self.local_ratio) - touch.sum(axis=1) * self.local_ratio

    def terminal(self, world: World) -> Array:
        if not self.terminate_on_success:
            return super().terminal(world)
        return jnp.all(distance(world.pos[self.n :], world.pos[: self.n]).min(axis=1) < CAPTURE_RADIUS)


def simple_spread(
    N: int = 3,
    local_ratio: float = 0.5,
    max_cycles: int = 25,
    continuous_actions: bool = False,
    terminate_on_success: bool = False,
    num_agent_neighbors: int | None = None,
    num_landmark_neighbors: int | None = None,
) -> ParticleEnv:
    """N agents and N landmarks; where a number of neighbours is set, an agent sees only that many nearest ones."""
    at_least("simple_spread", 1, N=N)
    share("mpe/simple_spread", local_ratio=local_ratio)
    neighbors("simple_spread", num_agent_neighbors=num_agent_neighbors, num_landmark_neighbors=num_landmark_neighbors)
    scenario = SimpleSpread(N, local_ratio, terminate_on_success, num_agent_neighbors, num_landmark_neighbors)
    return ParticleEnv(scenario, max_cycles, continuous_actions)
