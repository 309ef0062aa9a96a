"""Pictures of the communication environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.sketch import FAINT, GOLD, GREEN, INK, LINE, ORANGE, ROSE, Sketch, color_of, mix

TOP, MARGIN = 0.1, 0.03
WHITE, LIT = (255, 255, 255), (255, 204, 51)


class Grid(Sketch):
    """A picture of a square grid of cells under a line of text."""

    def __init__(self, size: int, cells: int, words: str, more: str = ""):
        super().__init__(size)
        self.side = (1 - TOP - MARGIN) / cells
        self.text(MARGIN, TOP / 2, words, 0.045, anchor="lm")
        self.text(1 - MARGIN, TOP / 2, more, 0.045, anchor="rm")

    def middle(self, place: Any) -> tuple[float, float]:
        """x and y of the middle of a cell (row, column)."""
        (row, column), left = place, (1 - TOP - MARGIN) / 2
        return 0.5 - left + (column + 0.5) * self.side, TOP + (row + 0.5) * self.side

    def cell(self, place: Any, fill: Any = None, edge: Any = None, width: float = 0.003) -> None:
        (x, y), half = self.middle(place), self.side / 2
        self.box(x - half, y - half, x + half, y + half, fill=fill, edge=edge, width=width)

    def piece(self, place: Any, color: Any, words: str, share: tuple[int, int] = (0, 1)) -> None:
        """A disc in a cell. share: the place of this one among those that share the cell."""
        (x, y), (k, of) = self.middle(place), share
        turn, apart = 2 * np.pi * k / of, 0.22 * self.side * (of > 1)
        x, y, radius = x + apart * np.cos(turn), y + apart * np.sin(turn), self.side * (0.38 if of == 1 else 0.24)
        self.disc(x, y, radius, color)
        self.text(x, y, words, 1.2 * radius, WHITE)


def shared(cells: Sequence[Any]) -> list[tuple[int, int]]:
    """For each cell of a list its place among the equal ones, and how many these are."""
    return [(list(cells[:i]).count(cell), list(cells).count(cell)) for i, cell in enumerate(cells)]


def traffic_frames(states: Sequence[Any], cells: np.ndarray, grid: int, size: int) -> list[np.ndarray]:
    """states: `Traffic`s; cells: [C, 2]. A car that braked has an orange edge, cars that share a cell a gold ground."""
    pictures = []
    for t, state in enumerate(states):
        crashed = "  a crash" if state.crashed else ""
        sketch = Grid(size, grid, f"step {t} of {len(states) - 1}{crashed}", f"{int(state.through)} through")
        for row, column in cells:
            sketch.cell((row, column), mix(INK, 0.88), WHITE)
        cars = np.flatnonzero(state.on)
        places = [tuple(cells[state.cell[i]].tolist()) for i in cars]
        for i, place, share in zip(cars, places, shared(places), strict=True):
            if state.now[i] and not share[0]:
                sketch.cell(place, fill=mix(GOLD, 0.3))
            if state.acted[i]:
                sketch.cell(place, edge=ORANGE, width=0.008)
            sketch.piece(place, color_of(int(i)), str(i), share)
        pictures.append(sketch.picture())
    return pictures


def hunt_frames(states: Sequence[Any], grid: int, vision: int, size: int) -> list[np.ndarray]:
    """states: `Hunt`s. Cells that a predator sees are tinted."""
    pictures = []
    for t, state in enumerate(states):
        there = f"{int(state.reached.sum())} of {len(state.reached)} there"
        sketch = Grid(size, grid, f"step {t} of {len(states) - 1}", there)
        far = np.abs(np.indices((grid, grid))[:, None] - state.predators.T[:, :, None, None]).max(0)
        for row, column in np.ndindex(grid, grid):
            sketch.cell((row, column), mix(GREEN, 0.85) if (far[:, row, column] <= vision).any() else WHITE, LINE)
        sketch.cell(state.prey, fill=mix(ROSE, 0.2))
        places = [tuple(place) for place in state.predators.tolist()]
        for i, (place, share) in enumerate(zip(places, shared(places), strict=True)):
            sketch.piece(place, color_of(i), str(i), share)
        pictures.append(sketch.picture())
    return pictures


def _row(sketch: Sketch, n: int, y: float, words: Sequence[str], colors: Sequence[Any]) -> None:
    """n discs side by side with a word in each."""
    radius = min(0.09, 0.38 / n)
    for i in range(n):
        x = (i + 0.5) / n
        sketch.disc(x, y, radius, colors[i])
        sketch.text(x, y, words[i], radius, WHITE)


def signalling_frames(states: Sequence[Any], size: int) -> list[np.ndarray]:
    """states: `Signal`s: the bit above the leader, the choices in the discs."""
    pictures = []
    for state in states:
        sketch, chosen, bit = Sketch(size), np.asarray(state.chosen), int(state.bit)
        n, before = len(chosen), bool((chosen < 0).any())
        right = "all right" if (chosen == bit).all() else "not all right"
        sketch.text(0.5, 0.08, "nobody has chosen yet" if before else right, 0.055)
        sketch.text(0.5 / n, 0.3, f"sees {bit}", min(0.06, 0.2 / n))
        words = ["?" if before else str(c) for c in chosen]
        _row(sketch, n, 0.5, words, [INK if before else GREEN if c == bit else ORANGE for c in chosen])
        for i in range(n):
            name = "follower" if i else "leader"
            sketch.text((i + 0.5) / n, 0.68, name, min(0.05, 0.22 / n), FAINT)
        pictures.append(sketch.picture())
    return pictures


def lever_frames(states: Sequence[Any], size: int) -> list[np.ndarray]:
    """states: `Pull`s: agents with their ids above, levers below, a line from each agent to its lever."""
    pictures = []
    for state in states:
        sketch, pulled = Sketch(size), np.asarray(state.pulled)
        n, before = len(pulled), bool((pulled < 0).any())
        told = "nobody has pulled yet" if before else f"{len(set(pulled.tolist()))} of {n} levers pulled"
        sketch.text(0.5, 0.08, told, 0.055)
        for i, lever in enumerate(pulled):
            if not before:
                sketch.line([((i + 0.5) / n, 0.3), ((lever + 0.5) / n, 0.72)], color_of(i), 0.01)
            sketch.box((i + 0.2) / n, 0.72, (i + 0.8) / n, 0.86, fill=mix(INK, 0.88), edge=LINE)
            sketch.text((i + 0.5) / n, 0.79, str(i), min(0.06, 0.3 / n))
        _row(sketch, n, 0.3, [str(x) for x in state.ids.tolist()], [color_of(i) for i in range(n)])
        pictures.append(sketch.picture())
    return pictures


def riddle_frames(states: Sequence[Any], days: int, bit: bool, size: int) -> list[np.ndarray]:
    """states: `Prison`s: the room with the switch above, all prisoners below, those who have been in it in colour."""
    pictures = []
    for t, state in enumerate(states):
        sketch, n, over = Sketch(size), len(state.been), t == len(states) - 1
        end = {1: "told: all have been in", -1: "told, but not all have been in", 0: "nobody told"}[int(state.told)]
        sketch.text(0.04, 0.07, end if over else f"day {t + 1} of {days}", 0.05, anchor="lm")
        sketch.box(0.32, 0.16, 0.68, 0.5, fill=WHITE, edge=INK, width=0.008)
        room = int(state.before) if over else int(state.room)
        sketch.disc(0.44, 0.33, 0.08, color_of(room))
        sketch.text(0.44, 0.33, str(room), 0.08, WHITE)
        if bit:
            sketch.disc(0.6, 0.33, 0.05, LIT if state.switch else mix(INK, 0.8))
            sketch.text(0.6, 0.43, "on" if state.switch else "off", 0.045, FAINT)
        been = np.asarray(state.been) | ((np.arange(n) == room) & (not over))
        _row(
            sketch, n, 0.74, [str(i) for i in range(n)], [color_of(i) if been[i] else mix(INK, 0.75) for i in range(n)]
        )
        sketch.text(0.5, 0.92, "in colour: has been in the room", 0.04, FAINT)
        pictures.append(sketch.picture())
    return pictures
