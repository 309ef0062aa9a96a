"""Classic control: one agent, physics in a few lines, the same numbers as Gymnasium's environments.

For trying a learner on well-known tasks. `pendulum` has continuous actions, and its episodes are only truncated;
`cartpole` has discrete actions and terminates when the pole falls. The time limit truncates. As in Gymnasium, an
episode whose pole falls in the very last step is both terminated and truncated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation, Space


class Swing(NamedTuple):
    """t: steps since the reset; angle: of the pendulum, 0 upright, may exceed one turn; speed: angular velocity."""

    t: Array
    angle: Array
    speed: Array


class Pendulum:
    """Gymnasium's Pendulum-v1: swing a rod up with a torque that is too weak to lift it directly, and keep it upright.

    The agent observes [3]: cosine and sine of the angle, and the angular velocity (from -8 to 8). Its action [1] is
    the torque, clipped to -2 .. 2. The reward is -(angle^2 + 0.1 velocity^2 + 0.001 torque^2), with the angle (from
    -pi to pi) and the velocity before the step. The rod has mass 1 and length 1; `g` is gravity.
    """

    DT, TORQUE, SPEED = 0.05, 2.0, 8.0

    def __init__(self, g: float = 10.0, max_cycles: int = 200):
        if not math.isfinite(g):
            raise UsageError(f"classic/pendulum: g must be a finite number, not {g}.")
        self.g = float(g)
        high = (1.0, 1.0, self.SPEED)
        self.spec = _spec("pendulum", high, Box((1,), -self.TORQUE, self.TORQUE), max_cycles)

    def reset(self, key: Array) -> tuple[Swing, Observation]:
        """Draw any angle, and a velocity from -1 to 1."""
        angle, speed = jax.random.uniform(key, (2,), minval=-1.0)
        state = Swing(jnp.int32(0), angle * math.pi, speed)
        return state, self._observe(state)

    def step(self, key: Array, state: Swing, action: Array) -> tuple[Swing, Observation, Array, Array, Array]:
        """action: [1, 1]."""
        torque = jnp.clip(action[0, 0], -self.TORQUE, self.TORQUE)
        # Full turns are removed here, so the angle stays small and exact in episodes of any length.
        angle = (state.angle + math.pi) % (2 * math.pi) - math.pi
        cost = angle**2 + 0.1 * state.speed**2 + 0.001 * torque**2
        # A rod of mass m and length l, turned about its end, has the moment of inertia m l^2 / 3.
        speed = state.speed + self.DT * 3 * (self.g / 2 * jnp.sin(angle) + torque)
        speed = jnp.clip(speed, -self.SPEED, self.SPEED)
        state = Swing(state.t + 1, angle + self.DT * speed, speed)
        return state, self._observe(state), -cost[None], jnp.bool_(False), state.t >= self.spec.max_steps

    def render(self, states: Sequence[Swing], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.classic.render import pendulum_frames

        return pendulum_frames(states, size)

    def _observe(self, state: Swing) -> Observation:
        return Observation(jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.speed])[None])


class Balance(NamedTuple):
    """t: steps since the reset; body: [4] the cart's position and velocity, the pole's angle and velocity."""

    t: Array
    body: Array


class CartPole:
    """Gymnasium's CartPole-v1: keep a pole upright on a cart by pushing the cart left (0) or right (1).

    The agent observes [4]: the cart's position and velocity, the pole's angle and angular velocity. Every
    step pays 1, including the last one. The episode terminates when the cart is more than 2.4 from the
    middle or the pole more than 12 degrees from upright.
    """

    DT, GRAVITY, FORCE = 0.02, 9.8, 10.0
    CART, POLE, HALF = 1.0, 0.1, 0.5
    """Masses of cart and pole, and half the pole's length."""
    POSITION, ANGLE = 2.4, math.radians(12)

    def __init__(self, max_cycles: int = 500):
        high = (2 * self.POSITION, math.inf, 2 * self.ANGLE, math.inf)
        self.spec = _spec("cartpole", high, Discrete(2), max_cycles)

    def reset(self, key: Array) -> tuple[Balance, Observation]:
        """Draw all four numbers from -0.05 to 0.05."""
        state = Balance(jnp.int32(0), jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05))
        return state, Observation(state.body[None])

    def step(self, key: Array, state: Balance, action: Array) -> tuple[Balance, Observation, Array, Array, Array]:
        """action: [1]."""
        _, velocity, angle, spin = state.body
        sin, cos, mass = jnp.sin(angle), jnp.cos(angle), self.CART + self.POLE
        lever = self.POLE * self.HALF / mass
        push = jnp.where(action[0] > 0, self.FORCE, -self.FORCE) / mass + lever * spin**2 * sin
        turn = (self.GRAVITY * sin - cos * push) / (self.HALF * 4 / 3 - lever * cos**2)
        change = jnp.stack([velocity, push - lever * turn * cos, spin, turn])
        state = Balance(state.t + 1, state.body + self.DT * change)
        fallen = (jnp.abs(state.body[0]) > self.POSITION) | (jnp.abs(state.body[2]) > self.ANGLE)
        return state, Observation(state.body[None]), jnp.ones(1), fallen, state.t >= self.spec.max_steps

    def render(self, states: Sequence[Balance], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.classic.render import cartpole_frames

        return cartpole_frames(states, (self.POSITION, self.ANGLE), size)


def _spec(name: str, high: tuple[float, ...], actions: Space, max_cycles: int) -> EnvSpec:
    """One agent whose observation lies between -high and high."""
    if max_cycles < 1 or max_cycles != int(max_cycles):
        raise UsageError(f"classic/{name}: max_cycles must be a whole number of at least 1, not {max_cycles}.")
    box = Box((len(high),), tuple(-bound for bound in high), high)
    return EnvSpec(f"classic/{name}", ("agent_0",), (box,), (actions,), int(max_cycles))


ENVIRONMENTS = {"pendulum": Pendulum, "cartpole": CartPole}
