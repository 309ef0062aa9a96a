"""A search: Optuna proposes, trials report, and a file remembers, so that a killed search continues as if it never was.

The file is a list of events: a trial was proposed, it reported, it ended. Proposals follow from the seed and from what
happened before, so the search is rebuilt by doing the same again; nothing in the file is run, and no state of Optuna is
kept in it.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flockrl.core.errors import CannotWrite, UsageError, install
from flockrl.training.space import Dimension

SEARCH = "search.jsonl"
Sampler = Literal["tpe", "cmaes", "random"]
Pruner = Literal["median", "asha"]
STARTUP = 5
"""Trials that are never pruned by the median: those before so many are complete."""
REDUCTION = 3
"""Of the trials that reach a rung of ASHA, one in so many goes on."""


def optuna() -> Any:
    """The package, without its messages; an error that names the extra where it is missing."""
    try:
        import optuna
    except ImportError as error:
        raise UsageError(f"Tuning needs Optuna: {install('tune')}.") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Objective(NamedTuple):
    """A figure of evaluations that is to be large, or small."""

    name: str
    maximise: bool = True

    @property
    def sign(self) -> int:
        return 1 if self.maximise else -1


def read_objective(word: str) -> Objective:
    """NAME, or min:NAME."""
    return Objective(word.removeprefix("min:"), not word.startswith("min:"))


@dataclass
class Trial:
    """One set of settings and how it did. state: running, complete, pruned or failed.

    reports: the objectives' values by step; verdicts: whether the trial goes on after it. why: what went wrong.
    """

    number: int
    settings: dict[str, Any]
    state: str = "running"
    reports: dict[int, tuple[float, ...]] = field(default_factory=dict)
    verdicts: dict[int, bool] = field(default_factory=dict)
    why: str = ""

    @property
    def values(self) -> tuple[float, ...]:
        """The newest values of all objectives; () before the first evaluation."""
        return next(reversed(self.reports.values()), ())

    @property
    def value(self) -> float | None:
        """The newest value of the first objective."""
        return next(iter(self.values), None)


RETURN = (Objective("eval_return"),)


class Search:
    """The state of a search. `about` is what it is about; a file that is about something else is refused."""

    def __init__(
        self, out: Path, space: Sequence[Dimension], about: Mapping[str, Any], *, sampler: Sampler = "tpe",
        pruner: Pruner | None = None, seed: int = 0, every: int = 1, objectives: Sequence[Objective] = RETURN,
    ):  # fmt: skip
        """every: steps between evaluations, the first rung of ASHA."""
        self.space, self.trials, self.objectives = tuple(space), list[Trial](), tuple(objectives)
        self._optuna = optuna()
        if len(self.objectives) > 1 and pruner is not None:
            raise UsageError("Trials are pruned by one figure: leave out --prune, or name one --objective.")
        directions = ["maximize" if objective.maximise else "minimize" for objective in self.objectives]
        self.study = self._optuna.create_study(
            directions=directions, sampler=self._sampler(sampler, seed), pruner=self._pruner(pruner, every)
        )
        self._open: dict[int, Any] = {}
        self.path = out / SEARCH
        searched = {dimension.name: str(dimension) for dimension in self.space}
        header = {**about, "search": searched, "sampler": sampler, "pruner": pruner, "search_seed": seed}
        self._replay(json.loads(json.dumps(header)))

    def _sampler(self, name: Sampler, seed: int) -> Any:
        samplers = self._optuna.samplers
        if name == "random":
            return samplers.RandomSampler(seed=seed)
        if name == "tpe":
            return samplers.TPESampler(seed=seed)
        try:
            import cmaes  # type: ignore[import-untyped]  # noqa: F401
        except ImportError as error:
            raise UsageError(f"The sampler cmaes needs the package cmaes: {install('tune')}.") from error
        if len(self.objectives) > 1:
            raise UsageError("cmaes searches for one figure: use --sampler tpe, or name one --objective.")
        if any(dimension.choices for dimension in self.space):
            named = next(dimension.name for dimension in self.space if dimension.choices)
            raise UsageError(f"cmaes searches ranges of numbers, and {named} has choices: use --sampler tpe.")
        return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)

    def _pruner(self, name: Pruner | None, every: int) -> Any:
        pruners = self._optuna.pruners
        if name is None:
            return pruners.NopPruner()
        if name == "median":
            return pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=every)
        return pruners.SuccessiveHalvingPruner(min_resource=every, reduction_factor=REDUCTION)

    # What happens

    def propose(self) -> Trial:
        """The next trial."""
        asked = self.study.ask()
        proposed = {dimension.name: dimension.suggest(asked) for dimension in self.space}
        trial = Trial(asked.number, {d.name: d.value(proposed[d.name]) for d in self.space})
        self._write({"trial": trial.number, "proposed": proposed})
        self._add(trial, asked)
        return trial

    def report(self, trial: Trial, step: int, *values: float) -> bool:
        """Note an evaluation, a value for each objective. Returns whether the trial goes on; asked again about a step,
        it says the same, and to a trial that was to stop always no."""
        if step not in trial.verdicts and all(trial.verdicts.values()):
            told = values[0] if len(self.objectives) == 1 else values
            self._write({"trial": trial.number, "step": step, "value": told})
            self._note(trial, step, values)
        return trial.verdicts.get(step, False)

    def end(self, trial: Trial, why: str = "") -> None:
        """The trial is over; `why` says what went wrong."""
        if not why and not trial.values:
            why = "it was never evaluated"
        if not why and not all(map(math.isfinite, trial.values)):
            why = f"its last evaluation gave {', '.join(map(str, trial.values))}"
        state = "failed" if why else "complete" if all(trial.verdicts.values()) else "pruned"
        self._write({"trial": trial.number, "end": state, "why": why})
        self._end(trial, state, why)

    def _add(self, trial: Trial, asked: Any) -> None:
        self._open[trial.number] = asked
        self.trials.append(trial)

    def _note(self, trial: Trial, step: int, values: tuple[float, ...]) -> None:
        if len(values) != len(self.objectives):
            raise ValueError(values)
        going = True
        if len(self.objectives) == 1:
            asked = self._open[trial.number]
            asked.report(values[0], step)
            going = not asked.should_prune()
        trial.reports[step], trial.verdicts[step] = values, going

    def _end(self, trial: Trial, state: str, why: str) -> None:
        states = self._optuna.trial.TrialState
        told = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[state]
        values = trial.values if state == "complete" else None
        self.study.tell(self._open.pop(trial.number), values, state=told)
        trial.state, trial.why = state, why

    # What is known

    @property
    def running(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.state == "running"]

    @property
    def done(self) -> list[Trial]:
        """The complete trials, the best by the first objective first, the earlier one of equals."""
        done = [trial for trial in self.trials if trial.state == "complete"]
        return sorted(done, key=lambda trial: (-self.objectives[0].sign * trial.values[0], trial.number))

    @property
    def front(self) -> list[Trial]:
        """The complete trials than which none is better in one objective and as good in all others, the best by the
        first objective first. With one objective these are the best ones."""

        def beats(ours: Trial, theirs: Trial) -> bool:
            pairs = zip(self.objectives, ours.values, theirs.values, strict=True)
            gains = [objective.sign * (a - b) for objective, a, b in pairs]
            return min(gains) >= 0 and max(gains) > 0

        done = self.done
        return [trial for trial in done if not any(beats(other, trial) for other in done)]

    @property
    def best(self) -> Trial | None:
        """Of the front, the trial with the best value of the first objective, the first of equals."""
        return next(iter(self.front), None)

    def importances(self) -> dict[str, float]:
        """How much each setting matters for being among the best by the first objective, as shares (PED-ANOVA); {} with
        too few trials."""
        values = {trial.value for trial in self.trials if trial.state == "complete"}
        if len(values) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is experimental, in some versions
            evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
            target = None if len(self.objectives) == 1 else lambda trial: self.objectives[0].sign * trial.values[0]
            shares = self._optuna.importance.get_param_importances(self.study, evaluator=evaluator, target=target)
            return dict(shares)

    # The file

    def _write(self, event: Mapping[str, Any]) -> None:
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(event) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CannotWrite(f"Cannot write {self.path}: {error.strerror}.") from error

    def _replay(self, header: dict[str, Any]) -> None:
        """Do again what the file says has happened; a new file begins with the header."""
        events = self._events()
        if not events:
            self._write(header)
            return
        if events[0] != header:
            differ = [name for name in header if events[0].get(name) != header[name]]
            raise UsageError(
                f"{self.path} is of a search with other settings ({', '.join(differ) or 'more of them'}): choose "
                "another --out."
            )
        for number, event in enumerate(events[1:], 2):
            try:
                self._again(event)
            except Exception as error:
                raise UsageError(
                    f"Line {number} of {self.path} does not follow from those before it: it was changed, or made by "
                    "another version of Optuna. Choose another --out."
                ) from error

    def _again(self, event: dict[str, Any]) -> None:
        if "proposed" in event:
            asked = self.study.ask()
            proposed = {dimension.name: dimension.suggest(asked) for dimension in self.space}
            if proposed != event["proposed"] or asked.number != event["trial"]:
                raise ValueError(proposed)
            self._add(Trial(asked.number, {d.name: d.value(proposed[d.name]) for d in self.space}), asked)
            return
        trial = self.trials[event["trial"]]
        if "end" in event:
            self._end(trial, event["end"], str(event["why"]))
        else:
            told = event["value"]
            self._note(trial, event["step"], tuple(map(float, told if isinstance(told, list) else [told])))

    def _events(self) -> list[dict[str, Any]]:
        """The whole lines of the file. A last one that was torn by a crash is cut off."""
        try:
            text = self.path.read_bytes() if self.path.exists() else b""
            whole = text.rfind(b"\n") + 1
            if whole < len(text):
                os.truncate(self.path, whole)
            events = [json.loads(line) for line in text[:whole].splitlines()]
        except OSError as error:
            raise UsageError(f"Cannot read {self.path}: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.path} is not a search: {error}.") from error
        if not all(isinstance(event, dict) for event in events):
            raise UsageError(f"{self.path} is not a search: its lines must be objects.")
        return events
