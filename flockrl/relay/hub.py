"""A place where agents that run apart meet: each needs to know the hub's addresses alone."""

from __future__ import annotations

import threading
from typing import Any

from flockrl.relay.post import Wires

LARGEST = 1 << 20
"""Bytes of the largest frame that a hub passes on."""


class Hub:
    """Passes on what members say, without reading it, in a thread of its own.

    listen: two addresses, for what comes in and for what goes out; port 0 takes a free one. token: the members'.
    addresses: what to give to members as `hub`.
    """

    def __init__(self, listen: tuple[str, str] = ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"), token: str | None = None):
        self._wires = wires = Wires(token, LARGEST)
        zmq = wires.zmq
        self._ends = wires.socket(zmq.XSUB), wires.socket(zmq.XPUB)
        self.addresses = wires.bind(self._ends[0], listen[0]), wires.bind(self._ends[1], listen[1])
        self._stop, inside = wires.context.socket(zmq.PAIR), wires.context.socket(zmq.PAIR)
        inside.bind("inproc://stop")
        self._stop.connect("inproc://stop")
        self._thread = threading.Thread(target=self._run, args=(inside,), daemon=True)
        self._thread.start()

    def _run(self, stop: Any) -> None:
        zmq = self._wires.zmq
        entry, out = self._ends
        poller = zmq.Poller()
        for socket in (entry, out, stop):
            poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if stop in ready:
                break
            if entry in ready:
                out.send_multipart(entry.recv_multipart())
            if out in ready:
                entry.send_multipart(out.recv_multipart())
        for socket in (entry, out, stop):
            socket.close(0)

    def close(self) -> None:
        self._stop.send(b"")
        self._thread.join()
        self._stop.close(0)
        self._wires.close()

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
