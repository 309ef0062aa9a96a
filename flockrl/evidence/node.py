"""A cell as a process, on this machine or on a node of a cluster. Needs neither JAX nor Ray, so that starting is quick
and nothing is forked that has threads."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

ERRORS = "errors.txt"
STOPPED = 130
"""The status of a cell that was asked to save and end."""


def start_cell(task: dict[str, Any], stdout: int = subprocess.DEVNULL) -> tuple[subprocess.Popen[str], IO[str]]:
    """Start a cell's process, see `evidence.cell`; the file takes what it complains about."""
    path = Path(task["path"])
    path.mkdir(parents=True, exist_ok=True)
    errors = (path / ERRORS).open("w+")
    process = subprocess.Popen(
        [sys.executable, "-m", "flockrl.evidence.cell"],
        stdin=subprocess.PIPE, stdout=stdout, stderr=errors, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it is gone, which its status says
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
    return process, errors


def end_cell(process: subprocess.Popen[str], errors: IO[str]) -> tuple[int, str]:
    """Wait for a cell: its status, and its last complaint. The file of one that has none is removed."""
    status = process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    errors.seek(0)
    lines = errors.read().strip().splitlines()
    errors.close()
    if status == 0:
        Path(errors.name).unlink(missing_ok=True)
        return 0, ""
    return status, lines[-1] if lines else f"its process ended with status {status}"


def tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it is gone, which its output says as well
        process.stdin.write(word + "\n")
        process.stdin.flush()


def unseen(marker: str) -> str:
    """What to say where this node does not see a file of the work's directory; empty where it does."""
    if Path(marker).is_file():
        return ""
    return f"{os.uname().nodename} does not see {Path(marker).parent}: choose an --out that all nodes share"


def run_cell(task: dict[str, Any], marker: str, cores: int) -> tuple[int, str]:
    """Run a cell on the node that this is called on, on cores of its own. Returns its status and its complaint.

    marker: a file of the benchmark's directory, which the node must see. Interrupted, the cell saves and ends.
    """
    if why := unseen(marker):
        return 1, why
    with claimed(cores) as own:
        process, errors = start_cell({**task, "cores": own})
        try:
            while process.poll() is None:
                time.sleep(0.1)  # Ray's interrupt comes between two instructions, never into a wait
            return end_cell(process, errors)
        except BaseException:
            process.terminate()
            end_cell(process, errors)
            raise


class Seat:
    """A trial on a node of a cluster, as a Ray actor: `begin`, and `go` after each answer, return what it asks next, or
    its last complaint when it has ended."""

    def __init__(self, task: dict[str, Any], marker: str, cores: int):
        self.task, self.marker, self.cores = task, marker, cores
        self.open = contextlib.ExitStack()
        self.process: subprocess.Popen[str] | None = None

    def begin(self) -> dict[str, Any] | str:
        if why := unseen(self.marker):
            return why
        own = self.open.enter_context(claimed(self.cores))
        self.process, self.errors = start_cell({**self.task, "cores": own}, subprocess.PIPE)
        return self._next()

    def go(self, word: str) -> dict[str, Any] | str:
        assert self.process is not None
        tell(self.process, word)
        return self._next()

    def _next(self) -> dict[str, Any] | str:
        assert self.process is not None
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return json.loads(line)
        self.open.close()
        return end_cell(self.process, self.errors)[1]

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()


@contextlib.contextmanager
def claimed(count: int) -> Iterator[list[int]]:
    """Cores of this machine that no other cell has; none where there are not enough. A claim ends with its process."""
    try:
        import fcntl
    except ImportError:
        yield []
        return
    folder = Path(tempfile.gettempdir()) / f"flockrl-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about, own = folder.lstat(), list[int]()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        yield []  # somebody else could have put links there, to files that opening would empty
        return
    with contextlib.ExitStack() as stack:
        for core in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ():
            file = stack.enter_context((folder / str(core)).open("a"))
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                own.append(core)
            if len(own) == count:
                break
        yield own if len(own) == count else []
