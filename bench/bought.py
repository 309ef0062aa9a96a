"""What a warm start bought: steps to a score, with and without it, over seeds.

    flockrl train mappo mpe/simple_spread:N=3 --net entities --seeds 5 --out runs/cold
    flockrl train mappo mpe/simple_spread:N=3 --net entities --seeds 5 --init-from runs/two --out runs/warm
    python bench/bought.py --without runs/cold/seed_* --with runs/warm/seed_* --level -13

A run's steps are those of its first evaluation that reaches the level; with a curriculum, in its last stage. A run that
never does counts with all its steps, so that means are then too low, and the last line says how many those are. The
ratio of the means has an interval of 95 %: seeds are drawn anew, with and without apart, 10,000 times. `--spent` adds
the steps of the run that the warm ones began with.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DRAWS = 10_000


class Reached(NamedTuple):
    """steps: [runs] until the level, or all of a run's steps where it was not `there` [runs]."""

    steps: np.ndarray
    there: np.ndarray


def reached(runs: Sequence[Sequence[dict[str, Any]]], metric: str, level: float, stages: Sequence[int] = ()) -> Reached:
    """From the log points of each run. stages: the number of each run's last stage, where it has a curriculum."""
    steps, there = [], []
    for rows, last in zip(runs, stages or [0] * len(runs), strict=True):
        own = [row for row in rows if row.get("stage", 0) == last]
        found = [row["step"] for row in own if row.get(metric) is not None and row[metric] >= level]
        steps.append(found[0] if found else rows[-1]["step"])
        there.append(bool(found))
    return Reached(np.array(steps, float), np.array(there))


def ratio(warm: np.ndarray, cold: np.ndarray) -> tuple[float, float, float]:
    """mean(warm) / mean(cold) and its interval, from seeds that are drawn anew."""
    draw = np.random.default_rng(0)
    means = [x[draw.integers(0, len(x), (DRAWS, len(x)))].mean(-1) for x in (warm, cold)]
    low, high = np.quantile(means[0] / np.maximum(means[1], 1.0), [0.025, 0.975])
    return float(warm.mean() / max(cold.mean(), 1.0)), float(low), float(high)


def main() -> None:
    import flockrl
    from flockrl.core.rundir import read_metrics
    from flockrl.training.stages import curriculum_of

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--with", dest="warm", nargs="+", required=True, help="runs with a warm start, each a seed")
    parser.add_argument("--without", nargs="+", required=True, help="runs without")
    parser.add_argument("--metric", default="eval_return")
    parser.add_argument("--level", type=float, required=True, help="the score that they should reach")
    parser.add_argument("--spent", type=int, default=0, help="steps of the run that the warm ones began with")
    given = parser.parse_args()
    found = {}
    for name, paths in (("without", given.without), ("with", given.warm)):
        runs = [read_metrics(Path(path)) for path in paths]
        if not all(runs):
            parser.error(f"{paths[[bool(rows) for rows in runs].index(False)]} has no log points.")
        stages = [curriculum_of(flockrl.Run(path).config.options) for path in paths]
        last = [0 if stage is None else len(stage.values) - 1 for stage in stages]
        found[name] = reached(runs, given.metric, given.level, last)
        listed = ", ".join(f"{x:.0f}{'' if ok else ' (not reached)'}" for x, ok in zip(*found[name], strict=True))
        print(f"{name:>8}: {found[name].steps.mean():10.0f} steps to {given.metric} {given.level:g} ({listed})")
    value, low, high = ratio(found["with"].steps + given.spent, found["without"].steps)
    seeds = f"{len(given.warm)} and {len(given.without)} seeds"
    print(f"   ratio: {value:10.2f} [{low:.2f}, {high:.2f}] of the steps, {seeds}")
    short = sum(int((~part.there).sum()) for part in found.values())
    if short:
        print(f"{short} runs did not reach it: their steps count as all they had.")


if __name__ == "__main__":
    main()
