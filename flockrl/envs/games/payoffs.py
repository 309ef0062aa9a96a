"""Files of numbers that describe games: JSON, .npy and .npz, read with limits. Nothing in them is run as code."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError

SUFFIXES = (".json", ".npy", ".npz")
LARGEST_TEXT, LARGEST_ARRAYS = 16 << 20, 256 << 20
"""The largest JSON file and the most bytes of arrays that are read."""
MOST_OUTCOMES = 1_000_000
"""The most joint actions of a game."""
MOST_AXES = 16
"""The most axes of a payoff tensor: players, and one for whose payoff it is."""


def read_content(path: Path) -> Any:
    """What a file holds: numbers in lists or arrays, or a dict of such."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"A game's file ends in {', '.join(SUFFIXES)}, not {path.name!r}.")
    try:
        size = path.stat().st_size
        if not path.is_file():  # a pipe or a device has no end
            raise UsageError(f"Cannot read {path}: it is no file.")
        if size > (LARGEST_TEXT if suffix == ".json" else LARGEST_ARRAYS):
            raise UsageError(f"{path} is too large for a game: {size / 2**20:.0f} MiB.")
        if suffix == ".json":
            return json.loads(path.read_text(encoding="utf-8"))
        if suffix == ".npy":
            with path.open("rb") as stream:
                return _array(stream, size)
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
            found[part.filename.removesuffix(".npy")] = _array(stream, part.file_size)
    return found


def _array(stream: Any, size: int) -> np.ndarray:
    """An array of numbers or text. Its header is checked before anything is allocated."""
    from numpy.lib import format as npy

    version = npy.read_magic(stream)
    header = npy.read_array_header_1_0(stream) if version == (1, 0) else npy.read_array_header_2_0(stream)
    shape, fortran, dtype = header
    length = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "biufU" or not 0 <= length <= size or len(shape) > MOST_AXES or min(shape, default=0) < 0:
        raise ValueError("not plain numbers, or fewer than the header says")
    data = stream.read(length)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def refuse_wide(payoffs: Any, path: Path) -> None:
    """Refuse an array of too many payoffs before it is copied."""
    if isinstance(payoffs, np.ndarray) and payoffs.size > MOST_OUTCOMES * max(payoffs.ndim - 1, 1):
        raise UsageError(f"{path} is too large for a game: it has more than {MOST_OUTCOMES:,} joint actions.")
