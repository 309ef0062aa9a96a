"""The commands dash and watch: a page in the browser."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from flockrl.commands.parsing import parse
from flockrl.core.errors import UsageError, install

HOST = "127.0.0.1"


@dataclass(frozen=True)
class DashFlags:
    """What `flockrl dash` takes."""

    dirs: Annotated[tuple[Path, ...], Positional, tyro.conf.arg(metavar="DIR")] = (Path("runs"),)
    """Directories with runs, benchmarks and servers' data, at any depth."""
    port: int = 8787
    """Port on this machine; 0 takes a free one. Nothing outside of this machine can reach it."""
    open: bool = False
    """Open the page in the browser."""


@dataclass(frozen=True)
class WatchFlags:
    """What `flockrl watch` takes."""

    run: Annotated[Path, Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of a run, or of several seeds."""
    port: int = 8787
    """Port on this machine; 0 takes a free one. Nothing outside of this machine can reach it."""
    open: bool = False
    """Open the page in the browser."""


def dash(words: list[str]) -> int:
    about = "Show all runs below directories as a live page, on this machine alone."
    given = parse(DashFlags, words, "flockrl dash", about)
    for path in given.dirs:
        if not path.is_dir():
            raise UsageError(f"There is no directory {path}: name those that hold runs.")
    return _serve(given.dirs, given, "")


def watch(words: list[str]) -> int:
    about = "Watch episodes of a trained team in the browser: step by step, with what agents see, do and say."
    given = parse(WatchFlags, words, "flockrl watch", about)
    from flockrl.core.rundir import find_runs, trainer_at

    home = trainer_at(given.run) if given.run.is_dir() else None
    path = (find_runs(given.run)[0] if home is None else home).resolve()
    from_scan = _needed("flockrl.dash.scan").look([path])
    key = next((key for key, run in from_scan.runs.items() if run == path), None)
    if key is None:
        raise UsageError(f"The configuration of {path} is a link to another file, which the page does not follow.")
    return _serve([path], given, f"#/watch/{key}")


def _needed(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(f"The page needs {error.name}: {install('dash')}.") from error


def _serve(roots: Sequence[Path], given: Any, place: str) -> int:
    app, uvicorn = _needed("flockrl.dash.app"), _needed("uvicorn")
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, given.port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise UsageError(f"Port {given.port} cannot be used ({error}): choose another with --port.") from error
    address = f"http://{HOST}:{listening.getsockname()[1]}/{place}"
    print(f"{address} (Ctrl-C ends it)", flush=True)
    if given.open:
        import webbrowser

        webbrowser.open(address)
    config = uvicorn.Config(
        app.Dash(roots).app(), log_level="warning", timeout_graceful_shutdown=1, access_log=False, lifespan="on"
    )
    uvicorn.Server(config).run(sockets=[listening])
    return 0
