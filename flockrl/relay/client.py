"""The connection to a server: Arrow Flight, with a token and TLS if the server requires them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from flockrl.core.errors import UsageError


class Refused(UsageError):
    """The server will never accept this message; the text is its reason."""


class Unreachable(UsageError):
    """The server is unreachable, is busy, or asks to slow down: it may accept the same message later."""


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
        self.server = server
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
        return json.loads(self.call("put", message)[0].to_pybytes())

    def status(self) -> dict[str, Any]:
        return json.loads(self.call("status")[0].to_pybytes())

    def model(self, folder: Path, newer_than: int = -1) -> int | None:
        """Write the newest model to `folder`, which must not exist, and return its version. If the model is not newer
        than `newer_than`, write nothing and return None."""
        head, *files = self.call("model", json.dumps({"newer_than": newer_than}).encode())
        about = json.loads(head.to_pybytes())
        if about["version"] <= newer_than:
            return None
        part = folder.with_name(folder.name + ".part")
        part.mkdir(parents=True, exist_ok=True)
        for entry, data in zip(about["files"], files, strict=True):
            if not re.fullmatch(r"[\w-][\w.-]*", entry["name"]) or hashlib.sha256(data).hexdigest() != entry["sha256"]:
                raise Unreachable(f"{self.server}: the model's file {entry['name']!r} is damaged or misnamed.")
            (part / entry["name"]).write_bytes(data)
        part.rename(folder)
        return about["version"]

    def close(self) -> None:
        self._flight.close()


def _plain(error: Exception) -> str:
    """An error's own text, without what gRPC and Flight add."""
    return re.split(r"\. (?:Detail|gRPC client debug context|Client context)|, with reason", str(error))[0].strip()
