"""Robots that know the floor: who fetches what, and ways that keep clear of each other.

Each step everything is planned anew. A robot with a requested shelf goes to the nearest goal, one with another shelf to
an empty place on the way to what it may fetch next, and robots without a shelf share the requested ones by the
Hungarian method. Then robots plan one after the other: those that have a shelf and are between shelves, others with a
shelf, and the rest, among these those nearest to the end of their errand first. Each looks `AHEAD` steps ahead, avoids
what the ones before it reserved, and counts the shortest way from there on (cooperative planning with a window, Silver
2005).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import flockrl.envs.warehouse.layout as of
from flockrl.core.types import Array
from flockrl.envs.assignment import assign
from flockrl.envs.warehouse.layout import NONE, Layout

AHEAD = 16
"""Steps for which robots reserve their cells."""
CLASH, CRASH, NEVER = 100.0, 1000.0, 1e6
"""What a step costs in a cell that another robot reserved, into such a cell, and into one that cannot be entered."""


class Errands(NamedTuple):
    """Of each robot: left: [N, X] steps to the end of its errand from each pose; ends: [N] bool, whether it is there;
    toggles: [N] bool, whether it then loads; rank: [N] those with a lower one plan first."""

    left: Array
    ends: Array
    toggles: Array
    rank: Array


class Planner:
    """A pose is a cell and a direction: number cell * 4 + direction, X of them."""

    def __init__(self, layout: Layout):
        self.layout, self.count = layout, layout.rows * layout.columns
        cell, way = np.divmod(np.arange(self.count * 4), 4)
        turns = [cell * 4 + to[way] for to in (of.TO_THE_LEFT, of.TO_THE_RIGHT)]
        self.next = np.stack([np.arange(self.count * 4), layout.ahead[cell, way] * 4 + way, *turns])
        """[4, X] the pose after staying, driving forward, turning left and turning right."""
        self.places = self._ways(layout.cells, True)  # [P, X] steps of a robot without a shelf to each place
        self.back = self._ways(layout.cells, False)  # [P, X] with one
        self.goal = self._ways(layout.goals, False).min(0)  # [X] with one to the nearer goal

    def _ways(self, targets: np.ndarray, empty: bool) -> np.ndarray:
        """[T, X] steps from each pose to each target cell; a robot with a shelf enters no place but its target."""
        front = self.next[of.FORWARD]
        enters = np.full((len(targets), len(front)), True)
        if not empty:
            enters = self.layout.road[front // 4] | (front // 4 == targets[:, None])
        steps = np.where(np.arange(self.count * 4) // 4 == targets[:, None], 0, NEVER).astype(np.float32)
        while True:
            moves = [np.where(enters, steps[:, front], NEVER), *(steps[:, turn] for turn in self.next[of.TURN_LEFT :])]
            shorter = np.minimum(steps, np.min(moves, 0) + 1)
            if (shorter == steps).all():
                return steps
            steps = shorter

    def actions(self, state: Any) -> Array:
        """[N] what robots do. state: `Floor`."""
        errands, pose = self._errands(state), state.cell * 4 + state.way
        empty = jnp.append(state.standing == NONE, True)[jnp.asarray(self.layout.place)]  # [C]: no shelf stands there
        order = jnp.argsort(errands.rank)

        def one(paths: Array, i: Array) -> tuple[Array, Array]:
            """The robot's first move, and the cells [N, AHEAD + 1] of it and of those before it."""
            free = (state.carried[i] == NONE) | empty
            first, path = self._way(pose[i], errands.left[i], free, paths)
            return paths.at[i].set(path), first

        nowhere = jnp.full((len(pose), AHEAD + 1), -1)
        first = jax.lax.scan(one, nowhere, order)[1]
        moves = jnp.zeros_like(first).at[order].set(first)
        return jnp.where(errands.ends, jnp.where(errands.toggles, of.TOGGLE, of.STAY), moves)

    def _errands(self, state: Any) -> Errands:
        places, back, goal = (jnp.asarray(x) for x in (self.places, self.back, self.goal))
        pose, loaded = state.cell * 4 + state.way, state.carried != NONE
        wanted = loaded & (state.carried[:, None] == state.requested).any(1)
        open_ = (state.standing[:, None] == state.requested).any(1)  # [P]: a requested shelf stands there
        # From each place to the nearest requested shelf; the direction at the end is not known, and taken as the best.
        cells = self.layout.cells
        between = jnp.asarray(self.places[:, cells[:, None] * 4 + np.arange(4)].min(-1))  # [to, from]
        onward = jnp.where(open_[:, None], between, NEVER).min(0)
        onward = jnp.where(open_.any(), onward, 0.0)
        inside = (cells == state.cell[:, None]) & loaded[:, None]  # [N, P]: robots that have a shelf between shelves
        taken = inside.sum(0) > inside  # by another one, which cannot get out if somebody waits there
        put = jnp.where((state.standing == NONE) & ~taken, back[:, pose].T + onward, NEVER)  # [N, P]
        _, home = assign(jnp.where((loaded & ~wanted)[:, None], put, 0.0))
        # When each robot could be at each requested shelf: those that are busy come later.
        then = jnp.where(
            wanted[:, None], goal[pose][:, None] + self._round, back[home, pose][:, None] + between[:, home].T
        )
        arrive = jnp.where(loaded[:, None], then, places[:, pose].T)
        arrive = jnp.where(open_, arrive, NEVER)
        _, fetch = assign(arrive)
        has = open_[fetch]
        left = jnp.where(has[:, None], places[fetch], 0.0)
        left = jnp.where(loaded[:, None], back[home], left)
        left = jnp.where(wanted[:, None], goal, left)
        steps = jnp.take_along_axis(left, pose[:, None], 1)[:, 0]
        idle = ~loaded & ~has
        rank = steps + CLASH * ~loaded + CLASH * idle - CLASH * inside.any(1)
        return Errands(left, (steps == 0) & ~idle, ~wanted, rank)

    def _way(self, pose: Array, left: Array, free: Array, paths: Array) -> tuple[Array, Array]:
        """The first move of the best way, and its cells [AHEAD + 1].

        left: [X] steps from each pose to the end; free: [C] bool, cells that can be entered; paths: [N, AHEAD + 1]
        cells of those who planned before, -1 for others.
        """
        after = jnp.asarray(self.next)
        there, here = after // 4, jnp.arange(self.count * 4) // 4
        enters = free[there] | (there == here)
        cost = jnp.where(enters, 1.0, NEVER).at[of.STAY].set(jnp.where(left == 0, 0.0, 1.0))

        # Nobody drives through a robot that still stands where it is: once somebody wants that cell, it stays taken,
        # and so does the cell of whoever waits for it.
        each, mine = np.arange(self.count), paths == pose // 4
        start, wanted = each == pose // 4, jnp.cumsum(mine.any(0)) > 0  # [C], [AHEAD + 1]
        waits = (jnp.where(mine[:, 1], paths[:, 0], -1)[:, None] == each).any(0)  # [C]

        def back(value: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            now, then, lost = step  # [N] where the others are before and after it; whether the start is taken
            taken = ((then[:, None] == each).any(0) | (start & lost) | waits)[there]
            swap = ((there[of.FORWARD] == now[:, None]) & (here == then[:, None])).any(0)
            clash = CLASH * taken
            clash = clash.at[of.FORWARD].set(jnp.where(taken[of.FORWARD] | swap, CRASH, 0.0))
            total = cost + value[after] + clash
            return total.min(0), total.argmin(0)

        _, best = jax.lax.scan(back, left, (paths.T[:-1], paths.T[1:], wanted[1:]), reverse=True)  # [AHEAD, X]

        def walk(pose: Array, best: Array) -> tuple[Array, tuple[Array, Array]]:
            move = best[pose]
            pose = after[move, pose]
            return pose, (move, pose // 4)

        _, (moves, cells) = jax.lax.scan(walk, pose, best)
        return moves[0], jnp.append(pose[None] // 4, cells)

    @property
    def _round(self) -> float:
        """About how long a robot takes from a goal back to a place."""
        return float(self.back[:, self.layout.goals[0] * 4].mean())
