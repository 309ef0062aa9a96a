"""Particle worlds: disc-shaped bodies that accelerate, repel each other softly and communicate.

The physics is that of the Multi-Agent Particle Environments as the `mpe2` package runs them, checked
against it in `tests/envs/test_mpe.py`. A scenario defines the bodies, the observations and the rewards;
`ParticleEnv` turns it into an environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.entities import Entities
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation, PyTree, Space
from flockrl.envs.mpe.geometry import distance, length
from flockrl.envs.mpe.settings import at_least
from flockrl.envs.mpe.walking import walk

if TYPE_CHECKING:
    from flockrl.envs.api import Paths

DT = 0.1
DAMPING = 0.25
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3
MOVES = 5
"""Discrete moves: stay, left, right, down, up. A continuous action has one number for each of the five."""

Color = tuple[float, float, float]
RED: Color = (0.85, 0.35, 0.35)
GREEN: Color = (0.35, 0.85, 0.35)
BLUE: Color = (0.35, 0.35, 0.85)
GREY: Color = (0.25, 0.25, 0.25)


@dataclass(frozen=True)
class Body:
    """The constant properties of an agent or a landmark. `accel` is the force of a full push."""

    name: str
    size: float = 0.05
    collide: bool = True
    movable: bool = False
    silent: bool = True
    accel: float = 5.0
    max_speed: float = np.inf
    mass: float = 1.0
    color: Color = GREY


class World(NamedTuple):
    """The state. pos: [E, 2] agents, then landmarks; vel: [N, 2]; comm: [N, C] what each agent said last;
    info: what the scenario remembers (goals, loads); t: steps since the reset."""

    pos: Array
    vel: Array
    comm: Array
    info: PyTree
    t: Array


class Scenario:
    """A particle scenario: bodies, observations and rewards. Subclasses define them."""

    name: str
    agents: tuple[Body, ...]
    landmarks: tuple[Body, ...]
    dim_c: int = 0
    sides: tuple[str, ...] = ()
    landmark_range: float = 1.0

    def reset(self, key: Array) -> World:
        """Agents anywhere in the square, landmarks within `landmark_range` of its centre."""
        pos_key, info_key = jax.random.split(key)
        n, m = len(self.agents), len(self.landmarks)
        reach = np.concatenate([np.ones(n), np.full(m, self.landmark_range)])[:, None]
        pos = jax.random.uniform(pos_key, (n + m, 2), minval=-reach, maxval=reach)
        return World(pos, jnp.zeros((n, 2)), jnp.zeros((n, self.dim_c)), self.draw(info_key), jnp.int32(0))

    def draw(self, key: Array) -> PyTree:
        """What is random in an episode besides the positions."""
        return ()

    def after_step(self, key: Array, world: World) -> World:
        """What happens after the bodies moved and before the reward is computed."""
        return world

    def observe(self, world: World) -> Array | list[Array]:
        """[N, O] or, where observation sizes differ, a list of such blocks, one for each run of agents of one size."""
        raise AssertionError("a scenario defines observe")

    def entities(self) -> list[Entities]:
        """How each agent's observation falls into entities; [] where the scenario does not say."""
        return []

    def goals(self, world: World) -> dict[str, Array]:
        """Where all agents would go [N, 2] in a policy that comes with the scenario, by its name."""
        return {}

    def reward(self, world: World) -> Array:
        """[N]"""
        raise AssertionError("a scenario defines reward")

    def terminal(self, world: World) -> Array:
        """Whether the episode is terminated (a scalar bool)."""
        return jnp.bool_(False)

    def paint(self, world: World) -> np.ndarray:
        """[E, 4] red, green, blue and opacity of each body in pictures, from 0 to 1."""
        return np.array([(*body.color, 1.0) for body in (*self.agents, *self.landmarks)])

    @property
    def sizes(self) -> np.ndarray:
        """[E] radii of agents, then landmarks, as in `World.pos`."""
        return np.array([body.size for body in (*self.agents, *self.landmarks)])


class ParticleEnv:
    """A scenario as an environment: decodes actions, moves bodies, truncates after `max_cycles`."""

    def __init__(self, scenario: Scenario, max_cycles: int = 25, continuous_actions: bool = False):
        at_least(scenario.name, 1, 10**9, max_cycles=max_cycles)
        self.scenario = scenario
        self.continuous = continuous_actions
        self.max_cycles = max_cycles
        self._prepare()
        observed = jax.eval_shape(lambda: scenario.observe(scenario.reset(jax.random.key(0))))
        blocks = observed if isinstance(observed, list) else [observed]
        self.spec = EnvSpec(
            name=f"mpe/{scenario.name}",
            agents=tuple(body.name for body in scenario.agents),
            observations=tuple(Box(block.shape[1:]) for block in blocks for _ in range(block.shape[0])),
            actions=tuple(self._action_space(body) for body in scenario.agents),
            max_steps=max_cycles,
            sides=scenario.sides,
            entities=tuple(scenario.entities()),
        )
        names = jax.eval_shape(lambda: scenario.goals(scenario.reset(jax.random.key(0))))
        self.policies = {name: partial(self._go, name) for name in names}

    def _action_space(self, body: Body) -> Space:
        says = 0 if body.silent else self.scenario.dim_c
        if self.continuous:
            return Box((MOVES * body.movable + says,), 0.0, 1.0)
        return Discrete((MOVES if body.movable else 1) * max(says, 1))

    def _prepare(self) -> None:
        """Put the bodies' properties into arrays once. They take the precision of the arrays they are used with."""
        agents = self.scenario.agents
        bodies = (*agents, *self.scenario.landmarks)
        self.n = len(agents)
        self.movable = np.array([body.movable for body in agents])
        self.speaks = np.array([not body.silent for body in agents])
        self.push = np.array([body.accel * body.movable for body in agents])[:, None]
        self.mass = np.array([body.mass for body in agents])[:, None]
        self.max_speed = np.array([body.max_speed for body in agents])[:, None]
        self.colliders = np.array([i for i, body in enumerate(bodies) if body.collide], np.int32)
        size = np.array([bodies[i].size for i in self.colliders])
        self.touch = size[:, None] + size[None, :]
        self.colliding_agents = int((self.colliders < self.n).sum())

    def reset(self, key: Array) -> tuple[World, Observation]:
        world = self.scenario.reset(key)
        return world, self._observe(world)

    def step(self, key: Array, state: World, action: Array) -> tuple[World, Observation, Array, Array, Array]:
        force, said = self._decode(action)
        pos, vel = self._move(state.pos, state.vel, force)
        world = World(pos, vel, said, state.info, state.t + 1)
        world = self.scenario.after_step(key, world)
        cut = world.t >= self.max_cycles
        over = self.scenario.terminal(world) & ~cut
        return world, self._observe(world), self.scenario.reward(world), over, cut

    def distances(self, state: World) -> Array:
        """[N, N] how far agents are from each other."""
        return distance(state.pos[: self.n], state.pos[: self.n])

    def render(self, states: Sequence[World], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode, one per world (without batch axes)."""
        from flockrl.envs.mpe.render import frames

        return frames(self.scenario, states, size)

    def paths(self, states: Sequence[World]) -> Paths:
        """Where all bodies were in one episode, for a plot; landmarks that are hidden at its end are left out."""
        from flockrl.envs.api import Paths

        paint, bodies = self.scenario.paint(states[-1]), (*self.scenario.agents, *self.scenario.landmarks)
        marks = [e for e in range(self.n, len(bodies)) if paint[e, 3] > 0]
        walked = np.stack([np.asarray(world.pos)[: self.n] for world in states])
        pos, sizes = np.asarray(states[-1].pos), self.scenario.sizes
        return Paths(walked, sizes[: self.n], paint[: self.n], pos[marks], sizes[marks], paint[marks])

    def _go(self, name: str, world: World, seen: Observation, key: Array) -> Array:
        """A policy that knows where to go."""
        return walk(world.pos[: self.n], world.vel, self.scenario.goals(world)[name], self.continuous, DT, DAMPING)

    def _observe(self, world: World) -> Observation:
        rows = self.scenario.observe(world)
        if isinstance(rows, list):
            width = max(block.shape[1] for block in rows)
            rows = jnp.concatenate([jnp.pad(block, ((0, 0), (0, width - block.shape[1]))) for block in rows])
        return Observation(rows)

    def _decode(self, action: Array) -> tuple[Array, Array]:
        """Actions as pushes [N, 2] and utterances [N, C]."""
        if self.continuous:
            return self._decode_continuous(action)
        move = jnp.where(self.movable, action % MOVES, 0)
        # Comparisons instead of a table look-up: they fuse with the physics.
        x = (move == 2) * 1.0 - (move == 1)
        y = (move == 4) * 1.0 - (move == 3)
        push = jnp.stack([x, y], axis=-1) * self.push
        word = jnp.where(self.movable, action // MOVES, action)
        said = (word[:, None] == np.arange(self.scenario.dim_c)) & self.speaks[:, None]
        return push, said.astype(push.dtype)

    def _decode_continuous(self, action: Array) -> tuple[Array, Array]:
        dim_c = self.scenario.dim_c
        push, said = jnp.zeros((self.n, 2)), jnp.zeros((self.n, dim_c))
        if self.movable.any():
            x, y = action[:, 2] - action[:, 1], action[:, 4] - action[:, 3]
            push = jnp.stack([x, y], axis=-1) * self.push
        if self.speaks.any():
            # Words follow the moves. Silent agents say nothing: what is read in their rows is replaced by 0.
            start = np.where(self.movable & self.speaks, MOVES, 0)[:, None]
            words = jnp.take_along_axis(action, start + np.arange(dim_c), axis=1)
            said = jnp.where(self.speaks[:, None], words, 0.0)
        return push, said

    def _move(self, pos: Array, vel: Array, force: Array) -> tuple[Array, Array]:
        """One step of motion: contact forces, damping, speed limits."""
        if not self.movable.any():
            return pos, vel
        if self.colliding_agents and len(self.colliders) > 1:
            force = force + self._contact(pos)
        moved = pos[: self.n] + vel * DT
        new_vel = vel * (1 - DAMPING) + force / self.mass * DT
        if np.isfinite(self.max_speed).any():
            speed = jnp.maximum(length(new_vel), 1e-12)[:, None]
            new_vel = new_vel * jnp.minimum(self.max_speed / speed, 1.0)
        if not self.movable.all():
            still = ~self.movable[:, None]
            moved, new_vel = jnp.where(still, pos[: self.n], moved), jnp.where(still, vel, new_vel)
        return jnp.concatenate([moved, pos[self.n :]]), new_vel

    def _contact(self, pos: Array) -> Array:
        """Soft repulsion of every colliding agent [N, 2]: CONTACT_FORCE times the softened penetration depth."""
        k, m = self.colliding_agents, len(self.colliders)
        # Bodies that collide mostly come first, and a slice is cheaper than a look-up.
        bodies = pos[:m] if self.colliders[-1] == m - 1 else pos[self.colliders]
        delta = bodies[:k, None] - bodies[None, :]
        # The lower bound keeps the force finite where bodies coincide. Each body coincides with itself: force 0.
        dist = jnp.maximum(length(delta), 1e-9)
        depth = jax.nn.softplus((self.touch[:k] - dist) / CONTACT_MARGIN) * CONTACT_MARGIN
        push = jnp.sum((CONTACT_FORCE * depth / dist)[..., None] * delta, axis=1)
        return push if k == self.n else jnp.zeros((self.n, 2)).at[self.colliders[:k]].set(push)
