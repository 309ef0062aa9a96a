"""Training from the log, in a thread of its own. The log is the buffer; each checkpoint stores its position in it."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

from flockrl.core.errors import UsageError
from flockrl.core.spec import EnvSpec
from flockrl.data.experience import Experience
from flockrl.data.schema import BadData, decode
from flockrl.portable.write import Exporter
from flockrl.relay.log import Damaged, Log, Position
from flockrl.relay.store import Store

logger = logging.getLogger("flockrl.relay")


def open_trainer(path: Path, algorithm: str, spec: EnvSpec, **settings: Any) -> Any:
    """The trainer that was saved at `path`, or a new one with these settings of `flockrl.Trainer`."""
    from flockrl.training.trainer import CONFIG, Trainer

    saved = path / CONFIG
    if saved.exists() and not any((path / "checkpoints").glob("*")):
        saved.unlink()  # the trainer ended before its first checkpoint
    if not saved.exists():
        trainer = Trainer(algorithm, spec, save_path=path, **settings)
        trainer.save(note={})
        return trainer
    trainer = Trainer.load(path)
    if not _same(trainer.algorithm, algorithm) or trainer.spec != spec:
        raise UsageError(
            f"{path} holds a trainer of {trainer.algorithm} for {trainer.spec.name}: choose another --data."
        )
    _cut_metrics(path / "metrics.jsonl", trainer.stats["steps"])
    return trainer


def _same(one: str, other: str) -> bool:
    """Whether two words name the same algorithm, or the same players of all sides."""
    from flockrl.training.players import split_sides

    sides = [{s: p.partition(":")[0].rstrip("/") for s, p in split_sides(x).items()} for x in (one, other)]
    return sides[0] == sides[1] if sides[0] or sides[1] else one == other


def _cut_metrics(file: Path, steps: int) -> None:
    """Remove what was logged after the checkpoint: it will be logged again."""
    if file.exists():
        rows = [line for line in file.read_text().splitlines() if _step(line) <= steps]
        file.write_text("".join(f"{row}\n" for row in rows))


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):  # incomplete because of a crash
        return float("inf")


class Learner(threading.Thread):
    """Reads the log, trains, publishes models, saves checkpoints.

    save_every, publish_every, log_every: the least seconds between checkpoints, models and lines of metrics.
    """

    def __init__(
        self,
        trainer: Any,
        log: Log,
        store: Store,
        log_bytes: int,
        save_every: float = 30.0,
        publish_every: float = 0.5,
        log_every: float = 5.0,
    ):
        super().__init__(name="learner", daemon=True)
        self.trainer, self.log, self.store, self._log_bytes = trainer, log, store, log_bytes
        note = trainer.note
        self.position = self._saved = Position(*note["position"]) if note.get("position") else log.start
        if self.position > log.end:
            raise UsageError(
                f"{log.path} ends before the position up to which the trainer has learned: files are missing."
            )
        self.unusable: int = note.get("unusable", 0)
        """Messages that the trainer could not use."""
        self.failure = ""
        self.row: dict[str, Any] = {}
        """The newest line of metrics."""
        self._logged = trainer.version
        self._every = {"save": save_every, "publish": publish_every, "log": log_every}
        self._due = {what: time.monotonic() + seconds for what, seconds in self._every.items()}
        self._exporter: Exporter | None = None
        self._stopping = threading.Event()
        self._moved = threading.Condition()
        self._publish()

    @property
    def backlog(self) -> int:
        """Bytes of accepted data that are not trained on yet."""
        return self.log.bytes_after(self.position)

    def wait_for_room(self, most: int, seconds: float) -> bool:
        """Wait until the backlog is below `most` bytes, at most `seconds`. Returns whether it is."""
        with self._moved:
            return self._moved.wait_for(lambda: self.backlog < most, seconds)

    def check(self, experience: Experience) -> None:
        """Refuse experience that the trainer would not accept."""
        try:
            self.trainer.check(experience)
        except UsageError as error:
            raise BadData(str(error)) from error

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                if not self._step() and not self.log.wait(self.position, 0.2):
                    self._publish()  # nothing to train on: publish the newest parameters
                self._regularly()
        except Exception as error:  # after any error the server goes on to accept data and serve models
            self.failure = f"{type(error).__name__}: {error}"
            logger.exception("training stopped")
            with self._moved:
                self._moved.notify_all()

    def _step(self) -> bool:
        """Train on the next message. False when there is none."""
        try:
            found = self.log.read(self.position)
        except Damaged as error:
            logger.error("%s That message is left out.", error)
            self.unusable += 1
            self._move(error.after or self.position)
            return True
        if found is None:
            return False
        batch, after = found
        try:
            if self.trainer.receive_trajectory(decode(batch, self.trainer.spec)) and self._is_due("publish"):
                self._publish()
        except BadData as error:
            logger.error("a message in the log cannot be used: %s", error)
            self.unusable += 1
        self._move(after)
        return True

    def _move(self, position: Position) -> None:
        with self._moved:
            self.position = position
            self._moved.notify_all()

    def _is_due(self, what: str) -> bool:
        now = time.monotonic()
        if now < self._due[what]:
            return False
        self._due[what] = now + self._every[what]
        return True

    def _publish(self) -> None:
        version = self.trainer.version
        if version > self.store.newest:
            policy = self.trainer.acquire_model()
            if self._exporter is None:
                self._exporter = Exporter(policy.algorithm, policy.spec, policy.share, name=policy.name)
            write = self._exporter.write
            self.store.publish(version, lambda folder: write(policy.params, folder, version))

    def _regularly(self) -> None:
        if self.position == self._saved:
            return
        if self.trainer.version > self._logged and self._is_due("log"):
            self._log()
        if self._is_due("save"):
            self.save()

    def _log(self) -> None:
        self.row, self._logged = self.trainer.log_epoch(), self.trainer.version

    def save(self) -> None:
        """Write a checkpoint with the position in the log, and delete the part of the log that is no longer needed."""
        self.trainer.save(note={"position": list(self.position), "unusable": self.unusable})
        self._saved = self.position
        self.log.trim(self._saved, self._log_bytes)

    def stop(self) -> None:
        """Finish the current update, save and end."""
        self._stopping.set()
        self.join()
        if not self.failure and self.position != self._saved:
            self._log()
            self.save()
