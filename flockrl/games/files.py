"""Games in files: payoff tensors and Markov games as JSON, .npy or .npz. Nothing in a file is run as code."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.text import printable
from flockrl.envs.games.matrix import payoff_tensor
from flockrl.games.markov import MarkovGame, from_arrays
from flockrl.games.normal import MOST_OUTCOMES, NormalForm

SUFFIXES = (".json", ".npy", ".npz")
LARGEST_TEXT, LARGEST_ARRAYS = 16 << 20, 256 << 20
"""The largest JSON file and the most bytes of arrays that are read."""
NORMAL = {"payoffs", "players", "actions"}
MARKOV = {"transitions", "payoffs", "discount", "start"}


def read_game(path: Path) -> NormalForm | MarkovGame:
    """The game in a file: a tensor of payoffs ([A1, ..., An, N], or [A1, ..., An] of a payoff common to all), or an
    object (in .npz: arrays by name) with `payoffs` and names of `players` and `actions`, or with `transitions`,
    `payoffs`, `discount` and `start` for a Markov game."""
    content = read_content(path)
    if not isinstance(content, dict):
        return NormalForm(_payoffs(content, path), path.name)
    known = MARKOV if "transitions" in content else NORMAL
    for name in content:
        if name not in known:
            raise UsageError(f"{path} has {str(name)[:60]!r}, and a game of its kind has {', '.join(sorted(known))}.")
    if "payoffs" not in content:
        raise UsageError(f"{path} has no payoffs: a game needs them.")
    if "transitions" in content:
        if "discount" not in content:
            raise UsageError(f"{path} has no discount: write one from 0 to 1, 1 for a game that always ends.")
        return from_arrays(
            content["transitions"],
            content["payoffs"],
            _number(content["discount"], path),
            content.get("start"),
            path.name,
        )
    players = _names(content.get("players", []), "players", path)
    rows = content.get("actions", [])
    if not isinstance(rows, list | np.ndarray):
        raise UsageError(f"{path}: 'actions' must be a list of names for each player.")
    actions = tuple(_names(row, "actions", path) for row in rows)
    return NormalForm(_payoffs(content["payoffs"], path), path.name, players, actions)


def read_content(path: Path) -> Any:
    """What a file holds: numbers in lists or arrays, or a dict of such."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"A game's file ends in {', '.join(SUFFIXES)}, not {path.name!r}.")
    try:
        size = path.stat().st_size
        if size > (LARGEST_TEXT if suffix == ".json" else LARGEST_ARRAYS):
            raise UsageError(f"{path} is too large for a game: {size / 2**20:.0f} MiB.")
        if suffix == ".json":
            return json.loads(path.read_text(encoding="utf-8"))
        if suffix == ".npy":
            with path.open("rb") as stream:
                return _array(stream, size, path)
        with zipfile.ZipFile(path) as archive:
            return _archive(archive, path)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, EOFError, RecursionError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UsageError(f"{path} is not a {suffix} file of plain numbers.") from error


def _archive(archive: zipfile.ZipFile, path: Path) -> dict[str, np.ndarray]:
    parts = archive.infolist()
    if sum(part.file_size for part in parts) > LARGEST_ARRAYS or len(parts) > 100:
        raise UsageError(f"{path} is too large for a game: unpacked it has more than {LARGEST_ARRAYS >> 20} MiB.")
    found = {}
    for part in parts:
        with archive.open(part) as stream:
            found[part.filename.removesuffix(".npy")] = _array(stream, part.file_size, path)
    return found


def _array(stream: Any, size: int, path: Path) -> np.ndarray:
    """An array of numbers or text. Its header is checked before anything is allocated."""
    from numpy.lib import format as npy

    version = npy.read_magic(stream)
    header = npy.read_array_header_1_0(stream) if version == (1, 0) else npy.read_array_header_2_0(stream)
    shape, fortran, dtype = header
    length = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "biufU" or not 0 <= length <= size or len(shape) > 16 or min(shape, default=0) < 0:
        raise ValueError("not plain numbers, or fewer than the header says")
    data = stream.read(length)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _payoffs(given: Any, path: Path) -> np.ndarray:
    """[A1, ..., An, N] float64; a payoff common to all is repeated for each."""
    if isinstance(given, np.ndarray) and given.size > MOST_OUTCOMES * max(given.ndim - 1, 1):  # before it is copied
        raise UsageError(f"{path} is too large for a game: it has more than {MOST_OUTCOMES:,} joint actions.")
    shape = payoff_tensor(given, str(path)).shape  # says what is wrong with it
    tensor = np.asarray(given, float)
    return tensor if tensor.shape == shape else np.repeat(tensor[..., None], shape[-1], -1)


def _names(given: Any, what: str, path: Path) -> tuple[str, ...]:
    rows = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(rows, list) or not all(isinstance(x, str) and len(x) <= 200 for x in rows):
        raise UsageError(f"{path}: {what!r} must be names, in lists.")
    return tuple(map(printable, rows))


def _number(given: Any, path: Path) -> float:
    value = given.item() if isinstance(given, np.ndarray) and given.size == 1 else given
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{path}: discount must be a number from 0 to 1.")
    return float(value)
