"""Several processes, on one machine or many, that train one learner together: JAX's own distributed runtime.

All of them run the same program in step, each on its own devices. The first one writes the run; the others keep what
they would write in a directory of their own, which is thrown away.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flockrl.core.errors import UsageError, reason


@dataclass(frozen=True)
class Processes:
    """Which process of how many this is, and where they meet."""

    coordinator: str | None = None
    """HOST:PORT where several processes that train one learner meet, the same for all; the first one listens there."""
    processes: int = 1
    """With --coordinator: how many processes there are."""
    process: int = 0
    """With --coordinator: the number of this one, from 0. The first one writes the run."""

    def join(self) -> None:
        """Meet the others, before JAX computes anything."""
        if self.coordinator is None:
            if (self.processes, self.process) != (1, 0):
                raise UsageError("Several processes meet somewhere: add --coordinator HOST:PORT.")
            return
        if not 0 <= self.process < self.processes:
            raise UsageError(f"process must lie between 0 and processes - 1, not {self.process} of {self.processes}.")
        import jax

        try:
            jax.distributed.initialize(self.coordinator, self.processes, self.process)
        except (RuntimeError, ValueError) as error:
            raise UsageError(f"The processes did not meet at {self.coordinator}: {reason(error)}.") from error

    @property
    def first(self) -> bool:
        return self.process == 0

    @contextlib.contextmanager
    def place(self, out: Path | None, resumed: bool = False) -> Iterator[Path | None]:
        """Where this process writes: `out`, or for all but the first a directory that is thrown away.

        resumed: whether there is a run at `out` already, of which all but the first get a copy.
        """
        if self.first:
            yield out
            return
        with tempfile.TemporaryDirectory(prefix="flockrl-process-") as folder:
            path = Path(folder) / "run"
            if resumed and out is not None:
                shutil.copytree(out, path, ignore=shutil.ignore_patterns("lock", "*.tmp"))
            yield path
