"""What the terminal shows during training, and the table at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich import progress as bars
from rich.console import Console
from rich.table import Table

from flockrl.core.callbacks import Callback, Moment
from flockrl.core.types import EvalResult

if TYPE_CHECKING:
    from flockrl.training.config import RunConfig
    from flockrl.training.program import Program

QUIET = 30.0
"""Seconds after which a line is printed even without an evaluation."""


class Progress(Callback):
    """A live bar on a terminal; otherwise a printed line per evaluation, and one after `QUIET` seconds without any."""

    def __init__(
        self, run: RunConfig, program: Program, seeds: int, drawable: bool = False, console: Console | None = None
    ):
        self.console = console or Console()
        self.run, self.program, self.seeds, self.drawable = run, program, seeds, drawable
        self.evals: dict[int, list[tuple[int, float]]] = {}
        self.bar = bars.Progress(
            bars.TextColumn("{task.completed:>11,.0f}/{task.total:,.0f} steps"),
            bars.BarColumn(bar_width=24),
            bars.TextColumn("{task.fields[speed]} steps/s  return {task.fields[score]}  eval {task.fields[test]}"),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(),
            console=self.console,
        )
        self.task: Any = None
        self.finals: list[Moment] = []
        self.said = 0.0

    def on_start(self, moment: Moment) -> None:
        if self.task is not None:
            return
        seeds = f", {self.seeds} seeds" if self.seeds > 1 else ""
        where = moment.path if self.seeds == 1 else moment.path.parent
        spec, note = self.program.setting.spec, self.program.setting.algorithm.note
        note = f"{note}{' each' * (self.seeds > 1)}; " if note else ""
        how = f" {self.program.note}" if self.program.note else ""
        self.console.print(
            f"[bold]{self.run.algorithm}[/] on [bold]{self.run.env}[/]: {spec.num_agents} agent"
            f"{'s' * (spec.num_agents > 1)}, {self.run.options.envs} environments{how}{seeds}; {note}"
            f"compiled in {self.program.compile_seconds:.1f} s; writing to [bold]{where}[/]",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        if self.program.fresh:
            self.console.print(f"{self.program.fresh} episodes could not be continued: they start from the beginning.")
        self.task = self.bar.add_task("", total=moment.steps, completed=moment.step, speed="-", score="-", test="-")
        if self.console.is_terminal:
            self.bar.start()

    def on_iteration(self, moment: Moment) -> None:
        if self.seeds > 1 and moment.seed != self.run.options.seed:
            return
        row = moment.metrics
        score = row.get("return")
        fields: dict[str, Any] = {"speed": f"{row.get('steps_per_second', 0):,.0f}"}
        if score is not None:
            fields["score"] = f"{score:.2f}"
        self.bar.update(self.task, completed=moment.step, **fields)
        if not self.console.is_terminal and ("eval_return" in row or time.monotonic() - self.said > QUIET):
            tested = f"  eval {row['eval_return']:8.2f}" if "eval_return" in row else " " * 15
            trained = "" if score is None else f"  return {score:8.2f}"
            speed = f"  {row['steps_per_second']:9,.0f} steps/s" if "steps_per_second" in row else ""
            print(f"{moment.step:>11,}/{moment.steps:,} steps{tested}{trained}{speed}", flush=True)
            self.said = time.monotonic()

    def on_evaluation(self, moment: Moment, result: EvalResult) -> None:
        self.evals.setdefault(moment.seed, []).append((moment.step, result.mean))
        if moment.seed == self.run.options.seed:
            self.bar.update(self.task, test=f"{result.mean:.2f}")

    def on_end(self, moment: Moment) -> None:
        self.bar.stop()
        self.finals.append(moment)
        if (len(self.finals) == self.seeds and moment.step == moment.steps) or moment.stop_reason:
            self.console.print(self._table())
            where = moment.path if self.seeds == 1 else moment.path.parent
            watch = f" Watch it: flockrl eval {moment.path} --gif episode.gif" if self.drawable else ""
            print(f"Curve: {where / 'curve.png'}.{watch}")

    def _table(self) -> Table:
        table = Table(title=f"{self.run.algorithm} on {self.run.env}", title_justify="left")
        for name in ("seed", "steps", "first eval", "best eval", "final eval", "steps/s"):
            table.add_column(name, justify="right")
        for moment in self.finals:
            scores = [score for _, score in self.evals.get(moment.seed, [])]
            shown = [f"{x:.2f}" for x in (scores[0], max(scores), scores[-1])] if scores else ["-"] * 3
            speed = f"{moment.metrics.get('steps_per_second', 0):,.0f}"
            table.add_row(str(moment.seed), f"{moment.step:,}", *shown, speed)
        table.caption = "episode return, mean over agents; evaluation is greedy"
        return table
