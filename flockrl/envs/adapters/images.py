"""Pictures as observations: shrunk and greyed as asked, kept as bytes, a few of them stacked.

An observation is a picture when its space is a Box of uint8 with the axes [height, width] or [height, width, channels].
In a row it lies in C order, and the spec's Box has the shape [height, width, channels], the channels of stacked frames
side by side with the newest last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Box
from flockrl.envs.adapters.options import Options

LARGE = 64
"""Pictures with a longer side are shrunk unless `resize` says otherwise."""
SHRUNK = 42
"""Side to which they are shrunk."""


def is_picture(space: Any) -> bool:
    return len(getattr(space, "shape", None) or ()) in (2, 3) and space.dtype == np.uint8 and min(space.shape[:2]) >= 8


class Pictures:
    """How a picture space is written into a row [F] uint8."""

    def __init__(self, space: Any, options: Options, where: str):
        self.given, self.where, self.grey = tuple(space.shape), where, options.grey
        height, width, *rest = self.given
        channels = rest[0] if rest else 1
        if channels not in (1, 3):
            if options.grey:
                raise UsageError(f"{where} has {channels} channels, and only pictures of 3 can be made grey.")
            if options.resize or (options.resize is None and max(height, width) > LARGE):
                raise UsageError(f"{where} has {channels} channels, and only pictures of 1 or 3 can be resized.")
        side = (SHRUNK if max(height, width) > LARGE else 0) if options.resize is None else options.resize
        self.side = None if not side else (side, side)
        self.shape = (*(self.side or (height, width)), 1 if options.grey else channels)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def box(self, frames: int) -> Box:
        return Box((*self.shape[:2], self.shape[2] * frames), 0.0, 255.0, "uint8")

    def write(self, value: Any, row: np.ndarray) -> None:
        value = np.asarray(value)
        if value.shape != self.given:
            raise UsageError(f"{self.where} has shape {list(value.shape)}, but its space says {list(self.given)}.")
        if self.side is not None or (self.grey and value.ndim == 3 and value.shape[2] == 3):
            value = self._drawn(value)
        row[:] = value.ravel()

    def _drawn(self, value: np.ndarray) -> np.ndarray:
        from PIL import Image

        picture = Image.fromarray(value[..., 0] if value.ndim == 3 and value.shape[2] == 1 else value)
        if self.grey:
            picture = picture.convert("L")
        if self.side is not None:
            picture = picture.resize(self.side[::-1], Image.Resampling.BOX)
        return np.asarray(picture)


class Stack:
    """The last frames of all agents. After a reset the first frame stands for those before it."""

    def __init__(self, agents: int, shape: tuple[int, ...], frames: int):
        self.shape, self.frames = (agents, *shape), frames
        self._kept: list[np.ndarray] = []

    def restart(self) -> None:
        self._kept = []

    def add(self, obs: np.ndarray) -> np.ndarray:
        """One frame [N, F] -> the last ones [N, frames * F]."""
        frame = obs.reshape(self.shape)
        self._kept = [*self._kept[1:], frame] if self._kept else [frame] * self.frames
        return np.concatenate(self._kept, axis=-1).reshape(len(obs), -1)
