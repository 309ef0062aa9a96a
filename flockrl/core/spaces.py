"""Spaces of observations and actions. Needs numpy alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flockrl.core.errors import UsageError


@dataclass(frozen=True)
class Discrete:
    """Actions 0 .. n-1."""

    n: int

    @property
    def size(self) -> int:
        return self.n

    @property
    def width(self) -> int:
        return 1


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once: the k-th is one of 0 .. choices[k] - 1."""

    choices: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many options there are over all choices: the length of a mask, and of a policy's output."""
        return sum(self.choices)

    @property
    def width(self) -> int:
        return len(self.choices)


@dataclass(frozen=True)
class Box:
    """Real numbers with bounds: one number for all entries, or one per entry of a vector.

    An observation of uint8 with three axes is a picture. Of a vector, `pictures` gives the shapes [height, width,
    channels] of pictures that lie at its beginning, each in C order; the rest are plain numbers. In a vector of uint8
    pictures are bytes, in one of float32 they are scaled to numbers from -1 to 1.
    """

    shape: tuple[int, ...]
    low: float | tuple[float, ...] = -np.inf
    high: float | tuple[float, ...] = np.inf
    dtype: str = "float32"
    pictures: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if any(len(shape) != 3 for shape in self.pictures) or sum(map(math.prod, self.pictures)) > self.size:
            raise UsageError(
                f"The pictures of a space need three axes each (height, width, channels) and must fit into its "
                f"{self.size} numbers, not {list(map(list, self.pictures))}."
            )

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        return self.size

    @property
    def sight(self) -> Sight:
        """The pictures in it and the numbers beside them; without pictures, nothing."""
        bytes_ = self.dtype == "uint8"
        if not self.pictures:
            return Sight((self.shape,)) if bytes_ and len(self.shape) == 3 else Sight()
        return Sight(self.pictures, self.size - sum(map(math.prod, self.pictures)), bytes_)


class Sight(NamedTuple):
    """What a vector of observations consists of: pictures of these shapes, then plain numbers. bytes: its dtype."""

    pictures: tuple[tuple[int, ...], ...] = ()
    numbers: int = 0
    bytes: bool = True

    @property
    def size(self) -> int:
        return sum(map(math.prod, self.pictures)) + self.numbers


Space = Discrete | MultiDiscrete | Box
"""A space of actions. size: its options, or its dimensions where it is continuous; width: numbers in one action."""
