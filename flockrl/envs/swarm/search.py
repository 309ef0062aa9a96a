"""Search: agents with a view cone look for targets that walk at random on a torus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.entities import OWN, layout
from flockrl.core.types import Array, Box, EnvSpec, Observation
from flockrl.envs.emergence import apart, coverage
from flockrl.envs.others import from_next
from flockrl.envs.settings import between, whole

SLOW, FAST, TURN = 0.01, 0.03, 0.4
"""Least and greatest way per step, and the greatest turn per step (radians)."""
CELLS = 20
"""Coverage counts cells of a grid of so many by so many."""
NAME = "swarm/search"


class Hunt(NamedTuple):
    """t: steps so far; pos: [N, 2]; angle, speed: [N]; targets: [M, 2]; found: [M]; seen: [CELLS²] cells that were in
    somebody's view."""

    t: Array
    pos: Array
    angle: Array
    speed: Array
    targets: Array
    found: Array
    seen: Array


class Search:
    """`n` searchers on a torus of width 1 find `targets` that walk at random; the first sight of each pays.

    An action is [turn in units of 0.4 radians, change of speed in units of 0.01], each from -1 to 1; a searcher moves
    0.01 to 0.03 per step. It sees what is within `sight` and at most `angle` radians to either side of its direction. A
    target that is seen for the first time pays 1, shared by those who see it in that step. Targets take steps from N(0,
    `drift`²) in both directions. Terminated when all are found, truncated after `steps`.

    Observed: [cos and sin of 2 pi x and 2 pi y, cos and sin of its direction, speed / 0.03, the share that is found,
    the share of time left], then for each other one, the next in order first, [way to it, its direction], as seen from
    its own direction.
    """

    def __init__(
        self,
        n: int = 4,
        targets: int = 20,
        sight: float = 0.1,
        angle: float = 0.8,
        drift: float = 0.005,
        steps: int = 100,
    ):
        whole(NAME, 1, 200, n=n)
        whole(NAME, 1, 1000, targets=targets)
        between(NAME, 0.001, 0.5, sight=sight)
        between(NAME, 0.01, 3.15, angle=angle)
        between(NAME, 0, 1, drift=drift)
        whole(NAME, 1, 100_000, steps=steps)
        self.n, self.m, self.sight, self.cone, self.drift, self.steps = n, targets, sight, angle, drift, steps
        grid = (np.arange(CELLS) + 0.5) / CELLS
        self.grid = grid.astype(np.float32)
        """[CELLS] middles of the cells along either axis."""
        self.spec = EnvSpec(
            name=NAME,
            agents=tuple(f"searcher_{i}" for i in range(n)),
            observations=(Box((9 + 4 * (n - 1),), -1.0, 1.0),) * n,
            actions=(Box((2,), -1.0, 1.0),) * n,
            max_steps=steps,
            entities=(layout((OWN, 9), ("searcher", n - 1, 4)),) * n,
        )
        self.best = targets / n
        self.policies = {"sweep": self._sweep, "wander": self._wander, "informed": self._informed}

    def reset(self, key: Array) -> tuple[Hunt, Observation]:
        draw = jax.random.uniform(key, (self.n + self.m + self.n, 2))
        pos, targets, more = jnp.split(draw, (self.n, self.n + self.m))
        state = Hunt(
            jnp.int32(0), pos, 2 * jnp.pi * more[:, 0], jnp.full(self.n, FAST), targets, jnp.zeros(self.m, bool),
            jnp.zeros(CELLS**2, bool),
        )  # fmt: skip
        return state, self._observe(state)

    def step(self, key: Array, state: Hunt, action: Array) -> tuple[Hunt, Observation, Array, Array, Array]:
        angle = (state.angle + TURN * action[:, 0]) % (2 * jnp.pi)
        speed = jnp.clip(state.speed + 0.01 * action[:, 1], SLOW, FAST)
        pos = (state.pos + speed[:, None] * _unit(angle)) % 1.0
        targets = (state.targets + self.drift * jax.random.normal(key, (self.m, 2))) % 1.0
        first = self._sees(pos, angle, targets) & ~state.found
        reward = (first / jnp.maximum(first.sum(0), 1)).sum(1)
        seen = state.seen | self._views(pos, angle).any(0).reshape(-1)
        state = Hunt(state.t + 1, pos, angle, speed, targets, state.found | first.any(0), seen)
        cut = state.t >= self.steps
        return state, self._observe(state), reward, state.found.all() & ~cut, cut

    def _sees(self, pos: Array, angle: Array, things: Array) -> Array:
        """[N, M] what each searcher sees of the things [M, 2]."""
        x, y = (_wrapped(things[:, axis] - pos[:, axis, None]) for axis in (0, 1))
        return self._within(x, y, angle[:, None])

    def _views(self, pos: Array, angle: Array) -> Array:
        """[N, CELLS, CELLS] the cells that each searcher has in view."""
        x, y = (_wrapped(jnp.asarray(self.grid) - pos[:, axis, None]) for axis in (0, 1))
        return self._within(x[:, :, None], y[:, None], angle[:, None, None])

    def _within(self, x: Array, y: Array, angle: Array) -> Array:
        """Whether something that lies at (x, y) from a searcher with this direction is seen."""
        far = jnp.sqrt(x**2 + y**2)
        ahead = x * jnp.cos(angle) + y * jnp.sin(angle)
        return (far <= self.sight) & (ahead >= far * np.cos(self.cone))

    def distances(self, state: Hunt) -> Array:
        """[N, N] how far searchers are from each other on the torus."""
        return apart(state.pos, 1.0)

    def measures(self, state: Hunt) -> dict[str, Array]:
        """found: the share of targets found; coverage: the share of cells that were in view."""
        return {"found": state.found.mean(), "coverage": coverage(state.seen)}

    def render(self, states: Sequence[Hunt], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.swarm.render import search_frames

        return search_frames(states, self.sight, self.cone, size)

    def _observe(self, state: Hunt) -> Observation:
        n, unit = self.n, _unit(state.angle)
        turn = 2 * jnp.pi * state.pos
        common = jnp.stack([state.found.mean(), 1 - state.t / self.steps])
        own = (jnp.cos(turn), jnp.sin(turn), unit, state.speed[:, None] / FAST, jnp.broadcast_to(common, (n, 2)))
        way, look = _ways(state.pos, state.pos), jnp.broadcast_to(unit, (n, n, 2))
        others = from_next(jnp.concatenate([_turned(way, unit), _turned(look, unit)], -1)).reshape(n, -1)
        return Observation(jnp.concatenate([*own, others], -1))

    def _turn(self, state: Hunt, wanted: Array) -> Array:
        """Actions that turn to the angles `wanted` [N] at full speed."""
        turn = (wanted - state.angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
        return jnp.stack([jnp.clip(turn / TURN, -1.0, 1.0), jnp.ones(self.n)], -1)

    def _sweep(self, state: Hunt, seen: Observation, key: Array) -> Array:
        """All fly in parallel along a line that winds around the torus, each turn a view's width beside the last."""
        width = 2 * self.sight * np.sin(min(self.cone, np.pi / 2))
        return self._turn(state, jnp.full(self.n, np.arctan(width)))

    def _wander(self, state: Hunt, seen: Observation, key: Array) -> Array:
        """Straight on, with a turn by chance now and then."""
        turn, chance = jax.random.uniform(key, (2, self.n))
        return jnp.stack([jnp.where(chance < 0.1, 2 * turn - 1, 0.0), jnp.ones(self.n)], -1)

    def _informed(self, state: Hunt, seen: Observation, key: Array) -> Array:
        """Everybody knows where the targets are and goes for the nearest one that is not found."""
        way = _ways(state.pos, state.targets)
        far = jnp.where(state.found, 10.0, (way**2).sum(-1))
        chosen = jnp.take_along_axis(way, far.argmin(1)[:, None, None], 1)[:, 0]
        return self._turn(state, jnp.arctan2(chosen[:, 1], chosen[:, 0]))


def _unit(angle: Array) -> Array:
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)


def _ways(a: Array, b: Array) -> Array:
    """[N, M, 2] the shortest ways on the torus."""
    return _wrapped(b - a[:, None])


def _wrapped(way: Array) -> Array:
    return way - jnp.round(way)


def _turned(vector: Array, unit: Array) -> Array:
    """Vectors [N, K, 2] as seen by agents that look along their unit vectors [N, 2]."""
    x, y = unit[:, None, 0], unit[:, None, 1]
    return jnp.stack([vector[..., 0] * x + vector[..., 1] * y, vector[..., 1] * x - vector[..., 0] * y], -1)
