"""Trials in processes of their own, several at a time: each asks after every evaluation whether it goes on."""

from __future__ import annotations

import json
import selectors
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flockrl.core.errors import UsageError
from flockrl.core.rundir import CHECKPOINTS, CONFIG
from flockrl.envs.host.workers import own_cores
from flockrl.evidence.cell import GO, STOP
from flockrl.evidence.harness import differing, share_cores
from flockrl.evidence.node import end_cell, start_cell
from flockrl.training.compilation import Platform
from flockrl.tuning.search import Search, Trial

TRIALS = "trials"
Watch = Callable[[Search, Trial | None], None]
"""Called about four times a second with None, and whenever a trial ends with that one."""


@dataclass
class Running:
    """A trial's process and the cores it has."""

    trial: Trial
    process: subprocess.Popen[str]
    errors: IO[str]
    slot: int


class Trials:
    """Runs the trials of a search.

    make(settings) is the task of a trial for `evidence.cell`: its run, its seeds, and the figure it reports.
    """

    def __init__(
        self, search: Search, out: Path, make: Callable[[Mapping[str, Any]], dict[str, Any]], jobs: int,
        platform: Platform | None = None,
    ):  # fmt: skip
        self.search, self.out, self.make, self.platform = search, out, make, platform
        self.slots = share_cores(own_cores(), jobs)
        self.free = list(range(len(self.slots)))
        self.running: list[Running] = []
        self.selector = selectors.DefaultSelector()

    def path(self, trial: Trial) -> Path:
        return self.out / TRIALS / f"{trial.number:04d}"

    def run(self, count: int, watch: Watch) -> None:
        """Go on until the search has `count` trials and all are over."""
        waiting = self.search.running  # those that a killed search left behind
        try:
            while True:
                while self.free and (waiting or len(self.search.trials) < count):
                    self._start(waiting.pop(0) if waiting else self.search.propose())
                if not self.running:
                    break
                self._pump(watch)
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
        slot = self.free.pop(0)
        task |= {"path": str(path), "cores": self.slots[slot], "platform": self.platform}
        process, errors = start_cell(task, subprocess.PIPE)
        running = Running(trial, process, errors, slot)
        self.running.append(running)
        assert process.stdout is not None
        self.selector.register(process.stdout, selectors.EVENT_READ, running)

    def _tell(self, process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it is gone, which its output says as well

    def _pump(self, watch: Watch | None) -> None:
        """Answer questions, and see who has ended. Whoever stops watching lets everybody go on."""
        for key, _ in self.selector.select(0.25):
            running: Running = key.data
            assert running.process.stdout is not None
            line = running.process.stdout.readline()
            if not line:
                self._end(running, watch)
                continue
            asked = json.loads(line)
            going = self.search.report(running.trial, asked["step"], asked["value"])
            self._tell(running.process, GO if going or watch is None else STOP)

    def _end(self, running: Running, watch: Watch | None) -> None:
        """Take note of a trial whose process has ended. Its checkpoints make room: its settings are what counts."""
        assert running.process.stdout is not None
        self.selector.unregister(running.process.stdout)
        _, why = end_cell(running.process, running.errors)
        self.running.remove(running)
        self.free.append(running.slot)
        if watch is None:
            return  # stopped from outside: it goes on another day
        self.search.end(running.trial, why)
        path = self.path(running.trial)
        for checkpoints in (path / CHECKPOINTS, *path.glob(f"seed_*/{CHECKPOINTS}")):
            shutil.rmtree(checkpoints, ignore_errors=True)
        watch(self.search, running.trial)

    def _stop(self) -> None:
        """Ask the trials to save and end, and wait for them."""
        for running in self.running:
            running.process.terminate()
        while self.running:
            self._pump(None)
