"""Messages that broke an update: kept in files of their own, counted, and told in the server's status."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from flockrl.core.text import printable
from flockrl.data.experience import Experience
from flockrl.relay.segment import Position
from flockrl.relay.wire import pack

KEPT = 100
"""Files of messages that are kept; the oldest are deleted."""


class Suspect(NamedTuple):
    """A message that an update learned from: where it is in the log, its trajectories, how large its numbers are."""

    position: Position
    ids: list[str]
    size: float


def suspect(position: Position, data: Experience) -> Suspect:
    """What to remember of a message until its update has turned out well."""
    sizes = [np.nanmax(np.abs(x), initial=0.0) for x in (data.obs, data.reward, data.logp) if x.dtype.kind == "f"]
    return Suspect(position, data.id.tolist(), float(max(sizes)))


class Aside:
    """The folder of such messages. last: what is told about the newest ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: deque[dict[str, Any]] = deque(maxlen=10)

    def add(self, message: Suspect, batch: pa.RecordBatch | None, senders: Sequence[str], reason: str) -> None:
        """Keep a message. batch: its rows, None where they cannot be read."""
        self.last.append({
            "trajectories": [printable(id, 60) for id in message.ids[:5]], "count": len(message.ids),
            "senders": [printable(name, 100) for name in senders], "reason": printable(reason),
        })  # fmt: skip
        if batch is None:
            return
        self.path.mkdir(exist_ok=True)
        file = self.path / f"{message.position.segment:08d}-{message.position.data:012d}.arrows"
        file.write_bytes(pack(batch))
        for old in sorted(self.path.glob("*.arrows"))[:-KEPT]:
            old.unlink()
