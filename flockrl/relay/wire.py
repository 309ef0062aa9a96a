"""The format of messages: an Arrow IPC stream with flockrl's schema and one record batch, as bytes.

`unpack` checks the frames before Arrow reads them, because Arrow unpacks compressed buffers while it reads: a message
of a few kilobytes could become gigabytes. Only four fields of two flatbuffers are needed, so they are read by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from flockrl.data.schema import BadData

SCHEMA, BATCH = 1, 3
"""Kinds of frames."""
CONTINUES = 0xFFFFFFFF


class Frame(NamedTuple):
    """One encapsulated message of an Arrow stream: bytes `start` to `stop`, and whether its buffers are compressed."""

    start: int
    stop: int
    kind: int
    compressed: bool


def frames(data: bytes | memoryview) -> Iterator[Frame]:
    """The frames of a stream up to its end marker or its last byte. Raises `BadData` where a frame is incomplete."""
    at = 0
    while at < len(data):
        if _number(data, at, "<I") != CONTINUES:
            raise BadData("The message is not an Arrow stream.")
        size = _number(data, at + 4, "<i")
        if size == 0:
            return
        inside = memoryview(data)[at + 8 : at + 8 + max(size, 0)]
        if len(inside) != size:
            raise BadData("The message is cut short.")
        kind, body, compressed = _peek(inside)
        stop = at + 8 + size + body
        if body < 0 or stop > len(data):
            raise BadData("The message is cut short.")
        yield Frame(at, stop, kind, compressed)
        at = stop


def _peek(data: memoryview) -> tuple[int, int, bool]:
    """Kind, size of the body and compression from a frame's flatbuffer (`Message` of Arrow's format)."""
    message = _number(data, 0, "<I")
    kind_at, header_at, body_at = (_field(data, message, field) for field in (1, 2, 3))
    kind = _number(data, kind_at, "<B") if kind_at else 0
    body = _number(data, body_at, "<q") if body_at else 0
    compressed = False
    if kind != SCHEMA and header_at:
        compressed = bool(_field(data, header_at + _number(data, header_at, "<I"), 3))
    return kind, body, compressed


def _field(data: memoryview, table: int, field: int) -> int:
    """The offset of a table's field, or 0 if it is missing."""
    vtable = table - _number(data, table, "<i")
    if 4 + 2 * field + 2 > _number(data, vtable, "<H"):
        return 0
    offset = _number(data, vtable + 4 + 2 * field, "<H")
    return table + offset if offset else 0


def _number(data: bytes | memoryview, at: int, form: str) -> int:
    if at < 0 or at + struct.calcsize(form) > len(data):
        raise BadData("The message is cut short.")
    return struct.unpack_from(form, data, at)[0]


def pack(batch: pa.RecordBatch) -> pa.Buffer:
    """A record batch as a message."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def unpack(data: Any) -> pa.RecordBatch:
    """The record batch in a message, with all its offsets checked but not its values. Raises `BadData`."""
    view = memoryview(data)
    found = [frame for _, frame in zip(range(3), frames(view), strict=False)]
    if [frame.kind for frame in found] != [SCHEMA, BATCH]:
        raise BadData("A message must be an Arrow stream of one schema and one record batch, without dictionaries.")
    if found[1].compressed:
        raise BadData("Compressed record batches are not taken.")
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
    except (pa.ArrowException, StopIteration, OSError, UnicodeDecodeError) as error:
        raise BadData(f"Arrow cannot read the message: {str(error)[:200]}") from error
    return batch
