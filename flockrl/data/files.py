"""Trajectory files of one environment as one stream: Arrow IPC (.arrow), Parquet (.parquet) and CSV (.csv).

Files of any size pass through bounded memory: they are read in batches that hold whole trajectories, and what a batch
will need is counted before it is unpacked. RelayRL's own Arrow and CSV files can be read too.
"""

from __future__ import annotations

import csv
import glob
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flockrl.core.errors import UsageError
from flockrl.core.memory import MEMORY
from flockrl.core.spec import EnvSpec
from flockrl.data import relayrl
from flockrl.data.columns import make_columns, too_large
from flockrl.data.decoding import check_columns
from flockrl.data.experience import Experience
from flockrl.data.reading import read_batches, read_schema
from flockrl.data.schema import BadData, decode, read_about, read_spec
from flockrl.data.size import decoded_size, step_size
from flockrl.data.text import first_line
from flockrl.data.writing import COMMENT, SUFFIXES, Writer, check_suffix

__all__ = ["READABLE", "SUFFIXES", "Files", "Writer", "find"]
READABLE = (*SUFFIXES, ".arrows")
"""Besides, Arrow streams can be read, the form in which a server keeps what it was sent."""
SHARES = 4
"""A batch, the rows of a trajectory, and both as arrays may take one share of the memory each, the last one two."""
PER_BATCH = 20_000
"""Bytes of memory that a batch takes besides its rows."""


def find(patterns: Iterable[str | Path]) -> list[Path]:
    """The files that these names, directories and patterns with * stand for."""
    found: list[Path] = []
    for pattern in map(str, patterns):
        path = Path(pattern)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix in READABLE)
        else:
            inside = [path] if path.is_file() else sorted(map(Path, glob.glob(pattern)))
        if not inside:
            raise UsageError(f"There is no trajectory file at {pattern}.")
        found += inside
    if not found:
        raise UsageError("Name at least one trajectory file.")
    for path in found:
        check_suffix(path, READABLE)
    return list(dict.fromkeys(found))


class Files:
    """Trajectory files of one environment, read as one stream.

    spec: the environment that they agree on; about: what the first one says besides; memory_limit: bytes that reading
    may take; what needs more raises `BadData`.
    """

    def __init__(self, patterns: Iterable[str | Path], memory_limit: int = MEMORY):
        self.paths, self._most = find(patterns), memory_limit // SHARES
        headers = [self._header(path) for path in self.paths]
        self.spec, self.about = headers[0]
        for path, (spec, _) in zip(self.paths, headers, strict=True):
            if (spec.agents, spec.observations, spec.actions) != (
                self.spec.agents, self.spec.observations, self.spec.actions
            ):  # fmt: skip
                raise UsageError(f"{path} and {self.paths[0]} were recorded with other agents or spaces.")

    def __iter__(self) -> Iterator[Experience]:
        """All trajectories in order, some at a time."""
        for path in self.paths:
            yield from self.read(path)

    def read(self, path: Path) -> Iterator[Experience]:
        """The trajectories of one of the files."""
        try:
            if _foreign(path):
                yield from relayrl.read(path, self.spec, self._most)
                return
            row = 0
            for batch in _whole(self._batches(path), self._most):
                for part in _fitting(batch, self.spec, self._most):
                    try:
                        data = decode(part, self.spec)
                    except BadData as error:
                        raise BadData(f"{_where(path, row, error.row, len(part))}: {error}") from error
                    yield data
                    row += len(part)
        except BadData as error:
            raise _named(path, error) from error
        except DAMAGE as error:
            raise _damage(path, error) from error

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        """The rows of a file, with flockrl's columns and nothing empty."""
        columns, row = make_columns(self.spec), 0
        for batch in read_batches(path, columns, self._most):
            try:
                check_columns(batch, columns)
            except BadData as error:
                raise BadData(f"{_where(path, row, error.row, len(batch))}: {error}") from error
            row += len(batch)
            if len(batch):
                yield batch

    def _header(self, path: Path) -> tuple[EnvSpec, dict[str, Any]]:
        try:
            if _foreign(path):
                return relayrl.spec(path, self._most), {"source": "RelayRL"}
            schema = read_schema(path)
            return read_spec(schema), read_about(schema)
        except DAMAGE as error:
            raise _damage(path, error) from error
        except BadData as error:
            raise _named(path, error) from error


DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError)
"""What the readers of Arrow and of text raise where a file is not what it should be."""


def _damage(path: Path, error: BaseException) -> BadData:
    text = str(error).split("\n")[0].rstrip(".")[:200] or type(error).__name__
    return BadData(f"{path} is damaged: {text}.")


def _named(path: Path, error: BadData) -> BadData:
    """The error with the file's name in front, if it is not there yet."""
    return error if str(error).startswith(str(path)) else BadData(f"{path}: {error}")


def _where(path: Path, before: int, row: int | None, rows: int) -> str:
    """The place of a fault. before: rows of the file before the batch; row: within it, or None; rows: of the batch."""
    word, offset = ("line", 3) if path.suffix == ".csv" else ("row", 1)
    if row is None:
        return f"{path}, {word}s {before + offset} to {before + rows + offset - 1}"
    return f"{path}, {word} {before + row + offset}"


def _foreign(path: Path) -> bool:
    """Whether RelayRL wrote it."""
    if path.suffix == ".csv":
        line = first_line(path)
        names = [] if line.startswith(COMMENT) else next(csv.reader([line[:1000]]), [])
    else:
        names = read_schema(path).names if path.suffix == ".arrow" else []
    return names[:1] == ["backend"]


def _whole(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that end where trajectories end. A trajectory may take at most `most` bytes."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        names = batch.column("trajectory")
        if held and held[-1].column("trajectory")[-1].as_py() != names[0].as_py():
            yield _glue(held)
            held, size = [], 0
        codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        begins = int(np.flatnonzero(np.diff(codes, prepend=-1))[-1]) if len(codes) > 1 else 0
        if begins:
            yield _glue([*held, batch.slice(0, begins)])
            held, size = [], 0
        held.append(batch.slice(begins))
        size += held[-1].nbytes + PER_BATCH
        if size > most and len(held) > 1:
            raise too_large(size, most, f"The trajectory {names[-1].as_py()[:40]!r}")
    if held:
        yield _glue(held)


def _fitting(batch: pa.RecordBatch, spec: EnvSpec, most: int) -> Iterator[pa.RecordBatch]:
    """The same trajectories in parts, none of which needs more than `most` bytes as arrays."""
    if len(batch) * step_size(batch, spec) <= most or (size := decoded_size(batch, spec)) <= most:
        yield batch
        return
    codes = batch.column("trajectory").dictionary_encode().indices.to_numpy(zero_copy_only=False)
    begins = np.flatnonzero(np.diff(codes, prepend=-1))
    if len(begins) == 1:
        raise too_large(size, most, f"The trajectory {batch.column('trajectory')[0].as_py()[:40]!r}")
    middle = int(begins[len(begins) // 2])
    yield from _fitting(batch.slice(0, middle), spec, most)
    yield from _fitting(batch.slice(middle), spec, most)


def _glue(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
