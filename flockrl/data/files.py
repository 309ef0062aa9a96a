"""Trajectory files: Arrow IPC (.arrow), Parquet (.parquet) and CSV (.csv), read and written piece by piece.

Files of any size pass through bounded memory: they are read in batches of about `ROWS` rows that hold whole
trajectories. RelayRL's own Arrow and CSV files can be read too.
"""

from __future__ import annotations

import csv
import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flockrl.core.errors import UsageError
from flockrl.core.spec import EnvSpec
from flockrl.data import relayrl
from flockrl.data.experience import Experience
from flockrl.data.schema import KEY, BadData, decode, encode, make_schema, read_about, read_spec

SUFFIXES = (".arrow", ".parquet", ".csv")
READABLE = (*SUFFIXES, ".arrows")
"""Besides, Arrow streams can be read, the form in which a server keeps what it was sent."""
ROWS = 65_536
COMMENT = "#flockrl "
"""What the first line of a CSV file begins with; the schema's metadata follow."""


# Writing


class Writer:
    """Writes trajectories to a file, which appears under its name when it is complete.

    with Writer(path, spec) as writer:
        writer.add(experience)
    """

    def __init__(self, path: str | Path, spec: EnvSpec, about: Mapping[str, Any] | None = None):
        self.path, self.spec, self.schema = Path(path), spec, make_schema(spec, about)
        self.rows = 0
        _suffix(self.path, SUFFIXES)
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
        if len(batch):
            self._file.write_batch(batch)

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


class _Table(Protocol):
    def write_batch(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def _open(path: Path, suffix: str, schema: pa.Schema) -> _Table:
    if suffix == ".arrow":
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        return pa.ipc.new_file(str(path), schema, options=options)
    return pq.ParquetWriter(path, schema, compression="zstd") if suffix == ".parquet" else _CSV(path, schema)


class _CSV:
    """Rows as text. Lists are JSON, an empty cell is a null; numbers are written so that they read back the same."""

    def __init__(self, path: Path, schema: pa.Schema):
        self._file = path.open("w", newline="")
        self._file.write(COMMENT + schema.metadata[KEY].decode() + "\n")
        self._rows = csv.writer(self._file)
        self._rows.writerow(schema.names)

    def write_batch(self, batch: pa.RecordBatch) -> None:
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


# Reading


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
        _suffix(path, READABLE)
    return list(dict.fromkeys(found))


def _suffix(path: Path, known: tuple[str, ...]) -> None:
    if path.suffix not in known:
        raise UsageError(f"A trajectory file ends in {', '.join(known)}, and {path} does not.")


class Files:
    """Trajectory files of one environment, read as one stream.

    spec: the environment that they agree on; about: what the first one says besides; sizes: bytes of each.
    """

    def __init__(self, patterns: Iterable[str | Path]):
        self.paths = find(patterns)
        headers = [_header(path) for path in self.paths]
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
                yield from relayrl.read(path, self.spec)
                return
            for number, batch in enumerate(_whole(_batches(path))):
                try:
                    yield decode(batch, self.spec)
                except BadData as error:
                    raise BadData(f"{path}, batch {number}: {error}") from error
        except (pa.ArrowException, OSError) as error:
            raise BadData(f"{path} is damaged: {_first_line(error)}.") from error


def _header(path: Path) -> tuple[EnvSpec, dict[str, Any]]:
    try:
        if _foreign(path):
            return relayrl.spec(path), {"source": "RelayRL"}
        schema = _schema(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path} cannot be read: {_first_line(error)}.") from error
    try:
        about = read_about(schema)
        return read_spec(schema), about
    except BadData as error:
        raise BadData(f"{path}: {error}") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def _foreign(path: Path) -> bool:
    """Whether RelayRL wrote it."""
    if path.suffix in (".parquet", ".arrows"):
        return False
    names = _csv_names(path) if path.suffix == ".csv" else pa.ipc.open_file(str(path)).schema.names
    return names[:1] == ["backend"]


def _csv_names(path: Path) -> list[str]:
    with path.open(newline="") as file:
        line = file.readline()
        return next(csv.reader([line]), []) if not line.startswith(COMMENT) else []


def _schema(path: Path) -> pa.Schema:
    if path.suffix == ".arrow":
        return pa.ipc.open_file(str(path)).schema
    if path.suffix == ".arrows":
        return pa.ipc.open_stream(str(path)).schema
    if path.suffix == ".parquet":
        return pq.read_schema(path)
    with path.open() as file:
        line = file.readline()
    said = line.removeprefix(COMMENT).strip().encode() if line.startswith(COMMENT) else b""
    return pa.schema([], metadata={KEY: said})


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    if path.suffix == ".arrow":
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i)
                batch.validate(full=True)
                yield batch
    elif path.suffix == ".arrows":
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
            for batch in reader:
                batch.validate(full=True)
                yield batch
    elif path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(ROWS)
    else:
        yield from _csv_batches(path)


def _csv_batches(path: Path) -> Iterator[pa.RecordBatch]:
    expected = make_schema(read_spec(_schema(path)))
    csv.field_size_limit(1 << 27)
    with path.open(newline="") as file:
        file.readline()
        rows = csv.reader(file)
        names = next(rows, [])
        if names != expected.names:
            raise BadData(f"{path}: its columns are not flockrl's.")
        chunk: list[list[str]] = []
        for row in rows:
            if len(row) != len(names):
                raise BadData(f"{path}, line {rows.line_num + 1}: it has {len(row)} cells instead of {len(names)}.")
            chunk.append(row)
            if len(chunk) == ROWS // 8:
                yield _parse(chunk, expected, path)
                chunk = []
        if chunk:
            yield _parse(chunk, expected, path)


def _parse(rows: list[list[str]], schema: pa.Schema, path: Path) -> pa.RecordBatch:
    arrays = []
    for field, cells in zip(schema, zip(*rows, strict=True), strict=True):
        try:
            arrays.append(pa.array([_value(cell, field.type) for cell in cells], field.type))
        except (ValueError, TypeError, AttributeError, pa.ArrowException) as error:
            raise BadData(f"{path}: the column {field.name!r} cannot be read: {_first_line(error)}.") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _value(cell: str, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return cell
    if cell == "":
        return None
    if pa.types.is_map(kind):
        return list(json.loads(cell).items())
    if pa.types.is_list(kind):
        return json.loads(cell)
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[cell.lower()]
    return float(cell) if pa.types.is_floating(kind) else int(cell)


def _whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that end where trajectories end."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if not len(batch):
            continue
        if "trajectory" not in batch.schema.names:
            raise BadData("There is no column 'trajectory'.")
        names = batch.column("trajectory")
        if held and held[-1].column("trajectory")[-1].as_py() != names[0].as_py():
            yield _glue(held)
            held = []
        codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        begins = int(np.flatnonzero(np.diff(codes, prepend=-1))[-1]) if len(codes) > 1 else 0
        if begins:
            yield _glue([*held, batch.slice(0, begins)])
            held = []
        held.append(batch.slice(begins))
    if held:
        yield _glue(held)


def _glue(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
