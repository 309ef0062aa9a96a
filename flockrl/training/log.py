"""The metrics of a run, written during training."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from flockrl.core.errors import CannotWrite, notice, reason
from flockrl.core.rundir import METRICS


class Log:
    """Writes a run's metrics: one JSON object per line."""

    def __init__(self, path: Path, offset: int = 0):
        """offset: the size of the metrics file at the checkpoint to continue from."""
        self.path = path / METRICS
        try:
            self._cut(offset)
            self._file: IO[str] = self.path.open("a")
        except OSError as error:
            raise CannotWrite(f"Cannot write {self.path}: {error.strerror}.") from error

    def _cut(self, offset: int) -> None:
        """Keep the whole lines among the first `offset` bytes, and say when there are fewer than there were."""
        kept = b""
        if self.path.exists():
            with self.path.open("rb") as file:
                kept = file.read(offset)
            os.truncate(self.path, kept.rfind(b"\n") + 1)
        if len(kept) < offset:
            notice(
                f"{self.path} has {len(kept):,} of the {offset:,} bytes that were logged before the checkpoint: "
                "the other log points are lost, and training goes on without them."
            )

    def write(self, row: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        except OSError as error:
            raise CannotWrite(f"Cannot write {self.path}: {error.strerror}.") from error

    @property
    def offset(self) -> int:
        """Size of the metrics file, to which it is cut when training continues from a checkpoint taken now."""
        return self._file.tell()

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise CannotWrite(f"Cannot write {self.path}: {error.strerror}.") from error


class Board:
    """TensorBoard events, written where they are given. A run does not depend on them: one that cannot be written gets
    a warning, and no more are written. resume_at: the step of the checkpoint to continue from."""

    def __init__(self, path: Path, resume_at: int | None = None):
        self.path = path
        self._events: Any = None
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event, SessionLog

            self._events = EventsWriter(str(path / "events"), f".{os.getpid()}.{time.time_ns()}")
            if resume_at is not None:  # what was written after this step is hidden
                self._events.write_event(Event(step=resume_at + 1, file_version="brain.Event:2"))
                self._events.write_event(Event(step=resume_at + 1, session_log=SessionLog(status=SessionLog.START)))
        except OSError as error:
            self._stop(error)

    def write(self, row: Mapping[str, Any]) -> None:
        """The numbers of a log point."""
        if self._events is None:
            return
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        numbers = {name: x for name, x in row.items() if isinstance(x, int | float) and name != "step"}
        values = [Summary.Value(tag=name, simple_value=x) for name, x in numbers.items()]
        try:
            self._events.write_event(Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values)))
            self._events.flush()
        except OSError as error:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        notice(f"TensorBoard events are no longer written to {self.path}: {reason(error)}.")
        self.close()

    def close(self) -> None:
        events, self._events = self._events, None
        try:
            if events is not None:
                events.close()
        except OSError:
            pass  # what is missing was told when it was written
