"""Benchmarks as tables: a line per environment and algorithm with the mean over seeds and its interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.rundir import CONFIG, METRICS, RESULT
from flockrl.dash.curves import interval
from flockrl.dash.files import number, parse_object, plain, read_end, read_object, text
from flockrl.dash.scan import CELLS, SUITE

END = 1 << 17
MOST = 2000
"""Cells of a benchmark that are read."""


def table(path: Path) -> dict[str, Any]:
    """The finished cells of a benchmark, and how many there are to be."""
    suite = read_object(path / SUITE)
    cells = [cell for cell in _list(suite.get("cells")) if _inside(cell)][:MOST]
    labels = suite.get("labels") if isinstance(suite.get("labels"), dict) else {}
    scores: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        run = path / CELLS / cell
        if _linked(path, run):
            continue
        result, config = read_object(run / RESULT), read_object(run / CONFIG)
        score = number(result.get("final_eval_return"))
        if score is None or not config:
            continue
        label = labels.get(cell, config.get("algorithm"))  # type: ignore[union-attr]
        told = {"score": score, "steps": number(result.get("steps")), "speed": number(result.get("steps_per_second"))}
        last = _last(run / METRICS)
        more = {name: x for name, x in last.items() if name.startswith("eval_return_") and _side(name)}
        key = text(config.get("env")), text(label)
        scores.setdefault(key, []).append({**told, **more})
    rows = [_row(env, label, found) for (env, label), found in sorted(scores.items())]
    done = sum(len(found) for found in scores.values())
    about = {name: plain(suite.get(name)) for name in ("name", "question")}
    return {**about, "cells": len(cells), "done": done, "rows": rows}


def _row(env: str, label: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    values = np.array([x["score"] for x in found])
    low, high = interval(values[:, None]) if len(values) > 1 else (None, None)
    names = {name for x in found for name in x if name.startswith("eval_return_")}
    return {
        "env": env, "algorithm": label, "seeds": len(found), "mean": float(values.mean()),
        "low": None if low is None else float(low[0]), "high": None if high is None else float(high[0]),
        "best": float(values.max()), "worst": float(values.min()),
        "steps": _mean([x["steps"] for x in found]), "speed": _mean([x["speed"] for x in found]),
        "sides": {name.removeprefix("eval_return_"): _mean([x.get(name) for x in found]) for name in sorted(names)},
    }  # fmt: skip


def _mean(values: list[Any]) -> float | None:
    known = [x for x in values if x is not None]
    return float(np.mean(known)) if known else None


def _side(name: str) -> bool:
    return name not in ("eval_return_std", "eval_return_per_agent")


def _last(file: Path) -> dict[str, float]:
    """The numbers of the last evaluation."""
    lines = read_end(file, END).splitlines()
    line = next((line for line in reversed(lines) if b'"eval_return"' in line), b"")
    return {name: x for name, x in parse_object(line).items() if number(x) is not None}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _inside(cell: Any) -> bool:
    """Whether the name of a cell stays below the benchmark."""
    if not isinstance(cell, str) or "\0" in cell or len(cell) > 300:
        return False
    parts = Path(cell).parts
    return bool(parts) and not Path(cell).is_absolute() and ".." not in parts


def _linked(base: Path, run: Path) -> bool:
    """Whether a link leads somewhere else on the way from the benchmark to its cell."""
    return run.resolve() != base.resolve() / run.relative_to(base)
