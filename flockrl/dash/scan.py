"""What there is below the given directories: runs, benchmarks, searches, servers. Links are not followed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flockrl.core.lock import LOCK
from flockrl.core.rundir import CONFIG, TRAINER

DEPTH, MOST = 8, 20_000
"""Levels below a given directory, and directories in all, that are looked at."""
RUNS = 2000
"""Runs that are shown."""
FRESH = 1.0
"""Seconds for which what was found is taken to hold."""
SUITE, CELLS, ADDRESS, SPEC, SEARCH = "suite.json", "cells", "address", "spec.json", "search.jsonl"


@dataclass
class Found:
    """Directories by the names under which a page asks for them. cut: whether there are more than are looked at."""

    runs: dict[str, Path] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    """Where each is, relative to the directory that was given."""
    benches: dict[str, Path] = field(default_factory=dict)
    relays: dict[str, Path] = field(default_factory=dict)
    studies: dict[str, Path] = field(default_factory=dict)
    cut: bool = False


class Scan:
    """Looks through directories, and again when what it found is no longer fresh."""

    def __init__(self, roots: Sequence[Path]):
        self.roots = [root.resolve() for root in roots]
        self._found, self._until = Found(), 0.0

    def __call__(self) -> Found:
        began = time.monotonic()
        if began >= self._until:
            self._found = look(self.roots)
            took = time.monotonic() - began
            self._until = began + max(FRESH, 10 * took)  # where looking takes long, it is done less often
        return self._found


def look(roots: Sequence[Path]) -> Found:
    found, seen = Found(), 0
    for number, root in enumerate(roots):
        for path, names in walk(root, DEPTH):
            seen += 1
            if seen > MOST or len(found.runs) >= RUNS:
                found.cut = True
                return found
            inside = path.relative_to(root)
            key = hashlib.sha256(f"{number}/{inside}".encode(errors="surrogateescape")).hexdigest()[:12]
            title = (str(inside) if inside.parts else root.name).encode(errors="replace").decode()
            kinds = {
                CONFIG: found.runs, TRAINER: found.runs, SUITE: found.benches, ADDRESS: found.relays,
                SEARCH: found.studies,
            }  # fmt: skip
            for name, kind in kinds.items():
                if name in names and (name != ADDRESS or SPEC in names):
                    kind[key], found.titles[key] = path, title
    return found


def walk(path: Path, depth: int) -> Iterator[tuple[Path, set[str]]]:
    """Directories from `path` down with the names of their files. Below a run there is nothing to look for."""
    files, below = set(), []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_symlink():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                else:
                    files.add(entry.name)
    except OSError:
        return
    yield path, files
    if depth and CONFIG not in files and TRAINER not in files:
        for name in sorted(below):
            if not name.startswith("."):
                yield from walk(path / name, depth - 1)


def held_locks() -> set[tuple[int, int]] | None:
    """Device and inode of every locked file; None where the system does not tell."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
        places = [line.split()[5].split(":") for line in lines if " FLOCK " in line and "->" not in line]
        return {(os.makedev(int(major, 16), int(minor, 16)), int(inode)) for major, minor, inode in places}
    except (OSError, ValueError, IndexError):
        return None


def is_held(path: Path, held: set[tuple[int, int]] | None) -> bool | None:
    """Whether a process works in a directory. Asking must not take the lock, which would keep training from it."""
    if held is None:
        return None
    try:
        found = os.lstat(f"{path}/{LOCK}")
    except OSError:
        return False
    return (found.st_dev, found.st_ino) in held
