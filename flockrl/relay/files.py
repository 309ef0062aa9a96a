"""Writing files so that they survive a crash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def write_all(file: Any, data: memoryview, at: int) -> None:
    """Write bytes at a position of a file."""
    while len(data):
        count = os.pwrite(file.fileno(), data, at)
        data, at = data[count:], at + count


def place_file(path: Path, content: bytes) -> None:
    """Write a file that replaces an older one all at once and is on disk afterwards."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
