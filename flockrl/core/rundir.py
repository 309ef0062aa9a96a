"""The directory of a run: the names of its files, and how it is found, created, read and written. Needs no JAX."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flockrl.core.errors import CannotWrite, UsageError, notice

CONFIG, METRICS, RESULT, CURVE, CHECKPOINTS = (
    "config.json", "metrics.jsonl", "result.json", "curve.png", "checkpoints",
)  # fmt: skip
FAILURE = "failed.txt"
"""Why training failed, until it is resumed."""
POOLS = "pools.json"
"""What pools of learned responses have grown to."""
TRAINER = "trainer.json"
"""The configuration of a trainer."""
LARGEST = 16 << 20
"""Bytes that a configuration or a result may have: those that runs write have a few thousand."""
LONGEST_LOG = 1 << 30
"""Bytes that the log points of a run may have."""
EVALUATION = ("eval_return", "eval_return_std", "eval_episodes")
"""Numbers that every log point with an evaluation has."""


@contextlib.contextmanager
def new_directories(out: str | Path | None, name: str, seeds: list[int]) -> Iterator[list[Path]]:
    """Create the run's directory, or one per seed inside it. An existing run is never changed.

    What is created here is removed again if the run fails before it has logged anything.
    """
    base = Path(out) if out is not None else fresh(Path("runs") / name)
    refuse_run(base)
    paths = [base] if len(seeds) == 1 else [base / f"seed_{seed}" for seed in seeds]
    made = [p for p in dict.fromkeys(p for path in paths for p in (path, *path.parents)) if not p.exists()]
    before = {path: set(path.iterdir()) if path.is_dir() else set() for path in paths}
    try:
        create(paths)
        yield paths
    except BaseException:
        _undo(paths, before, made)
        raise


def refuse_run(base: Path) -> None:
    """Refuse a directory that holds a run, of one seed or several."""
    if (base / CONFIG).exists() or any(base.glob(f"seed_*/{CONFIG}")):
        raise UsageError(
            f"{base} already holds a run: resume it with `flockrl resume {base}`, or choose another --out."
        )


def create(paths: list[Path]) -> None:
    """Make directories, if there are none."""
    for path in paths:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"Cannot create {path}: {error.strerror}.") from error


def _undo(paths: list[Path], before: Mapping[Path, set[Path]], made: list[Path]) -> None:
    """Remove what a failed start left behind, unless it went far enough to log something."""
    if any((path / METRICS).exists() and (path / METRICS).stat().st_size for path in paths):
        return
    for path in paths:
        with contextlib.suppress(OSError):  # what went wrong before is what matters
            for left in set(path.iterdir()) - before[path] if path.is_dir() else ():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    for path in sorted(made, key=lambda p: len(p.parts), reverse=True):
        with contextlib.suppress(OSError):  # one that was never created keeps no other from being removed
            path.rmdir()


@contextlib.contextmanager
def noting_failure(paths: Sequence[Path]) -> Iterator[None]:
    """Write down in the runs' directories why training failed, for whoever was not there to see it."""
    for path in paths:
        with contextlib.suppress(OSError):
            (path / FAILURE).unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        for path in paths:
            with contextlib.suppress(OSError):  # what went wrong before is what matters
                (path / FAILURE).write_text(f"{str(error).strip() or type(error).__name__}\n")
        raise


def find_runs(path: str | Path) -> list[Path]:
    """The run at `path`, or the runs of several seeds below it."""
    base = Path(path)
    if not base.is_dir():
        raise UsageError(f"There is no run at {base}.")
    if (base / CONFIG).is_file():
        return [base]
    found = {p.parent: p.parent.name.removeprefix("seed_") for p in base.glob(f"seed_*/{CONFIG}")}
    seeds = {path: int(number) for path, number in found.items() if number.isascii() and number.isdecimal()}
    if not seeds:
        home = trainer_at(base)
        hint = (
            f" It is the data of a server or trainer, which goes on with `flockrl serve --data {base}` or Trainer.load."
        )
        raise UsageError(f"{base} is not a run: it has no {CONFIG}.{hint if home else ''}")
    return sorted(seeds, key=lambda path: seeds[path])


def trainer_at(path: Path) -> Path | None:
    """The directory of the trainer that was saved at `path`, or that belongs to the server whose data it holds."""
    if (path / CONFIG).is_file():
        return None
    return next((home for home in (path, path / "trainer") if (home / TRAINER).is_file()), None)


def fresh(base: Path) -> Path:
    """A path with this name, or with a number after it, where nothing is."""
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write the whole file or nothing."""
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(content, indent=2) + "\n")
        temporary.replace(path)
    except OSError as error:
        raise CannotWrite(f"Cannot write {path}: {error.strerror}.") from error


def per_side(row: Mapping[str, Any], what: str) -> dict[str, float]:
    """A figure of a log point ("return" or "eval_return") by side; {} where all agents play together."""
    found = {name.removeprefix(f"{what}_"): x for name, x in row.items() if name.startswith(f"{what}_")}
    return {name: x for name, x in found.items() if name not in ("std", "per_agent")}


def read_file(path: Path, most: int = LARGEST) -> bytes:
    """The bytes of a plain file of at most so many."""
    try:
        if not path.is_file() and path.exists():  # a device or a pipe may have no end
            raise UsageError(f"Cannot read {path}: it is no file.")
        with path.open("rb") as file:
            found = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
    if len(found) > most:
        raise UsageError(f"Cannot read {path}: it is larger than {most >> 20} MB.")
    return found


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The log points of a run. Lines that are none are skipped with a warning."""
    file = path / METRICS
    if not file.exists():
        return []
    lines = read_file(file, LONGEST_LOG).splitlines()
    rows = [_log_point(line) for line in lines if line]
    good = [row for row in rows if row is not None]
    if len(good) < len(rows):
        notice(f"{file}: {len(rows) - len(good)} of {len(rows)} lines are no log points and were skipped.")
    return good


def _log_point(line: bytes) -> dict[str, Any] | None:
    """A line as a log point: an object with a step, whose values are numbers or lists of them; else None."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not finite(row.get("step")) or not all(map(_figure, row.values())):
        return None
    if any(name == "eval_return" or name.startswith("eval_return_") for name in row):
        each = row.get("eval_return_per_agent")
        if not isinstance(each, list) or not all(finite(x) for x in (*map(row.get, EVALUATION), *each)):
            return None
    return row


def _figure(value: Any) -> bool:
    """Whether it is a number, a list of numbers, or None, which stands for a figure that is not known."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(x, float) or finite(x) for x in value)
    return value is None or isinstance(value, float) or finite(value)


def finite(value: Any) -> bool:
    """Whether it is a number that can be drawn and computed with."""
    return isinstance(value, int | float) and abs(value) < 2**63 and math.isfinite(value)


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds."""
    try:
        content = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"Cannot read {path}: {error}.") from error
    if not isinstance(content, dict):
        raise UsageError(f"Cannot read {path}: it must hold an object with named values.")
    return content
