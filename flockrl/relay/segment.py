"""Positions in a log, and the index of its segments: a head and a record for each message, all checked by CRC-32."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flockrl.core.errors import UsageError

MAGIC = b"FLK2"
HEAD = struct.Struct("<4sIIQQ")
"""An index begins with: "FLK2", size and CRC-32 of the schema in the data, trajectories and rows in all earlier
segments. A CRC-32 of these follows."""
HEAD_SIZE = HEAD.size + 4
RECORD = struct.Struct("<QIII")
"""A record begins with: end of the message in the data, its CRC-32, trajectories, rows. Digests and a CRC-32 follow.
The size of all that is a multiple of 8."""


class Position(NamedTuple):
    """A position between two messages: the segment, and the bytes of data and of index before it."""

    segment: int
    data: int
    records: int


class Damaged(UsageError):
    """Data that was written completely and no longer matches its checksum. `after`: the position after it."""

    after: Position | None = None


class Head(NamedTuple):
    """size, check: of the schema in the data. trajectories, rows: in all earlier segments."""

    size: int
    check: int
    trajectories: int
    rows: int

    def pack(self) -> bytes:
        return _checked(HEAD.pack(MAGIC, *self))


class Entry(NamedTuple):
    """A message: where it ends, its CRC-32, its rows and the digests [K] of its ids. K is 0 for damaged bytes."""

    stop: int
    check: int
    rows: int
    digests: np.ndarray

    def pack(self) -> bytes:
        return _checked(RECORD.pack(self.stop, self.check, len(self.digests), self.rows) + self.digests.tobytes())

    @property
    def size(self) -> int:
        """Bytes in the index."""
        return RECORD.size + 8 * len(self.digests) + 4


def read_head(index: bytes) -> Head | None:
    """The head of an index; None if it is damaged."""
    if len(index) < HEAD_SIZE or index[:4] != MAGIC or _checked(index[: HEAD.size]) != index[:HEAD_SIZE]:
        return None
    return Head(*HEAD.unpack_from(index)[1:])


def read_entry(index: bytes, at: int) -> Entry | None:
    """The record at `at`; None if it is damaged or incomplete."""
    if at + RECORD.size > len(index):
        return None
    stop, check, count, rows = RECORD.unpack_from(index, at)
    inside = at + RECORD.size + 8 * count
    if inside + 4 > len(index) or struct.unpack_from("<I", index, inside)[0] != zlib.crc32(index[at:inside]):
        return None
    return Entry(stop, check, rows, np.frombuffer(index, "<u8", count, at + RECORD.size))


def load_entry(fd: int, at: int) -> Entry | None:
    """The same from an open file."""
    index = os.pread(fd, 4096, at)
    if len(index) < RECORD.size:
        return None
    wanted = RECORD.size + 8 * RECORD.unpack_from(index)[2] + 4
    if wanted > len(index):
        index = os.pread(fd, min(wanted, os.fstat(fd).st_size), at)
    return read_entry(index, 0)


def entries(index: bytes) -> Iterator[tuple[bool, Entry]]:
    """All records that are not damaged, each with whether it follows the one before it without a gap."""
    at, follows, last = HEAD_SIZE, read_head(index) is not None, 0
    while at + RECORD.size < len(index):
        entry = read_entry(index, at) if last < RECORD.unpack_from(index, at)[0] else None
        if entry is None:
            at, follows = at + 8, False
            continue
        yield follows, entry
        at, follows, last = at + entry.size, True, entry.stop


def _checked(data: bytes) -> bytes:
    return data + struct.pack("<I", zlib.crc32(data))
