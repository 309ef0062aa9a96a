"""The trials of a search, several at a time: each asks after every evaluation whether it goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flockrl.core.errors import UsageError
from flockrl.core.rundir import CHECKPOINTS, CONFIG
from flockrl.evidence.cell import GO, STOP
from flockrl.evidence.harness import differing
from flockrl.training.compilation import Platform
from flockrl.tuning.places import Place
from flockrl.tuning.search import Search, Trial

TRIALS = "trials"
Watch = Callable[[Search, Trial | None], None]
"""Called about four times a second with None, and whenever a trial ends with that one."""


class Trials:
    """Runs the trials of a search at a place.

    make(settings) is the task of a trial for `evidence.cell`: its run, its seeds, and the figures it reports.
    """

    def __init__(
        self, search: Search, out: Path, make: Callable[[Mapping[str, Any]], dict[str, Any]], place: Place,
        platform: Platform | None = None,
    ):  # fmt: skip
        self.search, self.out, self.make, self.place, self.platform = search, out, make, place, platform
        self.running: dict[int, Trial] = {}

    def path(self, trial: Trial) -> Path:
        return self.out / TRIALS / f"{trial.number:04d}"

    def run(self, count: int, watch: Watch) -> None:
        """Go on until the search has `count` trials and all are over."""
        waiting = self.search.running  # those that a killed search left behind
        try:
            while True:
                while len(self.running) < self.place.room and (waiting or len(self.search.trials) < count):
                    self._start(waiting.pop(0) if waiting else self.search.propose())
                if not self.running:
                    break
                self._hear(watch)
                watch(self.search, None)
        except KeyboardInterrupt:
            self._stop()
            raise KeyboardInterrupt(f"Stopped and saved: the same command with --out {self.out} continues.") from None
        except BaseException:
            self._stop()
            raise

    def _start(self, trial: Trial) -> None:
        path, task = self.path(trial), self.make(trial.settings)
        for file in (path / CONFIG, *path.glob(f"seed_*/{CONFIG}")):
            if file.is_file() and differing(file, task["run"], ("versions", "seed")):
                raise UsageError(f"{file.parent} is not the trial that this search began: remove it, or choose --out.")
        self.place.start(trial.number, {**task, "path": str(path), "platform": self.platform})
        self.running[trial.number] = trial

    def _hear(self, watch: Watch | None) -> None:
        """Answer questions, and see who has ended. Whoever stops watching lets everybody go on."""
        for news in self.place.hear(0.25):
            trial = self.running[news.trial]
            if news.asked is None:
                self._end(trial, news.why, watch)
                continue
            going = self.search.report(trial, news.asked["step"], *news.asked["values"])
            self.place.answer(trial.number, GO if going or watch is None else STOP)

    def _end(self, trial: Trial, why: str, watch: Watch | None) -> None:
        """Take note of a trial that has ended. Its checkpoints make room: its settings are what counts."""
        del self.running[trial.number]
        if watch is None:
            return  # stopped from outside: it goes on another day
        self.search.end(trial, why)
        path = self.path(trial)
        for checkpoints in (path / CHECKPOINTS, *path.glob(f"seed_*/{CHECKPOINTS}")):
            shutil.rmtree(checkpoints, ignore_errors=True)
        watch(self.search, trial)

    def _stop(self) -> None:
        """Ask the trials to save and end, and wait for them."""
        self.place.stop()
        while self.running:
            self._hear(None)
