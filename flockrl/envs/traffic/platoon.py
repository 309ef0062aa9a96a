"""A platoon of vehicles by the rules of NeurComm's CACC environments (Chu et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation, Space
from flockrl.envs.settings import one_of, whole

DT = 0.1
"""Seconds of a step."""
STOP, GO, NEAR, GAP, SPEED, FASTEST, PUSH, PENALTY = 5.0, 35.0, 1.0, 20.0, 15.0, 30.0, 2.5, 1000.0
"""Headways (m) below which a driver stands and above which he drives at full speed; that of a crash; the wanted one;
the wanted and the greatest speed (m/s); the greatest acceleration (m/s²); what each step after a crash costs."""
GAINS = np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5], [0.5, 0.5]], np.float32)
"""[4, 2] gains on headway and on the speed of the vehicle ahead, one pair per action."""
BRAKING = 300
"""Steps over which the leader slows down."""
SCENARIOS = ("catchup", "slowdown")
NAME = "traffic/platoon"


class Convoy(NamedTuple):
    """t: steps so far; gap, speed, push: [N] headway (m), speed (m/s), acceleration (m/s²); first: the speed that the
    leader had; crashed: whether any headway fell below 1 m; least: the smallest headway so far; error: the sum of
    (headway - 20)² over steps, mean over vehicles."""

    t: Array
    gap: Array
    speed: Array
    push: Array
    first: Array
    crashed: Array
    least: Array
    error: Array


class Platoon:
    """`vehicles` drive behind a leader whose speed is given; each step of 0.1 s a vehicle chooses how it follows.

    Its acceleration is a (V(h) - v) + b (v_ahead - v), cut to 2.5 m/s² and to speeds from 0 to 30 m/s, where V is the
    optimal velocity for headway h: 0 up to 5 m, 30 m/s from 35 m on, a cosine between. Actions are the gains (a, b): 0
    (0, 0), 1 (.5, 0), 2 (0, .5), 3 (.5, .5); with `continuous_actions` the acceleration itself, in units of 2.5 m/s².
    `catchup`: all drive at 15 m/s with headways of 20 m, but the first is 30 to 50 m behind the leader. `slowdown`: all
    drive at 22.5 to 37.5 m/s (then at most 30), and the leader slows down to 15 m/s within 30 s.

    A vehicle is paid -((h - 20)² + (v - 15)² + 0.1 u²) per step; once any headway is below 1 m, everybody stands still
    and gets -1000 in every step that is left. NeurComm's additional penalty in training for headways below 10 m is left
    out. It observes [(v - 15) / 15, (v_ahead - v) / 5 and (V(h) - v) / 5, both cut to ±2,
    (h + 0.1 (v_ahead - v) - 20) / 20, u / 2.5], and perceives the vehicles before and behind it.
    """

    def __init__(
        self, scenario: str = "catchup", vehicles: int = 8, steps: int = 600, continuous_actions: bool = False
    ):
        one_of(NAME, SCENARIOS, scenario=scenario)
        whole(NAME, 2, 100, vehicles=vehicles)
        whole(NAME, 1, 100_000, steps=steps)
        self.scenario, self.n, self.steps, self.continuous = scenario, vehicles, steps, continuous_actions
        each = np.arange(vehicles)
        self.adjacent = np.abs(each[:, None] - each) == 1
        action: Space = Box((1,), -1.0, 1.0) if continuous_actions else Discrete(len(GAINS))
        self.spec = EnvSpec(
            name=NAME,
            agents=tuple(f"vehicle_{i}" for i in range(vehicles)),
            observations=(Box((5,)),) * vehicles,
            actions=(action,) * vehicles,
            max_steps=steps,
            neighbours=True,
        )
        self.policies = {"ovm": self._ovm, "hold": self._hold}
        if continuous_actions:
            self.policies["idm"] = self._idm

    def reset(self, key: Array) -> tuple[Convoy, Observation]:
        luck, each = jax.random.uniform(key), jnp.ones(self.n)
        gap, speed = GAP * each, SPEED * each
        if self.scenario == "catchup":
            gap = gap.at[0].set(GAP * (1.5 + luck))
        else:
            speed = SPEED * (1.5 + luck) * each
        state = Convoy(
            jnp.int32(0), gap, speed, 0 * each, speed[0], jnp.bool_(False), gap.min(), jnp.float32(0)
        )  # fmt: skip
        return state, self._observe(state)

    def step(self, key: Array, state: Convoy, action: Array) -> tuple[Convoy, Observation, Array, Array, Array]:
        ahead = self._ahead(state.speed, state)
        if self.continuous:
            push = action[:, 0] * PUSH
        else:
            gains = jax.nn.one_hot(action, len(GAINS)) @ GAINS
            push = gains[:, 0] * (optimal_velocity(state.gap) - state.speed) + gains[:, 1] * (ahead - state.speed)
        speed = jnp.clip(state.speed + jnp.clip(push, -PUSH, PUSH) * DT, 0.0, FASTEST)
        push = (speed - state.speed) / DT
        ahead_next = self._ahead(speed, state._replace(t=state.t + 1))
        gap = state.gap + 0.5 * DT * (ahead + ahead_next - state.speed - speed)
        still = state.crashed
        gap, speed, push = (jnp.where(still, a, b) for a, b in ((state.gap, gap), (state.speed, speed), (0.0, push)))
        crashed = still | (gap.min() < NEAR)
        error, least = state.error + ((gap - GAP) ** 2).mean(), jnp.minimum(state.least, gap.min())
        state = Convoy(state.t + 1, gap, speed, push, state.first, crashed, least, error)
        cost = (gap - GAP) ** 2 + (speed - SPEED) ** 2 + 0.1 * push**2
        reward = -jnp.where(crashed, PENALTY, cost)
        return state, self._observe(state), reward, jnp.bool_(False), state.t >= self.steps

    def _ahead(self, speed: Array, state: Convoy) -> Array:
        """[N] speeds of the vehicles ahead at the state's time."""
        braked = jnp.minimum(state.t / (BRAKING - 1), 1.0)
        return jnp.concatenate([(state.first + (SPEED - state.first) * braked)[None], speed[:-1]])

    def measures(self, state: Convoy) -> dict[str, Array]:
        """success: nobody crashed; least_headway (m) of the episode; headway_error: root mean square of h - 20 (m)."""
        return {
            "success": ~state.crashed, "least_headway": state.least,
            "headway_error": jnp.sqrt(state.error / jnp.maximum(state.t, 1)),
        }  # fmt: skip

    def render(self, states: Sequence[Convoy], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.traffic.render import platoon_frames

        return platoon_frames(states, size)

    def _observe(self, state: Convoy) -> Observation:
        ahead = self._ahead(state.speed, state) - state.speed
        wanted = optimal_velocity(state.gap) - state.speed
        obs = jnp.stack(
            [
                (state.speed - SPEED) / SPEED, jnp.clip(ahead / 5, -2, 2), jnp.clip(wanted / 5, -2, 2),
                (state.gap + ahead * DT - GAP) / GAP, state.push / PUSH,
            ],
            -1,
        )  # fmt: skip
        return Observation(obs, neighbours=jnp.asarray(self.adjacent))

    def _pushes(self, push: Array) -> Array:
        return jnp.clip(push / PUSH, -1.0, 1.0)[:, None]

    def _ovm(self, state: Convoy, seen: Observation, key: Array) -> Array:
        """The optimal velocity model with gains of 0.5, as a careful driver."""
        if not self.continuous:
            return jnp.full(self.n, 3)
        ahead = self._ahead(state.speed, state)
        return self._pushes(0.5 * (optimal_velocity(state.gap) - state.speed) + 0.5 * (ahead - state.speed))

    def _hold(self, state: Convoy, seen: Observation, key: Array) -> Array:
        """Nobody ever accelerates."""
        return jnp.zeros((self.n, 1)) if self.continuous else jnp.zeros(self.n, jnp.int32)

    def _idm(self, state: Convoy, seen: Observation, key: Array) -> Array:
        """The intelligent driver model (Treiber et al. 2000), with the time gap whose equilibrium at 15 m/s is 20 m."""
        still, comfort = 2.0, 1.5
        free = 1 - (SPEED / FASTEST) ** 4
        time_gap = (GAP * np.sqrt(free) - still) / SPEED
        closing = state.speed - self._ahead(state.speed, state)
        wanted = still + jnp.maximum(
            0.0, state.speed * time_gap + state.speed * closing / (2 * np.sqrt(PUSH * comfort))
        )
        return self._pushes(PUSH * (1 - (state.speed / FASTEST) ** 4 - (wanted / jnp.maximum(state.gap, 0.1)) ** 2))


def optimal_velocity(gap: Array) -> Array:
    """The speed (m/s) that a driver with this headway (m) wants."""
    part = jnp.clip((gap - STOP) / (GO - STOP), 0.0, 1.0)
    return FASTEST / 2 * (1 - jnp.cos(jnp.pi * part))
