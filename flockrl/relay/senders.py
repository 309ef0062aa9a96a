"""Who sent what, so that a sender whose data break training again and again can be refused."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any

from flockrl.core.text import printable
from flockrl.data.schema import BadData

REMEMBERED = 100_000
"""Trajectories whose senders are remembered."""
OFFENCES = 3
"""Messages that broke an update, after which their sender is refused."""
ACTORS, TOLD = 1000, 32
"""Senders of whom is known how much they sent, and of those, how many a status tells of."""
LATELY = 60.0
"""Seconds for which a sender counts as there."""


class Senders:
    """Senders are told apart by address and by the name that an actor puts before its episodes' numbers."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, str] = OrderedDict()
        self._offences: Counter[str] = Counter()
        self._actors: OrderedDict[str, tuple[int, int, float]] = OrderedDict()  # trajectories, version, time
        self._lock = threading.Lock()

    def check(self, ids: Iterable[str], peer: str) -> None:
        """Raise `BadData` if one of the trajectories comes from a sender that is refused."""
        if (refused := self.refused) and not refused.isdisjoint(_name(id, peer) for id in ids):
            raise BadData("Data from this sender broke training repeatedly: nothing is taken from it any more.")

    def remember(self, ids: Iterable[str], versions: Iterable[int], peer: str) -> None:
        """Note who sent these trajectories, and by which versions of the policy they were made."""
        with self._lock:
            for id, version in zip(ids, versions, strict=True):
                known, name = id in self._of, _name(id, peer)
                self._of[id] = name
                count, _, _ = self._actors.pop(name, (0, -1, 0.0))
                self._actors[name] = count + (not known), int(version), time.monotonic()
            while len(self._of) > REMEMBERED:
                self._of.popitem(last=False)
            while len(self._actors) > ACTORS:
                self._actors.popitem(last=False)

    def told(self) -> dict[str, Any]:
        """How many senders there were, of the latest, and how much the last of them sent. A name is an actor's with its
        address; version: of the policy that made what came last, -1 where it is not known; ago: seconds."""
        with self._lock:
            now, actors = time.monotonic(), list(self._actors.items())
        last = [
            {"name": printable(name, 100), "trajectories": count, "version": version, "ago": now - at}
            for name, (count, version, at) in reversed(actors[-TOLD:])
        ]
        return {"seen": len(actors), "lately": sum(now - at < LATELY for _, (_, _, at) in actors), "last": last}

    def blame(self, ids: Iterable[str]) -> list[str]:
        """Count an offence of those who sent these trajectories. Returns them."""
        with self._lock:
            found = sorted({self._of[id] for id in ids if id in self._of})
            self._offences.update(found)
            return found

    @property
    def refused(self) -> set[str]:
        with self._lock:  # `blame` adds names from another thread
            return {name for name, count in self._offences.items() if count >= OFFENCES}


def _name(id: str, peer: str) -> str:
    return f"{id.partition('-')[0][:40]}@{peer}"
