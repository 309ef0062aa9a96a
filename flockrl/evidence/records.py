"""Finished runs as records: found on disk, labelled so that they can be told apart, and written as tidy rows."""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.errors import CannotWrite, UsageError, reason
from flockrl.core.rundir import CONFIG, RESULT, TRAINER, finite, per_side, read_json, read_metrics, trainer_at
from flockrl.evaluation.metrics import converged_at, stability, team_metrics
from flockrl.evidence.cell import CELL
from flockrl.training import figures
from flockrl.training.config import NOT_SETTINGS
from flockrl.training.setup import saved_trainer

TEAM = (
    "eval_efficiency", "eval_welfare", "eval_welfare_min", "eval_welfare_nash", "eval_proportional_fairness",
    "eval_jain", "eval_gini", "eval_envy",
)  # fmt: skip
"""Team metrics by the names under which evaluations log them, in the order of the tables' columns."""

CELLS, SUITE = "cells", "suite.json"
"""Where a benchmark has its runs, and what it says about them."""
SERVED = "its returns are theirs, exploring, mean over the episodes since the log point before"
FIGURES = ("steps", "seconds", "steps_per_second")
"""Numbers that the result of every run has."""


@dataclass(frozen=True)
class Record:
    """A finished run. `label` is what its suite calls it, or its algorithm with the settings that differ among runs of
    that algorithm. `served`: it is what a server learned, and `evals` tell what its actors earned."""

    path: Path
    label: str
    algorithm: str
    env: str
    seed: int
    settings: dict[str, Any] = field(repr=False)
    versions: dict[str, str] = field(repr=False)
    evals: list[dict[str, Any]] = field(repr=False)
    result: dict[str, Any] = field(repr=False)
    served: bool = False
    cell: dict[str, Any] = field(default_factory=dict, repr=False)
    """What the benchmark that it belongs to measured of it."""
    chosen: str = field(default="", repr=False)
    """What its learner chose where a setting was left open."""

    @property
    def steps(self) -> np.ndarray:
        return np.array([row["step"] for row in self.evals])

    @property
    def scores(self) -> np.ndarray:
        """Evaluation returns over training, mean over agents and episodes."""
        return np.array([row["eval_return"] for row in self.evals])

    @property
    def final(self) -> float:
        return float(self.evals[-1]["eval_return"])

    @property
    def sampled(self) -> float | None:
        """The return of the trained policy when it explores; None where nobody measured that."""
        return self.cell.get("sampled", {}).get("eval_return")

    @property
    def measured(self) -> dict[str, float]:
        """What its environment itself measures, at the last evaluation: the share of battles won, for instance."""
        return {name: value for name, value in self.evals[-1].items() if _own_measure(name) and finite(value)}

    @property
    def sides(self) -> list[str]:
        """The sides whose returns are told apart; none where all agents play together."""
        return list(per_side(self.evals[-1], "eval_return"))

    @property
    def converged_at(self) -> float | None:
        return converged_at(self.steps, self.scores)

    @property
    def stability(self) -> float:
        return stability(self.scores)


def find(paths: Iterable[str | Path]) -> list[Path]:
    """Every run at or below the given directories, and the trainers that stand in them."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise UsageError(f"There is no run at {path}.")
        if home := trainer_at(path):
            found[home] = None
            continue
        below = [path / CONFIG] if (path / CONFIG).is_file() else sorted(path.rglob(CONFIG), key=_order)
        if not below:
            raise UsageError(f"{path} holds no runs: there is no {CONFIG} in it or below it.")
        found.update({file.parent: None for file in below})
    return list(found)


def collect(paths: Iterable[str | Path]) -> tuple[list[Record], list[Path]]:
    """The finished runs at or below `paths`, and the directories of unfinished ones."""
    unfinished, records = list[Path](), list[Record]()
    for path in find(paths):
        if trainer_at(path):
            records.append(_served(path))
        elif (path / RESULT).is_file():
            records.append(_read(path))
        else:
            unfinished.append(path)
    if not records:
        raise UsageError(f"No finished run: continue one with `flockrl resume {unfinished[0]}`.")
    return _named(records), unfinished


def _order(file: Path) -> tuple[Any, ...]:
    """A sort key that orders numbers by value: seed_10 after seed_9."""
    parts = (part.rpartition("_") for part in file.parts)
    return tuple(
        (head, int(tail), "") if tail.isascii() and tail.isdigit() else (head, -1, tail) for head, _, tail in parts
    )


def _read(path: Path) -> Record:
    saved, result = read_json(path / CONFIG), read_json(path / RESULT)
    evals = [row for row in read_metrics(path) if "eval_return" in row]
    plain = {k: v for k, v in saved.items() if k not in NOT_SETTINGS and k != "seed"}
    own, versions = saved.get("config"), saved.get("versions", {})
    name, env, seed = (saved.get(key) for key in ("algorithm", "env", "seed"))
    if not (isinstance(name, str) and isinstance(env, str) and isinstance(seed, int)):
        raise UsageError(f"{path} is not a readable run: {CONFIG} must name algorithm, env and seed.")
    if not (isinstance(own, dict) and isinstance(versions, dict)):
        raise UsageError(f"{path} is not a readable run: config and versions in {CONFIG} must be objects.")
    if not all(isinstance(result.get(key), int | float) for key in FIGURES):
        raise UsageError(f"{path} is not a readable run: {RESULT} must have the numbers {', '.join(FIGURES)}.")
    if not evals:
        raise UsageError(f"{path} has no evaluation in its metrics.")
    about = read_json(path / CELL) if (path / CELL).is_file() else {}
    sampled, peak = about.get("sampled", {"eval_return": 0}), about.get("peak_memory_mb", 0)
    if not (isinstance(sampled, dict) and finite(sampled.get("eval_return")) and (peak is None or finite(peak))):
        raise UsageError(f"{path / CELL} is damaged: remove that file, and the benchmark measures the run again.")
    label = _title(path) or name
    chosen = saved.get("chosen")
    learner = chosen.get("learner") if isinstance(chosen, dict) else None
    settings, learner = {**plain, **own}, learner if isinstance(learner, str) else ""
    return Record(path, label, name, env, seed, settings, versions, evals, result, cell=about, chosen=learner)


def _served(path: Path) -> Record:
    """What the trainer at `path` learned: a server evaluates nothing, so that the returns of the episodes that it was
    sent, played by exploring policies, stand in the place of evaluations."""
    saved = read_json(path / TRAINER)
    given = saved_trainer(saved)
    spec, name = given["spec"], given["algorithm"]
    sides = figures.parties(spec, given["hyperparams"])
    evals = []
    for row in read_metrics(path):
        each = row.get("return_per_agent")
        if isinstance(each, list) and len(each) == spec.num_agents and all(map(finite, (row.get("return"), *each))):
            told = {
                "eval_return": row["return"],
                "eval_return_per_agent": each,
                "eval_episodes": row.get("episodes", 0),
            }
            team = team_metrics(each, spec.groups)
            evals.append({**row, **told, **team, **figures.per_side(sides, "eval_return", each)})
    if not evals:
        raise UsageError(f"{path} was sent no whole episode yet: there is nothing to report.")
    where = path.resolve()
    home = where.parent.name if where.name == "trainer" else where.name
    own = saved.get("config") if "sides" not in saved else None
    settings = {"envs": saved["envs"], "steps": saved["steps"], **(own if isinstance(own, dict) else {})}
    result = {"steps": evals[-1]["step"], "seconds": math.nan, "steps_per_second": math.nan}
    return Record(path, f"{name} ({home})", name, spec.name, saved["seed"], settings, {}, evals, result, served=True)


def _title(path: Path) -> str:
    """What the suite of a benchmark calls one of its runs; empty where it has no name for it."""
    parts = path.resolve().parts
    file = Path(*parts[:-3], SUITE)
    if len(parts) < 4 or parts[-3] != CELLS or not file.is_file():
        return ""
    labels = read_json(file).get("labels")
    label = labels.get("/".join(parts[-2:])) if isinstance(labels, dict) else None
    return label if isinstance(label, str) else ""


def _named(records: list[Record]) -> list[Record]:
    """Add to each label the settings in which records of one algorithm on one environment differ. A label that a suite
    gave stays."""
    plain = [record for record in records if record.label == record.algorithm]
    names = {record.algorithm for record in plain}
    keys = {name: _differing([r for r in plain if r.algorithm == name]) for name in names}
    named, seen = [], dict[tuple[str, str, int], Path]()
    for record in records:
        differ = keys[record.algorithm] if record in plain else []
        marks = ", ".join(f"{key}={_short(record.settings.get(key))}" for key in differ)
        label = f"{record.algorithm} ({marks})" if marks else record.label
        twin = seen.setdefault((label, record.env, record.seed), record.path)
        if twin != record.path:
            raise UsageError(
                f"{twin} and {record.path} are the same experiment ({label} on {record.env}, seed {record.seed}): "
                "name only one of them."
            )
        named.append(Record(**{**vars(record), "label": label}))
    return named


def _differing(records: list[Record]) -> list[str]:
    """Settings in which runs on one environment differ."""
    found: dict[str, None] = {}
    for env in dict.fromkeys(record.env for record in records):
        same = [record.settings for record in records if record.env == env]
        for key in dict.fromkeys(key for settings in same for key in settings):
            if any(settings.get(key) != same[0].get(key) for settings in same):
                found[key] = None
    return list(found)


def _short(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def _own_measure(name: str) -> bool:
    """Whether this is the name of a figure that not every evaluation has."""
    return name.startswith("eval_") and not name.startswith(("eval_return", "eval_episodes")) and name not in TEAM


def protocol(records: Sequence[Record]) -> str:
    """How the scores were obtained, for the note below every table."""
    text = "Return: undiscounted episode return, mean over agents."
    if trained := [record for record in records if not record.served]:
        episodes = span({record.evals[-1]["eval_episodes"] for record in trained})
        steps = span({record.result["steps"] for record in trained})
        text += (
            f" Score of a seed: mean of {episodes} greedy episodes after its last update ({steps} environment steps), "
            "with random keys that training does not use."
        )
    if any(record.sampled is not None for record in records):
        text += " Sampled: as many episodes in which the trained policy explores."
    for record in records:
        text += f" {record.label} learned from what actors sent: {SERVED}." if record.served else ""
    return text


def span(values: set[int]) -> str:
    """One number, or the range from the smallest to the largest."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def tidy(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One row per evaluation. No column depends on time, so equal runs give equal rows."""
    own = dict.fromkeys(name for record in records for name in record.measured)
    names = ("eval_return", "eval_return_std", "eval_episodes", *TEAM, *own)
    rows = []
    for record in records:
        who = {"algorithm": record.label, "environment": record.env, "seed": record.seed}
        rows += [{**who, "step": row["step"], **{name: row.get(name) for name in names}} for row in record.evals]
    return rows


def write_csv(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Write the whole file or nothing; None is an empty field."""
    with _replacing(file) as temporary, temporary.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(rows: Sequence[dict[str, Any]], file: Path) -> bool:
    """Write the same rows as Parquet if pyarrow is installed. Returns whether it did."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return False
    with _replacing(file) as temporary:
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), temporary)
    return True


@contextlib.contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """A file to write beside this one, which takes its place when all of it is written."""
    temporary = file.with_suffix(".tmp")
    try:
        yield temporary
        temporary.replace(file)
    except OSError as error:
        raise CannotWrite(f"Cannot write {file}: {reason(error)}.") from error
