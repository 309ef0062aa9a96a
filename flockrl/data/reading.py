"""The rows of trajectory files in record batches, each of bounded size, whatever the files claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flockrl.data import pages
from flockrl.data.columns import BadData, too_large
from flockrl.data.decoding import check_schema
from flockrl.data.frames import BATCH, SCHEMA, Frame, frames
from flockrl.data.text import GROWTH, csv_schema, read_json, read_rows

ROWS = 65_536
"""The most rows of a batch, in files that do not come in batches of their own."""
MAGIC = b"ARROW1"
"""What an Arrow file begins and ends with."""


def read_schema(path: Path) -> pa.Schema:
    """The schema of a file, with its metadata. A CSV file's has no columns."""
    if path.suffix == ".csv":
        return csv_schema(path)
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            return file.schema_arrow
    with pa.OSFile(str(path)) as source:
        frame = next(_frames(source, path, 0), None)
        if frame is None or frame.kind != SCHEMA:
            raise BadData("The Arrow stream does not begin with a schema.")
        return pa.ipc.read_schema(frame.data)


def read_batches(path: Path, expected: pa.Schema, most: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file with the expected columns, no batch larger than `most` bytes."""
    if path.suffix == ".csv":
        yield from _csv(path, expected, most)
        return
    check_schema(read_schema(path), expected)
    yield from _parquet(path, most) if path.suffix == ".parquet" else arrow_batches(path, most)


def arrow_batches(path: Path, most: int) -> Iterator[pa.RecordBatch]:
    """The record batches of an Arrow file or stream, none larger than `most` bytes once it is unpacked."""
    schema = None
    with pa.OSFile(str(path)) as source:
        for frame in _frames(source, path, most):
            if schema is None and frame.kind == SCHEMA:
                schema = pa.ipc.read_schema(frame.data)
                continue
            if schema is None or frame.kind != BATCH:
                raise BadData("An Arrow file must be one schema and record batches, without dictionaries.")
            size = frame.unpacked()
            if size > most:
                raise too_large(size, most, "A record batch")
            batch = pa.ipc.read_record_batch(frame.data, schema)
            batch.validate(full=True)
            yield batch


def _frames(source: pa.NativeFile, path: Path, most: int) -> Iterator[Frame]:
    """The frames of an Arrow stream, or of an Arrow file, which is a stream between magic letters and a footer."""
    stop = source.size()
    if path.suffix == ".arrow":
        if source.read(8)[:6] != MAGIC:
            raise BadData("It is not an Arrow file.")
        source.seek(max(stop - 10, 0))
        footer, end = int.from_bytes(source.read(4), "little", signed=True), source.read(6)
        stop -= 10 + footer
        if end != MAGIC or footer < 0 or stop < 8:
            raise BadData("The Arrow file is cut short.")
        start = 8
        source.seek(start)
        while start < min(64, stop) and not any(source.read(8)):  # some writers leave more room before the stream
            start += 8
        source.seek(start)
    return frames(source, stop, most)


def _parquet(path: Path, most: int) -> Iterator[pa.RecordBatch]:
    with path.open("rb") as raw, pq.ParquetFile(path, pre_buffer=False) as file:
        if pages.OLD.match(file.metadata.created_by or ""):
            raise BadData("The Parquet file was written by a version of parquet-mr that is too old.")
        together: list[int] = []
        count = size = 0
        for i, (rows, columns) in enumerate(pages.row_groups(raw)):
            needed = pages.needed(raw, rows, columns, most)
            if together and (count + rows > ROWS or size + needed > most):
                yield from file.iter_batches(ROWS, row_groups=together)
                together, count, size = [], 0, 0
            together.append(i)
            count, size = count + rows, size + needed
        yield from file.iter_batches(ROWS, row_groups=together)


def _csv(path: Path, expected: pa.Schema, most: int) -> Iterator[pa.RecordBatch]:
    rows = read_rows(path, 1, most)
    if next(rows, (0, []))[1] != expected.names:
        raise BadData("Its columns are not flockrl's.")
    chunk: list[list[str]] = []
    first, size = 0, 0
    for number, row in rows:
        first, size = (first or number), size + sum(map(len, row)) + 16 * len(row)
        chunk.append(row)
        if len(chunk) == ROWS // 8 or size > most // GROWTH:
            yield _parse(chunk, expected, path, first)
            chunk, first, size = [], 0, 0
    if chunk:
        yield _parse(chunk, expected, path, first)


def _parse(rows: list[list[str]], schema: pa.Schema, path: Path, first: int) -> pa.RecordBatch:
    """Cells as a record batch. first: the line of the first row."""
    arrays = []
    for field, cells in zip(schema, zip(*rows, strict=True), strict=True):
        value = _converter(field.type)
        try:
            arrays.append(pa.array([value(cell) for cell in cells], field.type))
        except WRONG as error:
            place = next((at for at, cell in enumerate(cells) if not _fits(cell, field)), 0)
            reason = str(error).split("\n")[0].rstrip(".")[:200]
            raise BadData(
                f"{path}, line {first + place}: the column {field.name!r} cannot be read: {reason}."
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


WRONG = (ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException)


def _fits(cell: str, field: pa.Field) -> bool:
    try:
        pa.array([_converter(field.type)(cell)], field.type)
    except WRONG:
        return False
    return True


def _converter(kind: pa.DataType) -> Callable[[str], Any]:
    """From a cell to its value. An empty cell is a null, except where it is text."""
    if pa.types.is_string(kind):
        return str
    if pa.types.is_map(kind):
        return lambda cell: list(read_json(cell).items()) if cell else None
    if pa.types.is_list(kind):
        return lambda cell: read_json(cell) if cell else None
    if pa.types.is_boolean(kind):
        return _flag
    number = float if pa.types.is_floating(kind) else int
    return lambda cell: number(cell) if cell else None


def _flag(cell: str) -> bool | None:
    text = cell.lower()
    if text not in ("true", "false", ""):
        raise ValueError(f"{cell[:40]!r} is neither true nor false")
    return text == "true" if text else None
