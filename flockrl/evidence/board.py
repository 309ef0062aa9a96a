"""What the terminal shows of a benchmark: a live table while it runs, the results when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flockrl.core.errors import install
from flockrl.evidence import statistics
from flockrl.evidence.harness import Work
from flockrl.evidence.records import Record, protocol
from flockrl.evidence.summary import Line, best_lines, lines


class Board:
    """A live table on a terminal; otherwise a printed line for each cell that ends."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        self.ended = 0

    def __enter__(self) -> Board:
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def watch(self, works: Sequence[Work], ended: Work | None) -> None:
        if self.live:
            self.live.update(progress_table(works), refresh=True)
        elif ended is not None:
            over = sum(work.state in ("done", "failed") for work in works)
            _, score = ended.progress
            how = f"eval {score:.2f}" if ended.state == "done" and score is not None else f"failed: {ended.complaint}"
            print(f"[{over}/{len(works)}] {ended.cell.folder}  {how}", flush=True)


def progress_table(works: Sequence[Work]) -> Table:
    """A row per algorithm and environment: counts of done, running and failed cells, share of steps done, scores."""
    table = Table(title="benchmark", title_justify="left")
    for name in ("environment", "algorithm"):
        table.add_column(name)
    for name in ("done", "running", "failed", "steps", "eval so far"):
        table.add_column(name, justify="right")
    rows: dict[tuple[str, str], list[Work]] = {}
    for work in works:
        rows.setdefault((work.cell.env, work.cell.algorithm), []).append(work)
    for (env, algorithm), row in rows.items():
        counts = [sum(work.state == state for work in row) for state in ("done", "running", "failed")]
        seen = [work.progress for work in row if work.state in ("done", "running")]
        scores = [score for _, score in seen if score is not None]
        total = sum(work.cell.run.options.steps for work in row)
        part = min(1.0, sum(step for step, _ in seen) / total)
        shown = f"{np.mean(scores):.2f}" if scores else "-"
        table.add_row(env, algorithm, f"{counts[0]}/{len(row)}", str(counts[1]), str(counts[2]), f"{part:.0%}", shown)
    return table


def result_table(records: Sequence[Record]) -> Table:
    """The scores with their intervals, the best of each environment in bold, the protocol below."""
    found = lines(records)
    best = best_lines(found)
    table = Table(title="final scores over seeds, 95% bootstrap intervals", title_justify="left")
    for name in ("environment", "algorithm"):
        table.add_column(name)
    measures = list(dict.fromkeys(name for line in found for name in line.measured))
    shown = ("seeds", "steps", "IQM", "sampled", *(name.removeprefix("eval_") for name in measures))
    for name in (*shown, "95% there at", "steps/s", "seconds"):
        table.add_column(name, justify="right")
    for i, line in enumerate(found):
        style = "bold" if i in best else ""
        table.add_row(*_cells(line, first=i == 0 or found[i - 1].env != line.env, measures=measures), style=style)
    caution = statistics.caution(min(line.seeds for line in found))
    table.caption = Text(f"{protocol(records)} {caution}".strip())
    table.caption_justify = "left"
    return table


def _cells(line: Line, first: bool, measures: Sequence[str]) -> list[str]:
    at = line.converged_at
    return [
        line.env if first else "", line.label, str(line.seeds), line.steps, str(line.figures["iqm"]),
        "-" if line.sampled is None else str(line.sampled),
        *(str(line.measured[name]) if name in line.measured else "-" for name in measures),
        "-" if at is None else f"{at:,.0f}", f"{line.steps_per_second:,.0f}", f"{line.seconds:,.0f}",
    ]  # fmt: skip


def plain_table(records: Sequence[Record]) -> Table:
    """Mean and standard deviation over seeds, for when the extra `report` is not installed."""
    table = Table(title="final scores over seeds", title_justify="left")
    for name in ("environment", "algorithm", "seeds", "mean", "std"):
        table.add_column(name)
    scores: dict[tuple[str, str], list[float]] = {}
    for record in records:
        scores.setdefault((record.env, record.label), []).append(record.final)
    for (env, label), finals in sorted(scores.items()):
        table.add_row(env, label, str(len(finals)), f"{np.mean(finals):.2f}", f"{np.std(finals):.2f}")
    table.caption = Text(f"{protocol(records)} For intervals: {install('report')}.")
    table.caption_justify = "left"
    return table


def written(out: Path) -> str:
    """A line that names the files a benchmark wrote."""
    names = [name for name in ("results.csv", "results.parquet", "cells.csv", "summary.csv") if (out / name).is_file()]
    return f"{out}: {', '.join(names)}"
