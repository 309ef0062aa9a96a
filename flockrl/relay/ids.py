"""Trajectory ids as digests, and a small memory of the newest ones."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence

import numpy as np


class Seen:
    """The digests of the newest `most` ids or a few more, 8 bytes each."""

    def __init__(self, most: int) -> None:
        self._most, self._chunk = most, max(1, min(65536, most))
        self._recent: set[int] = set()
        self._sorted: deque[np.ndarray] = deque()

    def fresh(self, digests: np.ndarray) -> np.ndarray:
        """[K] bool: which ids are not remembered."""
        known = np.fromiter((int(d) in self._recent for d in digests), bool, len(digests))
        for chunk in self._sorted:
            known |= chunk[np.minimum(np.searchsorted(chunk, digests), len(chunk) - 1)] == digests
        return ~known

    def add(self, digests: np.ndarray) -> None:
        if not self._most:
            return
        self._recent.update(digests.tolist())
        if len(self._recent) >= self._chunk:
            self._sorted.append(np.sort(np.fromiter(self._recent, np.uint64, len(self._recent))))
            self._recent.clear()
            while sum(map(len, self._sorted)) - len(self._sorted[0]) >= self._most:
                self._sorted.popleft()


def digest(ids: Sequence[str]) -> np.ndarray:
    """[K] uint64 of ids."""
    whole = b"".join(hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest() for name in ids)
    return np.frombuffer(whole, "<u8")
