"""The file of growing pools: with which settings they grow, what was told of each round, and what policies get against
each other. The policies themselves are runs beside it, so that pools which were stopped go on exactly."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flockrl.core.errors import CannotWrite, UsageError
from flockrl.core.lock import LOCK, locked
from flockrl.core.rundir import (
    CHECKPOINTS,
    CONFIG,
    FAILURE,
    METRICS,
    POOLS,
    RESULT,
    create,
    finite,
    read_json,
    write_json,
)
from flockrl.games.psro import Meta
from flockrl.training.checkpoint import Checkpoints
from flockrl.training.interrupt import Interrupted
from flockrl.training.run import Run
from flockrl.training.train import resume

BEGUN = (CONFIG, METRICS, CHECKPOINTS, FAILURE, LOCK)
"""What stands in the directory of a run that has just begun."""


class Terms(NamedTuple):
    """What the numbers of pools depend on. env: its name, or "custom"; settings: the oracle's own."""

    env: str
    oracle: str
    oracle_steps: int
    iterations: int
    meta: Meta
    episodes: int
    envs: int
    seed: int
    settings: Mapping[str, Any]


class Ledger:
    """rounds: what was told of each round, in order; payoffs: [K, K, 2] after the last of them, None where there are
    more than two sides or no round ended."""

    def __init__(self, path: Path, terms: Terms):
        self.file, self.terms = path / POOLS, json.loads(json.dumps(terms._asdict(), default=str))
        self.rounds: list[list[Any]] = []
        self.payoffs: np.ndarray | None = None
        if self.file.exists():
            self._read()

    def _read(self) -> None:
        saved = read_pools(self.file.parent)
        for name, value in self.terms.items():
            if saved[name] != value:
                raise UsageError(
                    f"{self.file.parent} holds pools that grew with {name} {saved[name]}, not {value}: choose another "
                    "--out."
                )
        self.rounds, table = saved["rounds"], saved["payoffs"]
        self.payoffs = None if table is None else np.array(table, float)

    def note(self, row: tuple[Any, ...], payoffs: np.ndarray | None) -> None:
        """Write down a round that ended."""
        self.rounds, self.payoffs = [*self.rounds, list(row)], payoffs
        self.write()

    def write(self) -> None:
        table = None if self.payoffs is None else self.payoffs.tolist()
        write_json(self.file, {**self.terms, "rounds": self.rounds, "payoffs": table})


def read_pools(path: Path) -> dict[str, Any]:
    """What the file of pools says, checked."""
    saved = read_json(path / POOLS)
    missing = [name for name in (*Terms._fields, "rounds", "payoffs") if name not in saved]
    rounds: Any = saved.get("rounds")
    table = saved.get("payoffs")
    whole = [saved.get(name) for name in ("oracle_steps", "iterations", "episodes", "envs", "seed")]
    good = not missing and isinstance(rounds, list) and isinstance(saved["settings"], dict)
    good = good and all(isinstance(x, int) and not isinstance(x, bool) and finite(x) for x in whole)
    good = good and all(isinstance(saved[name], str) for name in ("env", "oracle", "meta"))
    if not good or len(rounds) > saved["iterations"] or not all(map(_round, rounds, range(1, len(rounds) + 1))):
        raise UsageError(f"{path / POOLS} is damaged: it does not describe pools of policies.")
    try:
        shape = None if table is None else np.array(table, float).shape
    except (TypeError, ValueError):
        shape = ()
    count = len(rounds) + 1
    lost = shape is None and any(row[2] is not None for row in rounds)
    if lost or shape not in (None, (count, count, 2)) or not np.isfinite(np.array(table or 0, float)).all():
        raise UsageError(f"{path / POOLS} is damaged: its payoffs are not those of {len(rounds)} rounds.")
    return saved


def _round(row: Any, number: int) -> bool:
    figures = row[1:] if isinstance(row, list) and len(row) == 3 and row[0] == number else ["none"]
    return all(x is None or finite(x) for x in figures)


@contextlib.contextmanager
def holding(path: Path, terms: Terms) -> Iterator[Ledger]:
    """The ledger of the directory `path`, which no other process holds meanwhile."""
    create([path])
    with locked([path]):
        ledger = Ledger(path, terms)
        ledger.write()
        try:
            yield ledger
        except Interrupted:
            raise Interrupted(f"Stopped and saved: continue with `flockrl resume {path}`.") from None


def left_off(path: Path, env: Any, trust: bool, anew: bool) -> Run | None:
    """A response that was begun, trained to its end; None where there is nothing to go on from. anew: whether it may
    begin again."""
    if (path / RESULT).is_file():
        return Run(path, env, trust)
    if not path.exists():
        return None
    with Checkpoints(path / CHECKPOINTS) as checkpoints:
        begun = bool(checkpoints.steps())
    if begun:
        return resume(path, env, trust=trust)
    if anew:
        _clear(path)
    return None


def _clear(path: Path) -> None:
    """Remove a run that was stopped before it saved what it begins with, and nothing else."""
    found = sorted(path.iterdir())
    odd = [file.name for file in found if file.name not in BEGUN or file.is_symlink()]
    if path.is_symlink() or path.parent.is_symlink() or odd:
        raise UsageError(f"{path} holds what no run wrote{f' ({odd[0]})' if odd else ''}: move it away.")
    try:
        for file in found:
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        path.rmdir()
    except OSError as error:
        raise CannotWrite(f"Cannot remove {path}: {error.strerror}.") from error
