"""The queue of an actor's episodes for the server: written to disk first, then sent in the background.

The queue is a `Log`. An episode is in it when `add` returns, so a process that is killed loses none of them; it leaves
the queue when the server has acknowledged it. A message whose acknowledgement was lost is sent again with the same ids,
by which the server recognises it.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa

from flockrl.core.errors import UsageError
from flockrl.core.spec import EnvSpec
from flockrl.data.experience import Experience
from flockrl.data.schema import encode, make_schema
from flockrl.portable.model import Model
from flockrl.relay.client import Client, Refused, Unreachable
from flockrl.relay.log import Damaged, Log, Position
from flockrl.relay.wire import pack

logger = logging.getLogger("flockrl.relay")
MESSAGE_ROWS = 8192
"""Episodes are put into one message until it has at least this number of rows."""


class QueueFull(UsageError):
    """The queue has reached its limit."""


class Outbox(threading.Thread):
    """A queue in `path` and, if there is a client, the thread that sends its episodes and fetches new models.

    limit: bytes that may wait; above it `add` raises `QueueFull`. send_every, poll_every: seconds between messages,
    and between requests for a newer model.
    """

    def __init__(
        self, path: Path, spec: EnvSpec, client: Client | None, version: int, limit: int,
        send_every: float, poll_every: float,
    ) -> None:  # fmt: skip
        super().__init__(name="outbox", daemon=True)
        self.path, self._spec, self._client, self._limit = path, spec, client, limit
        self._schema = make_schema(spec)
        self.log = Log(path, self._schema, segment_bytes=min(8 << 20, max(limit // 4, 1)), remember=0)
        self._sent = self._read_sent()
        self.stats = {"recorded": 0, "acknowledged": 0, "refused_by_server": 0, "errors": 0}
        self._send_every, self._poll_every, self._version = send_every, poll_every, version
        self._model: Model | None = None
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._moved = threading.Condition()
        self._complaint = 0.0
        if client is not None:
            self.start()

    def _read_sent(self) -> Position:
        try:
            place = Position(*json.loads((self.path / "sent.json").read_text()))
        except (OSError, ValueError, TypeError):
            return self.log.start
        return max(min(place, self.log.end), self.log.start)

    @property
    def waiting(self) -> int:
        """Bytes that are not acknowledged yet."""
        return self.log.bytes_after(self._sent)

    def add(self, episode: Experience) -> None:
        """Write an episode to disk."""
        batch = encode(episode, self._spec, self._schema)
        if self.waiting + pa.ipc.get_record_batch_size(batch) > self._limit:
            raise QueueFull(f"The queue in {self.path} is full: {self._limit} bytes wait for the server.")
        self.log.append(batch, episode.id.tolist())
        self.stats["recorded"] += episode.trajectories

    def take_model(self) -> Model | None:
        """The model that arrived since the last call, or None."""
        model, self._model = self._model, None
        return model

    def flush(self, timeout: float) -> bool:
        """Wait until everything is acknowledged, at most `timeout` seconds. Returns whether it is."""
        self._wake.set()
        with self._moved:
            return self._moved.wait_for(lambda: self._sent >= self.log.end, timeout)

    def close(self, timeout: float) -> bool:
        done = self._client is None or self.flush(timeout)
        self._stopping.set()
        self._wake.set()
        if self.is_alive():
            self.join(timeout + 5)
        self.log.close()
        if self._client is not None:
            self._client.close()
        return done

    # In the thread

    def run(self) -> None:
        pause, asked = 0.1, 0.0
        while not self._stopping.is_set():
            self._wake.wait(self._send_every)
            self._wake.clear()
            try:
                newest = self._send_all()
                if newest > self._version or time.monotonic() - asked > self._poll_every:
                    asked = time.monotonic()
                    self._fetch()
                pause = 0.1
            except Exception as error:  # the application continues, and the episodes wait on disk
                self.stats["errors"] += 1
                self._complain(error)
                self._stopping.wait(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, 5.0)

    def _complain(self, error: Exception) -> None:
        if time.monotonic() - self._complaint > 30:
            self._complaint = time.monotonic()
            known = isinstance(error, UsageError)
            logger.warning("%d bytes of episodes wait on disk: %s", self.waiting, error, exc_info=not known)

    def _send_all(self) -> int:
        """Send what is in the queue. Returns the server's newest model version, or -1 when nothing was sent."""
        assert self._client is not None
        self.log.sync()
        newest = -1
        while not self._stopping.is_set():
            batches, rows, place = [], 0, self._sent
            while rows < MESSAGE_ROWS and (found := self._read(place)) is not None:
                batch, place = found
                batches.append(batch)
                rows += len(batch)
            if not batches:
                return newest
            newest = max(newest, self._send(batches))
            self._move(place)
        return newest

    def _read(self, place: Position) -> tuple[pa.RecordBatch, Position] | None:
        """The next episode in the queue that is not damaged."""
        while True:
            try:
                return self.log.read(place)
            except Damaged as error:
                logger.error("an episode is lost: %s", error)
                place = error.after or self.log.end

    def _send(self, batches: list[pa.RecordBatch]) -> int:
        assert self._client is not None
        try:
            answer = self._client.put(pack(_together(batches)))
        except Refused as error:
            if len(batches) > 1:  # find the refused ones
                return max(self._send([batch]) for batch in batches)
            self._put_aside(batches[0], str(error))
            return -1
        self.stats["acknowledged"] += answer["new"] + answer["known"]
        return answer["version"]

    def _put_aside(self, batch: pa.RecordBatch, reason: str) -> None:
        """Move an episode that the server will never accept to a file of its own."""
        name = batch.column("trajectory")[0].as_py()
        folder = self.path / "refused"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.arrows").write_bytes(pack(batch))
        self.stats["refused_by_server"] += 1
        logger.error("the server refuses %s, which is kept in %s: %s", name, folder, reason)

    def _move(self, place: Position) -> None:
        part = self.path / "sent.part"
        part.write_text(json.dumps(place))
        part.replace(self.path / "sent.json")
        with self._moved:
            self._sent = place
            self._moved.notify_all()
        self.log.trim(place)

    def _fetch(self) -> None:
        assert self._client is not None
        model = fetch_model(self._client, self.path / "models", self._version)
        if model is not None:
            self._model, self._version = model, model.version


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def fetch_model(client: Client, folder: Path, newer_than: int) -> Model | None:
    """The server's model, saved under `folder`, or None if it is not newer. The last two models there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    arriving = folder / "arriving"
    for left in (arriving, arriving.with_name("arriving.part")):
        shutil.rmtree(left, ignore_errors=True)
    version = client.model(arriving, newer_than)
    if version is None:
        return None
    model = Model(arriving)
    if model.version != version:
        raise Unreachable(f"{client.server}: the model says it is version {model.version}, not {version}.")
    final = folder / f"{version:010d}"
    shutil.rmtree(final, ignore_errors=True)
    arriving.rename(final)
    for old in kept_models(folder)[:-2]:
        shutil.rmtree(old)
    return model


def kept_models(folder: Path) -> list[Path]:
    """Models that were fetched, oldest first."""
    return sorted(path for path in folder.glob("*") if path.name.isdigit())
