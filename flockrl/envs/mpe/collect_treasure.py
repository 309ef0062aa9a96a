"""collect_treasure: collectors pick treasures up and carry them to the deposit of their kind."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.entities import Entities, layout
from flockrl.core.errors import UsageError
from flockrl.core.types import Array
from flockrl.envs.mpe.core import Body, Color, ParticleEnv, Scenario, World
from flockrl.envs.mpe.geometry import beside, by_rank, distance, drop_self, length, per_other, relative, touching
from flockrl.envs.mpe.settings import at_least

FIND = 5.0
BUMP = 5.0
LIMIT = 0.95
NOWHERE = -999.0
"""Coordinates of a treasure that was taken and has not come back yet."""
EMPTY = -1
COLORS: tuple[Color, ...] = (
    (0.212, 0.408, 0.776),
    (0.945, 0.553, 0.0),
    (0.169, 0.627, 0.173),
    (0.839, 0.149, 0.157),
    (0.58, 0.404, 0.741),
    (0.549, 0.337, 0.294),
)
"""One colour for each kind of treasure."""


class Loot(NamedTuple):
    """holding: [C] int32 kind that each collector carries, or EMPTY; kind: [M] int32 and alive: [M] bool of
    each treasure; earned: the reward that every agent gets for the last step's finds and deliveries (a scalar)."""

    holding: Array
    kind: Array
    alive: Array
    earned: Array


class CollectTreasure(Scenario):
    """Every agent is rewarded for every find and every delivery. A collector pays for each collector that it
    overlaps, and for its distance to the nearest treasure or, when it carries one, to the deposit of that kind.
    A deposit pays for its distance to the nearest collector that carries a treasure for it or, if there is
    none, to the centre of all collectors. A taken treasure comes back one step later, at a random place and of
    a random kind. Agents do not collide."""

    name = "collect_treasure"
    dim_c = 2
    landmark_range = LIMIT

    def __init__(self, num_collectors: int, num_deposits: int, num_treasures: int):
        collectors = (
            Body(f"collector_{i}", collide=False, movable=True, accel=1.5, max_speed=1.0, color=(0.85, 0.85, 0.85))
            for i in range(num_collectors)
        )
        deposits = (
            Body(
                f"deposit_{i}", 0.075, collide=False, movable=True, accel=1.5, max_speed=1.0, mass=2.25, color=_dark(i)
            )
            for i in range(num_deposits)
        )
        self.agents = (*collectors, *deposits)
        self.landmarks = tuple(Body(f"treasure_{i}", 0.025, collide=False) for i in range(num_treasures))
        self.c, self.d, self.m = num_collectors, num_deposits, num_treasures
        self.n = num_collectors + num_deposits

    def draw(self, key: Array) -> Loot:
        kind = jax.random.randint(key, (self.m,), 0, self.d)
        return Loot(jnp.full(self.c, EMPTY, kind.dtype), kind, jnp.ones(self.m, bool), jnp.zeros(()))

    def _split(self, world: World) -> tuple[Array, Array, Array]:
        """Positions of collectors, deposits and treasures."""
        return world.pos[: self.c], world.pos[self.c : self.n], world.pos[self.n :]

    def after_step(self, key: Array, world: World) -> World:
        """In this order: treasures are taken, those taken one step earlier come back, loads are delivered."""
        (collectors, deposits, treasures), loot = self._split(world), world.info
        taken = self._take(world)
        found = taken.any(axis=1)
        holding = jnp.where(taken.any(axis=0), jnp.sum(taken * loot.kind[:, None], axis=0), loot.holding)

        fresh = jax.random.uniform(key, (self.m, 3))
        spot, kind = (2 * fresh[:, :2] - 1) * LIMIT, (fresh[:, 2] * self.d).astype(loot.kind.dtype)
        treasures = jnp.where(found[:, None], NOWHERE, jnp.where(loot.alive[:, None], treasures, spot))
        kind = jnp.where(loot.alive, loot.kind, kind)

        at_home = touching(collectors, deposits, self.sizes[: self.c], self.sizes[self.c : self.n])
        delivered = (at_home & (holding[:, None] == np.arange(self.d))).any(axis=1)
        holding = jnp.where(delivered, EMPTY, holding)
        earned = FIND * (found.sum() + delivered.sum())
        pos = jnp.concatenate([collectors, deposits, treasures])
        return world._replace(pos=pos, info=Loot(holding, kind, ~found, earned.astype(pos.dtype)))

    def _take(self, world: World) -> Array:
        """[M, C] bool: which collector takes which treasure. In their order, treasures go to the first collector
        that touches them and carries nothing."""
        (collectors, _, treasures), loot = self._split(world), world.info
        reach = touching(treasures, collectors, self.sizes[self.n :], self.sizes[: self.c])

        def serve(free: Array, row: Array) -> tuple[Array, Array]:
            able = row & free
            first = able & (jnp.argmax(able) == jnp.arange(self.c))
            return free & ~first, first

        return jax.lax.scan(serve, loot.holding == EMPTY, reach & loot.alive[:, None], unroll=min(self.m, 4))[1]

    def observe(self, world: World) -> list[Array]:
        """[position, velocity, own load (collectors only), other agents, treasures].

        Other agents and treasures are sorted, nearest first. An agent is described by its offset, its velocity,
        the kind it accepts and the kind it carries; a treasure by its offset and kind, or by zeros while it is
        away. Kinds are one-hot.
        """
        agents, treasures, loot = world.pos[: self.n], world.pos[self.n :], world.info
        kinds = np.arange(self.d)
        load = (loot.holding[:, None] == kinds).astype(agents.dtype)
        carries = jnp.concatenate([load, jnp.zeros((self.d, self.d))])
        accepts = np.concatenate([np.zeros((self.c, self.d)), np.eye(self.d)])
        traits = per_other(jnp.concatenate([world.vel, accepts, carries], axis=1))
        offsets = drop_self(relative(agents, agents))
        (rest,) = by_rank(length(offsets), jnp.concatenate([offsets, traits], axis=2))

        offsets = relative(treasures, agents)
        looks = jnp.broadcast_to(loot.kind[:, None] == kinds, (self.n, self.m, self.d))
        shown = jnp.where(loot.alive[:, None], jnp.concatenate([offsets, looks], axis=2), 0.0)
        (marks,) = by_rank(jnp.where(loot.alive, length(offsets), jnp.inf), shown)

        own, c = beside(agents, world.vel), self.c
        return [beside(own[:c], load, rest[:c], marks[:c]), beside(own[c:], rest[c:], marks[c:])]

    def entities(self) -> list[Entities]:
        rest, marks = ("agent", self.n - 1, 4 + 2 * self.d), ("treasure", self.m, 2 + self.d)
        collector = layout(("own", 4 + self.d), rest, marks)
        return [collector] * self.c + [layout(("own", 4), rest, marks)] * self.d

    def reward(self, world: World) -> Array:
        (collectors, deposits, treasures), loot = self._split(world), world.info
        sizes = self.sizes[: self.c]
        overlaps = touching(collectors, collectors, sizes, sizes).sum(axis=1) - 1
        carried = loot.holding[:, None] == np.arange(self.d)
        home = distance(collectors, deposits)

        seek = _least(jnp.where(loot.alive, distance(collectors, treasures), jnp.inf), 0.0)
        bring = jnp.sum(jnp.where(carried, home, 0.0), axis=1)
        collector = -BUMP * overlaps - 0.1 * jnp.where(loot.holding == EMPTY, seek, bring)

        center = length(collectors.mean(axis=0) - deposits)
        deposit = -0.1 * _least(jnp.where(carried, home, jnp.inf).T, center)
        return jnp.concatenate([collector, deposit]) + loot.earned

    def paint(self, world: World) -> np.ndarray:
        """Treasures, and the collectors that carry them, have the colour of the treasure's kind."""
        colors, loot = super().paint(world), jax.device_get(world.info)
        kinds = np.array(COLORS)
        busy = loot.holding != EMPTY
        colors[: self.c, :3][busy] = 0.85 * kinds[loot.holding[busy]]
        colors[self.n :, :3] = kinds[loot.kind]
        colors[self.n :, 3] = loot.alive
        return colors


def _dark(kind: int) -> Color:
    red, green, blue = COLORS[kind]
    return 0.35 * red, 0.35 * green, 0.35 * blue


def _least(values: Array, otherwise: Array | float) -> Array:
    """[N, M] -> [N]: the smallest of each row, or `otherwise` where all are infinite."""
    least = values.min(axis=1)
    return jnp.where(jnp.isfinite(least), least, otherwise)


def collect_treasure(
    num_collectors: int = 6,
    num_deposits: int = 2,
    num_treasures: int = 6,
    max_cycles: int = 25,
    continuous_actions: bool = False,
) -> ParticleEnv:
    """There are as many kinds of treasure as deposits, at most 6."""
    at_least(
        "collect_treasure", 1, num_collectors=num_collectors, num_deposits=num_deposits, num_treasures=num_treasures
    )
    if num_deposits > len(COLORS):
        raise UsageError(f"mpe/collect_treasure: num_deposits must be at most {len(COLORS)}, not {num_deposits}.")
    scenario = CollectTreasure(num_collectors, num_deposits, num_treasures)
    return ParticleEnv(scenario, max_cycles, continuous_actions)
