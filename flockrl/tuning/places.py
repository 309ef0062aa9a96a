"""Where trials run: processes of this machine, or of the nodes of a Ray cluster.

A trial is a cell that asks after every evaluation whether it goes on (`evidence.cell`). A place starts it, tells what
it asks and when it has ended, and brings it the answer.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from flockrl.core.cluster import RETRIES, connect_for
from flockrl.envs.host.workers import own_cores
from flockrl.evidence.harness import share_cores
from flockrl.evidence.node import Seat, end_cell, start_cell, tell


class News(NamedTuple):
    """A trial asks about an evaluation, {"step", "values"}, or has ended: then `asked` is None, and `why` says what
    went wrong, if anything."""

    trial: int
    asked: dict[str, Any] | None
    why: str = ""


class Place(Protocol):
    room: int
    """Trials that may run at a time."""

    def start(self, trial: int, task: dict[str, Any]) -> None: ...

    def hear(self, seconds: float) -> list[News]:
        """What happened; after so many seconds nothing did."""

    def answer(self, trial: int, word: str) -> None: ...

    def stop(self) -> None:
        """Ask all trials to save and end. Their ends are still to be heard."""


class Here:
    """Processes of this machine, each on a share of the cores."""

    def __init__(self, jobs: int):
        self.slots = share_cores(own_cores(), jobs)
        self.room = len(self.slots)
        self._free = list(range(self.room))
        self._running: dict[int, tuple[subprocess.Popen[str], IO[str], int]] = {}
        self._selector = selectors.DefaultSelector()

    def start(self, trial: int, task: dict[str, Any]) -> None:
        slot = self._free.pop(0)
        process, errors = start_cell({**task, "cores": self.slots[slot]}, subprocess.PIPE)
        self._running[trial] = process, errors, slot
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, trial)

    def hear(self, seconds: float) -> list[News]:
        return [self._news(key.data) for key, _ in self._selector.select(seconds)]

    def _news(self, trial: int) -> News:
        process, errors, slot = self._running[trial]
        assert process.stdout is not None
        if line := process.stdout.readline():
            return News(trial, json.loads(line))
        self._selector.unregister(process.stdout)
        del self._running[trial]
        self._free.append(slot)
        return News(trial, None, end_cell(process, errors)[1])

    def answer(self, trial: int, word: str) -> None:
        tell(self._running[trial][0], word)

    def stop(self) -> None:
        for process, *_ in self._running.values():
            process.terminate()


class Cluster:
    """Actors of a Ray cluster, each with `cores` cores. All nodes must see the search's directory, `marker` in it.

    A trial whose node is lost is given to another, where it resumes from its newest checkpoint.
    """

    def __init__(self, address: str, cores: int, marker: Path, platform: str | None):
        self._ray, self._cores, self._marker = connect_for(address, cores), cores, str(marker.absolute())
        self._kind = self._ray.remote(Seat).options(
            num_cpus=cores,
            num_gpus=int(platform == "gpu"),
            max_concurrency=2,  # one waits, one may stop it
        )
        self.room = max(1, int(self._ray.cluster_resources().get("CPU", 1)) // cores)
        self._tasks: dict[int, dict[str, Any]] = {}
        self._actors: dict[int, Any] = {}
        self._lost: dict[int, int] = {}
        self._open: dict[Any, int] = {}
        self._ending = False

    def start(self, trial: int, task: dict[str, Any]) -> None:
        self._tasks[trial] = {**task, "path": os.path.abspath(task["path"])}
        self._actors[trial] = self._kind.remote(self._tasks[trial], self._marker, self._cores)
        self._open[self._actors[trial].begin.remote()] = trial

    def hear(self, seconds: float) -> list[News]:
        ready = self._ray.wait(list(self._open), timeout=seconds)[0]
        return [news for ref in ready if (news := self._news(ref)) is not None]

    def _news(self, ref: Any) -> News | None:
        trial = self._open.pop(ref)
        try:
            told = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._lost[trial] = self._lost.get(trial, 0) + 1
            if self._ending or self._lost[trial] > RETRIES:
                return self._ended(trial, f"its node was lost {self._lost[trial]} times: {str(error).splitlines()[0]}")
            self.start(trial, self._tasks[trial])
            return None
        return News(trial, told) if isinstance(told, dict) else self._ended(trial, told)

    def _ended(self, trial: int, why: str) -> News:
        self._ray.kill(self._actors.pop(trial))
        return News(trial, None, why)

    def answer(self, trial: int, word: str) -> None:
        self._open[self._actors[trial].go.remote(word)] = trial

    def stop(self) -> None:
        self._ending = True
        for actor in self._actors.values():
            actor.stop.remote()
