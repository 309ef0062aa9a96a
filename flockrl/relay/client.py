"""The connection to a server: Arrow Flight, with a token and TLS if the server requires them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from flockrl.core.errors import UsageError


class Refused(UsageError):
    """The server will never accept this message; the text is its reason."""


class Unreachable(UsageError):
    """The server is unreachable, is busy, or asks to slow down: it may accept the same message later."""


class BadModel(Unreachable):
    """The server's model of this version is not usable."""

    def __init__(self, text: str, version: int) -> None:
        super().__init__(text)
        self.version = version


class Denied(UsageError):
    """The server does not accept the token."""


def location(address: str) -> str:
    """`HOST:PORT`, or `tls://HOST:PORT`, as Flight writes it."""
    plain = re.fullmatch(
        r"(?:(grpc|tcp|grpc\+tcp|tls|grpc\+tls)://)?(\[[0-9a-fA-F:.]+\]|[^/:\[\]]+):(\d{1,5})", address
    )
    if plain is None or int(plain[3]) > 65535:
        raise UsageError(f"An address is HOST:PORT or tls://HOST:PORT, not {address!r}.")
    return f"{'grpc+tls' if 'tls' in (plain[1] or '') else 'grpc+tcp'}://{plain[2]}:{plain[3]}"


class Client:
    """One connection. Calls raise `Refused`, `Denied` or `Unreachable`.

    tls_root: a file with the certificate to trust, for servers whose certificate no authority signed.
    """

    def __init__(self, server: str, token: str | None = None, tls_root: Path | None = None, timeout: float = 30.0):
        self.server, self.identity = server, ""
        """identity: of the server's trainer, as it said last; servers of earlier versions say nothing."""
        more = {} if tls_root is None else {"tls_root_certs": Path(tls_root).read_bytes()}
        keep = [("grpc.max_reconnect_backoff_ms", 2000), ("grpc.initial_reconnect_backoff_ms", 100)]
        self._flight = flight.connect(location(server), generic_options=keep, **more)
        headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
        self._options = flight.FlightCallOptions(timeout=timeout, headers=headers)

    def call(self, name: str, body: Any = b"") -> list[Any]:
        """The results of one action, as buffers."""
        try:
            return [result.body for result in self._flight.do_action(flight.Action(name, body), self._options)]
        except (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError) as error:
            raise Denied(f"{self.server}: {_plain(error)}") from None
        except (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError) as error:
            raise Unreachable(f"{self.server}: {_plain(error)}") from None
        except pa.ArrowInvalid as error:
            if "Concurrent RPC limit" in str(error):  # Flight takes all that is exhausted for invalid
                raise Unreachable(f"{self.server}: Too many calls at the same time.") from None
            raise Refused(_plain(error)) from None
        except (pa.ArrowException, OSError) as error:
            raise Unreachable(f"{self.server}: {_plain(error)}") from None

    def put(self, message: Any) -> dict[str, Any]:
        """Send a message of trajectories. Returns when it is on the server's disk: the counts `new` and `known`, and
        the `version` of the server's newest model."""
        return self._understand(self.call("put", message), ("new", "known", "version"))

    def status(self) -> dict[str, Any]:
        return self._understand(self.call("status"), ())

    def model(self, folder: Path, newer_than: int = -1, identity: str = "") -> int | None:
        """Write the newest model to `folder`, which must not exist, and return its version. If the model is not newer
        than `newer_than`, write nothing and return None.

        identity: of the trainer whose version `newer_than` is; of another trainer, any model is newer. Raises
        `BadModel` if a file is not what the server says.
        """
        for least in (newer_than, -1):
            answer = self.call("model", json.dumps({"newer_than": least}).encode())
            about = self._understand(answer, ("version",))
            if about["version"] > least:
                break
            if not identity or self.identity in ("", identity):
                return None
        version, entries, files = about["version"], about.get("files"), answer[1:]
        if version < 0:
            return None
        part = folder.with_name(folder.name + ".part")
        part.mkdir(parents=True, exist_ok=True)
        for entry, data in zip(entries if isinstance(entries, list) else [], files, strict=False):
            name, digest = (entry.get("name"), entry.get("sha256")) if isinstance(entry, dict) else ("", "")
            name = str(name)[:100]
            if not re.fullmatch(r"[\w-][\w.-]*", name) or hashlib.sha256(data).hexdigest() != digest:
                raise BadModel(f"{self.server}: the model's file {name!r} is damaged or misnamed.", version)
            (part / name).write_bytes(data)
        part.rename(folder)
        return version

    def _understand(self, answer: list[Any], numbers: Sequence[str]) -> dict[str, Any]:
        """The JSON that begins an answer, in which these are whole numbers."""
        try:
            said = json.loads(answer[0].to_pybytes())
            if isinstance(said, dict) and all(type(said.get(name)) is int for name in numbers):
                identity = said.get("identity", "")
                self.identity = identity[:100] if isinstance(identity, str) else ""
                return said
        except (IndexError, ValueError, RecursionError):
            pass
        raise Unreachable(f"{self.server}: this is not the answer of a flockrl server.")

    def close(self) -> None:
        self._flight.close()


def _plain(error: Exception) -> str:
    """An error's own text, without what gRPC and Flight add."""
    return re.split(r"\. (?:Detail|gRPC client debug context|Client context)|, with reason", str(error))[0].strip()
