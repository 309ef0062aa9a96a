"""simple_tag: slow adversaries hunt fast agents among obstacles."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from flockrl.core.entities import Entities, layout
from flockrl.core.types import Array
from flockrl.envs.mpe.core import GREEN, RED, Body, ParticleEnv, Scenario, World
from flockrl.envs.mpe.geometry import beside, drop_self, nearest, per_other, relative, stray, touching
from flockrl.envs.mpe.settings import at_least, neighbors

PRIZE = 10.0


class SimpleTag(Scenario):
    """A catch is an adversary that touches a good agent. Every adversary gets the prize for every catch. A good agent
    pays the prize for each adversary that touches it, and a penalty for leaving the square."""

    name = "simple_tag"
    dim_c = 2
    landmark_range = 0.9

    def __init__(
        self,
        num_good: int,
        num_adversaries: int,
        num_obstacles: int,
        terminate_on_success: bool = False,
        agent_neighbors: int | None = None,
        landmark_neighbors: int | None = None,
    ):
        self.agents = hunters_and_prey(num_adversaries, num_good)
        self.landmarks = tuple(Body(f"landmark_{i}", size=0.2) for i in range(num_obstacles))
        self.sides = ("adversary",) * num_adversaries + ("agent",) * num_good
        self.n, self.a = num_adversaries + num_good, num_adversaries
        self.terminate_on_success = terminate_on_success
        self.agent_neighbors, self.landmark_neighbors = agent_neighbors, landmark_neighbors

    def observe(self, world: World) -> Array | list[Array]:
        """[velocity, position, obstacles, other agents, velocities of the good ones among them]

        Where the number of neighbours is limited, every neighbour has a velocity entry, which is 0 for adversaries.
        """
        agents, obstacles, a = world.pos[: self.n], world.pos[self.n :], self.a
        rest = drop_self(relative(agents, agents))
        (marks,) = nearest(self.landmark_neighbors, relative(obstacles, agents))
        if self.agent_neighbors is not None:
            shown = per_other(jnp.where(np.arange(self.n)[:, None] < a, 0.0, world.vel))
            rest, shown = nearest(self.agent_neighbors, rest, shown)
            return beside(world.vel, agents, marks, rest, shown)
        common = beside(world.vel, agents, marks, rest)
        seen_by_adversaries = jnp.broadcast_to(world.vel[a:], (a, self.n - a, 2))
        return [beside(common[:a], seen_by_adversaries), beside(common[a:], per_other(world.vel[a:]))]

    def entities(self) -> list[Entities]:
        if self.agent_neighbors is not None or self.landmark_neighbors is not None:
            return []  # neighbours of both sides stand in one list, by distance
        a, g, marks = self.a, self.n - self.a, ("landmark", len(self.landmarks), 2)
        hunter = layout(("own", 4), marks, ("adversary", a - 1, 2), ("agent", g, 2), ("agent", g, 2))
        prey = layout(("own", 4), marks, ("adversary", a, 2), ("agent", g - 1, 2), ("agent", g - 1, 2))
        return [hunter] * a + [prey] * g

    def reward(self, world: World) -> Array:
        caught = self._caught(world)
        prey = -PRIZE * caught.sum(axis=0) - stray(world.pos[self.a : self.n])
        return jnp.concatenate([jnp.broadcast_to(PRIZE * caught.sum(), (self.a,)), prey])

    def terminal(self, world: World) -> Array:
        if not self.terminate_on_success:
            return super().terminal(world)
        return self._caught(world).any(axis=0).all()

    def _caught(self, world: World) -> Array:
        """[adversaries, good agents] bool"""
        hunters, prey = slice(0, self.a), slice(self.a, self.n)
        return touching(world.pos[hunters], world.pos[prey], self.sizes[hunters], self.sizes[prey])


def hunters_and_prey(num_adversaries: int, num_good: int, prey_size: float = 0.05) -> tuple[Body, ...]:
    """Large slow adversaries, then small fast agents."""
    hunters = (
        Body(f"adversary_{i}", size=0.075, movable=True, accel=3.0, max_speed=1.0, color=RED)
        for i in range(num_adversaries)
    )
    prey = (
        Body(f"agent_{i}", size=prey_size, movable=True, accel=4.0, max_speed=1.3, color=GREEN) for i in range(num_good)
    )
    return (*hunters, *prey)


def simple_tag(
    num_good: int = 1,
    num_adversaries: int = 3,
    num_obstacles: int = 2,
    max_cycles: int = 25,
    continuous_actions: bool = False,
    terminate_on_success: bool = False,
    num_agent_neighbors: int | None = None,
    num_landmark_neighbors: int | None = None,
) -> ParticleEnv:
    """Success: all good agents are caught at the same time. Neighbours as in simple_spread."""
    at_least("simple_tag", 1, num_good=num_good, num_adversaries=num_adversaries)
    at_least("simple_tag", 0, num_obstacles=num_obstacles)
    neighbors("simple_tag", num_agent_neighbors=num_agent_neighbors, num_landmark_neighbors=num_landmark_neighbors)
    scenario = SimpleTag(
        num_good, num_adversaries, num_obstacles, terminate_on_success, num_agent_neighbors, num_landmark_neighbors
    )
    return ParticleEnv(scenario, max_cycles, continuous_actions)
