"""The server: accepts trajectories, writes them to disk, trains, publishes models, and reports its status.

`Relay` does the work and knows nothing of the network; `start` offers it over Arrow Flight. All calls are Flight
actions: `put` (a message of trajectories), `model` (the newest), `status`. Flight's own DoPut is not offered, because
Arrow would unpack what a client sends before it could be checked (see `wire`).
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from flockrl.core.errors import UsageError, nearest
from flockrl.core.spec import EnvSpec
from flockrl.data.schema import BadData, make_schema
from flockrl.relay.client import location
from flockrl.relay.ingest import Limits, admit
from flockrl.relay.log import Log
from flockrl.relay.store import Store

logger = logging.getLogger("flockrl.relay")
ACTIONS = {"put": "take a message of trajectories", "model": "the newest model", "status": "health and figures"}
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
        with self._lock:
            known = experience.trajectories - new
            self._counts["messages"] += 1
            self._counts["known"] += known
            if new:
                self._recent.append((time.monotonic(), len(batch) * new // experience.trajectories))
                self._forget()
        return {"new": new, "known": known, "version": self.store.newest}

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
            "log_bytes": log.bytes,
        }  # fmt: skip
        if learner is not None:
            about["health"] = f"failed: {learner.failure}" if learner.failure else "training"
            about |= {
                "algorithm": learner.trainer.algorithm, "version": learner.trainer.version,
                "trained": dict(learner.trainer.stats), "unusable": learner.unusable,
                "backlog_bytes": learner.backlog, "metrics": learner.row,
            }  # fmt: skip
        return about

    def close(self) -> None:
        if self.learner is not None:
            self.learner.stop()
        self.log.close()


class _Service(flight.FlightServerBase):
    """The relay on Flight."""

    def __init__(self, relay: Relay, where: str, **settings: Any) -> None:
        super().__init__(where, **settings)
        self._relay, self._slots = relay, threading.BoundedSemaphore(relay.limits.clients)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return list(ACTIONS.items())

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        if not self._slots.acquire(blocking=False):
            raise flight.FlightUnavailableError("Slow down: too many calls at the same time.")
        try:
            return iter(self._answer(action.type, action.body, context.peer()))
        except UsageError as error:
            raise pa.ArrowInvalid(str(error)) from None
        except Busy as error:
            raise flight.FlightUnavailableError(str(error)) from None
        except Exception as error:
            logger.exception("a call failed")
            raise flight.FlightInternalError(f"The server failed at this: {type(error).__name__}.") from None
        finally:
            self._slots.release()

    def _answer(self, name: str, body: Any, peer: str) -> Sequence[bytes]:
        if name == "put":
            return [json.dumps(self._relay.put(body, _host(peer))).encode()]
        if name == "status":
            return [json.dumps(self._relay.status()).encode()]
        if name == "model":
            return self._relay.store.fetch(_newer_than(body))
        raise UsageError(f"There is no action {name[:40]!r}.{nearest(name[:40], ACTIONS)}")


def _host(peer: str) -> str:
    """An address without its port: `ipv4:127.0.0.1:5005` is 127.0.0.1."""
    return peer.partition(":")[2].rpartition(":")[0]


def _newer_than(body: Any) -> int:
    try:
        asked = json.loads(bytes(body)[:1000])["newer_than"]
        if isinstance(asked, int):
            return asked
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UsageError("The action 'model' needs {\"newer_than\": VERSION}.")


class _Gate(flight.ServerMiddlewareFactory):
    """Refuses calls without a valid token, before anything that the client sent is read."""

    def __init__(self, tokens: Sequence[str], relay: Relay) -> None:
        self._wanted, self._relay = [b"Bearer " + token.encode() for token in tokens], relay

    def start_call(self, info: Any, headers: Any) -> None:
        given = [value for name, values in headers.items() if name.lower() == "authorization" for value in values]
        got = (given[0] if isinstance(given[0], bytes) else given[0].encode()) if len(given) == 1 else b""
        matches = [hmac.compare_digest(got, wanted) for wanted in self._wanted]  # compare all: constant time
        if not any(matches):
            self._relay.refuse("The token is missing or wrong.", "")
            raise flight.FlightUnauthenticatedError("The token is missing or wrong.")


def allowed(listen: str, tokens: Sequence[str], tls: tuple[bytes, bytes] | None) -> str:
    """The address to listen on, as Flight writes it. Raises `UsageError` if listening there is not safe."""
    where = location(listen)
    if tls is None and where.startswith("grpc+tls"):
        raise UsageError("An address with tls:// needs --tls-cert and --tls-key.")
    if not _loopback(where):
        if not tokens:
            raise UsageError(
                f"Without a token a server listens only on its own machine, e.g. on 127.0.0.1:8815, not {listen}."
            )
        if tls is None:
            logger.warning("without TLS, the token and all data are sent unencrypted")
    return where if tls is None else where.replace("grpc+tcp", "grpc+tls")


def start(
    relay: Relay, listen: str, tokens: Sequence[str] = (), tls: tuple[bytes, bytes] | None = None
) -> flight.FlightServerBase:
    """Offer a relay on the network; the result's `.port` is its port. tls: certificate and key, as PEM."""
    where = allowed(listen, tokens, tls)
    middleware = {"gate": _Gate(tokens, relay)} if tokens else {}
    settings = {} if tls is None else {"tls_certificates": [tls]}
    try:
        return _Service(relay, where, middleware=middleware, **settings)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"The server cannot listen on {listen}: {str(error).splitlines()[0][:200]}") from None


def _loopback(where: str) -> bool:
    host = where.partition("://")[2].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
