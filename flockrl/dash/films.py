"""Films of trained teams, made on request by a process of their own: the server itself needs no JAX."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flockrl.dash.files import plain, read_object

KEPT = 6
"""Films that are kept."""
PATIENCE = 600.0
"""Seconds after which a film that is not ready is given up."""
NAME = re.compile(r"film\.gif|\d{1,4}\.png")


class Films:
    """One is made at a time; asking for another ends it. They lie in a directory that goes with the server."""

    def __init__(self) -> None:
        self._home: Path | None = None
        self._made: dict[str, Path] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._now, self._began, self._count = "", 0.0, 0

    def begin(self, run: Path, wish: Mapping[str, str]) -> dict[str, Any]:
        """Start to film an episode. wish: its seed, whether to explore."""
        self._end()
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="flockrl-films-"))
        self._count += 1
        name, seed = f"f{self._count}", wish.get("seed", "0")
        out = self._home / name
        out.mkdir()
        words = ["--seed", seed if re.fullmatch(r"\d{1,9}", seed) else "0"]
        words += ["--explore"] if wish.get("explore") == "1" else []
        command = [sys.executable, "-m", "flockrl.dash.film", str(run), str(out), *words]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._made[name], self._now, self._began = out, name, time.monotonic()
        for old in list(self._made)[:-KEPT]:
            shutil.rmtree(self._made.pop(old), ignore_errors=True)
        return {"film": name}

    def state(self, name: str) -> dict[str, Any]:
        """A film and all that is known of its steps, or how far it is, or why there is none."""
        out = self._made.get(name)
        if out is None:
            return {"trouble": "This film is no longer kept: ask for it again."}
        told = read_object(out / "trouble.json")
        if told:
            return {"trouble": plain(str(told.get("text", "")))}
        if (out / "film.json").is_file():
            return {"film": name, **json.loads((out / "film.json").read_text())}
        if name != self._now or self._process is None or self._process.poll() is not None:
            return {"trouble": "The process that films it ended."}
        if time.monotonic() - self._began > PATIENCE:
            self._end()
            return {"trouble": f"It was not ready after {PATIENCE:.0f} seconds."}
        return {"waiting": round(time.monotonic() - self._began, 1)}

    def file(self, name: str, part: str) -> Path | None:
        """A picture of a film."""
        out = self._made.get(name)
        found = out / part if out is not None and NAME.fullmatch(part) else None
        return found if found is not None and found.is_file() else None

    def _end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        self._process = None

    def close(self) -> None:
        self._end()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
