"""Rooms: agents carry keys to locked doors until all of them are in the last room; the fewest steps by search."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.entities import layout as described
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.hierarchy.goal_assignment import MOVES
from flockrl.envs.settings import whole

LARGEST = 20_000_000
"""Joint states times joint moves that a search may look at."""
FAR = np.int16(32_000)
"""Steps from where nobody can get to the end."""


class House(NamedTuple):
    """t: steps so far; cells: [n] where agents are, by number; keys: [K] 0 where a key lies, i for one that agent i - 1
    carries, n + 1 for one that is in its door, which is open then; optimum: the highest return of this episode."""

    t: Array
    cells: Array
    keys: Array
    optimum: Array


class Rooms:
    """n agents in a row of `rooms` rooms of `size` x `size` cells, with a locked door between each two of them.

    Agents stay or move one cell, walls stop them, and they may share cells. Who steps on a key takes it, of several
    agents the first, and carries as many as it finds. A locked door lets nobody through but who carries its key, and is
    open for everyone from the next step on, with its key in it. Key k lies in one of the rooms 0 to k, where the number
    `layout` puts it: so two agents can fetch two keys at once. Agents begin on cells of the first room, by chance.

    Everyone is paid -1 per step until all agents are in the last room; then the episode terminates. It is truncated
    after `steps` steps, by default 8 per cell from end to end. Return: the sum; the best one is minus the fewest steps,
    which a breadth-first search backwards over all places of agents and keys tells exactly, for every start.

    An agent observes [its row and column, of every landmark its offset, whether it is a key, a door or the exit,
    whether it is done (a key taken, a door open) and whether it is a key that it carries, the offset of every other
    agent], in units of a room. Landmarks are the keys, the doors, and the exit, the middle of the last room; they and
    the other agents are its entities. Measures: `optimum`, `success`, `open` (the share of open doors).
    """

    def __init__(self, n: int = 2, rooms: int = 3, size: int = 4, layout: int = 3, steps: int | None = None):
        for least, most, setting in ((1, 4, {"n": n}), (2, 6, {"rooms": rooms}), (2, 9, {"size": size})):
            whole("hierarchy/rooms", least, most, **setting)
        whole("hierarchy/rooms", 0, 2**32 - 1, layout=layout)
        self.n, self.rooms, self.size, self.doors = n, rooms, size, rooms - 1
        self.width = rooms * size + self.doors
        self.steps = 8 * self.width if steps is None else steps
        whole("hierarchy/rooms", 1, 10_000, steps=self.steps)
        self._build(np.random.default_rng(layout))
        cells, codes = len(self.places), n + 2
        self.counts = (*(cells,) * n, *(codes,) * self.doors)
        """How many values each number of a joint state has: the agents' cells, and the keys."""
        self.joint = np.array(list(itertools.product(range(len(MOVES)), repeat=n)), np.int32)
        if np.prod(self.counts, dtype=float) * len(self.joint) > LARGEST:
            raise UsageError(
                f"hierarchy/rooms: {n} agents in {rooms} rooms of {size} x {size} cells are too many to search for the "
                "fewest steps: choose a smaller n, rooms or size."
            )
        marks = 2 * self.doors + 1
        entities = described(("own", 2), ("landmark", marks, 2), ("landmark", marks, 5), ("agent", n - 1, 2))
        self.spec = EnvSpec(
            name="hierarchy/rooms",
            agents=tuple(f"agent_{i}" for i in range(n)),
            observations=(Box((2 + 7 * marks + 2 * (n - 1),)),) * n,
            actions=(Discrete(len(MOVES)),) * n,
            max_steps=self.steps,
            entities=(entities,) * n,
        )
        self.policies = {"best": self._best, "together": self._together}

    def _build(self, rng: np.random.Generator) -> None:
        """The house as tables of cells by number."""
        room = np.arange(self.width) // (self.size + 1)
        door = np.arange(self.width) % (self.size + 1) == self.size
        middle = self.size // 2
        found = [(r, c) for c in range(self.width) for r in range(self.size) if not door[c] or r == middle]
        number = {place: i for i, place in enumerate(found)}
        self.places = np.array(found, np.int32)
        self.room_of = np.array([-1 if door[c] else room[c] for _, c in found])
        """[F] the room of a cell, -1 for doors."""
        self.door_of = np.array([room[c] if door[c] else -1 for _, c in found])
        self.next = np.array([[number.get((r + i, c + j), number[r, c]) for i, j in MOVES.tolist()] for r, c in found])
        """[F, 5] where moves lead, with all doors open."""
        inside = [np.flatnonzero(self.room_of == k) for k in range(self.rooms)]
        self.key_cells = np.zeros(self.doors, np.int32)
        for k in range(self.doors):
            free = np.setdiff1d(np.concatenate(inside[: k + 1]), self.key_cells[:k])
            self.key_cells[k] = rng.choice(free)
        self.door_cells = np.array([number[middle, (k + 1) * (self.size + 1) - 1] for k in range(self.doors)])
        self.exit = number[middle, self.doors * (self.size + 1) + middle]
        self.start = np.setdiff1d(inside[0], self.key_cells)

    # The rules

    def moved(self, cells: Any, keys: Any, action: Any, np: Any = jnp) -> tuple[Any, Any]:
        """Cells [..., n] and keys [..., K] after a step, by `jnp` or `np`."""
        used, who = self.n + 1, np.arange(self.n) + 1
        wanted = np.asarray(self.next)[cells, action]
        door = np.asarray(self.door_of)[wanted]
        code = np.take_along_axis(keys, np.maximum(door, 0), -1)
        cells = np.where((door >= 0) & (code != used) & (code != who), cells, wanted)
        enters = np.asarray(self.door_of)[cells][..., None] == np.arange(self.doors)  # [..., n, K]
        opens = (enters & (keys[..., None, :] == who[:, None])).any(-2)
        on = cells[..., None] == np.asarray(self.key_cells)
        taken = np.where((keys == 0) & on.any(-2), on.argmax(-2) + 1, keys)
        return cells, np.where(opens, used, taken)

    def over(self, cells: Any, np: Any = jnp) -> Any:
        """Whether everyone is in the last room."""
        return (np.asarray(self.room_of)[cells] == self.rooms - 1).all(-1)

    def index(self, cells: Any, keys: Any, np: Any = jnp) -> Any:
        """The number of a joint state among all."""
        number, values = 0, np.concatenate([cells, keys], -1)
        for i, count in enumerate(self.counts):
            number = number * count + values[..., i]
        return number

    @cached_property
    def distance(self) -> np.ndarray:
        """[states] the fewest steps to the end from every joint state: a breadth-first search backwards, in which each
        round finds those that are one step further."""
        states = np.stack(np.unravel_index(np.arange(np.prod(self.counts)), self.counts), -1)
        cells, keys = states[:, : self.n], states[:, self.n :]
        after = [self.index(*self.moved(cells, keys, a, np), np).astype(np.int32) for a in self.joint]
        found = np.where(self.over(cells, np), np.int16(0), FAR)
        while True:
            best = np.minimum.reduce([found[a] for a in after])
            further = np.minimum(found, np.where(best < FAR, best + np.int16(1), FAR))
            if (further == found).all():
                return found
            found = further

    # The environment

    def reset(self, key: Array) -> tuple[House, Observation]:
        cells = jax.random.choice(key, jnp.asarray(self.start), (self.n,))
        keys = jnp.zeros(self.doors, jnp.int32)
        fewest = jnp.asarray(self.distance)[self.index(cells, keys)]
        state = House(jnp.int32(0), cells, keys, -jnp.minimum(fewest, self.steps).astype(jnp.float32))
        return state, self._observe(state)

    def step(self, key: Array, state: House, action: Array) -> tuple[House, Observation, Array, Array, Array]:
        cells, keys = self.moved(state.cells, state.keys, action)
        state = state._replace(t=state.t + 1, cells=cells, keys=keys)
        done = self.over(cells)
        return state, self._observe(state), jnp.full(self.n, -1.0), done, (state.t >= self.steps) & ~done

    def measures(self, state: House) -> dict[str, Array]:
        opened = (state.keys == self.n + 1).mean()
        return {"optimum": state.optimum, "success": self.over(state.cells) * 1.0, "open": opened}

    def _observe(self, state: House) -> Observation:
        n, k, places = self.n, self.doors, jnp.asarray(self.places)
        keys = state.keys
        carrier = state.cells[jnp.clip(keys - 1, 0, n - 1)]
        where = jnp.where(keys == 0, self.key_cells, jnp.where(keys == n + 1, self.door_cells, carrier))
        marks = jnp.concatenate([where, self.door_cells, jnp.array([self.exit])])
        kind = np.eye(3, dtype=np.float32)[[0] * k + [1] * k + [2]]
        done = jnp.concatenate([keys > 0, keys == n + 1, jnp.zeros(1, bool)])
        mine = jnp.concatenate([keys == jnp.arange(n)[:, None] + 1, jnp.zeros((n, k + 1), bool)], -1)
        known = [jnp.broadcast_to(kind, (n, *kind.shape)), jnp.broadcast_to(done[None, :, None], (n, 2 * k + 1, 1))]
        facts = jnp.concatenate([*known, mine[..., None]], -1).reshape(n, -1)
        own = places[state.cells] / self.size
        others = np.array([[j for j in range(n) if j != i] for i in range(n)], int).reshape(n, n - 1)
        offsets = (places[marks] / self.size)[None] - own[:, None]
        rest = own[others] - own[:, None]
        parts = [own, offsets.reshape(n, -1), facts, rest.reshape(n, -1)]
        return Observation(jnp.concatenate(parts, -1).astype(jnp.float32))

    def render(self, states: Sequence[House], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: rooms, doors and keys in one colour each, agents as numbered
        discs."""
        from flockrl.envs.hierarchy.render import house_frames

        return house_frames(self, states, size)

    # Policies

    def _best(self, state: House, seen: Observation, key: Array) -> Array:
        """A move of a shortest way to the end."""
        joint = jnp.asarray(self.joint)
        cells, keys = (jnp.broadcast_to(x, (len(joint), *x.shape)) for x in (state.cells, state.keys))
        left = jnp.asarray(self.distance)[self.index(*self.moved(cells, keys, joint))]
        return joint[left.argmin()]

    @cached_property
    def _ways(self) -> np.ndarray:
        """[F, F] moves from each cell to each other one, with all doors open."""
        cells = len(self.places)
        found = np.where(np.eye(cells, dtype=bool), 0, cells)
        for _ in range(cells):
            found = np.minimum(found, found[self.next].min(1) + 1)
        return found

    def _together(self, state: House, seen: Observation, key: Array) -> Array:
        """Everyone goes to the key of the first locked door, then to that door, and so on, whoever else does."""
        locked = state.keys != self.n + 1
        first = locked.argmax()
        errand = jnp.where(
            state.keys[first] == 0, jnp.asarray(self.key_cells)[first], jnp.asarray(self.door_cells)[first]
        )
        target = jnp.where(locked.any(), errand, self.exit)
        return jnp.asarray(self._ways)[jnp.asarray(self.next)[state.cells], target].argmin(-1).astype(jnp.int32)
