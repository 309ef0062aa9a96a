"""A picture of a population: scores of all seeds, who copied whom, and their settings over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flockrl.core.rundir import read_metrics


def draw_population(history: Sequence[Any], runs: Sequence[Path], scales: Mapping[str, bool], file: Path) -> None:
    """history: events with step, seeds, settings after it and, of rankings, scores and who copied whom; runs: of the
    seeds, in the same order; scales: the settings that vary, and whether each is drawn on a logarithmic scale."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6 * (len(scales) + 1)), dpi=130, layout="constrained")
    top, *below = figure.subplots(len(scales) + 1, 1, sharex=True, squeeze=False)[:, 0]
    seeds = history[0]["seeds"]
    colors = {seed: colormaps["viridis"](0.9 * i / max(len(seeds) - 1, 1)) for i, seed in enumerate(seeds)}
    metrics = [read_metrics(path) for path in runs]
    for seed, rows in zip(seeds, metrics, strict=True):
        points = [(row["step"], row["eval_return"]) for row in rows if "eval_return" in row]
        top.plot(*zip(*points, strict=True), color=colors[seed], lw=1.3, label=f"seed {seed}")
    for event in history:
        scores = dict(zip(seeds, event.get("scores", ()), strict=False))
        for word, source in event.get("copied", {}).items():
            ends = {"xy": (event["step"], scores[int(word)]), "xytext": (event["step"], scores[source])}
            top.annotate("", **ends, arrowprops={"arrowstyle": "->", "color": colors[source], "lw": 1.0})
    last = max((rows[-1]["step"] for rows in metrics if rows), default=0)
    for axes, (name, log) in zip(below, scales.items(), strict=True):
        for i, seed in enumerate(seeds):
            points = [(event["step"], event["settings"][i][name]) for event in history]
            points.append((last, points[-1][1]))
            axes.step(*zip(*points, strict=True), where="post", color=colors[seed], lw=1.3)
        axes.set_yscale("log" if log else "linear")
        axes.set_ylabel(name)
    top.set_ylabel("evaluation return")
    top.set_title("a population of seeds: an arrow leads from who was copied to who copied", loc="left", fontsize=10)
    below[-1].set_xlabel("environment steps")
    for axes in (top, *below):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    top.legend(frameon=False, fontsize=7, ncols=4, loc="lower right")
    figure.savefig(file)
