"""Flocking: Vicsek's model, and agents with inertia as Olfati-Saber controls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, EnvSpec, Observation
from flockrl.envs.emergence import apart, clustering, order
from flockrl.envs.settings import between, one_of, whole
from flockrl.envs.swarm.olfati_saber import acceleration

SPEED, RADIUS = 0.03, 1.0
"""Vicsek's speed per step and the radius within which agents perceive each other."""
DT, DRIVE, FASTEST = 0.1, 2.0, 2.0
"""Of agents with inertia: time of a step, greatest acceleration and speed."""
SPACING = 0.7
"""The distance that Olfati-Saber's agents keep, in units of the radius."""
MODELS, NOISES = ("vicsek", "inertia"), ("turn", "sight")
DAMPED = 0.25
"""The share of a turn that the damped rule makes in a step."""
NAME = "swarm/flocking"


class Flock(NamedTuple):
    """t: steps so far; pos, vel: [N, 2]; blur: [N] the angle by which each sees the mean direction wrong; ordered: the
    sum of the order over the second half of the episode; told: how many steps that were; touched: pairs times steps
    nearer than a fifth of the radius."""

    t: Array
    pos: Array
    vel: Array
    blur: Array
    ordered: Array
    told: Array
    touched: Array


class Flocking:
    """`n` agents on a torus, n / `density` in area, who perceive each other within 1, find a common direction.

    `vicsek`: everybody moves 0.03 per step. An action is a turn in units of pi, from -1 to 1, and noise from U(-eta /
    2, eta / 2) is added to it; with `noise=sight` to the mean direction that is observed instead, so that who follows
    what it sees moves just as before, and who does not may do better. `inertia`: an action is an acceleration [x, y] in
    units of 2, each from -1 to 1, steps last 0.1, the greatest speed is 2, and noise from U(-eta / 2, eta / 2) is added
    to both numbers.

    All are paid the order, |sum of unit velocities| / n, minus (with inertia) 0.1 for each other agent within 0.2. What
    is observed turns with the agent: [cos and sin of the mean direction of those it perceives, itself included, the
    length of that mean, the mean way to the others, how many they are / 10]; with inertia also its speed / 2 and the
    mean difference of velocities; with `compass` the cos and sin of its own direction. Truncated after `steps`.
    """

    def __init__(
        self,
        model: str = "vicsek",
        n: int = 100,
        density: float = 4.0,
        eta: float = 2.0,
        noise: str = "turn",
        compass: bool = False,
        steps: int = 200,
    ):
        one_of(NAME, MODELS, model=model)
        one_of(NAME, NOISES, noise=noise)
        if (model, noise) == ("inertia", "sight"):
            raise UsageError(f"{NAME}: noise=sight is for model=vicsek.")
        whole(NAME, 2, 2000, n=n)
        between(NAME, 0.01, 100, density=density)
        between(NAME, 0, 2 * np.pi + 0.01, eta=eta)
        whole(NAME, 2, 100_000, steps=steps)
        self.n, self.eta, self.compass, self.steps = n, eta, compass, steps
        self.inertia, self.side = model == "inertia", float(np.sqrt(n / density))
        self.blurred = noise == "sight"
        self.spec = EnvSpec(
            name=NAME,
            agents=tuple(f"bird_{i}" for i in range(n)),
            observations=(Box((6 + 3 * self.inertia + 2 * compass,)),) * n,
            actions=(Box((2 if self.inertia else 1,), -1.0, 1.0),) * n,
            max_steps=steps,
            neighbours=True,
        )
        self.policies = {"straight": self._straight}
        if self.inertia:
            self.policies["olfati_saber"] = self._olfati_saber
        else:
            self.policies |= {"vicsek": self._vicsek, "damped": self._damped, "compass": self._north}
            # Whatever directions agents choose, noise leaves a mean of sin(eta / 2) / (eta / 2) along each, so that
            # E order <= sqrt(E order²) <= sqrt(m² + (1 - m²) / n).
            mean = 1.0 if self.blurred else float(np.sinc(eta / 2 / np.pi))
            self.best = steps * float(np.sqrt(mean**2 + (1 - mean**2) / n))

    def reset(self, key: Array) -> tuple[Flock, Observation]:
        place, turn, sight = jax.random.split(key, 3)
        angle = 2 * jnp.pi * jax.random.uniform(turn, (self.n,))
        pos = self.side * jax.random.uniform(place, (self.n, 2))
        vel = (1.0 if self.inertia else SPEED) * jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)
        blur = self._noise(sight, (self.n,)) if self.blurred else jnp.zeros(self.n)
        state = Flock(jnp.int32(0), pos, vel, blur, jnp.float32(0), jnp.int32(0), jnp.int32(0))
        return state, self._observe(state)

    def step(self, key: Array, state: Flock, action: Array) -> tuple[Flock, Observation, Array, Array, Array]:
        noise, blur = self._noise(key, action.shape), state.blur
        if self.blurred:
            noise, blur = jnp.zeros_like(noise), noise[:, 0]
        if self.inertia:
            vel = state.vel + DT * (DRIVE * action + noise)
            vel = vel * jnp.minimum(1.0, FASTEST / jnp.maximum(jnp.sqrt((vel**2).sum(-1, keepdims=True)), 1e-9))
            pos = state.pos + DT * vel
        else:
            turn = (jnp.pi * action + noise)[:, 0]
            vel = _rotated(state.vel, turn)
            vel = vel * (SPEED / jnp.sqrt((vel**2).sum(-1, keepdims=True)))  # rounding must not add up
            pos = state.pos + vel
        pos, now = pos % self.side, order(vel)
        counts = state.t + 1 > self.steps // 2
        close = self._close(pos) if self.inertia else jnp.zeros(self.n, jnp.int32)
        state = Flock(
            state.t + 1, pos, vel, blur, state.ordered + now * counts, state.told + counts,
            state.touched + close.sum() // 2,
        )  # fmt: skip
        reward = jnp.full(self.n, now) - 0.1 * close
        return state, self._observe(state), reward, jnp.bool_(False), state.t >= self.steps

    def _noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        # A row of numbers is drawn fastest.
        return self.eta * (jax.random.uniform(key, (int(np.prod(shape)),)).reshape(shape) - 0.5)

    def _close(self, pos: Array) -> Array:
        """[N] how many others are nearer than a fifth of the radius."""
        x, y, _ = self._near(pos)
        return (x**2 + y**2 < (RADIUS / 5) ** 2).sum(1) - 1

    def distances(self, state: Flock) -> Array:
        """[N, N] how far agents are from each other on the torus."""
        return apart(state.pos, self.side)

    def measures(self, state: Flock) -> dict[str, Array]:
        """order: its mean over the second half of the episode; clustering: the share of agents in the largest group
        linked within half the radius, at the end; touched: pairs times steps within a fifth of the radius."""
        found = {
            "order": state.ordered / jnp.maximum(state.told, 1),
            "clustering": clustering(state.pos, RADIUS / 2, self.side),
        }  # fmt: skip
        return found | ({"touched": state.touched} if self.inertia else {})

    def render(self, states: Sequence[Flock], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.swarm.render import flock_frames

        return flock_frames(states, self.side, size)

    def _near(self, pos: Array) -> tuple[Array, Array, Array]:
        """[N, N] ways to the others along x and y, and whether they are perceived, each by itself included."""
        x, y = (self._way(pos[:, axis]) for axis in (0, 1))
        return x, y, x**2 + y**2 <= RADIUS**2

    def _way(self, x: Array) -> Array:
        """[N, N] ways along one axis, the shortest on the torus."""
        way, half = x - x[:, None], self.side / 2
        return way - jnp.where(way > half, self.side, 0.0) + jnp.where(way < -half, self.side, 0.0)

    def _observe(self, state: Flock) -> Observation:
        x, y, near = self._near(state.pos)
        speed = jnp.sqrt((state.vel**2).sum(-1, keepdims=True))
        unit = state.vel / jnp.maximum(speed, 1e-9)
        others = near & ~np.eye(self.n, dtype=bool)
        total = near.astype(unit.dtype) @ jnp.concatenate([unit, jnp.ones((self.n, 1))], -1)
        mean, beside = total[:, :2] / total[:, 2:], total[:, 2:] - 1
        count = jnp.maximum(beside, 1.0)
        length = jnp.sqrt((mean**2).sum(-1, keepdims=True))
        facing = _rotated(unit, -state.blur) if self.blurred else unit
        parts = [_turned(mean / jnp.maximum(length, 1e-6), facing), length]
        way = jnp.stack([(x * near).sum(1), (y * near).sum(1)], -1)
        parts += [_turned(way / count, unit), beside / 10]
        if self.inertia:
            slower = (others.astype(unit.dtype) @ state.vel) / count - state.vel * (beside > 0)
            parts += [speed / FASTEST, _turned(slower, unit)]
        if self.compass:
            parts.append(unit)
        return Observation(jnp.concatenate(parts, -1), neighbours=others)

    def _turn_to(self, state: Flock, wanted: Array) -> Array:
        """Actions that turn everybody to the direction `wanted` [N, 2]."""
        x, y = state.vel[:, 0], state.vel[:, 1]
        turn = jnp.arctan2(x * wanted[:, 1] - y * wanted[:, 0], x * wanted[:, 0] + y * wanted[:, 1])
        return (turn / jnp.pi)[:, None]

    def _vicsek(self, state: Flock, seen: Observation, key: Array) -> Array:
        """Vicsek's rule (1995): everybody takes the mean direction of those within the radius, itself included."""
        return (jnp.arctan2(seen.obs[:, 1], seen.obs[:, 0]) / jnp.pi)[:, None]

    def _damped(self, state: Flock, seen: Observation, key: Array) -> Array:
        """A quarter of the turn that Vicsek's rule makes, so that errors of sight average out."""
        return DAMPED * self._vicsek(state, seen, key)

    def _north(self, state: Flock, seen: Observation, key: Array) -> Array:
        """Everybody always turns to the same direction, which an agent without a compass cannot: the most that noise
        allows."""
        return self._turn_to(state, jnp.broadcast_to(jnp.array([1.0, 0.0]), (self.n, 2)))

    def _straight(self, state: Flock, seen: Observation, key: Array) -> Array:
        """Nobody reacts to anybody."""
        return jnp.zeros((self.n, 2 if self.inertia else 1))

    def _olfati_saber(self, state: Flock, seen: Observation, key: Array) -> Array:
        """Olfati-Saber (2006): forces that keep a distance, consensus on velocities, and a wish to fly east at speed
        1."""
        x, y, near = self._near(state.pos)
        return jnp.clip(
            acceleration(jnp.stack([x, y], -1), near, state.vel, SPACING * RADIUS, RADIUS) / DRIVE, -1.0, 1.0
        )


def _rotated(vector: Array, angle: Array) -> Array:
    """Vectors [N, 2], turned to the left by angles [N]."""
    cos, sin, x, y = jnp.cos(angle), jnp.sin(angle), vector[:, 0], vector[:, 1]
    return jnp.stack([x * cos - y * sin, x * sin + y * cos], -1)


def _turned(vector: Array, unit: Array) -> Array:
    """Vectors [N, 2] as seen by agents that look along their unit vectors [N, 2]."""
    ahead = (vector * unit).sum(-1)
    left = unit[:, 0] * vector[:, 1] - unit[:, 1] * vector[:, 0]
    return jnp.stack([ahead, left], -1)
