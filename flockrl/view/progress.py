"""What the terminal shows during training, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
from rich import progress as bars
from rich.console import Console
from rich.table import Table

from flockrl.core.callbacks import Callback, Moment
from flockrl.core.rundir import RESULT, per_side, read_json, read_metrics
from flockrl.core.types import EvalResult

if TYPE_CHECKING:
    from flockrl.training.config import RunConfig
    from flockrl.training.program import Program

COLUMNS = ("first eval", "best eval", "final eval", "steps/s")
QUIET = 30.0
"""Seconds after which a line is printed even without an evaluation."""


class Progress(Callback):
    """A live bar on a terminal; otherwise a printed line per evaluation, and one after `QUIET` seconds without any."""

    def __init__(self, run: RunConfig, program: Program, seeds: int, console: Console | None = None):
        self.console = console or Console()
        self.run, self.program, self.seeds = run, program, seeds
        self.evals: dict[int, list[dict[str, float]]] = {}
        """By seed, each evaluation's return by side; under "" where all agents play together."""
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
        if moment.step:  # the run goes on: its earlier evaluations count too
            scores = (_by_side(row, "eval_return") for row in read_metrics(moment.path))
            self.evals[moment.seed] = [score for score in scores if score]
        if self.task is not None:
            return
        seeds = f", {self.seeds} seeds" if self.seeds > 1 else ""
        where = moment.path if self.seeds == 1 else moment.path.parent
        spec, note = self.program.setting.spec, self.program.setting.algorithm.note
        note = f"{note}{' each' * (self.seeds > 1)}; " if note else ""
        how = f" {self.program.note}" if self.program.note else ""
        count = self.program.chosen.get("devices", 1)
        where_to = f"{count} {jax.default_backend()} devices" if count > 1 else jax.default_backend()
        self.console.print(
            f"[bold]{self.run.algorithm}[/] on [bold]{self.run.env}[/]: {spec.num_agents} agent"
            f"{'s' * (spec.num_agents > 1)}, {self.run.options.envs} environments{how}{seeds}; {note}"
            f"compiled for {where_to} in {self.program.compile_seconds:.1f} s; "
            f"writing to [bold]{where}[/]",
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
        tested, trained = _by_side(row, "eval_return"), _by_side(row, "return")
        fields: dict[str, Any] = {"speed": f"{row.get('steps_per_second', 0):,.0f}"}
        if trained:
            fields["score"] = _told(trained, 0)
        self.bar.update(self.task, completed=moment.step, **fields)
        if not self.console.is_terminal and (tested or time.monotonic() - self.said > QUIET):
            first = f"  eval {_told(tested, 8)}" if tested else " " * 15
            then = f"  return {_told(trained, 8)}" if trained else ""
            speed = f"  {row['steps_per_second']:9,.0f} steps/s" if "steps_per_second" in row else ""
            print(f"{moment.step:>11,}/{moment.steps:,} steps{first}{then}{speed}", flush=True)
            self.said = time.monotonic()

    def on_evaluation(self, moment: Moment, result: EvalResult) -> None:
        scores = _by_side(moment.metrics, "eval_return")
        self.evals.setdefault(moment.seed, []).append(scores)
        if moment.seed == self.run.options.seed:
            self.bar.update(self.task, test=_told(scores, 0))

    def on_end(self, moment: Moment) -> None:
        self.bar.stop()
        self.finals.append(moment)
        if len(self.finals) == self.seeds and (moment.step == moment.steps or moment.stop_reason):
            self.console.print(self._table())
            if moment.stop_reason:
                self.console.print(
                    f"Stopped at step {moment.step:,} of {moment.steps:,}: {moment.stop_reason}",
                    markup=False, highlight=False, soft_wrap=True,
                )  # fmt: skip
            where = moment.path if self.seeds == 1 else moment.path.parent
            named = not self.run.env.startswith(("custom/", "data/"))
            watch = f" Watch it: flockrl eval {moment.path} --gif episode.gif{self.run.trust}" if named else ""
            print(f"Curve: {where / 'curve.png'}.{watch}")

    def _table(self) -> Table:
        table = Table(title=f"{self.run.algorithm} on {self.run.env}", title_justify="left")
        sides = list(next(iter(self.evals.values()), [{"": 0.0}])[0])
        for name in ("seed", "steps", *(["side"] if len(sides) > 1 else []), *COLUMNS):
            table.add_column(name, justify="right")
        for moment in self.finals:
            speed = f"{_speed(moment):,.0f}"
            for side in sides:
                scores = [scores[side] for scores in self.evals.get(moment.seed, [])]
                shown = [f"{x:.2f}" for x in (scores[0], max(scores), scores[-1])] if scores else ["-"] * 3
                table.add_row(str(moment.seed), f"{moment.step:,}", *([side] if len(sides) > 1 else []), *shown, speed)
        table.caption = "episode return, mean over agents; evaluation is greedy"
        return table


def _by_side(row: Mapping[str, Any], what: str) -> dict[str, float]:
    """A figure of a log point by side, or under "" where all agents play together; {} where it is not there."""
    return per_side(row, what) or ({"": row[what]} if row.get(what) is not None else {})


def _speed(moment: Moment) -> float:
    """Steps per second over the whole run, where it is finished."""
    file = moment.path / RESULT
    known = read_json(file) if file.exists() else moment.metrics
    return known.get("steps_per_second", 0.0)


def _told(scores: Mapping[str, float], width: int) -> str:
    return "  ".join(f"{side} {x:{width}.2f}" if side else f"{x:{width}.2f}" for side, x in scores.items())
