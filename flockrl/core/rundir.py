"""The directory of a run: the names of its files, and how it is found, created, read and written. Needs no JAX."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flockrl.core.errors import UsageError

CONFIG, METRICS, RESULT, CURVE, CHECKPOINTS = (
    "config.json", "metrics.jsonl", "result.json", "curve.png", "checkpoints",
)  # fmt: skip


def new_directories(out: str | Path | None, name: str, seeds: list[int]) -> list[Path]:
    """Create the run's directory, or one per seed inside it. An existing run is never changed."""
    base = Path(out) if out is not None else _fresh(Path("runs") / name)
    if (base / CONFIG).exists() or any(base.glob(f"seed_*/{CONFIG}")):
        raise UsageError(
            f"{base} already holds a run: resume it with `flockrl resume {base}`, or choose another --out."
        )
    paths = [base] if len(seeds) == 1 else [base / f"seed_{seed}" for seed in seeds]
    try:
        for path in paths:
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"Cannot create {base}: {error.strerror}.") from error
    return paths


def find_runs(path: str | Path) -> list[Path]:
    """The run at `path`, or the runs of several seeds below it."""
    base = Path(path)
    if not base.is_dir():
        raise UsageError(f"There is no run at {base}.")
    if (base / CONFIG).is_file():
        return [base]
    found = sorted((p.parent for p in base.glob(f"seed_*/{CONFIG}")), key=lambda p: int(p.name.split("_")[1]))
    if not found:
        raise UsageError(f"{base} is not a run: it has no {CONFIG}.")
    return found


def _fresh(base: Path) -> Path:
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write the whole file or nothing."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)


def per_side(row: Mapping[str, Any], what: str) -> dict[str, float]:
    """A figure of a log point ("return" or "eval_return") by side; {} where all agents play together."""
    found = {name.removeprefix(f"{what}_"): x for name, x in row.items() if name.startswith(f"{what}_")}
    return {name: x for name, x in found.items() if name not in ("std", "per_agent")}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    file = path / METRICS
    return [json.loads(line) for line in file.read_text().splitlines() if line] if file.exists() else []


def read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"Cannot read {path}: {error}.") from error
