"""The recording of a run: part of its state, so that a run that was interrupted and resumed records the same episodes.

While the run goes on, the pieces of its rollouts are appended to an Arrow stream in the run's directory. A checkpoint
knows how far it went. When the run is finished, the pieces are joined to episodes and written to the file that the user
asked for, which therefore is complete or not there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from flockrl.core.errors import CannotWrite, UsageError, reason
from flockrl.core.types import EnvSpec, Trajectory
from flockrl.data.files import Files, Writer
from flockrl.data.schema import decode, encode, make_schema
from flockrl.evaluation.record import Cutter, Joiner

STREAM = "recording.arrows"
END = 8
"""Bytes of the mark at the end of an Arrow stream."""


class Recording:
    """A file to which the episodes of a run are written. Call `begin` before anything else, and `close` at last.

    path: the file. resumed: whether a run goes on, which may have written the file just before it was stopped.
    """

    def __init__(self, path: Path, spec: EnvSpec, env: str, envs: int, about: Mapping[str, Any], resumed: bool = False):
        self.path, self.spec = path, spec
        self._about = {"env": env, **about}
        self._schema = make_schema(spec, self._about)
        self._head = _message(self._schema)
        self._cutter = Cutter(env, envs)
        self._writer: Writer | None = None
        self._stream: IO[bytes] | None = None
        if not (resumed and path.exists()):
            self._open()

    def _open(self) -> Writer:
        if self._writer is None:
            self._writer = Writer(self.path, self.spec, self._about)
        return self._writer

    def begin(self, folder: Path, saved: Mapping[str, Any] | None = None) -> None:
        """Begin in the run's directory, or go on from what `state` returned at a checkpoint."""
        self.file = folder / STREAM
        try:
            if saved is None:
                self._open()
                self._stream = self.file.open("wb")
                self._stream.write(self._head)
                return
            if not self.file.exists() or self.file.stat().st_size < saved["bytes"]:
                raise UsageError(
                    f"{self.file} does not hold all that was recorded before the checkpoint: to go on without a "
                    'recording, remove "record" from config.json.'
                )
            os.truncate(self.file, saved["bytes"])
            self._stream = self.file.open("ab")
        except OSError as error:
            raise CannotWrite(f"Cannot write {self.file}: {error.strerror}.") from error
        self._cutter.name = saved["name"]
        self._cutter.episode, self._cutter.steps = (np.array(saved[x], np.int64) for x in ("episode", "steps"))
        if self._writer is None and self._is_ours():
            self.path.unlink()  # written just before the run was stopped, and written again at its end
        self._open()

    def _is_ours(self) -> bool:
        """Whether the file at `path` was written by this run."""
        data = next(iter(Files([self.path])), None)
        return data is not None and str(data.id[0]).startswith(f"{self._cutter.name}-")

    def add(self, rollout: Trajectory, version: int) -> None:
        assert self._stream is not None
        batch = encode(self._cutter.cut(rollout, version), self.spec, self._schema)
        try:
            self._stream.write(_message(self._schema, batch)[len(self._head) :])
        except OSError as error:
            raise CannotWrite(f"Cannot write {self.file}: {error.strerror}.") from error

    def state(self) -> dict[str, Any]:
        """How far it went, as plain values. Everything up to here is on disk."""
        assert self._stream is not None
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise CannotWrite(f"Cannot write {self.file}: {error.strerror}.") from error
        return {
            "bytes": self._stream.tell(), "name": self._cutter.name, "episode": self._cutter.episode.tolist(),
            "steps": self._cutter.steps.tolist(),
        }  # fmt: skip

    def publish(self) -> None:
        """Join the pieces and put the file in its place, unfinished episodes at its end."""
        self.state()
        joiner, writer = Joiner(), self._open()
        try:
            with pa.OSFile(str(self.file)) as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    for episodes in joiner.add(decode(batch, self.spec)):
                        writer.add(episodes)
            for rest in joiner.close():
                writer.add(rest)
            writer.close()
        except OSError as error:  # what pyarrow raises is one too
            raise CannotWrite(f"Cannot write {self.path}: {reason(error)}.") from error
        self._writer = None

    def remove(self) -> None:
        """Remove the pieces, which are no longer needed when the run is finished."""
        self.file.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the files. The pieces stay, and a file that is not complete does not."""
        try:
            if self._stream is not None:
                self._stream.close()
            if self._writer is not None:
                self._writer.__exit__(Exception)
        except OSError:
            pass  # the disk is full, which was told when it was met


def _message(schema: pa.Schema, batch: pa.RecordBatch | None = None) -> memoryview:
    """The schema, and a batch, as an Arrow stream has them, without the mark at its end."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        if batch is not None:
            writer.write_batch(batch)
    return memoryview(sink.getvalue())[:-END]
