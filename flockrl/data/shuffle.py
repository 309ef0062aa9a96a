"""Recorded trajectories in a random order, another one in every pass, within bounded memory.

What fits into the window is kept there after it was read once, and every pass deals all of it in a new order. Of larger
recordings every pass reads the files in a new order and lets their trajectories pass through the window: whenever it is
full, a random half of it is dealt. NumPy alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flockrl.data.experience import STEPS, Experience, join
from flockrl.data.files import Files

ORDER = 0x0DE4
"""Tells the numbers of these orders apart from others with the same seed."""
PER_TRAJECTORY = 500
"""Bytes of memory that a trajectory takes besides its steps."""


class Shuffled:
    """Trajectory files whose trajectories come in a random order. window: bytes of trajectories that are held at once;
    while they are put together, twice as many are needed."""

    def __init__(self, files: Files, window: int):
        self.files, self.window = files, window
        self._all: Experience | None = None
        self._tried = False

    def read(self, seed: int, number: int, most: int) -> Iterator[Experience]:
        """Every trajectory once, in the order of this seed's pass `number`, some at a time: about `most` steps."""
        numbers = np.random.PCG64(np.random.SeedSequence([ORDER, seed, number]))
        if not self._tried:
            self._all, self._tried = self._load(), True
        if self._all is not None:
            yield from _deal(self._all, _order(numbers, self._all.trajectories), most)
            return
        held: list[Experience] = []
        for place in _order(numbers, len(self.files.paths)):
            for data in self.files.read(self.files.paths[place]):
                while held and _size(*held, data) > self.window:
                    mixed, held = join(held), []
                    order = _order(numbers, mixed.trajectories)
                    half = -(-len(order) // 2)
                    yield from _deal(mixed, order[:half], most)
                    held = [mixed.pick(order[half:])] if half < len(order) else []
                    del mixed
                held.append(data)
        if held:
            mixed, held = join(held), []
            yield from _deal(mixed, _order(numbers, mixed.trajectories), most)

    def _load(self) -> Experience | None:
        """All trajectories in the order of the files, or None where they do not fit into the window."""
        held: list[Experience] = []
        for data in self.files:
            if _size(*held, data) > self.window:
                return None
            held.append(data)
        return join(held) if held else None


def _order(numbers: np.random.PCG64, count: int) -> np.ndarray:
    """[count] the places 0, 1, ... in a random order, which no version of NumPy changes."""
    return np.argsort(numbers.random_raw(count), kind="stable")


def _deal(data: Experience, order: np.ndarray, most: int) -> Iterator[Experience]:
    """The trajectories at the places `order` [k], in parts that end with the first trajectory beyond `most` steps."""
    ends = np.cumsum(data.length[order])
    begin = 0
    while begin < len(order):
        before = ends[begin - 1] if begin else 0
        end = int(np.searchsorted(ends, before + most)) + 1
        yield data.pick(order[begin:end])
        begin = end


def _size(*parts: Experience) -> int:
    """Bytes that trajectories take in memory."""
    return sum(PER_TRAJECTORY * part.trajectories + sum(x.nbytes for x in _arrays(part)) for part in parts)


def _arrays(data: Experience) -> list[np.ndarray]:
    """The arrays with an entry for each step."""
    steps = [getattr(data, name) for name in STEPS if name != "aux"]
    return [x for x in (*steps, *data.aux.values()) if x is not None]
