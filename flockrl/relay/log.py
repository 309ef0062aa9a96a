"""Messages on disk in the order of their arrival, each trajectory once: the server's log and the actor's queue.

A log is a directory of segments. `N.arrows` is an Arrow IPC stream that any Arrow reader opens. `N.index` has a record
for each message of it: where the message ends, its checksum, and the digests of its trajectories' ids. A message that
a crash left incomplete is removed when the log is opened; messages confirmed by `sync` are never lost.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flockrl.core.errors import UsageError
from flockrl.relay.ids import Seen, digest

HEAD = struct.Struct("<4sIQQ")
"""An index begins with: "FLK1", size of the schema in the data, trajectories and rows in all earlier segments."""
RECORD = struct.Struct("<QIII")
"""A record begins with: end of the message in the data, its CRC-32, trajectories, rows. Digests and a CRC-32 follow."""
MAGIC = b"FLK1"


class Position(NamedTuple):
    """A position between two messages: the segment, and the bytes of data and of index before it."""

    segment: int
    data: int
    records: int


class Damaged(UsageError):
    """Data that was written completely and no longer matches its checksum. `after`: the position after it."""

    after: Position | None = None


class Log:
    """A log. A lock file ensures that only one process writes it; that process may use any number of threads.

    segment_bytes: the size at which a new segment begins. remember: the least number of ids that are kept to
    recognise repetitions.
    """

    def __init__(self, path: Path, schema: pa.Schema, segment_bytes: int = 64 << 20, remember: int = 1_000_000) -> None:
        self.path, self.schema = Path(path), schema
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock_file = _lock(self.path)
        self._segment_bytes, self._remember = segment_bytes, remember
        self.seen = Seen(remember)
        self._changed = threading.Condition()
        self._appended = self._synced = 0
        self._syncing = False
        self._sizes: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self.trajectories = self.rows = 0
        self._reading: tuple[int, Any, Any] | None = None
        self._open()

    # Opening

    def _open(self) -> None:
        numbers = sorted(int(file.stem) for file in self.path.glob("*.index"))
        for number in numbers:
            size, index_size = self._recover(number, number == numbers[-1])
            if self._data_file(number).exists():
                self._sizes[number] = size
        if numbers and self._sizes.get(numbers[-1]):
            number = numbers[-1]
            self._data = open(self._data_file(number), "ab", buffering=0)  # noqa: SIM115
            self._index = open(self._index_file(number), "ab", buffering=0)  # noqa: SIM115
            self.end = self.committed = Position(number, size, index_size)
        else:
            self._begin(numbers[-1] + 1 if numbers else 0)
            self.committed = self.end

    def _recover(self, number: int, newest: bool) -> tuple[int, int]:
        """Read a segment's index; in the newest, remove what is incomplete. Returns the sizes of data and index."""
        index, file = self._index_file(number).read_bytes(), self._data_file(number)
        if len(index) < HEAD.size or index[:4] != MAGIC:
            if not newest:
                raise Damaged(f"{self._index_file(number)} is damaged.")
            self._index_file(number).unlink()
            file.unlink(missing_ok=True)
            return 0, 0
        _, size, before, rows_before = HEAD.unpack_from(index)
        self.trajectories, self.rows = max(self.trajectories, before), max(self.rows, rows_before)
        data = file.read_bytes() if newest and file.exists() else None
        if data is not None and not self.schema.equals(_schema(data[:size]), check_metadata=True):
            if len(data) >= size:
                raise UsageError(f"{self.path} holds trajectories of another environment.")
            self._index_file(number).unlink()
            file.unlink()
            return 0, 0
        at, first = HEAD.size, self.trajectories
        while (record := _record(index, at)) is not None:
            stop, check, rows, digests, after = record
            if data is not None and (stop > len(data) or zlib.crc32(data[size:stop]) != check):
                break
            self.seen.add(digests)
            self.trajectories, self.rows = self.trajectories + len(digests), self.rows + rows
            size, at = stop, after
        self._counts[number] = self.trajectories - first
        if newest and data is not None:
            os.truncate(file, size)
            os.truncate(self._index_file(number), at)
        elif at != len(index):
            raise Damaged(f"{self._index_file(number)} is damaged at byte {at}.")
        return size, at

    def _begin(self, number: int) -> None:
        head = self.schema.serialize().to_pybytes()
        self._data = open(self._data_file(number), "wb", buffering=0)  # noqa: SIM115
        self._data.write(head)
        self._index = open(self._index_file(number), "wb", buffering=0)  # noqa: SIM115
        self._index.write(HEAD.pack(MAGIC, len(head), self.trajectories, self.rows))
        for file in (self._data, self._index):
            os.fsync(file.fileno())
        _sync_directory(self.path)
        self.end = Position(number, len(head), HEAD.size)
        self._sizes[number], self._counts[number] = len(head), 0

    def _data_file(self, number: int) -> Path:
        return self.path / f"{number:08d}.arrows"

    def _index_file(self, number: int) -> Path:
        return self.path / f"{number:08d}.index"

    # Writing

    def append(self, batch: pa.RecordBatch, ids: Sequence[str]) -> tuple[int, int]:
        """Write a batch without the trajectories that are known. `ids`: [K] in the order of the rows.

        Returns how many were new, and a ticket: `sync(ticket)` waits until all of them, including known ones, are on
        disk. Without `sync`, the data survives a crash of this process but not of the machine.
        """
        digests, message = digest(ids), batch.serialize()
        with self._changed:
            fresh = self.seen.fresh(digests)
            if not fresh.any():
                return 0, self._appended
            if not fresh.all():
                wanted = pa.array([name for name, new in zip(ids, fresh, strict=True) if new])
                batch = batch.filter(pc.is_in(batch.column("trajectory"), wanted))
                digests, message = digests[fresh], batch.serialize()
            if self.end.data + message.size > self._segment_bytes and self._counts[self.end.segment]:
                self._rotate()
            self._write(memoryview(message), digests, len(batch))
            return int(fresh.sum()), self._appended

    def _write(self, message: memoryview, digests: np.ndarray, rows: int) -> None:
        end = self.end
        record = RECORD.pack(end.data + len(message), zlib.crc32(message), len(digests), rows) + digests.tobytes()
        record += struct.pack("<I", zlib.crc32(record))
        try:
            _write_all(self._data, message)
            _write_all(self._index, memoryview(record))
        except OSError:
            for file, size in ((self._data, end.data), (self._index, end.records)):
                file.truncate(size)
                file.seek(size)
            raise
        self.end = Position(end.segment, end.data + len(message), end.records + len(record))
        self.seen.add(digests)
        self._sizes[end.segment] = self.end.data
        self._counts[end.segment] += len(digests)
        self.trajectories, self.rows = self.trajectories + len(digests), self.rows + rows
        self._appended += 1

    def _rotate(self) -> None:
        while self._syncing:
            self._changed.wait()
        for file in (self._data, self._index):
            os.fsync(file.fileno())
            file.close()
        self._begin(self.end.segment + 1)
        self._synced, self.committed = self._appended, self.end
        self._changed.notify_all()

    def sync(self, ticket: int | None = None) -> None:
        """Wait until everything up to `ticket` (by default, all) is on disk. One thread syncs for all that wait."""
        with self._changed:
            ticket = self._appended if ticket is None else ticket
            while self._synced < ticket:
                if self._syncing:
                    self._changed.wait()
                    continue
                self._syncing = True
                upto, end, files = self._appended, self.end, (self._data, self._index)
                self._changed.release()
                done = False
                try:
                    for file in files:
                        os.fsync(file.fileno())
                    done = True
                finally:
                    self._changed.acquire()
                    self._syncing = False
                    if done:
                        self._synced, self.committed = upto, end
                    self._changed.notify_all()

    # Reading, by one thread

    @property
    def start(self) -> Position:
        """The position of the oldest message that is kept."""
        return self._first(min(self._sizes))

    def _first(self, number: int) -> Position:
        with open(self._index_file(number), "rb") as file:
            return Position(number, HEAD.unpack(file.read(HEAD.size))[1], HEAD.size)

    def read(self, position: Position) -> tuple[pa.RecordBatch, Position] | None:
        """The batch at a position and the position after it, or None if no synced message follows."""
        with self._changed:
            position = self._onward(position)
            if position >= self.committed:
                return None
        data, index = self._files(position.segment)
        head = os.pread(index.fileno(), RECORD.size, position.records)
        stop, check, count, _ = RECORD.unpack(head)
        message = os.pread(data.fileno(), stop - position.data, position.data)
        after = Position(position.segment, stop, position.records + RECORD.size + 8 * count + 4)
        if zlib.crc32(message) != check:
            error = Damaged(f"{self._data_file(position.segment)} is damaged at byte {position.data}.")
            error.after = after
            raise error
        return pa.ipc.read_record_batch(pa.py_buffer(message), self.schema), after

    def wait(self, position: Position, seconds: float) -> bool:
        """Wait until a synced message follows a position, at most `seconds`. Returns whether there is one."""
        with self._changed:
            return self._changed.wait_for(lambda: self.committed > self._onward(position), seconds)

    def _onward(self, position: Position) -> Position:
        """The same position; the end of a segment becomes the beginning of the next one."""
        if position.segment == max(self._sizes) or position.data < self._sizes.get(position.segment, 0):
            return position
        return self._first(min(number for number in self._sizes if number > position.segment))

    def _files(self, number: int) -> tuple[Any, Any]:
        if self._reading is None or self._reading[0] != number:
            if self._reading is not None:
                self._reading[1].close()
                self._reading[2].close()
            self._reading = (number, open(self._data_file(number), "rb"), open(self._index_file(number), "rb"))  # noqa: SIM115
        return self._reading[1:]

    def bytes_after(self, position: Position) -> int:
        """Bytes of data from a position to the end."""
        with self._changed:
            return sum(n for number, n in self._sizes.items() if number >= position.segment) - position.data

    @property
    def bytes(self) -> int:
        """Bytes of data that are kept."""
        with self._changed:
            return sum(self._sizes.values())

    def trim(self, position: Position, keep: int = 0) -> None:
        """Delete segments before `position`, oldest first, while the log has more than `keep` bytes."""
        with self._changed:
            for number in sorted(self._sizes):
                if number >= position.segment or sum(self._sizes.values()) <= keep:
                    break
                self._data_file(number).unlink(missing_ok=True)
                del self._sizes[number]
            younger = 0
            for number in sorted(self._counts, reverse=True):
                if number not in self._sizes and younger >= self._remember:
                    self._index_file(number).unlink(missing_ok=True)
                    del self._counts[number]
                else:
                    younger += self._counts[number]

    def close(self) -> None:
        self.sync()
        files = [self._data, self._index, self._lock_file, *(self._reading or ())[1:]]
        for file in files:
            file.close()


def _record(index: bytes, at: int) -> tuple[int, int, int, np.ndarray, int] | None:
    """End, checksum, rows and digests of the record at `at`, and where it ends; None if it is incomplete."""
    if at + RECORD.size > len(index):
        return None
    stop, check, count, rows = RECORD.unpack_from(index, at)
    inside = at + RECORD.size + 8 * count
    if inside + 4 > len(index) or struct.unpack_from("<I", index, inside)[0] != zlib.crc32(index[at:inside]):
        return None
    return stop, check, rows, np.frombuffer(index, "<u8", count, at + RECORD.size), inside + 4


def _schema(data: bytes) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError):
        return pa.schema([])


def _lock(path: Path) -> Any:
    file = open(path / "lock", "w")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UsageError(f"{path} is in use by another process.") from None
    return file


def _write_all(file: Any, data: memoryview) -> None:
    while len(data):
        data = data[file.write(data) :]


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
