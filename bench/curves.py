"""Learning curves and a table of a finished benchmark, as in docs/benchmarks.md.

    python bench/curves.py RUNS... --out FOLDER

Writes curves-ENVIRONMENT.png for each environment: interquartile mean of the greedy evaluations over seeds with its
pointwise 95% interval. Prints the table as Markdown, with the curve at several steps. Needs the extra `report`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flockrl.evidence import statistics
from flockrl.evidence.records import collect, protocol
from flockrl.evidence.summary import Line, lines
from flockrl.evidence.svg import color, dash

START = 0.05
"""The vertical scale ignores this first part of a run, whose bad scores would flatten the rest."""


def shared(line: Line) -> tuple[np.ndarray, np.ndarray]:
    """Steps [K] at which all seeds were evaluated, and their scores [seeds, K]."""
    steps = np.array(sorted(set.intersection(*(set(record.steps.tolist()) for record in line.records))))
    return steps, np.stack([record.scores[np.isin(record.steps, steps)] for record in line.records])


def plot(env: str, found: Sequence[Line], file: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8, 4.8), dpi=130, layout="constrained")
    axes, floor, longest = figure.subplots(), list[float](), max(shared(line)[0][-1] for line in found)
    for i, line in enumerate(found):
        steps, scores = shared(line)
        band = statistics.curve(scores[:, None, :])
        style = "--" if dash(i) else "-"
        axes.plot(steps, band.value, style, color=color(i), lw=1.8, label=f"{line.label} ({line.seeds})")
        axes.fill_between(steps, band.low, band.high, color=color(i), alpha=0.15, lw=0)
        seen = steps >= START * longest
        floor += band.low[seen].tolist()
    top = axes.get_ylim()[1]
    axes.set_ylim(min(floor) - 0.05 * (top - min(floor)), top)
    axes.set(xlabel="environment steps", ylabel="episode return, mean over agents")
    axes.set_title(env, loc="left", fontsize=11)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower right", ncols=2, title="algorithm (seeds)", title_fontsize=8)
    figure.savefig(file)


def table(found: Sequence[Line], points: Sequence[int]) -> str:
    """Markdown: mean over seeds at some steps, interpolated between evaluations; the final IQM; every seed."""
    head = ["algorithm", "steps", *(f"at {step:,}" for step in points), "IQM [95% interval]", "seeds"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for line in sorted(found, key=lambda line: -line.figures["iqm"].value):
        steps, scores = shared(line)
        means = np.interp(points, steps, scores.mean(axis=0))
        seen = [f"{mean:.1f}" if step <= steps[-1] else "" for step, mean in zip(points, means, strict=True)]
        seeds = ", ".join(f"{record.final:.2f}" for record in line.records)
        rows.append("| " + " | ".join([f"`{line.label}`", line.steps, *seen, str(line.figures["iqm"]), seeds]) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the pictures")
    parser.add_argument("--at", nargs="*", type=int, default=[], help="steps at which the table shows the curve")
    given = parser.parse_args()
    records, unfinished = collect(given.runs)
    found = lines(records)
    given.out.mkdir(parents=True, exist_ok=True)
    for env in dict.fromkeys(line.env for line in found):
        here = [line for line in found if line.env == env]
        plot(env, here, given.out / f"curves-{re.sub(r'[^A-Za-z0-9_=-]+', '-', env)}.png")
        print(f"\n{env}\n\n{table(here, given.at)}")
    print(f"\n{protocol(records)}")
    for path in unfinished:
        print(f"{path} is unfinished and left out.")


if __name__ == "__main__":
    main()
