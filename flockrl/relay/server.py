"""The server: accepts trajectories, writes them to disk, trains, publishes models, and reports its status.

`Relay` does the work and knows nothing of the network; `relay.front` offers it there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from flockrl.core.spec import EnvSpec
from flockrl.core.text import printable
from flockrl.data.schema import BadData, make_schema
from flockrl.relay.ingest import Limits, admit
from flockrl.relay.log import Log
from flockrl.relay.senders import Senders
from flockrl.relay.store import Store

logger = logging.getLogger("flockrl.relay")
PATIENCE = 5.0
"""Seconds for which an acknowledgement may wait for the trainer before the sender is told to slow down."""
REASONS = 32
"""The most reasons for refusal that are counted separately."""


class Busy(Exception):
    """The server cannot accept the message now, but may later."""


class Relay:
    """A log of accepted trajectories, published models, and optionally a `learner`, which the caller sets."""

    def __init__(self, path: Path, spec: EnvSpec, limits: Limits, remember: int = 1_000_000) -> None:
        self.spec, self.limits, self.path = spec, limits, Path(path)
        self.log = Log(self.path / "log", make_schema(spec), remember=remember)
        self.store = Store(self.path / "models")
        self.senders = Senders()
        self.learner: Any = None
        self._lock = threading.Lock()
        self._began = time.time()
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._last: deque[dict[str, Any]] = deque(maxlen=10)
        self._recent: deque[tuple[float, int]] = deque()
        self._allowance: dict[str, tuple[float, float]] = {}
        self._said = 0.0

    def put(self, message: Any, peer: str = "") -> dict[str, Any]:
        """Accept a message. Returns when all of its trajectories are on disk. Raises `BadData` or `Busy`."""
        try:
            batch, experience = admit(message, self.spec, self.limits)
            self.senders.check(experience.id, peer)
            if self.learner is not None:
                self.learner.check(experience)
        except BadData as error:
            self.refuse(str(error), peer)
            raise
        self._pace(peer, len(batch))
        self._make_room()
        try:
            new, ticket = self.log.append(batch, experience.id.tolist())
            self.log.sync(ticket)
        except OSError as error:
            self.refuse("The log cannot be written.", peer)
            logger.error("the log cannot be written: %s", error)
            raise Busy("The server cannot write to its disk.") from error
        self.senders.remember(experience.id, experience.version, peer)
        with self._lock:
            known = experience.trajectories - new
            self._counts["messages"] += 1
            self._counts["known"] += known
            if new:
                self._recent.append((time.monotonic(), len(batch) * new // experience.trajectories))
                self._forget()
        return {"new": new, "known": known, "version": self.store.newest, "identity": self.store.identity}

    def _pace(self, peer: str, rows: int) -> None:
        """Delay a message while its sender exceeds the allowed rate."""
        if not self.limits.rate:
            return
        with self._lock:
            now = time.monotonic()
            free = max(self._allowance.get(peer, (now, 0.0))[0], now)
            if free - now > PATIENCE:
                raise Busy(f"Slow down: at most {self.limits.rate:g} rows per second are taken from one address.")
            self._allowance[peer] = (free + rows / self.limits.rate, now)
            if len(self._allowance) > 10_000:
                self._allowance = {name: entry for name, entry in self._allowance.items() if entry[0] > now}
        time.sleep(free - now)

    def _make_room(self) -> None:
        learner = self.learner
        if learner is None:
            if self.log.bytes > self.limits.log_bytes:
                raise Busy(f"The log is full: it has {self.limits.log_bytes} bytes.")
        elif not learner.wait_for_room(self.limits.backlog_bytes, PATIENCE):
            raise Busy("Slow down: training has not kept up with what was sent.")

    def refuse(self, reason: str, peer: str) -> None:
        """Count and log a refusal; of many in a short time, only some are logged."""
        reason, peer = printable(reason), printable(peer, 60)
        with self._lock:
            self._counts["refused"] += 1
            self._reasons[reason if reason in self._reasons or len(self._reasons) < REASONS else "other reasons"] += 1
            self._last.append({"time": time.time(), "from": peer, "reason": reason})
            now = time.monotonic()
            if now - self._said > 0.2:
                self._said = now
                logger.warning("refused a message from %s: %s (%d so far)", peer, reason, self._counts["refused"])

    def _forget(self) -> None:
        while self._recent and self._recent[0][0] < time.monotonic() - 10:
            self._recent.popleft()

    def status(self) -> dict[str, Any]:
        """Health and figures as plain values."""
        learner, log = self.learner, self.log
        with self._lock:
            self._forget()
            rows = sum(n for _, n in self._recent)
            span = min(10.0, max(1.0, time.time() - self._began))
            refused = {"messages": self._counts["refused"], "reasons": dict(self._reasons), "last": list(self._last)}
        about: dict[str, Any] = {
            "health": "collecting", "environment": self.spec.name, "agents": list(self.spec.agents),
            "uptime": time.time() - self._began, "published": self.store.newest,
            "accepted": {"trajectories": log.trajectories, "rows": log.rows},
            "known": self._counts["known"], "rows_per_second": rows / span, "refused": refused,
            "log_bytes": log.bytes, "damaged": log.damaged, "actors": self.senders.told(),
        }  # fmt: skip
        if learner is not None:
            about["health"] = f"failed: {learner.failure}" if learner.failure else "training"
            about |= {
                "trouble": learner.trouble, "set_aside": list(learner.aside.last),
                "refused_senders": sorted(self.senders.refused)[:REASONS],
                "algorithm": learner.trainer.algorithm, "version": learner.trainer.version,
                "trained": dict(learner.trainer.stats), "unusable": learner.unusable,
                "backlog_bytes": learner.backlog, "metrics": learner.row,
            }  # fmt: skip
        return about

    def close(self) -> None:
        if self.learner is not None:
            self.learner.stop()
        self.log.close()
