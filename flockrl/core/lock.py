"""A lock on a directory that one process writes to at a time. It ends with the process that holds it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from flockrl.core.errors import CannotWrite, UsageError

LOCK = "lock"


def lock(path: Path, wait: bool = False) -> IO[str]:
    """Lock the directory `path` until the file that is returned is closed. Where another process has it: an error, or
    wait for that one."""
    try:
        file = open(path / LOCK, "w")  # noqa: SIM115
    except OSError as error:
        raise CannotWrite(f"Cannot write to {path}: {error.strerror}.") from error
    try:
        import fcntl
    except ImportError:  # not on this system
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        file.close()
        raise UsageError(f"{path} is in use by another process.") from None
    return file


@contextlib.contextmanager
def locked(paths: Iterable[Path]) -> Iterator[None]:
    """Hold the locks of several directories."""
    with contextlib.ExitStack() as stack:
        for path in paths:
            stack.enter_context(lock(path))
        yield
