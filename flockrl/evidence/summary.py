"""Results of a benchmark: a line per environment and algorithm, and scores that can be averaged over environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flockrl.evidence import statistics
from flockrl.evidence.records import TEAM, Record, span
from flockrl.evidence.statistics import Estimate


@dataclass(frozen=True)
class Line:
    """One algorithm on one environment. `figures`: mean, median and iqm of the seeds' final scores. `sampled`: the iqm
    of what their policies earn when they explore; None where not every seed was played so. `measured`: the iqm of what
    the environment itself measures, by name."""

    env: str
    label: str
    records: tuple[Record, ...]
    figures: dict[str, Estimate]
    sampled: Estimate | None = None
    measured: dict[str, Estimate] = field(default_factory=dict)

    @property
    def seeds(self) -> int:
        return len(self.records)

    @property
    def steps(self) -> str:
        """Environment steps of its runs."""
        return span({record.result["steps"] for record in self.records})

    @property
    def converged_at(self) -> float | None:
        """The median of the seeds' `converged_at`; None when fewer than half of the curves rose at all."""
        found = [record.converged_at for record in self.records]
        known = sorted(np.inf if step is None else step for step in found)
        middle = known[(len(known) - 1) // 2]
        return None if np.isinf(middle) else float(middle)

    @property
    def stability(self) -> float:
        return float(np.mean([record.stability for record in self.records]))

    @property
    def steps_per_second(self) -> float:
        return float(np.mean([record.result["steps_per_second"] for record in self.records]))

    @property
    def seconds(self) -> float:
        """How long a run took, mean over seeds."""
        return float(np.mean([record.result["seconds"] for record in self.records]))

    @property
    def sides(self) -> list[str]:
        """Sides that oppose each other in its runs."""
        return self.records[0].sides

    def team(self, name: str) -> float | None:
        """A team metric at the last evaluation, mean over the seeds that have it; None when none has."""
        found = [r.evals[-1][name] for r in self.records if r.evals[-1].get(name) is not None]
        return float(np.mean(found)) if found else None


def lines(records: Sequence[Record]) -> list[Line]:
    """One line per environment and algorithm, in the order in which they appear."""
    found: dict[tuple[str, str], list[Record]] = {}
    for env in dict.fromkeys(record.env for record in records):
        for record in records:
            if record.env == env:
                found.setdefault((env, record.label), []).append(record)
    return [_line(env, label, seeds) for (env, label), seeds in found.items()]


def _line(env: str, label: str, seeds: Sequence[Record]) -> Line:
    figures = _figures([record.final for record in seeds])
    sampled = [record.sampled for record in seeds if record.sampled is not None]
    names = [name for name in seeds[0].measured if all(name in record.measured for record in seeds)]
    return Line(
        env, label, tuple(seeds), figures, _figures(sampled)["iqm"] if len(sampled) == len(seeds) else None,
        {name: _figures([record.measured[name] for record in seeds])["iqm"] for name in names},
    )  # fmt: skip


def _figures(scores: Sequence[float]) -> dict[str, Estimate]:
    return statistics.aggregate(np.array(scores)[:, None])


def leaders(found: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """From the lines of one environment: those with the highest IQM, and the others, best first."""
    ranked = sorted(found, key=lambda line: -line.figures["iqm"].value)
    top = ranked[0].figures["iqm"].value
    first = [line for line in ranked if line.figures["iqm"].value == top]
    return first, ranked[len(first) :]


def best_lines(found: Sequence[Line]) -> set[int]:
    """Positions of the lines that lead on their environment, unless all of its lines are equal."""
    best = set()
    for env in dict.fromkeys(line.env for line in found):
        own = [line for line in found if line.env == env]
        if any(line.sides for line in own):
            continue  # a mean over opponents ranks nobody
        first, others = leaders(own)
        best |= {i for i, line in enumerate(found) if others and line in first}
    return best


def summary_row(line: Line) -> dict[str, Any]:
    """A line as plain numbers, for summary.csv."""
    row: dict[str, Any] = {"environment": line.env, "algorithm": line.label, "seeds": line.seeds}
    for name, estimate in {**line.figures, "sampled_iqm": line.sampled}.items():
        value, low, high = estimate or (None, None, None)
        row |= {name: value, f"{name}_low": low, f"{name}_high": high}
    row |= {"converged_at": line.converged_at, "stability": line.stability}
    return row | {name: line.team(name) for name in TEAM}


def summary_rows(found: Sequence[Line]) -> list[dict[str, Any]]:
    """All lines, with a column for everything that any environment among them measures."""
    names = dict.fromkeys(name for line in found for name in line.measured)
    rows = []
    for line in found:
        told = {name: line.measured[name].value if name in line.measured else None for name in names}
        rows.append({**summary_row(line), **told})
    return rows


@dataclass(frozen=True)
class Scale:
    """What 0 and 1 mean on an environment."""

    low: float
    high: float
    known: bool
    """Whether `high` is the environment's stated maximum rather than the best seed here."""


def scale(records: Sequence[Record]) -> Scale:
    """0: untrained policies, mean over all runs. 1: the stated maximum, or else the best final score of any seed."""
    low = float(np.mean([record.scores[0] for record in records]))
    for record in records:
        share = record.evals[-1].get("eval_efficiency")
        if share:
            return Scale(low, record.final / share, True)
    return Scale(low, max(record.final for record in records), False)


def normalized(records: Sequence[Record]) -> tuple[dict[str, np.ndarray], dict[str, Scale]]:
    """Final scores of the algorithms that were run on every environment: label -> [runs, tasks].

    rliable needs the same number of runs on every task: each algorithm keeps the smallest number it has on any.
    """
    envs = list(dict.fromkeys(record.env for record in records))
    scales = {env: scale([r for r in records if r.env == env]) for env in envs}
    scores = {}
    for label, columns in _columns(records, envs).items():
        finals = [np.array([record.final for record in column]) for column in columns]
        scores[label] = np.stack(_on_scale(finals, envs, scales), axis=1)
    return scores, scales


def normalized_curves(records: Sequence[Record], scales: dict[str, Scale]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The curves of the same runs: label -> steps [K] at which every run was evaluated, scores [runs, tasks, K] there.

    Algorithms with fewer than two such steps are left out.
    """
    curves = {}
    for label, columns in _columns(records, list(scales)).items():
        shared = set.intersection(*(set(record.steps.tolist()) for column in columns for record in column))
        steps = np.array(sorted(shared))
        if len(steps) > 1:
            tables = [np.stack([r.scores[np.isin(r.steps, steps)] for r in column]) for column in columns]
            curves[label] = steps, np.stack(_on_scale(tables, list(scales), scales), axis=1)
    return curves


def at_shared_steps(tables: Sequence[Mapping[float, float]]) -> tuple[np.ndarray, np.ndarray] | None:
    """Steps [K] that all seeds have, and a figure [seeds, K] there; None if there are fewer than two.

    tables: by seed, the figure by step.
    """
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    if len(steps) < 2:
        return None
    return np.array(steps), np.array([[table[step] for step in steps] for table in tables])


def _columns(records: Sequence[Record], envs: Sequence[str]) -> dict[str, list[list[Record]]]:
    """The algorithms that were run on every environment: label -> runs on each environment, equally many."""
    found = {}
    for label in dict.fromkeys(record.label for record in records):
        columns = [[r for r in records if r.label == label and r.env == env] for env in envs]
        runs = min(map(len, columns))
        if runs:
            found[label] = [column[:runs] for column in columns]
    return found


def _on_scale(parts: Sequence[np.ndarray], envs: Sequence[str], scales: dict[str, Scale]) -> list[np.ndarray]:
    return [
        statistics.normalize(part, scales[env].low, scales[env].high) for part, env in zip(parts, envs, strict=True)
    ]
