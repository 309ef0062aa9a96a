"""Trajectory files, written piece by piece: Arrow IPC (.arrow), Parquet (.parquet) and CSV (.csv)."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flockrl.core.errors import UsageError
from flockrl.core.spec import EnvSpec
from flockrl.data.experience import Experience
from flockrl.data.schema import KEY, encode, make_schema

SUFFIXES = (".arrow", ".parquet", ".csv")
ROWS, BYTES = 65_536, 16 << 20
"""The most that is written as one batch, so that readers need little memory."""
COMMENT = "#flockrl "
"""What the first line of a CSV file begins with; the schema's metadata follow."""


class Writer:
    """Writes trajectories to a file, which appears under its name when it is complete.

    with Writer(path, spec) as writer:
        writer.add(experience)
    """

    def __init__(self, path: str | Path, spec: EnvSpec, about: Mapping[str, Any] | None = None):
        self.path, self.spec, self.schema = Path(path), spec, make_schema(spec, about)
        self.rows = 0
        check_suffix(self.path, SUFFIXES)
        if self.path.exists():
            raise UsageError(f"{self.path} exists already: choose another name.")
        self._partial = self.path.with_name(self.path.name + ".partial")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: _Table | None = _open(self._partial, self.path.suffix, self.schema)
        except OSError as error:
            raise UsageError(f"Cannot write {self.path}: {error.strerror}.") from error

    def add(self, data: Experience) -> None:
        assert self._file is not None
        batch = encode(data, self.spec, self.schema)
        self.rows += len(batch)
        size = max(1, min(ROWS, len(batch) * BYTES // max(batch.nbytes, 1)))
        for at in range(0, len(batch), size):
            self._file.write_batch(batch.slice(at, size))

    def close(self) -> None:
        """Put the file in its place."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with self._partial.open("rb") as file:
                os.fsync(file.fileno())
            self._partial.replace(self.path)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        elif self._file is not None:
            self._file.close()
            self._file = None
            self._partial.unlink()


def check_suffix(path: Path, known: tuple[str, ...]) -> None:
    """Refuse a file whose name does not say in a known way which format it has."""
    if path.suffix not in known:
        raise UsageError(f"A trajectory file ends in {', '.join(known)}, and {path} does not.")


class _Table(Protocol):
    def write_batch(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def _open(path: Path, suffix: str, schema: pa.Schema) -> _Table:
    if suffix == ".arrow":
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        return pa.ipc.new_file(str(path), schema, options=options)
    return pq.ParquetWriter(path, schema, compression="zstd") if suffix == ".parquet" else _CSV(path, schema)


class _CSV:
    """Rows as text, one line each. Lists are JSON, an empty cell is a null; numbers read back the same."""

    def __init__(self, path: Path, schema: pa.Schema):
        self._file = path.open("w", newline="", encoding="utf-8")
        self._file.write(COMMENT + schema.metadata[KEY].decode() + "\n")
        self._rows = csv.writer(self._file)
        self._rows.writerow(schema.names)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        for name in ("trajectory", "env", "agent"):
            if pc.any(pc.match_substring_regex(batch.column(name), "[\r\n]")).as_py():
                raise UsageError(f"A row is one line of a CSV file, and the column {name!r} has a line break.")
        columns = [_cells(array) for array in batch.columns]
        self._rows.writerows(zip(*columns, strict=True))

    def close(self) -> None:
        self._file.close()


def _cells(array: pa.Array) -> list[Any]:
    if pa.types.is_map(array.type):
        return ["" if x is None else json.dumps({k: _shortest(v) for k, v in x}) for x in array.to_pylist()]
    if pa.types.is_list(array.type):
        floats = pa.types.is_floating(array.type.value_type)
        return ["" if x is None else json.dumps(_shortest(x) if floats else x) for x in array.to_pylist()]
    if pa.types.is_floating(array.type):
        return ["" if x is None else y for x, y in zip(array.to_pylist(), _shortest(array.to_pylist()), strict=True)]
    if pa.types.is_boolean(array.type):
        return ["true" if x else "false" for x in array.to_pylist()]
    return array.to_pylist()


def _shortest(numbers: Sequence[float | None]) -> list[float]:
    """The shortest decimal numbers that are the same as float32."""
    return [float(str(x)) for x in np.array([np.nan if x is None else x for x in numbers], np.float32)]
