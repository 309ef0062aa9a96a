"""simple_world_comm: simple_tag with food, forests to hide in, and a leader who sees everything and speaks."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array
from flockrl.envs.mpe.core import Body, Color, ParticleEnv, Scenario, World
from flockrl.envs.mpe.geometry import beside, distance, drop_self, relative, stray, touching
from flockrl.envs.mpe.settings import at_least
from flockrl.envs.mpe.simple_tag import hunters_and_prey

PRIZE = 5.0
MEAL = 2.0
LEADER: Color = (0.65, 0.15, 0.15)
HUNTER: Color = (0.95, 0.45, 0.45)
PREY: Color = (0.45, 0.95, 0.45)


class SimpleWorldComm(Scenario):
    """Every adversary gets the prize for every catch and pays a little for its own distance to the nearest
    prey. Prey is rewarded for eating and pays for being caught, for leaving the square and for its distance to
    food. An agent in a forest is seen only by the leader and by agents in the same forest, and (unless it is the
    leader) sees no agents outside that forest."""

    name = "simple_world_comm"
    dim_c = 4
    landmark_range = 0.9

    def __init__(self, num_good: int, num_adversaries: int, num_obstacles: int, num_food: int, num_forests: int):
        first, *rest = hunters_and_prey(num_adversaries, num_good, prey_size=0.045)
        leader = replace(first, name="leadadversary_0", silent=False, color=LEADER)
        hunters = (
            replace(body, name=f"adversary_{i}", color=HUNTER) for i, body in enumerate(rest[: num_adversaries - 1])
        )
        prey = (replace(body, color=PREY) for body in rest[num_adversaries - 1 :])
        self.agents = (leader, *hunters, *prey)
        self.landmarks = (
            *(Body(f"landmark_{i}", size=0.2) for i in range(num_obstacles)),
            *(Body(f"food_{i}", size=0.03, collide=False, color=(0.15, 0.15, 0.65)) for i in range(num_food)),
            *(Body(f"forest_{i}", size=0.3, collide=False, color=(0.6, 0.9, 0.6)) for i in range(num_forests)),
        )
        self.sides = ("adversary",) * num_adversaries + ("agent",) * num_good
        self.n, self.a = num_adversaries + num_good, num_adversaries
        self.meals = slice(self.n + num_obstacles, self.n + num_obstacles + num_food)
        self.woods = slice(self.meals.stop, self.meals.stop + num_forests)

    def observe(self, world: World) -> list[Array]:
        """Adversaries: [velocity, position, landmarks, other agents, velocities of prey, forests, leader's word].
        Prey: [velocity, position, landmarks, other agents, forests, velocities of other prey].

        Agents out of sight are zeros. A forest is 1 for an agent that stands in it, otherwise -1.
        """
        agents, landmarks, a = world.pos[: self.n], world.pos[self.n :], self.a
        inside = self._inside(world)
        sight = self._sight(inside)[..., None]
        rest = drop_self(jnp.where(sight, relative(agents, agents), 0.0))
        moves = jnp.where(sight[:, a:], world.vel[None, a:], 0.0)
        woods = jnp.where(inside, 1.0, -1.0)
        common = beside(world.vel, agents, relative(landmarks, agents), rest)
        word = jnp.broadcast_to(world.comm[:1], (a, self.dim_c))
        return [
            beside(common[:a], moves[:a], woods[:a], word),
            beside(common[a:], woods[a:], drop_self(moves[a:])),
        ]

    def _inside(self, world: World) -> Array:
        """[N, forests] bool: whether the agent stands in the forest."""
        agents = slice(0, self.n)
        return touching(world.pos[agents], world.pos[self.woods], self.sizes[agents], self.sizes[self.woods])

    def _sight(self, inside: Array) -> Array:
        """[N, N] bool: whether the agent of the row sees the agent of the column."""
        together = (inside[:, None] & inside[None, :]).any(axis=-1)
        outside = ~inside.any(axis=-1)
        return together | (outside[:, None] & outside[None, :]) | (np.arange(self.n) == 0)[:, None]

    def reward(self, world: World) -> Array:
        hunter, prey, food = slice(0, self.a), slice(self.a, self.n), self.meals
        pos, sizes = world.pos, self.sizes
        caught = touching(pos[hunter], pos[prey], sizes[hunter], sizes[prey])
        eaten = touching(pos[prey], pos[food], sizes[prey], sizes[food])
        chase = PRIZE * caught.sum() - 0.1 * distance(pos[hunter], pos[prey]).min(axis=1)
        flight = -PRIZE * caught.sum(axis=0) - 2 * stray(pos[prey])
        forage = MEAL * eaten.sum(axis=1) - 0.05 * distance(pos[prey], pos[food]).min(axis=1)
        return jnp.concatenate([chase, flight + forage])

    def paint(self, world: World) -> np.ndarray:
        """Forests are half transparent."""
        colors = super().paint(world)
        colors[self.woods, 3] = 0.5
        return colors


def simple_world_comm(
    num_good: int = 2,
    num_adversaries: int = 4,
    num_obstacles: int = 1,
    num_food: int = 2,
    max_cycles: int = 25,
    num_forests: int = 2,
    continuous_actions: bool = False,
) -> ParticleEnv:
    """`num_adversaries` includes the leader."""
    at_least("simple_world_comm", 1, num_good=num_good, num_adversaries=num_adversaries, num_food=num_food)
    at_least("simple_world_comm", 0, num_obstacles=num_obstacles, num_forests=num_forests)
    scenario = SimpleWorldComm(num_good, num_adversaries, num_obstacles, num_food, num_forests)
    return ParticleEnv(scenario, max_cycles, continuous_actions)
