"""Messages between agents that run apart: their form on the wire, and the sockets that carry them (ZeroMQ).

A frame is a header of 28 bytes and numbers in float32; nothing in it is ever run or unpickled. With a token, CURVE
encrypts and authenticates every connection: keys follow from the token, so whoever has it is in, and nobody else is.
"""

from __future__ import annotations

import hashlib
import ipaddress
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError, install

MAGIC = b"FMm1"
SAYS, ASKS, ANSWERS = 0, 1, 2
"""Kinds of frames: something is said; who is there?; I am, and these I hear."""
SENT, ALIVE = 1, 2
HEADER = struct.Struct("<4s8sBHBIIHH")
"""Magic, team, kind, sender, flags, episode, step, round, and how many numbers of 4 bytes follow."""
TOPIC = struct.Struct("<4s8sBH")
LARGEST = 1e6
"""The largest number in a message."""
WAITING = 1024
"""Frames that may wait to be read or sent, for each peer."""
HANDSHAKE = 1024
"""Bytes that frames of CURVE's handshake may have."""
SHORTEST_TOKEN, DOMAIN = 16, "flockrl"


class Frame(NamedTuple):
    """kind, flags: see above. body: [C] float32 of what is said, None where nothing is; or [N] uint32, the `life` of
    each agent that the sender hears, its own included, 0 for those whom it does not hear.
    """

    kind: int
    sender: int
    flags: int = 0
    episode: int = 0
    step: int = 0
    round: int = 0
    body: np.ndarray | None = None


def pack(team: bytes, frame: Frame) -> bytes:
    data = b""
    if frame.body is not None:
        data = frame.body.astype("<f4" if frame.kind == SAYS else "<u4").tobytes()
    count = 0 if frame.body is None else len(frame.body)
    head = frame.kind, frame.sender, frame.flags, frame.episode, frame.step, frame.round, count
    return HEADER.pack(MAGIC, team, *head) + data


def unpack(data: bytes, team: bytes, agents: int, rounds: int, size: int) -> Frame | None:
    """What came, or None where it is not what a member of this team sends: then nothing of it is believed."""
    if len(data) < HEADER.size:
        return None
    magic, whose, kind, sender, flags, episode, step, number, count = HEADER.unpack_from(data)
    if magic != MAGIC or whose != team or sender >= agents or flags > SENT | ALIVE or number >= rounds:
        return None
    body = data[HEADER.size :]
    if kind in (ASKS, ANSWERS):
        if count != agents or len(body) != 4 * agents:
            return None
        return Frame(kind, sender, body=np.frombuffer(body, "<u4"))
    if kind != SAYS or count != (size if flags & SENT else 0) or len(body) != 4 * count:
        return None
    numbers = np.frombuffer(body, "<f4").astype(np.float32)
    if not (np.abs(numbers) <= LARGEST).all():  # NaN is not either
        return None
    return Frame(kind, sender, flags, episode, step, number, numbers if flags & SENT else None)


def team_id(name: str) -> bytes:
    """8 bytes that tell frames of one exported team from those of others."""
    return hashlib.sha256(name.encode()).digest()[:8]


def load_zmq() -> Any:
    try:
        import zmq
        import zmq.auth.thread
    except ImportError as error:
        raise UsageError(f"Members of a team talk over ZeroMQ, which needs pyzmq: {install('members')}.") from error
    return zmq


class Wires:
    """A ZeroMQ context whose sockets are bounded and, with a token, encrypted and authenticated."""

    def __init__(self, token: str | None, largest: int):
        self.zmq: Any = load_zmq()
        self.context, self.largest, self._keys, self._guard = self.zmq.Context(), largest, None, None
        if token is None:
            return
        if len(token) < SHORTEST_TOKEN:
            raise UsageError(
                f"A token has at least {SHORTEST_TOKEN} characters: "
                "python -c 'import secrets; print(secrets.token_urlsafe(24))' makes one."
            )
        from zmq.utils import z85

        # Slow on purpose: somebody who listens cannot try many tokens.
        secret = z85.encode(hashlib.scrypt(token.encode(), salt=b"flockrl members", n=1 << 14, r=8, p=1, dklen=32))
        self._keys = self.zmq.curve_public(secret), secret
        self._guard = self.zmq.auth.thread.ThreadAuthenticator(self.context)
        self._guard.start()
        self._guard.configure_curve_callback(DOMAIN, self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether somebody who proved to have the secret of this public key may come in (called by pyzmq)."""
        return self._keys is not None and key == self._keys[0]

    def socket(self, kind: int) -> Any:
        zmq, made = self.zmq, self.context.socket(kind)
        made.linger, made.maxmsgsize = 0, max(HANDSHAKE, self.largest + 64)  # CURVE adds 33 bytes
        made.sndhwm = made.rcvhwm = WAITING
        made.reconnect_ivl, made.reconnect_ivl_max = 20, 500
        made.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        made.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3000)
        return made

    def bind(self, socket: Any, address: str) -> str:
        """Listen. Returns the address with the port that the system chose. Without a token, only on this machine."""
        if self._keys is None and not _own_machine(address):
            raise UsageError(
                f"Without a token, agents listen only on their own machine, not on {address}: give a token."
            )
        if self._keys is not None:
            socket.curve_server, socket.zap_domain = True, DOMAIN.encode()
            socket.curve_publickey, socket.curve_secretkey = self._keys
        try:
            socket.ipv6 = "[" in address
            socket.bind(address)
        except self.zmq.ZMQError as error:
            raise UsageError(f"Cannot listen on {address}: {error}.") from error
        return socket.last_endpoint.decode().rstrip("\0")

    def connect(self, socket: Any, addresses: Iterable[str]) -> None:
        if self._keys is not None:
            socket.curve_serverkey = self._keys[0]
            socket.curve_publickey, socket.curve_secretkey = self._keys
        for address in addresses:
            try:
                socket.ipv6 = "[" in address
                socket.connect(address)
            except self.zmq.ZMQError as error:
                raise UsageError(f"Cannot connect to {address}: {error}.") from error

    def close(self) -> None:
        if self._guard is not None:
            self._guard.stop()
        self.context.destroy(linger=0)


def _own_machine(address: str) -> bool:
    """Whether only processes of this machine can reach an address."""
    scheme, _, rest = address.partition("://")
    if scheme in ("ipc", "inproc"):
        return True
    name = rest.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
