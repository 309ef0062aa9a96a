"""Plots of a run. matplotlib is imported only here, when a plot is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.rundir import read_metrics
from flockrl.envs.api import Paths


def draw_curve(runs: Sequence[Path], file: Path) -> None:
    """Learning curves of one run, or of several seeds with their mean: evaluation and training return."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    one = len(runs) == 1
    curves = []
    for path in runs:
        rows = read_metrics(path)
        train = [(r["step"], r["return"]) for r in rows if r.get("return") is not None]
        tests = [
            (r["step"], r["eval_return"], r["eval_return_std"], r["eval_episodes"]) for r in rows if "eval_return" in r
        ]
        if not tests:  # trained on recordings of an environment that cannot be built here
            name = "loss" if "loss" in rows[-1] else "critic_loss"
            axes.plot(*np.array([(r["step"], r[name]) for r in rows if name in r]).T, color="#0b6e99", label=name)
            continue
        steps, means, stds, counts = np.array(tests).T
        curves.append((steps, means))
        if one and train:
            axes.plot(*np.array(train).T, color="#9aa5b1", lw=1.2, label="training (sampling)")
        if one:
            error = 1.96 * stds / np.sqrt(counts)
            axes.fill_between(steps, means - error, means + error, color="#0b6e99", alpha=0.2, lw=0)
        axes.plot(steps, means, color="#0b6e99", lw=2.0 if one else 0.8, alpha=1 if one else 0.4,
                  label="evaluation (greedy), 95% interval" if one else None)  # fmt: skip
    if not one and curves:
        length = min(len(means) for _, means in curves)
        steps, table = curves[0][0][:length], np.array([means[:length] for _, means in curves])
        axes.fill_between(steps, *mean_interval(table), color="#0b6e99", alpha=0.2, lw=0)
        label = f"mean of {len(runs)} seeds with 95% interval, evaluation (greedy)"
        axes.plot(steps, table.mean(0), color="#0b6e99", lw=2.2, label=label)
    config = _title(runs[0])
    axes.set_title(config, loc="left", fontsize=11)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episode return, mean over agents" if curves else "loss")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(file)


def mean_interval(table: np.ndarray, draws: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Ends [K] of the 95% bootstrap interval of the mean over seeds. table: [seeds, K]."""
    chosen = np.random.default_rng(0).integers(len(table), size=(draws, len(table)))
    low, high = np.percentile(table[chosen].mean(axis=1), (2.5, 97.5), axis=0)
    return low, high


def _title(path: Path) -> str:
    import json

    config = json.loads((path / "config.json").read_text())
    return f"{config['algorithm']} on {config['env']}"


def draw_paths(panels: dict[str, Paths], file: Path, title: str) -> None:
    """One panel per episode: landmarks are rings, agents are discs at their last place and open circles at their first,
    with a dot for each step between."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(panels), 4.6), dpi=150, layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
    for axes, (heading, paths) in zip(grid, panels.items(), strict=True):
        for place, size, paint in zip(paths.marks, paths.mark_sizes, paths.mark_paint, strict=True):
            _disc(axes, place, size, (*paint[:3], 0.25), tuple(paint), 1.5, 1)
        for i, color in enumerate(map(tuple, _shades(paths.paint))):
            x, y = paths.walked[:, i].T
            axes.plot(x, y, "-", color=color, lw=1.4, alpha=0.8, zorder=2)
            axes.plot(x, y, "o", color=color, ms=2.2, mew=0, zorder=3)
            _disc(axes, (x[0], y[0]), paths.sizes[i] / 3, "white", color, 1.3, 4)
            _disc(axes, (x[-1], y[-1]), paths.sizes[i], (*color, 0.55), color, 1.0, 5)
            axes.annotate(str(i), (x[-1], y[-1]), ha="center", va="center", fontsize=7, zorder=6)
        axes.set_title(heading, loc="left", fontsize=10)
        axes.set_aspect("equal")
        axes.grid(alpha=0.25)
        axes.tick_params(labelsize=8)
    grid[0].set_xlim(*_limits(grid[0].get_xlim()))
    grid[0].set_ylim(*_limits(grid[0].get_ylim()))
    figure.suptitle(title, fontsize=11)
    figure.savefig(file)


def _disc(axes: Any, place: Any, radius: float, fill: Any, edge: Any, width: float, order: int) -> None:
    from matplotlib.patches import Circle

    axes.add_patch(Circle(place, radius, facecolor=fill, edgecolor=edge, lw=width, zorder=order))


def _shades(paint: np.ndarray) -> np.ndarray:
    """[N, 3] colours; agents of the same colour get darker one after the other, so that paths can be told apart."""
    alike = [[j for j in range(len(paint)) if (paint[j] == paint[i]).all()] for i in range(len(paint))]
    light = [1.0 - 0.6 * same.index(i) / max(len(same) - 1, 1) for i, same in enumerate(alike)]
    return paint[:, :3] * np.array(light)[:, None]


def _limits(ends: tuple[float, float]) -> tuple[float, float]:
    """Axis limits that include the square in which episodes begin."""
    return min(ends[0], -1.1), max(ends[1], 1.1)
