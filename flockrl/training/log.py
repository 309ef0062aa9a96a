"""The metrics of a run, written during training."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from flockrl.core.rundir import METRICS


class Log:
    """Writes a run's metrics: one JSON object per line, and TensorBoard events beside it."""

    def __init__(self, path: Path, resume_at: int | None = None, offset: int = 0):
        """`resume_at` and `offset`: the step, and the size of the metrics file, at the checkpoint to continue from."""
        from tensorboardX import SummaryWriter

        file = path / METRICS
        if file.exists():
            os.truncate(file, offset)
        self._file: IO[str] = file.open("a")
        self._board = SummaryWriter(str(path), purge_step=resume_at, flush_secs=30)

    def write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        for name, value in row.items():
            if isinstance(value, int | float) and name != "step":
                self._board.add_scalar(name, value, row["step"])

    @property
    def offset(self) -> int:
        """Size of the metrics file, to which it is cut when training continues from a checkpoint taken now."""
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        self._board.close()
