"""Traffic signals on a grid of junctions: store-and-forward queues with spill-back and time lost in switching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.settings import between, one_of, share, whole
from flockrl.envs.traffic.plan import fixed_plan, phase_table, poisson_table

SECONDS = 5
"""Length of a step."""
LEFT, STRAIGHT, RIGHT = range(3)
"""Movements, as a driver on an approach sees them. Approaches and exits are the sides N, E, S, W of a junction."""
TO = {LEFT: 1, STRAIGHT: 2, RIGHT: 3}
"""From approach a, a movement leads to exit (a + TO) % 4."""
ENDLESS = 1 << 20
"""Room beyond the edge of the grid."""
NAME = "traffic/grid"
REWARDS = ("shared", "near", "own", "pressure")


class Streets(NamedTuple):
    """t: steps so far. queue: [R, C, 4, 3] vehicles on each approach by movement; outside: [R, C, 4] those that wait to
    enter at the edge; phase, age: [R, C] the signal and the steps since it was switched. arrived, left: vehicles that
    came and went; waited: vehicle-steps in queues; blocked: vehicle-steps on green before a full street."""

    t: Array
    queue: Array
    outside: Array
    phase: Array
    age: Array
    arrived: Array
    left: Array
    waited: Array
    blocked: Array


class SignalGrid:
    """Signals of `rows` x `columns` four-way junctions; each is an agent and chooses the phase of the next 5 seconds.

    Vehicles queue on the four approaches of each junction by movement (left, straight, right). A green movement serves
    up to `saturation` vehicles per step, but only as many as the street behind it has room for (`capacity` vehicles on
    each approach): full streets spill back. A vehicle that enters an approach draws its movement (`turn_left`,
    `turn_right`, the rest straight, in units of 1/256). At the edges vehicles arrive as Poisson numbers: `demand` per
    hour on every entry from east and west, `cross` on those from north and south; they wait outside while the approach
    is full. After a switch nothing is served for `lost` steps, and a signal cannot be switched again before it was
    green for `least` steps: until then the present phase alone is legal.

    `reward=shared`: every junction is paid minus the minutes that vehicles spent on the approaches of a junction and
    outside its entries in the step, mean over junctions. `near`: mean over itself and the junctions beside it. `own`:
    those of its own, which makes a dilemma: a junction that holds vehicles back has empty streets behind it.
    `pressure`: minus 5/60 of |vehicles before it - vehicles on the streets behind it|, which is small where all streets
    are full, too.

    A junction observes its phase (one-hot), steps since the switch / 12 (at most 1), its 12 queues / 10, who waits
    outside its four approaches / 10 (at most 10), and how full the four streets behind its exits are.
    """

    def __init__(
        self,
        rows: int = 3,
        columns: int = 3,
        phases: int = 4,
        demand: float = 600.0,
        cross: float = 400.0,
        turn_left: float = 0.2,
        turn_right: float = 0.2,
        saturation: int = 2,
        capacity: int = 8,
        lost: int = 1,
        least: int = 3,
        reward: str = "shared",
        steps: int = 240,
    ):
        whole(NAME, 1, 30, rows=rows, columns=columns)
        one_of(NAME, (2, 4), phases=phases)
        one_of(NAME, REWARDS, reward=reward)
        between(NAME, 0, 3000, demand=demand, cross=cross)
        share(NAME, turn_left=turn_left, turn_right=turn_right)
        whole(NAME, 1, 10, saturation=saturation)
        whole(NAME, 2 * saturation, 1000, capacity=capacity)
        whole(NAME, 0, 10, lost=lost, least=least)
        whole(NAME, 1, 100_000, steps=steps)
        if turn_left + turn_right > 1:
            raise UsageError(f"{NAME}: turn_left and turn_right must not exceed 1 together.")
        self.reward, self.shape, self.n, self.phases = reward, (rows, columns), rows * columns, phases
        self.saturation, self.capacity, self.lost, self.least, self.steps = saturation, capacity, lost, least, steps
        self.most = 2 * saturation
        """Vehicles that may enter an approach in one step."""
        self.cuts = np.round(256 * np.array([turn_left, 1 - turn_right])).astype(np.int32)
        self.ratios = np.diff(np.array([0, *self.cuts, 256])) / 256
        self.green = phase_table(phases) * saturation
        """[P, 4, 3] vehicles that each phase serves per step."""
        per_step = np.array([cross, demand, cross, demand]) * SECONDS / 3600
        self.comes = poisson_table(per_step)
        self.plan = fixed_plan(self.green, per_step[:, None] * self.ratios, lost, max(least, 1))
        self.edge = np.zeros((rows, columns, 4), bool)
        self.edge[0, :, 0] = self.edge[:, -1, 1] = self.edge[-1, :, 2] = self.edge[:, 0, 3] = True
        place = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1).reshape(-1, 2)
        self.adjacent = np.abs(place[:, None] - place).sum(-1) == 1
        around = (self.adjacent | np.eye(self.n, dtype=bool)).astype(np.float32)
        self.beside = around / around.sum(0)
        """[N, N] the weight of each junction (rows) in what one is paid for itself and those beside it."""
        high = (*(1.0,) * (phases + 1), *(capacity / 10,) * 12, *(10.0,) * 4, *(1.0,) * 4)
        self.spec = EnvSpec(
            name=NAME,
            agents=tuple(f"signal_{i}" for i in range(self.n)),
            observations=(Box((len(high),), 0.0, high),) * self.n,
            actions=(Discrete(phases),) * self.n,
            max_steps=steps,
            neighbours=True,
        )
        self.policies = {"fixed_time": self._fixed, "greedy": self._greedy, "max_pressure": self._max_pressure}

    def reset(self, key: Array) -> tuple[Streets, Observation]:
        zero, each = jnp.int32(0), jnp.zeros(self.shape, jnp.int32)
        state = Streets(
            zero, jnp.zeros((*self.shape, 4, 3), jnp.int32), jnp.zeros((*self.shape, 4), jnp.int32), each,
            each + self.lost + self.least, zero, zero, zero, zero,
        )  # fmt: skip
        return state, self._observe(state)

    def step(self, key: Array, state: Streets, action: Array) -> tuple[Streets, Observation, Array, Array, Array]:
        phase, age = self._switch(state, action.reshape(self.shape))
        served, leaves, blocked = self._serve(state, phase, age)
        words = self._words(key)
        draw = (words[0] >> 8).astype(jnp.float32) * 2.0**-24
        come = jnp.where(self.edge, (draw[..., None] > self.comes).sum(-1), 0)
        waiting, room = state.outside + come, self.capacity - state.queue.sum(-1)
        enter = jnp.where(self.edge, jnp.minimum(jnp.minimum(waiting, room), self.most), self._across(leaves, 0))
        queue = state.queue - served + self._turn(enter, words[1:])
        outside = waiting - jnp.where(self.edge, enter, 0)
        here = queue.sum((2, 3)) + outside.sum(2)
        state = Streets(
            t=state.t + 1, queue=queue, outside=outside, phase=phase, age=age + 1, arrived=state.arrived + come.sum(),
            left=state.left + jnp.where(self.edge, leaves, 0).sum(), waited=state.waited + here.sum(),
            blocked=state.blocked + blocked,
        )  # fmt: skip
        return state, self._observe(state), self._reward(state, here), jnp.bool_(False), state.t >= self.steps

    def _reward(self, state: Streets, here: Array) -> Array:
        """[N]; here: [R, C] vehicles on the approaches of each junction and outside."""
        if self.reward == "shared":
            counted = jnp.full(self.shape, here.mean())
        elif self.reward == "near":
            counted = (here.reshape(-1) @ self.beside).astype(jnp.float32)
        elif self.reward == "own":
            counted = here
        else:
            behind = self._across(state.queue.sum(-1), 0).sum(2)
            counted = jnp.abs(here - behind)
        return -counted.reshape(-1) * (SECONDS / 60)

    def _free(self, state: Streets) -> Array:
        """[R, C] whether a signal may be switched now."""
        return state.age >= self.lost + self.least

    def _switch(self, state: Streets, chosen: Array) -> tuple[Array, Array]:
        switched = self._free(state) & (chosen != state.phase)
        return jnp.where(switched, chosen, state.phase), jnp.where(switched, 0, state.age)

    def _serve(self, state: Streets, phase: Array, age: Array) -> tuple[Array, Array, Array]:
        """Vehicles that leave their approach [R, C, 4, 3], those by exit [R, C, 4], and how many a full street held.

        Where two green movements lead to one exit, the straight one goes first, then right, then left."""
        lit = (phase[..., None] == np.arange(self.phases)) & (age >= self.lost)[..., None]
        flow = (lit[..., None, None] * self.green).sum(2)
        wants = jnp.minimum(state.queue, flow)
        room = jnp.where(self.edge, ENDLESS, self.capacity - self._across(state.queue.sum(-1), 0))
        goes, leaves = {}, jnp.zeros_like(room)
        for movement in (STRAIGHT, RIGHT, LEFT):
            by_exit = jnp.minimum(jnp.roll(wants[..., movement], TO[movement], 2), room - leaves)
            leaves = leaves + by_exit
            goes[movement] = jnp.roll(by_exit, -TO[movement], 2)
        served = jnp.stack([goes[movement] for movement in (LEFT, STRAIGHT, RIGHT)], -1)
        return served, leaves, (wants - served).sum()

    def _across(self, x: Array, beyond: int) -> Array:
        """[R, C, 4] what stands on the other end of each side's street; x: [R, C, 4]. It is its own inverse."""
        rows, columns = self.shape
        row, column = jnp.full((1, columns), beyond, x.dtype), jnp.full((rows, 1), beyond, x.dtype)
        north = jnp.concatenate([row, x[:-1, :, 2]], 0)
        east = jnp.concatenate([x[:, 1:, 3], column], 1)
        south = jnp.concatenate([x[1:, :, 0], row], 0)
        west = jnp.concatenate([column, x[:, :-1, 1]], 1)
        return jnp.stack([north, east, south, west], -1)

    def _words(self, key: Array) -> Array:
        """[1 + K, R, C, 4] random words of a step: one for those who come, then a byte for each that may enter."""
        shape = (1 - (-self.most // 4), *self.shape, 4)
        return jax.random.bits(key, (int(np.prod(shape)),)).reshape(shape)  # a row of numbers is drawn fastest

    def _turn(self, enter: Array, words: Array) -> Array:
        """[R, C, 4, 3] movements of those who enter [R, C, 4]; words: [K, R, C, 4] random, a byte for each vehicle."""
        left, right = jnp.zeros_like(enter), jnp.zeros_like(enter)
        for k in range(self.most):
            byte = ((words[k // 4] >> (8 * (k % 4))) & 255).astype(jnp.int32)
            left = left + ((byte < self.cuts[0]) & (k < enter))
            right = right + ((byte >= self.cuts[1]) & (k < enter))
        return jnp.stack([left, enter - left - right, right], -1)

    def measures(self, state: Streets) -> dict[str, Array]:
        """delay: mean seconds that a vehicle spent in the grid or before it, for all that came, those still there
        included; throughput: vehicles that left; blocked: vehicle-steps on green before a full street."""
        delay = SECONDS * state.waited / jnp.maximum(state.arrived, 1)
        return {"delay": delay, "throughput": state.left, "blocked": state.blocked}

    def render(self, states: Sequence[Streets], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.traffic.render import grid_frames

        return grid_frames(self, states, size)

    def _observe(self, state: Streets) -> Observation:
        n, phase = self.n, state.phase.reshape(-1, 1) == np.arange(self.phases)
        full = self._across(state.queue.sum(-1), 0) / self.capacity
        parts = (
            phase, jnp.minimum(state.age.reshape(n, 1) / 12, 1.0), state.queue.reshape(n, 12) / 10,
            jnp.minimum(state.outside.reshape(n, 4) / 10, 10.0), full.reshape(n, 4),
        )  # fmt: skip
        obs = jnp.concatenate([part.astype(jnp.float32) for part in parts], -1)
        avail = phase | self._free(state).reshape(n, 1)
        return Observation(obs, avail=avail, neighbours=jnp.asarray(self.adjacent))

    def _fixed(self, state: Streets, seen: Observation, key: Array) -> Array:
        """All signals follow one timetable, whose green times are in the ratio of the expected loads (Webster)."""
        return jnp.broadcast_to(jnp.asarray(self.plan)[state.t % len(self.plan)], self.n)

    def _greedy(self, state: Streets, seen: Observation, key: Array) -> Array:
        """The phase for which most vehicles wait."""
        return self._best_phase(state, state.queue)

    def _max_pressure(self, state: Streets, seen: Observation, key: Array) -> Array:
        """The phase with the greatest pressure (Varaiya 2013): vehicles that wait for a movement minus those on the
        street behind it, by the share of their own movement."""
        behind = self._across((state.queue * self.ratios).sum(-1), 0)
        after = jnp.stack([jnp.roll(behind, -TO[movement], 2) for movement in (LEFT, STRAIGHT, RIGHT)], -1)
        return self._best_phase(state, state.queue - after)

    def _best_phase(self, state: Streets, weight: Array) -> Array:
        """[N] the phase that serves the most weight [R, C, 4, 3]; among equals the present one."""
        score = (weight[:, :, None] * self.green).sum((3, 4)) + 1e-3 * (
            state.phase[..., None] == np.arange(self.phases)
        )
        return score.argmax(-1).reshape(-1)
