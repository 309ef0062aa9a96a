"""Host environments in actors of a Ray cluster: what worker processes do, on many machines.

An actor holds some of the teams. What a command needs travels to it and what came of it travels back, for all of its
teams in one call. An actor that died, or whose machine did, is replaced; the teams it held are `lost`, and whoever
drives them plays their episodes again (`batch.py`), as with worker processes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.core.cluster import connect
from flockrl.core.errors import Notice, UsageError
from flockrl.envs.host.env import IDLE, REPLAY, STEP, Form, Host, HostEnv, Slots, discard, serve
from flockrl.envs.host.workers import DIED, groups, pack, unpack

STARTUP = 180.0
"""Seconds more that an actor has for its first answer: its machine may have to import everything first."""
TOLD = ("command", "seed")
"""What every command needs."""
STEPPED = ("draw", "action", "length")
"""What a step needs besides."""
REPLAYED = ("episode", "length", "actions", "draws")
"""What playing an episode again needs besides."""
OUTCOME = ("reward", "terminated", "truncated", "done")
"""What comes of a step besides observations."""


class Stepper:
    """The life of an actor: it does what the commands say for the teams of its rows."""

    def __init__(self, packed: bytes, form: Form, count: int):
        warnings.simplefilter("ignore", Notice)  # the trainer has said it when it built the first team
        self.slots, self.teams, self.build = Slots(form, count), dict[int, HostEnv](), unpack(packed)

    def serve(self, rows: np.ndarray, told: dict[str, np.ndarray]) -> tuple[dict[int, str], dict[str, np.ndarray]]:
        """Row -> what went wrong, and what the rows answer."""
        for name, value in told.items():
            getattr(self.slots, name)[rows] = value
        failures = serve(self.slots, self.teams, self.build, rows.tolist())
        return failures, {name: getattr(self.slots, name)[rows] for name in answers(self.slots, told)}

    def close(self) -> None:
        for team in self.teams.values():
            discard(team)


def answers(slots: Slots, told: dict[str, Any]) -> tuple[str, ...]:
    """What an actor answers to a command: what is seen, and what came of a step."""
    final = tuple(f"final_{name}" for name in slots.fields)
    return (*slots.fields, *(final + OUTCOME if "draw" in told else ()))


class Remote:
    """Steps teams in Ray actors. `owner[row]` is the actor of a row; several rows share one."""

    def __init__(self, host: Host, owner: Sequence[int], timeout: float, address: str):
        self._ray, self._timeout = connect(address), timeout
        self._form, self._packed = host.form, pack(host.build)
        self.slots, self.lost, self.restarts = Slots(host.form, len(owner)), set[int](), 0
        self.owner = np.asarray(owner)
        self._place = np.array([np.sum(self.owner[:row] == who) for row, who in enumerate(self.owner)], int)
        """[rows] the number of a row among those of its actor."""
        self.workers = max(owner) + 1
        self._actors = [self._start(worker, cores=1) for worker in range(self.workers)]
        self._answered = [False] * len(self._actors)
        self._ticket = 0
        self._open: dict[int, list[tuple[int, Any, Any, np.ndarray]]] = {}
        """Ticket -> (actor's number, the actor, the answer to come, its rows)."""

    def _start(self, worker: int, cores: int) -> Any:
        """A new actor. One that takes another's place may share a core, so that it does not wait for a machine."""
        how: dict[str, Any] = {"num_cpus": cores, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        count = int(np.sum(self.owner == worker))
        return self._ray.remote(Stepper).options(**how).remote(self._packed, self._form, count)

    def send(self, rows: Sequence[int] | np.ndarray) -> int:
        """Ask for the rows' commands and do not wait. Actors take up what they are asked one after the other."""
        rows = np.asarray(rows, int)
        self._ticket += 1
        asked = self._open[self._ticket] = []
        commands = set(self.slots.command[rows].tolist())
        names = dict.fromkeys((*TOLD, *(STEPPED * (STEP in commands)), *(REPLAYED * (REPLAY in commands))))
        for worker in np.unique(self.owner[rows]).tolist():
            mine = rows[self.owner[rows] == worker]
            told = {name: getattr(self.slots, name)[mine] for name in names}
            actor = self._actors[worker]
            asked.append((worker, actor, actor.serve.remote(self._place[mine], told), mine))
        return self._ticket

    def receive(self, ticket: int) -> dict[int, str]:
        """Wait for what was asked. Row -> what went wrong."""
        failed: dict[int, str] = {}
        for worker, actor, answer, rows in self._open.pop(ticket):
            failed |= self._take(worker, actor, answer, rows)
        return failed

    def _take(self, worker: int, actor: Any, answer: Any, rows: np.ndarray) -> dict[int, str]:
        """Take in one answer."""
        limit = self._timeout + (0.0 if self._answered[worker] else STARTUP)
        try:
            failures, told = self._ray.get(answer, timeout=limit)
        except self._ray.exceptions.GetTimeoutError:
            return self._replace(worker, actor, rows, f"Its actor did not answer within {limit:g} s.")
        except self._ray.exceptions.RayError as error:
            last = (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
            return self._replace(worker, actor, rows, f"{DIED} (its Ray actor is gone: {last}).")
        self._answered[worker] = True
        failed = {int(row): failures[place] for row, place in zip(rows, self._place[rows], strict=True)
                  if place in failures}  # fmt: skip
        good = np.array([int(row) not in failed for row in rows], bool)
        for name, value in told.items():
            getattr(self.slots, name)[rows[good]] = value[good]
        self.slots.command[rows[good]] = IDLE
        self.lost |= failed.keys()
        self.restarts += len(failed)
        return failed

    def _replace(self, worker: int, actor: Any, rows: np.ndarray, why: str) -> dict[int, str]:
        """Put a new actor in the place of one that is gone or hangs, once. What it was asked has failed."""
        if self._actors[worker] is actor:
            self._ray.kill(actor)
            self._actors[worker], self._answered[worker] = self._start(worker, cores=0), False
            self.restarts += 1
            self.lost |= {int(row) for row in np.flatnonzero(self.owner == worker)}
        return {int(row): why for row in rows}

    def groups(self, count: int) -> list[slice]:
        """Of a batch of `count` teams, those that are best stepped together; every actor has some of each group."""
        return groups(count, len(self._actors))

    def close(self) -> None:
        for actor in self._actors:
            actor.close.remote()
            actor.__ray_terminate__.remote()


def actors(address: str, asked: int | None) -> int:
    """How many actors the cluster has cores for: as many as were asked for, or one per core."""
    cores = int(connect(address).cluster_resources().get("CPU", 0))
    if cores < (asked or 1):
        raise UsageError(f"The Ray cluster has {cores} cores, too few for {asked or 1} workers: use fewer --workers.")
    return asked or cores
