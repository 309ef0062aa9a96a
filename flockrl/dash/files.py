"""Reading files that anybody may have written: only regular ones, never through a link, never more than a limit."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

LARGEST = 1 << 20
"""Bytes that a configuration or a result may have."""
DEPTH, LENGTH, TEXT = 8, 200, 300
"""Of a value that is shown: levels, entries of one level, characters of one text."""

Stamp = tuple[int, int, int]
"""Inode, size and time of a file: while these stay, its content is taken to stay."""


def open_file(path: Path) -> int | None:
    """A descriptor of a regular file, or None. A link, a pipe or a device is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def stamp(path: Path | str) -> Stamp | None:
    """What tells whether a file changed; None where there is no regular file."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def read_part(path: Path, offset: int, limit: int) -> bytes:
    """At most `limit` bytes from `offset`; nothing where that cannot be read."""
    descriptor = open_file(path)
    if descriptor is None:
        return b""
    try:
        return os.pread(descriptor, limit, max(offset, 0))
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def read_end(path: Path, limit: int) -> bytes:
    """At most the last `limit` bytes."""
    found = stamp(path)
    return b"" if found is None else read_part(path, found[1] - limit, limit)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds; {} where it holds none that can be read."""
    content = read_part(path, 0, LARGEST + 1)
    if len(content) > LARGEST:
        return {}
    return parse_object(content)


def parse_object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def plain(value: Any, depth: int = DEPTH) -> Any:
    """A value that can be sent as JSON and shown: texts and lists are cut, numbers that are not finite become texts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)[:TEXT]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value[:TEXT].encode(errors="replace").decode()
    if depth == 0:
        return "..."
    if isinstance(value, list):
        return [plain(x, depth - 1) for x in value[:LENGTH]]
    return {plain(str(name)): plain(x, depth - 1) for name, x in list(value.items())[:LENGTH]}


def text(value: Any) -> str:
    """A text, or ? where it is none."""
    return plain(value) if isinstance(value, str) else "?"


def flat(value: Any, before: str = "") -> dict[str, Any]:
    """Nested settings by names with dots."""
    found: dict[str, Any] = {}
    for name, x in value.items():
        found |= flat(x, f"{before}{name}.") if isinstance(x, dict) else {f"{before}{name}": x}
    return found


def number(value: Any) -> float | None:
    """A finite number, or None."""
    usable = isinstance(value, int | float) and abs(value) < 2**63 and math.isfinite(value)
    return value if usable else None
