"""The queue of an actor's episodes for the server: written to disk first, then sent in the background.

The queue is a `Log`. An episode is in it when `add` returns, so a process that is killed loses none of them; it leaves
the queue when the server has acknowledged it. A message whose acknowledgement was lost is sent again with the same ids,
by which the server recognises it.
"""

from __future__ import annotations

import json
import logging
import math
import random
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flockrl.core.errors import UsageError
from flockrl.core.spec import EnvSpec
from flockrl.data.experience import Experience
from flockrl.data.schema import encode, make_schema
from flockrl.portable.model import Model
from flockrl.relay.client import BadModel, Client, Refused
from flockrl.relay.log import Log
from flockrl.relay.models import fetch_model
from flockrl.relay.segment import Damaged, Position
from flockrl.relay.wire import pack

logger = logging.getLogger("flockrl.relay")
MESSAGE_ROWS = 8192
"""Episodes are put into one message until it has at least this number of rows."""
RETRY = 60.0
"""Seconds after which a model that was refused is asked for again."""


class QueueFull(UsageError):
    """The queue has reached its limit, or the disk does not take more."""


class Outbox(threading.Thread):
    """A queue in `path` and, if there is a client, the thread that sends its episodes and fetches new models.

    acting: trainer's identity and version of the model that acts. limit: bytes that may wait; above it `add` raises
    `QueueFull`. send_every, poll_every: seconds between messages, and between requests for a newer model.

    Versions count the updates of one trainer, which its identity tells apart from others. When another trainer answers
    at the server, the episodes that were recorded before are sent as those of an unknown version (-1).
    """

    def __init__(
        self, path: Path, spec: EnvSpec, client: Client | None, acting: tuple[str, int], limit: int,
        send_every: float, poll_every: float,
    ) -> None:  # fmt: skip
        super().__init__(name="outbox", daemon=True)
        self.path, self._spec, self._client, self._limit = path, spec, client, limit
        self._schema = make_schema(spec)
        self.log = Log(path, self._schema, segment_bytes=min(8 << 20, max(limit // 4, 1)), remember=0)
        self._sent = self._read_sent()
        self.stats = {"recorded": 0, "acknowledged": 0, "refused_by_server": 0, "refused_models": 0, "errors": 0}
        self._send_every, self._poll_every = send_every, poll_every
        self._acting = self._known = acting
        self._retry = 0.0
        self._lock = threading.Lock()
        self._model: Model | None = None
        self._complaint = 0.0
        self._trainer, self._foreign = self._read_trainer()
        self._meet()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._moved = threading.Condition()
        if client is not None:
            self.start()

    def _read_sent(self) -> Position:
        """The position up to which everything was acknowledged. Unless it is certain, everything is sent again."""
        place = _position(self._read_json("sent.json"))
        return place if place is not None and self.log.place(place) == place else self.log.start

    def _read_trainer(self) -> tuple[str, Position | None]:
        """The identity of the server's trainer, and the position before which episodes are those of another one."""
        said = self._read_json("trainer.json")
        identity = said.get("identity") if isinstance(said, dict) else None
        return (identity, _position(said.get("foreign"))) if isinstance(identity, str) else ("", None)

    def _read_json(self, name: str) -> Any:
        try:
            with open(self.path / name, "rb") as file:
                return json.loads(file.read(10_000))
        except (OSError, ValueError, RecursionError):
            return None

    def _write_json(self, name: str, value: Any) -> None:
        part = self.path / f"{name}.part"
        try:
            part.write_text(json.dumps(value))
            part.replace(self.path / name)
        except OSError as error:  # it only saves sending again
            self._complain(error)

    @property
    def waiting(self) -> int:
        """Bytes that are not acknowledged yet."""
        return self.log.bytes_after(self._sent)

    def add(self, episode: Experience, identity: str = "") -> None:
        """Write an episode to disk. identity: of the trainer whose model acted."""
        batch = encode(episode, self._spec, self._schema)
        if self.waiting + pa.ipc.get_record_batch_size(batch) > self._limit:
            raise QueueFull(f"The queue in {self.path} is full: {self._limit} bytes wait for the server.")
        with self._lock:
            if identity and self._trainer and identity != self._trainer:
                batch = _without_version(batch)
            try:
                self.log.append(batch, episode.id.tolist())
            except OSError as error:
                raise QueueFull(f"The queue in {self.path} cannot be written: {error.strerror or error}.") from error
        self.stats["recorded"] += episode.trajectories

    def take_model(self) -> Model | None:
        """The model that arrived since the last call, or None."""
        with self._lock:
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
        try:
            self.log.close()
        except OSError as error:
            logger.error("the queue in %s may be incomplete: %s", self.path, error)
            done = False
        if self._client is not None:
            self._client.close()
        return done

    # In the thread

    def run(self) -> None:
        pause, asked = 0.1, -math.inf
        while not self._stopping.is_set():
            self._wake.wait(self._send_every)
            self._wake.clear()
            try:
                if time.monotonic() - asked > self._poll_every:
                    self._fetch()
                    asked = time.monotonic()
                if self._send_all() > self._known[1]:
                    self._fetch()
                    asked = time.monotonic()
                pause = 0.1
            except Exception as error:  # the application continues, and the episodes wait on disk
                asked = -math.inf  # whoever answers next says first who they are
                self.stats["errors"] += 1
                self._complain(error)
                self._stopping.wait(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, 5.0)

    def _complain(self, error: Exception) -> None:
        if time.monotonic() - self._complaint > 30:
            self._complaint = time.monotonic()
            known = isinstance(error, UsageError | OSError)
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
                foreign = self._foreign is not None and place[:2] <= self._foreign[:2]
                batches.append(_without_version(batch) if foreign else batch)
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
        self._meet()
        self.stats["acknowledged"] += answer["new"] + answer["known"]
        return answer["version"]

    def _put_aside(self, batch: pa.RecordBatch, reason: str) -> None:
        """Move an episode that the server will never accept to a file of its own."""
        name = re.sub(r"[^\w.-]", "_", batch.column("trajectory")[0].as_py())[:100]
        folder = self.path / "refused"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.arrows").write_bytes(pack(batch))
        self.stats["refused_by_server"] += 1
        logger.error("the server refuses %s, which is kept in %s: %s", name, folder, reason)

    def _move(self, place: Position) -> None:
        self._write_json("sent.json", place)
        with self._moved:
            self._sent = place
            self._moved.notify_all()
        self.log.trim(place)

    def _fetch(self) -> None:
        assert self._client is not None
        if self._known != self._acting and time.monotonic() > self._retry:
            self._known = self._acting
        identity, version = self._known
        try:
            model = fetch_model(self._client, self.path / "models", version, identity, self._spec)
        except BadModel as error:
            self._known, self._retry = (self._client.identity, error.version), time.monotonic() + RETRY
            self.stats["refused_models"] += 1
            logger.error("%s The model that acts stays.", error)
            return
        except OSError as error:  # no room for a model: sending goes on
            self._complain(error)
            return
        finally:
            self._meet()
        if model is not None:
            with self._lock:
                self._model = model
            self._acting = self._known = (self._client.identity, model.version)

    def _meet(self) -> None:
        """Take note of which trainer is at the server."""
        if self._client is None or self._client.identity in ("", self._trainer):
            return
        said = self._client.identity
        with self._lock:
            if self._trainer:
                logger.warning("another trainer is at %s; episodes made before have no version.", self._client.server)
                self._foreign = self.log.end
            self._trainer = said
        self._write_json("trainer.json", {"identity": said, "foreign": self._foreign})


def _position(saved: Any) -> Position | None:
    """A position that was saved as JSON; None if it is none."""
    good = isinstance(saved, list) and len(saved) == 3 and all(type(x) is int and x >= 0 for x in saved)
    return Position(*saved) if good else None


def _without_version(batch: pa.RecordBatch) -> pa.RecordBatch:
    place = batch.schema.get_field_index("policy_version")
    unknown = pa.array(np.full(len(batch), -1, np.int64))
    return batch.set_column(place, batch.schema.field(place), unknown)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
