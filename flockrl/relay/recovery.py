"""Opening a segment that a crash or a failing disk may have harmed: everything that is still whole is kept.

The end of the newest segment may be a message that was not written completely, and so was never confirmed: it is cut
off. Anything else that does not match its checksum is damage: it stays in its place, is copied to the directory
`damaged`, and is skipped by readers. An index that is damaged or missing is made again from the data.
"""

from __future__ import annotations

import logging
import mmap
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from flockrl.core.errors import UsageError
from flockrl.data.frames import BATCH, CONTINUES, SCHEMA, Frame, frames
from flockrl.data.schema import BadData
from flockrl.relay.files import place_file
from flockrl.relay.ids import digest
from flockrl.relay.segment import HEAD_SIZE, Entry, Head, entries, read_head

logger = logging.getLogger("flockrl.relay")
ASIDE = 64 << 20
"""The most bytes that are kept in the directory `damaged`."""


class Segment(NamedTuple):
    """What is in a segment.

    head: of its index. size: bytes of data, 0 when there are none. entries: all messages and damaged stretches.
    damage: where each damaged stretch begins -> its bytes. rebuilt: whether the index was damaged or missing.
    """

    head: Head
    size: int
    entries: list[Entry]
    damage: dict[int, int]
    rebuilt: bool

    @property
    def index_size(self) -> int:
        return HEAD_SIZE + sum(entry.size for entry in self.entries)

    @property
    def whole(self) -> Iterator[Entry]:
        """The messages that are not damaged, as far as is known."""
        start = self.head.size
        for entry in self.entries:
            if start not in self.damage:
                yield entry
            start = entry.stop


def recover(file: Path, schema: pa.Schema, before: tuple[int, int], newest: bool) -> Segment | None:
    """Read a segment and repair its files. None if there was nothing in it; its files are then gone.

    file: its data. before: trajectories and rows in all earlier segments, for an index that is made again. newest:
    check every message and cut off an incomplete one; otherwise data is read only where the index is damaged.
    """
    index_file = file.with_suffix(".index")
    index = index_file.read_bytes() if index_file.exists() else b""
    head, found = read_head(index), list(entries(index))
    sound = head is not None and HEAD_SIZE + sum(entry.size for _, entry in found) == len(index)
    known = [entry for _, entry in found]
    end = known[-1].stop if known else head.size if head else 0
    data = _map(file)
    if not data or (sound and not newest and len(data) == end):
        if newest and not found:
            file.unlink(missing_ok=True)
            index_file.unlink(missing_ok=True)
            return None
        if newest:
            logger.error("%s is missing: %d messages are lost.", file, len(known))
        segment = Segment(head or Head(0, 0, *before), end if data else 0, known, {}, not sound)
    else:
        found_in_data = _examine(file, data, schema, head, found, before)
        if found_in_data is None:
            file.unlink()
            index_file.unlink(missing_ok=True)
            return None
        segment = found_in_data
    content = segment.head.pack() + b"".join(entry.pack() for entry in segment.entries)
    # A crash may leave an index without its last record, or with an incomplete one: that is not damage.
    rebuilt = not index or not (content.startswith(index) or index.startswith(content))
    if rebuilt:
        logger.error("%s was damaged or missing, and was made again.", index_file)
        put_aside(index_file, 0, index)
    if index.startswith(content):
        os.truncate(index_file, len(content))  # needs no room on a disk that may be full
    else:
        place_file(index_file, content)
    return segment._replace(rebuilt=rebuilt)


def _examine(
    file: Path, data: memoryview, schema: pa.Schema, head: Head | None, found: list[tuple[bool, Entry]],
    before: tuple[int, int],
) -> Segment | None:  # fmt: skip
    """What is in a segment's data, which is repaired. None if a crash left it before its first message."""
    own = schema.serialize().to_pybytes()
    first, intact = _schema_size(file, data, own, schema, head)
    if len(data) < first and not found:
        return None
    messages, damage = _survey(data, first, found, schema)
    size = messages[-1].stop if messages else first
    if not intact:
        damage[0] = first
        if first == len(own):
            with open(file, "r+b") as opened:
                opened.write(own)
                os.fsync(opened.fileno())
    rest = data[size:]
    if len(rest) and not (head is not None and _cut_short(rest)):
        damage[size] = len(rest)
        if len(data) % 8 == 0:  # then it may have been written completely: positions behind it stay valid
            messages.append(_nothing(data, size, len(data)))
            size = len(data)
    for start, count in damage.items():
        put_aside(file, start, data[start : start + count])
    missing = sum(entry.stop > len(data) for _, entry in found)
    if damage or missing:
        text = "%s is damaged: %d bytes in %d places, and %d messages are missing at its end. What is whole is kept."
        logger.error(text, file, sum(damage.values()), len(damage), missing)
    if size < len(data):
        os.truncate(file, size)
    if head is None or head.size != first:
        head = Head(first, zlib.crc32(data[:first]) if intact else zlib.crc32(own), *before)
    return Segment(head, size, messages, damage, False)


def _schema_size(file: Path, data: memoryview, own: bytes, schema: pa.Schema, head: Head | None) -> tuple[int, bool]:
    """The size of the schema at the beginning of data, and whether it is intact."""
    if head is not None:
        size, intact = head.size, zlib.crc32(data[: head.size]) == head.check
    else:
        frame = _frame(data)
        size = frame.data.size if frame is not None and frame.kind == SCHEMA else len(own)
        intact = False
    ours = head is not None and head.check == zlib.crc32(own)
    try:
        theirs = pa.ipc.read_schema(pa.py_buffer(data[:size]))
    except (pa.ArrowException, OSError, ValueError):
        return size, False
    if schema.equals(theirs, check_metadata=True):
        return size, head is None or intact
    if not ours:
        raise UsageError(f"{file.parent} holds trajectories of another environment.")
    return size, False


def _survey(
    data: memoryview, first: int, found: list[tuple[bool, Entry]], schema: pa.Schema
) -> tuple[list[Entry], dict[int, int]]:
    """The messages in data from `first` on, and where it is damaged -> how many bytes.

    found: the records of the index that are not damaged, and whether each follows the one before. A message that has no
    record is taken if it can be read.
    """
    messages: list[Entry] = []
    damage: dict[int, int] = {}
    at = first

    def add(entry: Entry, good: bool) -> None:
        nonlocal at
        if not good:
            damage[at] = entry.stop - at
        messages.append(entry)
        at = entry.stop

    for follows, entry in found:
        if not at < entry.stop <= len(data):
            continue
        if follows:
            add(entry, len(entry.digests) > 0 and zlib.crc32(data[at : entry.stop]) == entry.check)
            continue
        for other in _read_all(data, at, entry.stop, schema):
            if other.stop < entry.stop:
                add(other, len(other.digests) > 0)
            else:
                add(entry, other.check == entry.check)
    for other in _read_all(data, at, len(data), schema):
        if other.stop < len(data) or len(other.digests):
            add(other, len(other.digests) > 0)
    return messages, damage


def _read_all(data: memoryview, at: int, end: int, schema: pa.Schema) -> Iterator[Entry]:
    """What is between two positions: each message that can be read, and each stretch that cannot, without digests."""
    marks: np.ndarray | None = None
    while at < end:
        entry = _read(data, at, end, schema)
        if entry is None:
            if marks is None:
                words = np.frombuffer(data[: end // 8 * 8], "<u4")[::2]  # messages begin at multiples of 8
                marks = 8 * np.flatnonzero(words == CONTINUES)
            later = (int(mark) for mark in marks[np.searchsorted(marks, at + 1) :])
            stop = next((mark for mark in later if _read(data, mark, end, schema) is not None), end)
            entry = _nothing(data, at, stop)
        yield entry
        at = entry.stop


def _nothing(data: memoryview, at: int, stop: int) -> Entry:
    """A stretch that cannot be read."""
    return Entry(stop, zlib.crc32(data[at:stop]), 0, np.zeros(0, "<u8"))


def _read(data: memoryview, at: int, end: int, schema: pa.Schema) -> Entry | None:
    """The message at a position; None if there is none that can be read."""
    frame = _frame(data[at:end])
    if frame is None or frame.kind != BATCH or frame.compressed:
        return None
    message = data[at : at + frame.data.size]
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
        batch.validate(full=True)
        names = batch.column("trajectory").unique()
    except (pa.ArrowException, OSError, ValueError):
        return None
    if not len(names) or names.null_count:
        return None
    return Entry(at + frame.data.size, zlib.crc32(message), len(batch), digest(names.to_pylist()))


def _frame(data: memoryview) -> Frame | None:
    try:
        return next(frames(pa.BufferReader(pa.py_buffer(data)), len(data), len(data)), None)
    except BadData:
        return None


def _cut_short(rest: memoryview) -> bool:
    """Whether these bytes are the beginning of a message."""
    mark = CONTINUES.to_bytes(4, "little")
    return bytes(rest[:4]) == mark[: len(rest)] and _frame(rest) is None


def _map(file: Path) -> memoryview:
    """A file's bytes, which are read when they are needed; none if there is no file."""
    try:
        with open(file, "rb") as opened:
            return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
        return memoryview(b"")


def put_aside(file: Path, start: int, content: Any) -> None:
    """Keep a copy of damaged bytes that began at `start` in a file, unless there are too many copies already."""
    folder = file.parent / "damaged"
    copy = folder / f"{file.name}-{start}-{zlib.crc32(content):08x}"
    try:
        folder.mkdir(exist_ok=True)
        kept = sum(other.stat().st_size for other in folder.iterdir())
        if len(content) and not copy.exists() and kept + len(content) <= ASIDE:
            place_file(copy, bytes(content))
    except OSError as error:
        logger.warning("no copy of the damaged bytes is kept: %s", error)
