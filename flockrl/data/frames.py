"""The frames of an Arrow stream, checked before Arrow reads them.

Arrow unpacks compressed buffers while it reads, so that a few kilobytes could become gigabytes. What a frame claims to
hold is therefore read by hand from its flatbuffers (`Message` and `RecordBatch` of Arrow's format) and counted first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from flockrl.data.columns import LONGEST, BadData, too_large

SCHEMA, BATCH = 1, 3
"""Kinds of frames."""
V5 = 4
"""The version of Arrow's metadata that is read. Earlier ones can hide compression in a batch's own metadata."""
CONTINUES = 0xFFFFFFFF


class Frame(NamedTuple):
    """One encapsulated message of an Arrow stream.

    data: all its bytes; body: where its body begins in them; rows: of a record batch; lengths: [n] of its arrays,
    nested ones included; buffers: [m, 2] where each begins in the body, and its bytes; compressed: whether these are
    packed.
    """

    kind: int
    data: pa.Buffer
    body: int
    rows: int
    lengths: np.ndarray
    buffers: np.ndarray
    compressed: bool

    def unpacked(self) -> int:
        """Bytes of all buffers once they are unpacked. Raises `BadData` where the claims cannot all be true."""
        room = self.data.size - self.body
        total = 0
        for start, size in self.buffers.tolist():
            if start < 0 or size < 0 or start + size > room:
                raise BadData("A buffer lies outside its frame.")
            total += _unpacked(self.data, self.body + start, size) if self.compressed and size else size
        if not self.compressed and total > room:
            raise BadData("The buffers of a frame overlap.")
        longest = max(self.lengths.tolist(), default=0)
        if self.rows < 0 or min(self.lengths.tolist(), default=0) < 0 or max(self.rows, longest) > 8 * total:
            raise BadData("A frame claims more rows than its buffers can hold.")
        return total


def frames(source: pa.NativeFile, stop: int, most: int) -> Iterator[Frame]:
    """The frames from where `source` stands to its end marker, or to byte `stop`. None may have more than `most` bytes.

    Raises `BadData` where a frame is incomplete or not of the one form that is read.
    """
    at = source.tell()
    while at < stop:
        source.seek(at)
        prefix = source.read(min(8, stop - at))
        if _number(prefix, 0, "<I") != CONTINUES:
            raise BadData("This is not an Arrow stream.")
        size = _number(prefix, 4, "<i")
        if size == 0:
            return
        if size < 0 or at + 8 + size > stop:
            raise BadData("The Arrow stream is cut short.")
        if size > LONGEST:
            raise BadData(f"A frame is described by {size} bytes, and at most {LONGEST} are taken.")
        head = memoryview(source.read(size))
        body = _body_size(head)
        if body < 0 or at + 8 + size + body > stop:
            raise BadData("The Arrow stream is cut short.")
        if body > most:
            raise too_large(body, most, "A record batch")
        source.seek(at)
        yield _frame(head, source.read_buffer(8 + size + body), 8 + size)
        at += 8 + size + body


def _body_size(head: memoryview) -> int:
    message = _number(head, 0, "<I")
    version, body = (_field(head, message, field) for field in (0, 3))
    if (_number(head, version, "<h") if version else 0) != V5:
        raise BadData("The Arrow stream has another version of Arrow's format than V5.")
    return _number(head, body, "<q") if body else 0


def _frame(head: memoryview, data: pa.Buffer, body: int) -> Frame:
    message = _number(head, 0, "<I")
    kind_at, header_at, custom = (_field(head, message, field) for field in (1, 2, 4))
    kind = _number(head, kind_at, "<B") if kind_at else 0
    none = np.zeros((0, 2), np.int64)
    if kind != BATCH:
        return Frame(kind, data, body, 0, none[:, 0], none, False)
    if custom or not header_at:
        raise BadData("A record batch may not have metadata of its own, and must have a header.")
    table = header_at + _number(head, header_at, "<I")
    rows_at, nodes, buffers, compression = (_field(head, table, field) for field in range(4))
    rows = _number(head, rows_at, "<q") if rows_at else 0
    return Frame(kind, data, body, rows, _pairs(head, nodes)[:, 0], _pairs(head, buffers), bool(compression))


def _pairs(head: memoryview, at: int) -> np.ndarray:
    """A vector of structs of two whole numbers, [n, 2]."""
    if not at:
        return np.zeros((0, 2), np.int64)
    start = at + _number(head, at, "<I")
    count = _number(head, start, "<I")
    if start + 4 + 16 * count > len(head):
        raise BadData("The Arrow stream is cut short.")
    return np.frombuffer(head, "<i8", 2 * count, start + 4).reshape(-1, 2)


def _unpacked(data: pa.Buffer, at: int, size: int) -> int:
    """Bytes of a compressed buffer, which says it in front, or -1 where it was left as it is."""
    if size < 8:
        raise BadData("A compressed buffer is cut short.")
    said = struct.unpack_from("<q", data, at)[0]
    if said < -1:
        raise BadData("A compressed buffer has a negative size.")
    return size - 8 if said == -1 else said


def _field(data: memoryview, table: int, field: int) -> int:
    """The offset of a table's field, or 0 if it is missing."""
    vtable = table - _number(data, table, "<i")
    if 4 + 2 * field + 2 > _number(data, vtable, "<H"):
        return 0
    offset = _number(data, vtable + 4 + 2 * field, "<H")
    return table + offset if offset else 0


def _number(data: Any, at: int, form: str) -> int:
    if at < 0 or at + struct.calcsize(form) > len(data):
        raise BadData("The Arrow stream is cut short.")
    return struct.unpack_from(form, data, at)[0]
