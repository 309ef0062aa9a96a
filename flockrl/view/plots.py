"""Plots of a run. matplotlib is imported only here, when a plot is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.rundir import CONFIG, per_side, read_json, read_metrics
from flockrl.envs.api import Paths

COLORS = ("#0b6e99", "#c8553d", "#588157", "#7b2d8b", "#b08900")
"""One for each side."""


def draw_curve(runs: Sequence[Path], file: Path) -> None:
    """Learning curves of one run, or of several seeds with their mean: evaluation and training return, of each side
    where agents oppose each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    metrics = [read_metrics(path) for path in runs]
    tested = [[row for row in rows if "eval_return" in row] for rows in metrics]
    tested = [rows for rows in tested if rows] or [[]]
    sides = list(per_side(tested[0][0], "eval_return")) if tested[0] else []
    if not tested[0]:  # trained on recordings of an environment that cannot be built here
        _draw_loss(axes, metrics[0])
    for name, color in zip(sides or [""], COLORS, strict=False):
        if tested[0]:
            _draw_side(axes, metrics, tested, name, color)
    axes.set_title(_title(runs[0]), loc="left", fontsize=11)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episode return, mean over agents" if tested[0] else "loss")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="best" if sides else "lower right")
    figure.savefig(file)


def _draw_loss(axes: Any, rows: list[dict[str, Any]]) -> None:
    name = next((name for row in rows[-1:] for name in row if name.endswith("loss")), "")
    points = [(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
    if points:
        axes.plot(*np.array(points).T, color=COLORS[0], label=name)


def _draw_side(axes: Any, metrics: Sequence[Any], tested: Sequence[Any], side: str, color: str) -> None:
    """The curves of one side, or of all agents where `side` is empty."""
    one, last = len(tested) == 1, f"_{side}" if side else ""
    whose = f"{side}: " if side else ""
    points = [_points(rows, f"eval_return{last}") for rows in tested]
    curves = [np.array(found).T for found in points if found]
    if one:
        train = _points(metrics[0], f"return{last}")
        if train:
            axes.plot(*np.array(train).T, color=color if side else "#9aa5b1", lw=1.2, alpha=0.4 if side else 1,
                      label=f"{whose}training (sampling)")  # fmt: skip
        if not side:
            stds, counts = np.array([(row["eval_return_std"], row["eval_episodes"]) for row in tested[0]]).T
            error = 1.96 * stds / np.sqrt(counts)
            axes.fill_between(curves[0][0], curves[0][1] - error, curves[0][1] + error, color=color, alpha=0.2, lw=0)
        label = f"{whose}evaluation (greedy)" + ("" if side else ", 95% interval")
        axes.plot(*curves[0], color=color, lw=2.0, label=label)
        return
    for steps, means in curves:
        axes.plot(steps, means, color=color, lw=0.8, alpha=0.4)
    length = min(len(steps) for steps, _ in curves)
    table = np.array([means[:length] for _, means in curves])
    axes.fill_between(curves[0][0][:length], *mean_interval(table), color=color, alpha=0.2, lw=0)
    label = f"{whose}mean of {len(tested)} seeds with 95% interval, evaluation (greedy)"
    axes.plot(curves[0][0][:length], table.mean(0), color=color, lw=2.2, label=label)


def _points(rows: Sequence[Any], name: str) -> list[tuple[float, float]]:
    """(step, figure) of the log points that have it."""
    return [(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]


def mean_interval(table: np.ndarray, draws: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Ends [K] of the 95% bootstrap interval of the mean over seeds. table: [seeds, K]."""
    chosen = np.random.default_rng(0).integers(len(table), size=(draws, len(table)))
    low, high = np.percentile(table[chosen].mean(axis=1), (2.5, 97.5), axis=0)
    return low, high


def _title(path: Path) -> str:
    config = read_json(path / CONFIG)
    return f"{config.get('algorithm')} on {config.get('env')}"


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
