"""Host environments in actors of a Ray cluster: what worker processes do, on many machines.

An actor holds some of the teams. What a command needs travels to it and what came of it travels back, for all of its
teams in one call. An actor that died, or whose machine did, is replaced; the teams it held are `lost`, and whoever
drives them plays their episodes again (`batch.py`), as with worker processes. Actors that can do more, such as play
whole rollouts, are asked for it with `ask` and `answer`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flockrl.core.cluster import connect
from flockrl.core.errors import Notice, UsageError
from flockrl.envs.host.env import IDLE, REPLAY, STEP, Form, Host, Slots
from flockrl.envs.host.workers import DIED, Local, groups, pack, unpack

STARTUP = 180.0
"""Seconds more that an actor has for its first answer: its machine may have to import everything first."""
TOLD = ("command", "seed", "episode", "length")
"""What every command needs, and where its teams stand before it."""
STEPPED = ("draw", "action")
"""What a step needs besides."""
REPLAYED = ("actions", "draws")
"""What playing an episode again needs besides."""
OUTCOME = ("reward", "terminated", "truncated", "done")
"""What comes of a step besides observations."""


class Stepper:
    """The life of an actor: it does what the commands say for the teams of its rows."""

    def __init__(self, packed: bytes, form: Form, count: int):
        warnings.simplefilter("ignore", Notice)  # the trainer has said it when it built the first team
        self.form, self.build = form, unpack(packed)
        self.local = Local(self, count)

    def serve(self, rows: np.ndarray, told: dict[str, np.ndarray]) -> tuple[dict[int, str], dict[str, np.ndarray]]:
        """Row -> what went wrong, and what the rows answer."""
        slots = self.local.slots
        for name, value in told.items():
            getattr(slots, name)[rows] = value
        failures = self.local.receive(self.local.send(rows))
        self.local.lost -= failures.keys()  # the trainer knows
        return failures, {name: getattr(slots, name)[rows] for name in answers(slots, told)}

    def close(self) -> None:
        self.local.close()


def answers(slots: Slots, told: dict[str, Any]) -> tuple[str, ...]:
    """What an actor answers to a command: what is seen, and what came of a step."""
    final = tuple(f"final_{name}" for name in slots.fields)
    return (*slots.fields, *(final + OUTCOME if "draw" in told else ()))


class Asked(NamedTuple):
    """A call under way: the actor's number, the actor, and the answer to come."""

    worker: int
    actor: Any
    answer: Any


class Gone(Exception):
    """An actor that was asked is gone or hangs, and another one is in its place. The text says why."""


class Remote:
    """Steps teams in Ray actors. `owner[row]` is the actor of a row; several rows share one.

    life: what actors are, a `Stepper` that is made with `more` besides.
    """

    def __init__(
        self, host: Host, owner: Sequence[int], timeout: float, address: str,
        life: type[Stepper] = Stepper, more: Sequence[Any] = (),
    ):  # fmt: skip
        self._ray, self.timeout = connect(address), timeout
        self._life, self._more = life, [self.put(x) for x in more]
        self._form, self._packed = host.form, pack(host.build)
        self.slots, self.lost, self.restarts = Slots(host.form, len(owner)), set[int](), 0
        self.owner = np.asarray(owner)
        self._place = np.array([np.sum(self.owner[:row] == who) for row, who in enumerate(self.owner)], int)
        """[rows] the number of a row among those of its actor."""
        self.workers = max(owner) + 1
        self._actors = [self._start(worker, cores=1) for worker in range(self.workers)]
        self._answered = [False] * len(self._actors)
        self._ticket = 0
        self._open: dict[int, list[tuple[Asked, np.ndarray]]] = {}
        """Ticket -> the calls, each with its rows."""

    def _start(self, worker: int, cores: int) -> Any:
        """A new actor. One that takes another's place may share a core, so that it does not wait for a machine."""
        how: dict[str, Any] = {"num_cpus": cores, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        count = int(np.sum(self.owner == worker))
        return self._ray.remote(self._life).options(**how).remote(self._packed, self._form, count, *self._more)

    def put(self, value: Any) -> Any:
        """A reference to a value that travels to each machine once, however many actors are given it."""
        return self._ray.put(value)

    def ask(self, worker: int, what: str, *args: Any) -> Asked:
        """Call a method of an actor and do not wait. An actor takes up what it is asked one after the other."""
        actor = self._actors[worker]
        return Asked(worker, actor, getattr(actor, what).remote(*args))

    def answer(self, asked: Asked, limit: float | None = None) -> Any:
        """Wait for an answer, for `limit` seconds at most. Raises `Gone`."""
        try:
            found = self._ray.get(asked.answer, timeout=limit)
        except self._ray.exceptions.GetTimeoutError:
            why = f"Its actor did not answer within {limit:g} s."
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)  # of an exception in the actor
            if isinstance(cause, Exception) and not isinstance(cause, self._ray.exceptions.RayError):
                raise cause from error
            last = (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
            why = f"{DIED} (its Ray actor is gone: {last})."
        else:
            self._answered[asked.worker] = True
            return found
        self._replace(asked.worker, asked.actor)
        raise Gone(why)

    def startup(self, worker: int) -> float | None:
        """Seconds for the first answer of an actor; None once it has answered."""
        return None if self._answered[worker] else self.timeout + STARTUP

    def place(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of rows among those of their actor."""
        return self._place[rows]

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
            asked.append((self.ask(worker, "serve", self._place[mine], told), mine))
        return self._ticket

    def receive(self, ticket: int) -> dict[int, str]:
        """Wait for what was asked. Row -> what went wrong."""
        failed: dict[int, str] = {}
        for asked, rows in self._open.pop(ticket):
            try:
                failed |= self._take(rows, *self.answer(asked, self.startup(asked.worker) or self.timeout))
            except Gone as error:
                failed |= {int(row): str(error) for row in rows}
        return failed

    def _take(self, rows: np.ndarray, failures: dict[int, str], told: dict[str, np.ndarray]) -> dict[int, str]:
        """Take in one answer."""
        failed = {int(row): failures[place] for row, place in zip(rows, self._place[rows], strict=True)
                  if place in failures}  # fmt: skip
        good = np.array([int(row) not in failed for row in rows], bool)
        for name, value in told.items():
            getattr(self.slots, name)[rows[good]] = value[good]
        self.slots.command[rows[good]] = IDLE
        self.lost |= failed.keys()
        self.restarts += len(failed)
        return failed

    def _replace(self, worker: int, actor: Any) -> None:
        """Put a new actor in the place of one that is gone or hangs, once."""
        if self._actors[worker] is actor:
            self._ray.kill(actor)
            self._actors[worker], self._answered[worker] = self._start(worker, cores=0), False
            self.restarts += 1
            self.lost |= {int(row) for row in np.flatnonzero(self.owner == worker)}

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
