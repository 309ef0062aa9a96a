"""The switch riddle (Foerster et al. 2016): prisoners, a room, and one bit."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.settings import between, whole

NOBODY = -1


class Prison(NamedTuple):
    """t: days over; room: who is in today; before: who was in yesterday, or nobody; been: [N] who was in on earlier
    days; switch: the bit that yesterday's visitor left; last: [N] what each did yesterday; told: 0, or +1 or -1 once
    somebody told, rightly or wrongly."""

    t: Array
    room: Array
    before: Array
    been: Array
    switch: Array
    last: Array
    told: Array


class SwitchRiddle:
    """n prisoners, 4n - 6 days. Each day one of them, drawn evenly and anew, is in the room with the switch.

    Whoever is in the room may *tell*: the game ends, and everyone is paid 1 if all have been in the room by now, today
    included, else -1. If nobody ever tells, everyone is paid 0.

    With the bit, the actions are 0 and 1 (leave the switch like that) and 2 (tell, after which the switch does not
    matter any more), and today's visitor observes what yesterday's left; the first one finds 0. Without (`bit=false`)
    they are 0 (nothing) and 1 (tell), and messages have to do: today's visitor perceives yesterday's, and nobody else
    perceives anybody (`Observation.neighbours`). Who is outside can only do 0. An agent observes [whether it is in the
    room, with the bit: the switch or 0 outside, the one-hot of its last action, the one-hot of its own number].
    `penalty` is what telling too early costs, 1 in the riddle; a curriculum may begin with more. `places` is the width
    of the last one-hot, n by default: with the same width, networks of a few prisoners fit more of them. With `notes`
    a visitor also observes what it could remember: one one-hot of (day, whether it has been in before, with the bit:
    the switch), zeros outside. The global state, for central critics, has one-hots of the day, of who is in and of how
    many have been in by now, flags of those who have, and with the bit the switch.

    `best` is what telling at the right moment earns, exactly: 540/729 for three, 818520/1048576 for four.
    """

    tunable = ("penalty",)

    def __init__(
        self, n: int = 3, bit: bool = True, penalty: float = 1.0, places: int | None = None, notes: bool = False
    ):
        whole("comm/switch_riddle", 3, 20, n=n)
        places = n if places is None else places
        whole("comm/switch_riddle", n, 20, places=places)
        between("comm/switch_riddle", 0, 100, penalty=penalty)
        self.n, self.bit, self.penalty, self.days, self.actions = n, bit, penalty, 4 * n - 6, 2 + bit
        self.notes = 2 * (1 + bit) * (4 * places - 6) if notes else 0
        self.numbers = np.eye(n, places, dtype=bool)
        self.calendar = np.eye(self.days + 1, 4 * places - 5, dtype=bool)
        self.best = sum((-1) ** k * comb(n, k) * (n - k) ** self.days for k in range(n)) / n**self.days
        self.spec = EnvSpec(
            name="comm/switch_riddle",
            agents=tuple(f"prisoner_{i}" for i in range(n)),
            observations=(Box((1 + bit + self.actions + places + self.notes,), 0.0, 1.0),) * n,
            actions=(Discrete(self.actions),) * n,
            max_steps=self.days,
            neighbours=not bit,
            state_size=7 * places - 5 + bit,
        )
        self.policies = {"tell_last_day": self._tell_last_day, "oracle": self._oracle}
        if bit and n <= 4:
            self.policies["one_bit"] = self._one_bit

    def reset(self, key: Array) -> tuple[Prison, Observation]:
        none, zero = jnp.zeros(self.n, bool), jnp.int32(0)
        state = Prison(zero, self._draw(key), jnp.int32(NOBODY), none, zero, jnp.zeros(self.n, jnp.int32), zero)
        return state, self._observe(state)

    def step(self, key: Array, state: Prison, action: Array) -> tuple[Prison, Observation, Array, Array, Array]:
        inside = self._inside(state)
        action = jnp.where(inside, action, 0).astype(jnp.int32)
        done = action.sum()  # by the one in the room
        tells, been = done == self.actions - 1, state.been | inside
        told = jnp.where(tells, jnp.where(been.all(), 1, -1), 0)
        switch = jnp.where(tells, state.switch, done)
        state = Prison(state.t + 1, self._draw(key), state.room, been, switch, action, told)
        over = tells | (state.t >= self.days)
        paid = jnp.where(told < 0, -self.penalty, told.astype(jnp.float32))
        reward = jnp.broadcast_to(paid, self.n)
        return state, self._observe(state), reward, over, jnp.bool_(False)

    def measures(self, state: Prison) -> dict[str, Array]:
        return {"success": state.told == 1, "told": state.told != 0}

    def render(self, states: Sequence[Prison], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: who is in the room, who has been, and the switch."""
        from flockrl.envs.comm.render import riddle_frames

        return riddle_frames(states, self.days, self.bit, size)

    def _draw(self, key: Array) -> Array:
        return jax.random.randint(key, (), 0, self.n)

    def _inside(self, state: Prison) -> Array:
        return state.room == np.arange(self.n)

    def _observe(self, state: Prison) -> Observation:
        inside, each = self._inside(state), np.arange(self.n)
        parts = [inside[:, None], (inside & (state.switch > 0))[:, None]] if self.bit else [inside[:, None]]
        parts += [state.last[:, None] == np.arange(self.actions), jnp.asarray(self.numbers)]
        if self.notes:
            case = 2 * state.t + state.been
            case = 2 * case + (state.switch > 0) if self.bit else case
            parts.append(inside[:, None] & (case[:, None] == np.arange(self.notes)))
        obs = jnp.concatenate(parts, -1).astype(jnp.float32)
        avail = inside[:, None] | (np.arange(self.actions) == 0)
        heard = None if self.bit else inside[:, None] & (state.before == each)
        return Observation(obs, avail=avail, state=self._whole(state), neighbours=heard)

    def _whole(self, state: Prison) -> Array:
        """[S] what nobody knows alone."""
        numbers, been = jnp.asarray(self.numbers), state.been | self._inside(state)
        parts = [jnp.asarray(self.calendar)[state.t], numbers[state.room], numbers[been.sum() - 1]]
        parts.append((been[:, None] & numbers).any(0))
        return jnp.concatenate([*parts, *([state.switch[None] > 0] if self.bit else [])]).astype(jnp.float32)

    # Policies: the actions of those outside do not matter.

    def _tell(self, when: Array) -> Array:
        return jnp.full(self.n, jnp.where(when, self.actions - 1, 0))

    def _tell_last_day(self, state: Prison, seen: Observation, key: Array) -> Array:
        """Tell on the last day, whoever has been in."""
        return self._tell(state.t == self.days - 1)

    def _oracle(self, state: Prison, seen: Observation, key: Array) -> Array:
        """Tell as soon as everybody has been in: the best that anybody can do."""
        return self._tell((state.been | self._inside(state)).all())

    def _one_bit(self, state: Prison, seen: Observation, key: Array) -> Array:
        """The switch says whether the number of those who have been in is odd: who is new turns it, others leave it.

        Of three, the third is new and finds an even number: the oracle's return. Of four, an even number on the last
        day is nearly always 4 and not 2: 0.7748. Each needs to know only the day, the switch, and whether it was in.
        """
        new, last = ~state.been, state.t == self.days - 1
        odd = new ^ (state.switch > 0)
        all_in = new & odd & (state.t > 0) if self.n == 3 else last & ~odd
        return jnp.where(all_in, 2, odd.astype(jnp.int32))
