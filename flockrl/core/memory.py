"""Sizes of memory as people write them."""

from __future__ import annotations

import re

from flockrl.core.errors import UsageError

MEMORY = 1 << 30
"""Bytes that reading recorded trajectories may take unless told otherwise."""
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str | int) -> int:
    """Bytes from a number with or without a unit: 512MB, 1.5 GB, 1GiB, 2000000. 1 KB is 1024 bytes."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([kmgt]?)(?:i?b)?", str(text).strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"A size of memory is a number with KB, MB, GB or TB, such as 512MB, not {str(text)[:40]!r}.")
    size = int(float(match[1]) * UNITS[match[2].lower()])
    if size < 1 << 20:
        raise UsageError(f"A limit of memory must be at least 1MB, not {str(text)[:40]!r}.")
    return size
