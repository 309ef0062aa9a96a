"""Training from the log, in a thread of its own. The log is the buffer; each checkpoint stores its position in it."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flockrl.core.errors import NotFinite, UsageError, notice
from flockrl.core.rundir import METRICS, read_json, read_metrics
from flockrl.core.spec import EnvSpec
from flockrl.core.text import printable
from flockrl.data.experience import Experience
from flockrl.data.schema import BadData, decode
from flockrl.portable.write import Exporter
from flockrl.relay.aside import Aside, Suspect, suspect
from flockrl.relay.files import place_file
from flockrl.relay.log import Log
from flockrl.relay.segment import Damaged, Position
from flockrl.relay.store import Store
from flockrl.training.trainer import CONFIG, Trainer
from flockrl.training.warm import begin_trainer

logger = logging.getLogger("flockrl.relay")
TRIES = 5
"""Times that training goes back to its checkpoint without getting any further, before it stops."""


def open_trainer(path: Path, algorithm: str, spec: EnvSpec, init_from: str = "", **settings: Any) -> Any:
    """The trainer that was saved at `path`, or a new one with these settings of `flockrl.Trainer`, which begins with
    the parameters of the run `init_from`."""
    saved = path / CONFIG
    if saved.exists() and not any(step.name.isdigit() for step in (path / "checkpoints").glob("*")):
        saved.unlink()  # the trainer ended before its first checkpoint was complete
    if not saved.exists():
        trainer = Trainer(algorithm, spec, save_path=path, **settings)
        if init_from:
            logger.info("%s begins with %s", algorithm, begin_trainer(trainer, init_from))
        trainer.save(note={})
        return trainer
    trainer = Trainer.load(path)
    if not _same(trainer.algorithm, algorithm) or trainer.spec != spec:
        raise UsageError(
            f"{path} holds a trainer of {trainer.algorithm} for {trainer.spec.name}: choose another --data."
        )
    if init_from:
        notice(f"{path} goes on with what it has learned, not with {init_from}.")
    _say_what_is_kept(path, settings)
    _cut_metrics(path, trainer.stats["steps"])
    return trainer


def _say_what_is_kept(path: Path, asked: Mapping[str, Any]) -> None:
    """A warning that names the settings that were asked for and differ from those of the saved trainer, which stay."""
    saved = read_json(path / CONFIG)
    kept = {**_flat(saved.get("config", {})), **{name: saved.get(name) for name in ("envs", "steps", "seed")}}
    wanted = {**_flat(asked.get("hyperparams", {})), **{name: asked[name] for name in kept if name in asked}}
    if asked.get("buffer_size") is not None and "sides" not in saved:
        kept.setdefault("buffer_size", saved["envs"] * kept["rollout_steps"])
        wanted["buffer_size"] = asked["buffer_size"]
    if asked.get("max_version_lag") is not None:
        kept["max_version_lag"], wanted["max_version_lag"] = saved["max_version_lag"], asked["max_version_lag"]
    differ = [f"{name} {kept.get(name)!r} (not {x!r})" for name, x in wanted.items() if kept.get(name) != x]
    if differ:
        notice(
            f"The trainer in {path} goes on with the settings it was begun with: {', '.join(differ)}. To begin anew "
            "with others, choose another --data."
        )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, those of a side as adversary.lr, as JSON has them."""
    found: dict[str, Any] = {}
    for name, value in json.loads(json.dumps(settings)).items():
        found |= {f"{name}.{k}": x for k, x in value.items()} if isinstance(value, dict) else {name: value}
    return found


def _same(one: str, other: str) -> bool:
    """Whether two words name the same algorithm, or the same players of all sides."""
    from flockrl.training.players import split_sides

    sides = [{s: p.partition(":")[0].rstrip("/") for s, p in split_sides(x).items()} for x in (one, other)]
    return sides[0] == sides[1] if sides[0] or sides[1] else one == other


def _cut_metrics(path: Path, steps: int) -> None:
    """Remove what was logged after the checkpoint: it will be logged again."""
    if (path / METRICS).exists():
        rows = [json.dumps(row) for row in read_metrics(path) if row["step"] <= steps]
        place_file(path / METRICS, "".join(f"{row}\n" for row in rows).encode())


class Learner(threading.Thread):
    """Reads the log, trains, publishes models, saves checkpoints.

    save_every, publish_every, log_every: the least seconds between checkpoints, models and lines of metrics.
    blame: told the ids of the trajectories that broke an update; returns who sent them.

    An update whose result is not finite is undone: training goes back to its checkpoint and reads the log again from
    there without the message with the largest numbers, or, where that does not help, without all of the update.
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
        blame: Callable[[Sequence[str]], list[str]] = lambda ids: [],
    ):
        super().__init__(name="learner", daemon=True)
        self.trainer, self.log, self.store, self._log_bytes = trainer, log, store, log_bytes
        note = trainer.note
        self.position = self._saved = Position(*note["position"]) if note.get("position") else log.start
        if self.position[:2] > log.end[:2]:
            raise UsageError(
                f"{log.path} ends before the position up to which the trainer has learned: files are missing."
            )
        self.unusable: int = note.get("unusable", 0)
        """Messages that the trainer could not use."""
        self.failure = ""
        self.row: dict[str, Any] = {}
        """The newest line of metrics."""
        self.trouble = ""
        """What cannot be written at present, and why; it is tried again."""
        self.aside = Aside(log.path.parent / "aside")
        self._blame = blame
        self._skip = {Position(*place) for place in note.get("skip", [])}
        self._window: list[Suspect] = []
        """Messages that the next update will have learned from."""
        self._failed_at: Position | None = None
        self._failures = 0
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
        if self.trainer.facts.on_policy and (experience.version < 0).any():
            raise BadData(f"{self.trainer.algorithm} must know which version of its policy acted.")
        try:
            self.trainer.check(experience)
        except UsageError as error:
            raise BadData(str(error)) from error

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                if not self._step() and not self.log.wait(self.position, 0.2):
                    self._try("a model", self._publish)  # nothing to train on: publish the newest parameters
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
        if self.position in self._skip:
            self._move(after)
            return True
        try:
            data = decode(batch, self.trainer.spec)
            self._window.append(suspect(self.position, data))
            learned = self.trainer.receive_trajectory(data)
        except NotFinite as error:
            self._go_back(error)
            return True
        except UsageError as error:
            logger.error("a message in the log cannot be used: %s", printable(error))
            self.unusable += 1
            learned = False
        self._move(after)
        if learned:
            del self._window[:-1]  # a part of the last message may be left
            if self._failed_at is not None and after > self._failed_at:
                self._failed_at, self._failures = None, 0
                self._try("a checkpoint", self.save)
            if self._is_due("publish"):
                self._try("a model", self._publish)
        return True

    def _go_back(self, error: NotFinite) -> None:
        """Undo an update that is not finite, and leave out what it learned from."""
        again = self._failed_at is not None and self.position <= self._failed_at
        self._failures = self._failures + 1 if again else 1
        if self._failures > TRIES:
            raise error
        self._failed_at = max(self.position, self._failed_at or self.position)
        worst = max(self._window, key=lambda message: message.size)
        senders = self._blame(worst.ids)
        for message in [worst] if self._failures == 1 else self._window:
            self._skip.add(message.position)
            self.unusable += 1
            self.aside.add(message, self._batch(message.position), senders if message is worst else [], str(error))
        logger.error("%s The update is undone, and messages are set aside in %s.", error, self.aside.path)
        self.trainer.restore()
        self._window = []
        place = self.trainer.note.get("position")
        self._move(Position(*place) if place else self.log.start)

    def _batch(self, position: Position) -> Any:
        try:
            found = self.log.read(position)
        except Damaged:
            return None
        return None if found is None else found[0]

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
            self._try("metrics", self._log)
        if self._is_due("save"):
            self._try("a checkpoint", self.save)

    def _try(self, what: str, write: Callable[[], None]) -> None:
        """Write something. A failure, such as a full disk, is told and tried again when it is due again."""
        try:
            write()
        except Exception as error:
            if not self.trouble:
                logger.error("%s cannot be written: %s", what, printable(error))
            self.trouble = f"{what} cannot be written: {printable(error)}"
            self._stopping.wait(0.2)
            return
        if self.trouble.startswith(what):
            logger.warning("%s can be written again", what)
            self.trouble = ""

    def _log(self) -> None:
        self.row, self._logged = self.trainer.log_epoch(), self.trainer.version

    def save(self) -> None:
        """Write a checkpoint with the position in the log, and delete the part of the log that is no longer needed."""
        skip = [list(place) for place in sorted(self._skip) if place >= self.position]
        self.trainer.save(note={"position": list(self.position), "unusable": self.unusable, "skip": skip})
        self._saved = self.position
        self.log.trim(self._saved, self._log_bytes)

    def stop(self) -> None:
        """Finish the current update, save and end."""
        self._stopping.set()
        self.join()
        if not self.failure and self.position != self._saved:
            self._try("metrics", self._log)
            self._try("a checkpoint", self.save)
