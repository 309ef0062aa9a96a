"""Messages on disk in the order of their arrival, each trajectory once: the server's log and the actor's queue.

A log is a directory of segments. `N.arrows` is an Arrow IPC stream that any Arrow reader opens. `N.index` has a record
for each message of it: where the message ends, its checksum, and the digests of its trajectories' ids. A message that
a crash left incomplete is removed when the log is opened; messages confirmed by `sync` are kept (see `recovery`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flockrl.core.errors import UsageError
from flockrl.core.lock import lock
from flockrl.relay.files import sync_directory, write_all
from flockrl.relay.ids import Seen, digest
from flockrl.relay.recovery import Segment, put_aside, recover
from flockrl.relay.segment import HEAD_SIZE, Damaged, Entry, Head, Position, entries, load_entry

logger = logging.getLogger("flockrl.relay")


class Log:
    """A log. A lock file ensures that only one process writes it; that process may use any number of threads.

    segment_bytes: the size at which a new segment begins. remember: the least number of ids that are kept to
    recognise repetitions.
    """

    def __init__(self, path: Path, schema: pa.Schema, segment_bytes: int = 64 << 20, remember: int = 1_000_000) -> None:
        self.path, self.schema = Path(path), schema
        self._segment_bytes, self._remember = segment_bytes, remember
        self.seen = Seen(remember)
        self._changed = threading.Condition()
        self._appended = self._synced = 0
        self._syncing = self._doubtful = False
        self._sizes: dict[int, int] = {}
        self._firsts: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self._damage: dict[tuple[int, int], int] = {}
        self._rebuilt = 0
        self.trajectories = self.rows = 0
        self._reading: tuple[int, Any, Any] | None = None
        self._valid: Position | None = None
        with contextlib.ExitStack() as failed:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock_file = failed.enter_context(lock(self.path))
                self._open()
            except OSError as error:
                raise UsageError(f"{self.path} cannot be opened: {error}.") from error
            failed.pop_all()

    # Opening

    def _open(self) -> None:
        names = [file for end in ("index", "arrows") for file in self.path.glob(f"*.{end}")]
        numbers = sorted({int(file.stem) for file in names if file.stem.isascii() and file.stem.isdigit()})
        segment = None
        for number in numbers:
            segment = self._recover(number, number == numbers[-1])
            for entry in [] if segment is None else segment.whole:
                self.seen.add(entry.digests)
                self.trajectories, self.rows = self.trajectories + len(entry.digests), self.rows + entry.rows
        if segment is not None and segment.size:
            self._data, self._index = (open(file(number), "r+b", 0) for file in (self._data_file, self._index_file))  # noqa: SIM115
            self.end = self.committed = Position(number, segment.size, segment.index_size)
        else:
            self._begin(numbers[-1] + 1 if numbers else 0)

    def _recover(self, number: int, newest: bool) -> Segment | None:
        """Read a segment, repair it and take note of what is in it."""
        segment = recover(self._data_file(number), self.schema, (self.trajectories, self.rows), newest)
        if segment is None:
            return None
        self.trajectories = max(self.trajectories, segment.head.trajectories)
        self.rows = max(self.rows, segment.head.rows)
        self._counts[number] = sum(len(entry.digests) for entry in segment.entries)
        self._damage |= {(number, start): count for start, count in segment.damage.items()}
        self._rebuilt += segment.rebuilt
        if segment.size:
            self._sizes[number], self._firsts[number] = segment.size, segment.head.size
        elif self._sizes and not newest:
            logger.error("%s is missing: its messages are lost.", self._data_file(number))
        return segment

    def _begin(self, number: int) -> None:
        """Begin a segment. If that fails, everything stays as it was."""
        schema, opened = self.schema.serialize().to_pybytes(), []
        head = Head(len(schema), zlib.crc32(schema), self.trajectories, self.rows)
        files = ((self._data_file(number), schema), (self._index_file(number), head.pack()))
        try:
            for path, content in files:
                opened.append(open(path, "w+b", 0))  # noqa: SIM115
                write_all(opened[-1], memoryview(content), 0)
                os.fsync(opened[-1].fileno())
            sync_directory(self.path)
        except OSError:
            for file, (path, _) in zip(opened, files, strict=False):
                file.close()
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        self._data, self._index = opened
        self.end = self.committed = Position(number, len(schema), HEAD_SIZE)
        self._sizes[number], self._firsts[number], self._counts[number] = len(schema), len(schema), 0

    def _data_file(self, number: int) -> Path:
        return self.path / f"{number:08d}.arrows"

    def _index_file(self, number: int) -> Path:
        return self.path / f"{number:08d}.index"

    @property
    def damaged(self) -> dict[str, int]:
        """Damage that was found since the log was opened: messages (or stretches of several) and bytes of data, and
        indexes that were made again."""
        with self._changed:
            return {"messages": len(self._damage), "bytes": sum(self._damage.values()), "indexes": self._rebuilt}

    # Writing

    def append(self, batch: pa.RecordBatch, ids: Sequence[str]) -> tuple[int, int]:
        """Write a batch without the trajectories that are known. `ids`: [K] in the order of the rows.

        Returns how many were new, and a ticket: `sync(ticket)` waits until all of them, including known ones, are on
        disk. Without `sync`, the data survives a crash of this process but not of the machine. If the disk does not
        take it, `OSError` is raised and the log is as it was.
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
        entry = Entry(end.data + len(message), zlib.crc32(message), rows, digests)
        try:
            write_all(self._data, message, end.data)
            write_all(self._index, memoryview(entry.pack()), end.records)
        except OSError:
            for file, size in ((self._data, end.data), (self._index, end.records)):
                with contextlib.suppress(OSError):  # then the next message is written over it
                    os.ftruncate(file.fileno(), size)
            raise
        self.end = Position(end.segment, entry.stop, end.records + entry.size)
        self.seen.add(digests)
        self._sizes[end.segment] = self.end.data
        self._counts[end.segment] += len(digests)
        self.trajectories, self.rows = self.trajectories + len(digests), self.rows + rows
        self._appended += 1

    def _rotate(self) -> None:
        while self._syncing:
            self._changed.wait()
        self._flush(self.end)
        old = (self._data, self._index)
        self._begin(self.end.segment + 1)
        for file in old:
            file.close()
        self._synced = self._appended
        self._changed.notify_all()

    def _flush(self, end: Position) -> None:
        """Bring everything up to `end` to disk. After a failure the system may take for written what is not, so that it
        is written again."""
        again, self._doubtful = self._doubtful, True
        begin = self.committed
        for file, start, stop in ((self._data, begin.data, end.data), (self._index, begin.records, end.records)):
            if again:
                write_all(file, memoryview(os.pread(file.fileno(), stop - start, start)), start)
            os.fsync(file.fileno())
        self._doubtful = False

    def sync(self, ticket: int | None = None) -> None:
        """Wait until everything up to `ticket` (by default, all) is on disk. One thread syncs for all that wait."""
        with self._changed:
            ticket = self._appended if ticket is None else ticket
            while self._synced < ticket:
                if self._syncing:
                    self._changed.wait()
                    continue
                self._syncing = True
                upto, end = self._appended, self.end
                self._changed.release()
                done = False
                try:
                    self._flush(end)
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
        with self._changed:
            return self._first(min(self._sizes))

    def _first(self, number: int) -> Position:
        return Position(number, self._firsts[number], HEAD_SIZE)

    def place(self, position: Position) -> Position:
        """The last position between two messages that is not after `position`; `start` if it is not in the log."""
        with self._changed:
            if not position.data <= self._sizes.get(position.segment, -1):
                later = [number for number in self._sizes if number > position.segment]
                known = later and position.segment in self._counts
                return self._first(min(later if known else self._sizes))
            place, upto = self._first(position.segment), self.end
            index = self._index_file(position.segment).read_bytes()
        for follows, entry in entries(index[: upto.records] if upto.segment == position.segment else index):
            if not follows or entry.stop > position.data:
                break
            place = Position(position.segment, entry.stop, place.records + entry.size)
        return place

    def read(self, position: Position) -> tuple[pa.RecordBatch, Position] | None:
        """The batch at a position and the position after it, or None if no synced message follows. A message that is
        damaged raises `Damaged`."""
        with self._changed:
            position = self._onward(position)
            if position[:2] >= self.committed[:2]:
                return None
        if position != self._valid:
            position = self.place(position)  # an index that was made again has its records elsewhere
        data, index = self._files(position.segment)
        entry = load_entry(index.fileno(), position.records)
        if entry is None:
            position = self._repair(position)
            data, index = self._files(position.segment)
            entry = load_entry(index.fileno(), position.records)
            if entry is None:
                raise OSError(5, f"{self._index_file(position.segment)} cannot be read")
        message = os.pread(data.fileno(), entry.stop - position.data, position.data)
        after = self._valid = Position(position.segment, entry.stop, position.records + entry.size)
        if not len(entry.digests) or zlib.crc32(message) != entry.check:
            with self._changed:
                self._damage[position[:2]] = entry.stop - position.data
            put_aside(self._data_file(position.segment), position.data, message)
            error = Damaged(f"{self._data_file(position.segment)} is damaged at byte {position.data}.")
            error.after = after
            raise error
        return pa.ipc.read_record_batch(pa.py_buffer(message), self.schema), after

    def _repair(self, position: Position) -> Position:
        """Make the index of a segment again because a record of it is damaged. Returns the position in it."""
        with self._changed:
            if position.segment == self.end.segment:
                self._rotate()
            totals = self.trajectories, self.rows
            self._recover(position.segment, False)
            self.trajectories, self.rows = totals
            self._forget_files()
        return self.place(position)

    def wait(self, position: Position, seconds: float) -> bool:
        """Wait until a synced message follows a position, at most `seconds`. Returns whether there is one."""
        with self._changed:
            return self._changed.wait_for(lambda: self.committed[:2] > self._onward(position)[:2], seconds)

    def _onward(self, position: Position) -> Position:
        """The same position; the end of a segment becomes the beginning of the next one."""
        while position.segment < self.end.segment and position.data >= self._sizes.get(position.segment, 0):
            position = self._first(min(number for number in self._sizes if number > position.segment))
        return position

    def _files(self, number: int) -> tuple[Any, Any]:
        if self._reading is None or self._reading[0] != number:
            self._forget_files()
            self._reading = (number, open(self._data_file(number), "rb"), open(self._index_file(number), "rb"))  # noqa: SIM115
        return self._reading[1:]

    def _forget_files(self) -> None:
        for file in (self._reading or ())[1:]:
            file.close()
        self._reading = None

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
        """Bring everything to disk and end. The files are closed also when the disk fails."""
        try:
            self.sync()
        finally:
            self._forget_files()
            for file in (self._data, self._index, self._lock_file):
                file.close()
