"""How observations of Gymnasium's spaces are laid out in a row.

The layout of an observation:

| space | in the row |
|---|---|
| Box | its numbers in C order, as float32 |
| Discrete(n, start) | n numbers, 1 at the value and 0 elsewhere |
| MultiDiscrete | one such block after the other |
| MultiBinary | its bits in C order |
| Dict | its entries in the order of the space (Gymnasium sorts by key) |
| Tuple | its entries in order |

Pictures inside a Dict or Tuple come before everything else, see `images`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError, notice
from flockrl.core.types import Box
from flockrl.envs.adapters.images import Pictures, is_picture
from flockrl.envs.adapters.options import Options

Write = Callable[[Any, np.ndarray], None]


class Layout(NamedTuple):
    """One observation space: bounds of each number [size], and a function that writes a value into a row [size]."""

    low: np.ndarray
    high: np.ndarray
    write: Write

    @property
    def size(self) -> int:
        return len(self.low)

    def box(self) -> Box:
        low, high = (bound(x) for x in (self.low, self.high))
        return Box((self.size,), low, high)


def bound(x: np.ndarray) -> float | tuple[float, ...]:
    return float(x[0]) if (x == x[0]).all() else tuple(float(v) for v in x)


def kind(space: Any) -> str:
    """The name of a space's class, its own or the Gymnasium class it derives from."""
    known = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")
    return next((c.__name__ for c in type(space).__mro__ if c.__name__ in known), type(space).__name__)


def layout(space: Any, where: str) -> Layout:
    """How an observation space is written into a row. `where` names it in errors."""
    word = kind(space)
    if word == "Box":
        return _vector(space, where)
    if word == "Discrete":
        return _one_hots([int(space.n)], [int(space.start)], (), where)
    if word == "MultiDiscrete":
        sizes = np.asarray(space.nvec)
        starts = np.broadcast_to(np.asarray(getattr(space, "start", 0)), sizes.shape)
        return _one_hots(sizes.ravel().tolist(), starts.ravel().tolist(), sizes.shape, where)
    if word == "MultiBinary":
        return _vector(space, where, 0.0, 1.0)
    if word == "Dict":
        return _several([(key, layout(part, f"{where}[{key!r}]")) for key, part in space.spaces.items()])
    if word == "Tuple":
        return _several([(i, layout(part, f"{where}[{i}]")) for i, part in enumerate(space.spaces)])
    raise UsageError(
        f"{where} is a {word} space, and only Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple work."
    )


def _vector(space: Any, where: str, low: Any = None, high: Any = None) -> Layout:
    shape = tuple(space.shape)
    low = np.broadcast_to(space.low if low is None else low, shape).astype(np.float32).ravel()
    high = np.broadcast_to(space.high if high is None else high, shape).astype(np.float32).ravel()

    def write(value: Any, row: np.ndarray) -> None:
        value = np.asarray(value)
        if value.shape != shape:
            raise UsageError(f"{where} has shape {list(value.shape)}, but its space says {list(shape)}.")
        row[:] = value.ravel()

    return Layout(low, high, write)


def _one_hots(sizes: list[int], starts: list[int], shape: tuple[int, ...], where: str) -> Layout:
    offsets = np.cumsum([0, *sizes[:-1]]) - np.array(starts)

    def write(value: Any, row: np.ndarray) -> None:
        value = np.asarray(value)
        if value.shape != shape:
            raise UsageError(f"{where} has shape {list(value.shape)}, but its space says {list(shape)}.")
        row[:] = 0
        for number, offset, start, size in zip(value.ravel(), offsets, starts, sizes, strict=True):
            if not start <= number < start + size:
                raise UsageError(f"{where} is {number}, but its space says {start} to {start + size - 1}.")
            row[int(number) + offset] = 1

    total = sum(sizes)
    return Layout(np.zeros(total, np.float32), np.ones(total, np.float32), write)


def _several(parts: Sequence[tuple[Any, Layout]]) -> Layout:
    ends = np.cumsum([part.size for _, part in parts])
    places = [(key, part.write, slice(end - part.size, end)) for (key, part), end in zip(parts, ends, strict=True)]

    def write(value: Any, row: np.ndarray) -> None:
        for key, write_part, place in places:
            write_part(value[key], row[place])

    low, high = (np.concatenate([getattr(part, name) for _, part in parts]) for name in ("low", "high"))
    return Layout(low, high, write)


class Scene:
    """Pictures and other things inside a Dict or Tuple: the pictures first, then everything else by its layout.

    Where no agent sees anything else, rows [F] are uint8; otherwise pictures are scaled to numbers from -1 to 1.
    """

    bytes = False

    def __init__(self, space: Any, options: Options, where: str):
        leaves = [(path, leaf, f"{where}{''.join(f'[{key!r}]' for key in path)}") for path, leaf in _leaves(space)]
        self.pictures = [(path, Pictures(leaf, options, word)) for path, leaf, word in leaves if is_picture(leaf)]
        self.rest = [(path, layout(leaf, word)) for path, leaf, word in leaves if not is_picture(leaf)]
        self.parts: list[tuple[tuple[Any, ...], Pictures | Layout]] = [*self.pictures, *self.rest]
        self.size = sum(part.size for _, part in self.parts)

    def box(self) -> Box:
        low = 0.0 if self.bytes else min([-1.0, *(float(part.low.min()) for _, part in self.rest)])
        high = 255.0 if self.bytes else max([1.0, *(float(part.high.max()) for _, part in self.rest)])
        shapes = tuple(part.shape for _, part in self.pictures)
        return Box((self.size,), low, high, "uint8" if self.bytes else "float32", shapes)

    def write(self, value: Any, row: np.ndarray) -> None:
        at = 0
        for path, part in self.parts:
            place = row[at : at + part.size]
            part.write(_at(value, path), place)
            if isinstance(part, Pictures) and not self.bytes:
                place /= 127.5
                place -= 1
            at += part.size


def _leaves(space: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """The spaces inside of a Dict or Tuple that are neither, with the keys that lead to them."""
    word = kind(space)
    if word not in ("Dict", "Tuple"):
        return [(path, space)]
    inside = space.spaces.items() if word == "Dict" else enumerate(space.spaces)
    return [leaf for key, part in inside for leaf in _leaves(part, (*path, key))]


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def observation_parts(name: str, spaces: Mapping[str, Any], options: Options) -> tuple[list[Any], tuple[Box, ...], str]:
    """How each agent's observation is written, its entry in the spec, and the dtype of all."""
    where = {agent: f"{name}: agent {agent!r}: its observation" for agent in spaces}
    if all(is_picture(space) for space in spaces.values()):
        pictures = [Pictures(space, options, where[agent]) for agent, space in spaces.items()]
        if len({picture.shape for picture in pictures}) > 1:
            raise UsageError(f"{name}: pictures of unlike sizes need a common one: set resize=N.")
        return pictures, tuple(picture.box(options.stack) for picture in pictures), "uint8"
    if options.stack > 1:
        raise UsageError(f"{name}: stack is for observations that are a picture and nothing else.")
    if any(is_picture(leaf) for space in spaces.values() for _, leaf in _leaves(space)):
        return _scenes(name, spaces, options, where)
    if options.grey or options.resize is not None:
        raise UsageError(f"{name}: grey and resize are for pictures, and its observations are none.")
    parts = [layout(space, where[agent]) for agent, space in spaces.items()]
    return parts, tuple(part.box() for part in parts), "float32"


def _scenes(
    name: str, spaces: Mapping[str, Any], options: Options, where: Mapping[str, str]
) -> tuple[list[Any], tuple[Box, ...], str]:
    scenes = [Scene(space, options, where[agent]) for agent, space in spaces.items()]
    for scene in scenes:
        scene.bytes = not any(other.rest for other in scenes)
    boxes = tuple(scene.box() for scene in scenes)
    if len({box.sight for box in boxes}) > 1:
        notice(
            f"{name}: its agents see unlike pictures or unlike numbers beside them, so no CNN looks at the pictures: "
            "they are read as plain numbers."
        )
    return scenes, boxes, boxes[0].dtype
