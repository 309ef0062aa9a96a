"""Published models by version, one directory each, which appears only when it is complete.

The file `identity` tells this trainer's versions from those of any other.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flockrl.relay.files import place_file


class Store:
    """Models under `path`; the newest `keep` are kept."""

    def __init__(self, path: Path, keep: int = 5) -> None:
        self.path, self._keep = Path(path), keep
        self.path.mkdir(parents=True, exist_ok=True)
        for part in self.path.glob("*.part"):
            shutil.rmtree(part)
        self.newest = max(self.versions, default=-1)
        """The newest version, -1 when there is none."""
        self.identity = _identity(self.path / "identity")
        self._lock = threading.Lock()
        self._read: tuple[int, list[tuple[str, bytes]]] | None = None

    @property
    def versions(self) -> list[int]:
        """Oldest first."""
        return sorted(int(folder.name) for folder in self.path.glob("[0-9]*") if folder.name.isdigit())

    def publish(self, version: int, write: Callable[[Path], Any]) -> bool:
        """Publish a version: `write` makes the model's directory. If the version is not newer than the newest, return
        False and change nothing."""
        folder = self.path / f"{version:010d}"
        if version <= self.newest:
            return False
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        write(part)
        part.rename(folder)
        with self._lock:
            self.newest = version
            for old in self.versions[: -self._keep]:
                shutil.rmtree(self.path / f"{old:010d}")
        return True

    def fetch(self, newer_than: int) -> list[bytes]:
        """A description in JSON, then each file of the newest model; no files if it is not newer than `newer_than`."""
        with self._lock:
            version = self.newest
            said = {"version": version, "identity": self.identity}
            if version <= newer_than or version < 0:
                return [json.dumps({**said, "files": []}).encode()]
            if self._read is None or self._read[0] != version:
                folder = self.path / f"{version:010d}"
                self._read = version, [(file.name, file.read_bytes()) for file in sorted(folder.iterdir())]
            files = self._read[1]
        about = [{"name": name, "sha256": hashlib.sha256(data).hexdigest()} for name, data in files]
        return [json.dumps({**said, "files": about}).encode(), *(data for _, data in files)]


def _identity(file: Path) -> str:
    """What a file says, made at random when there is nothing in it."""
    said = file.read_text(errors="replace").strip() if file.exists() else ""
    if not re.fullmatch(r"[0-9a-f]{32}", said):
        said = secrets.token_hex(16)
        place_file(file, said.encode())
    return said
