"""The relay on the network: Arrow Flight's actions over gRPC, with limits that hold before a request is read.

Flight's own server reads every request whole, of any size, before it can be refused. Here gRPC's server of Python does
the work, with the two messages of Flight's protocol that actions need: a call without a valid token is refused without
reading its request, a request that is too large is refused by its announced size, other methods do not exist, and the
number of calls whose requests and answers are in memory is bounded. Any Flight client can call it.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from flockrl.core.errors import UsageError, nearest
from flockrl.relay.client import location
from flockrl.relay.server import Busy, Relay

logger = logging.getLogger("flockrl.relay")
SERVICE = "/arrow.flight.protocol.FlightService/"
ACTIONS = {"put": "take a message of trajectories", "model": "the newest model", "status": "health and figures"}
THREADS, RESERVED = 24, 4
"""Calls that are worked on at the same time, and how many of them are kept free for calls other than `put`."""
HEADROOM = 64 << 10
"""Bytes by which a request may exceed the largest message; from there on gRPC itself refuses it."""
MINUTE = 60_000


class Server:
    """A relay that listens. `port` is its port."""

    def __init__(self, relay: Relay, where: str, tokens: Sequence[str], tls: tuple[bytes, bytes] | None) -> None:
        limits = relay.limits
        options = [
            ("grpc.max_receive_message_length", limits.message_bytes + HEADROOM),
            ("grpc.max_send_message_length", -1),
            ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small request could become large
            ("grpc.so_reuseport", 0),
            ("grpc.http2.max_frame_size", 1 << 20),
            ("grpc.max_connection_age_ms", 5 * MINUTE),  # a call that never ends is ended
            ("grpc.max_connection_age_grace_ms", MINUTE),
        ]
        self._server = grpc.server(
            ThreadPoolExecutor(THREADS, "call"), [_Handler(relay, tokens)], options=options,
            maximum_concurrent_rpcs=limits.clients,
        )  # fmt: skip
        address = where.partition("://")[2]
        if tls is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, grpc.ssl_server_credentials([(tls[1], tls[0])]))
        self._server.start()

    def shutdown(self, seconds: float = 5.0) -> None:
        """End after the calls under way, at most `seconds` later."""
        self._server.stop(seconds).wait()


class _Handler(grpc.GenericRpcHandler):
    """Flight's DoAction and ListActions."""

    def __init__(self, relay: Relay, tokens: Sequence[str]) -> None:
        self._relay, self._wanted = relay, ["Bearer " + token for token in tokens]
        self._puts = threading.BoundedSemaphore(THREADS - RESERVED)
        self._answers = Budget(relay.limits.answer_bytes)

    def service(self, details: Any) -> Any:
        """Decide by method and token, before the request is read."""
        if self._wanted and not self._known(details.invocation_metadata):
            # A handler of streams does not read a request unless it is asked to.
            return grpc.stream_stream_rpc_method_handler(self._unknown)
        if details.method == SERVICE + "DoAction":
            return grpc.unary_stream_rpc_method_handler(self._act)
        if details.method == SERVICE + "ListActions":
            return grpc.unary_stream_rpc_method_handler(lambda _, context: map(_described, ACTIONS.items()))
        return None

    def _known(self, metadata: Iterable[tuple[str, Any]]) -> bool:
        given = [value for name, value in metadata if name == "authorization"]
        got = (given[0] if isinstance(given[0], bytes) else given[0].encode()) if len(given) == 1 else b""
        matches = [hmac.compare_digest(got, wanted.encode()) for wanted in self._wanted]  # compare all: constant time
        return any(matches)

    def _unknown(self, requests: Any, context: Any) -> None:
        self._relay.refuse("The token is missing or wrong.", host(context.peer()))
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "The token is missing or wrong.")

    def _act(self, request: bytes, context: Any) -> Iterator[bytes]:
        try:
            name, body = read_action(request)
            if name == "put":
                yield result(json.dumps(self._put(body, host(context.peer()))).encode())
            elif name == "status":
                yield result(json.dumps(self._relay.status()).encode())
            elif name == "model":
                yield from self._model(body)
            else:
                raise UsageError(f"There is no action {name[:40]!r}.{nearest(name[:40], ACTIONS)}")
        except UsageError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Busy as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except Exception as error:
            if not context.is_active():
                return  # the client has gone, or the call was aborted above
            logger.exception("a call failed")
            context.abort(grpc.StatusCode.INTERNAL, f"The server failed at this: {type(error).__name__}.")

    def _put(self, body: memoryview, peer: str) -> dict[str, Any]:
        if not self._puts.acquire(blocking=False):
            raise Busy("Slow down: too many messages at the same time.")
        try:
            return self._relay.put(body, peer)
        finally:
            self._puts.release()

    def _model(self, body: memoryview) -> Iterator[bytes]:
        """The description and the files, while their bytes fit the budget for answers that are not read yet."""
        parts = self._relay.store.fetch(_newer_than(body))
        with self._answers.taken(sum(map(len, parts))):
            yield from map(result, parts)


class Budget:
    """Bytes of answers that are being sent at the same time."""

    def __init__(self, most: int) -> None:
        self._most, self._used, self._lock = most, 0, threading.Lock()

    @contextmanager
    def taken(self, count: int) -> Iterator[None]:
        """Take `count` bytes for the time of a with statement, or raise `Busy`. One answer always fits."""
        with self._lock:
            if self._used and self._used + count > self._most:
                raise Busy("Slow down: too many models are being sent at the same time.")
            self._used += count
        try:
            yield
        finally:
            with self._lock:
                self._used -= count


# Flight's messages: Action {string type = 1; bytes body = 2}, Result {bytes body = 1}, ActionType {type, description}


def read_action(data: bytes) -> tuple[str, memoryview]:
    """The name and the body of an action."""
    view, at, found = memoryview(data), 0, {1: memoryview(b""), 2: memoryview(b"")}
    while at < len(view):
        tag, at = _varint(view, at)
        size, at = _varint(view, at)
        if tag & 7 != 2 or at + size > len(view):  # only fields with a length
            raise UsageError("The request is not an action of Arrow Flight.")
        found[tag >> 3] = view[at : at + size]
        at += size
    return bytes(found[1][:100]).decode("utf-8", "replace"), found[2]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number at `at`, and where it ends."""
    value = shift = 0
    while at < len(data) and shift < 63:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise UsageError("The request is not an action of Arrow Flight.")


def result(body: bytes) -> bytes:
    """A result as its client reads it."""
    return _field(1, body)


def _described(action: tuple[str, str]) -> bytes:
    return _field(1, action[0].encode()) + _field(2, action[1].encode())


def _field(number: int, body: bytes) -> bytes:
    size, head = len(body), bytearray([number << 3 | 2])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return b"".join((head, body))


def _newer_than(body: memoryview) -> int:
    try:
        asked = json.loads(bytes(body[:1000]))["newer_than"]
        if isinstance(asked, int):
            return asked
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UsageError("The action 'model' needs {\"newer_than\": VERSION}.")


# Addresses


def host(peer: str) -> str:
    """An address without its port: `ipv4:127.0.0.1:5005` is 127.0.0.1."""
    return peer.partition(":")[2].rpartition(":")[0]


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


def start(relay: Relay, listen: str, tokens: Sequence[str] = (), tls: tuple[bytes, bytes] | None = None) -> Server:
    """Offer a relay on the network. tls: certificate and key, as PEM."""
    where = allowed(listen, tokens, tls)
    try:
        return Server(relay, where, tokens, tls)
    except (RuntimeError, OSError, ValueError) as error:
        raise UsageError(f"The server cannot listen on {listen}: {str(error).splitlines()[0][:200]}") from None


def _loopback(where: str) -> bool:
    name = where.partition("://")[2].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
