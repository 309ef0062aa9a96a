"""Who sent what, so that a sender whose data break training again and again can be refused."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable

from flockrl.data.schema import BadData

REMEMBERED = 100_000
"""Trajectories whose senders are remembered."""
OFFENCES = 3
"""Messages that broke an update, after which their sender is refused."""


class Senders:
    """Senders are told apart by address and by the name that an actor puts before its episodes' numbers."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, str] = OrderedDict()
        self._offences: Counter[str] = Counter()
        self._lock = threading.Lock()

    def check(self, ids: Iterable[str], peer: str) -> None:
        """Raise `BadData` if one of the trajectories comes from a sender that is refused."""
        if self.refused and not self.refused.isdisjoint(_name(id, peer) for id in ids):
            raise BadData("Data from this sender broke training repeatedly: nothing is taken from it any more.")

    def remember(self, ids: Iterable[str], peer: str) -> None:
        with self._lock:
            self._of.update((id, _name(id, peer)) for id in ids)
            while len(self._of) > REMEMBERED:
                self._of.popitem(last=False)

    def blame(self, ids: Iterable[str]) -> list[str]:
        """Count an offence of those who sent these trajectories. Returns them."""
        with self._lock:
            found = sorted({self._of[id] for id in ids if id in self._of})
            self._offences.update(found)
            return found

    @property
    def refused(self) -> set[str]:
        return {name for name, count in self._offences.items() if count >= OFFENCES}


def _name(id: str, peer: str) -> str:
    return f"{id.partition('-')[0][:40]}@{peer}"
