"""One cell of a benchmark in a process of its own: `python -m flockrl.evidence.cell`, started by the harness.

The first line of standard input is the task as JSON; the pipe then stays open as long as the harness runs. When the
pipe closes, this process ends too, so that it never writes to a cell which a restarted benchmark is running.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CELL = "cell.json"
LOCK = ".lock"


def main() -> int:
    work = json.loads(sys.stdin.readline())
    if work["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, work["cores"])  # before JAX counts its cores
    threading.Thread(target=_end_with_the_harness, daemon=True).start()
    from flockrl.core.errors import UsageError
    from flockrl.training.compilation import prepare

    path = Path(work["path"])
    path.mkdir(parents=True, exist_ok=True)
    try:
        prepare(work["platform"])
        with _alone(path):
            _run(path, work["run"])
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _run(path: Path, saved: dict[str, Any]) -> None:
    """Train, or continue from the newest checkpoint."""
    from flockrl.core.rundir import CONFIG, write_json
    from flockrl.training.train import resume, train

    if (path / CONFIG).is_file():
        resume(path, trust=True)  # the harness has compared its config with the suite's
    else:
        options = {k: v for k, v in saved.items() if k not in ("algorithm", "env", "config", "versions")}
        train(saved["algorithm"], saved["env"], out=path, **options, **saved["config"])
    write_json(path / CELL, {"peak_memory_mb": peak_memory_mb()})


def peak_memory_mb() -> float | None:
    """The largest resident size of this process so far; None where the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process works on this cell. The lock ends with the process that holds it."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (path / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _end_with_the_harness() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
