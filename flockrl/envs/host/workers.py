"""Who steps host environments: this process for cheap ones, worker processes with shared memory for dear ones.

Both do what the commands in `Slots` say and return the rows that failed. Between processes travel the numbers of the
rows that are asked for and an answer, empty unless something failed; everything else is in the shared arrays, so
nothing is pickled while stepping. A worker that died or fell silent is replaced; the teams it held are `lost`, and
whoever drives them plays their episodes again (`batch.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import json
import multiprocessing
import os
import pickle
import selectors
import signal
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from flockrl.core.errors import Notice, UsageError
from flockrl.envs.host.env import Form, Host, HostEnv, Slots, discard, serve

TIMEOUT = 60.0
"""Seconds without an answer after which a worker is taken for hung."""
DIED = "Its worker process died in its step"
LOST = "Its worker process was killed in another's step or between steps"


class Blueprint(Protocol):
    """What it takes to make teams: the form of their arrays, and a function that builds one. A `Host` is such."""

    form: Form
    build: Callable[[bool], HostEnv]


class Local:
    """Steps teams in this process. A team that raises is thrown away and built anew."""

    def __init__(self, host: Blueprint, count: int):
        self.slots, self.lost, self.restarts, self.workers = Slots(host.form, count), set[int](), 0, 0
        self._build, self._teams = host.build, dict[int, HostEnv]()
        self._failures: dict[int, str] = {}

    def send(self, rows: Sequence[int] | np.ndarray) -> int:
        """Do the rows' commands."""
        self._failures = serve(self.slots, self._teams, self._build, map(int, rows))
        self.lost |= self._failures.keys()
        self.restarts += len(self._failures)
        return 0

    def receive(self, ticket: int) -> dict[int, str]:
        """Row -> what went wrong."""
        return self._failures

    def groups(self, count: int) -> list[slice]:
        """Of a batch of `count` teams, those that are best stepped together."""
        return [slice(0, count)]

    def close(self) -> None:
        for team in self._teams.values():
            discard(team)
        self._teams.clear()


class Workers:
    """Steps teams in processes. `owner[row]` is the worker of a row; several rows share one."""

    def __init__(self, host: Host, owner: Sequence[int], timeout: float = TIMEOUT):
        self._context = _context()
        self._form, self._timeout = host.form, timeout
        self._packed = pack(host.build)
        self._memory = self._context.RawArray(ctypes.c_uint8, Slots.size(host.form, len(owner)))
        self.slots, self.lost, self.restarts = Slots(host.form, len(owner), self._memory), set[int](), 0
        self.owner = np.asarray(owner)
        self._ticket = 0
        self._open: dict[int, dict[int, np.ndarray]] = {}
        """Ticket -> worker -> rows it was asked for and has not answered."""
        self._failed: dict[int, dict[int, str]] = {}
        self._shares = functools.lru_cache(256)(self._share)
        self._selector = selectors.DefaultSelector()
        self.workers = max(owner) + 1
        self._workers = [self._start(i) for i in range(self.workers)]

    def _start(self, worker: int) -> tuple[Any, Any]:
        ours, theirs = self._context.Pipe()
        args = (theirs, self._memory, self._form, len(self.owner), self._packed)
        process = self._context.Process(target=_work, args=args, daemon=True, name=f"flockrl-worker-{worker}")
        with _without_main():
            process.start()
        theirs.close()
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return process, ours

    def send(self, rows: Sequence[int] | np.ndarray) -> int:
        """Ask for the rows' commands and do not wait. Workers take up what they are asked one after the other."""
        self._ticket = (self._ticket + 1) % 2**31
        asked: dict[int, np.ndarray] = {}
        self._open[self._ticket], self._failed[self._ticket] = asked, {}
        for worker, part, message in self._shares(np.asarray(rows, np.int32).tobytes()):
            asked[worker] = part
            try:
                self._workers[worker][1].send_bytes(self._ticket.to_bytes(4, "little") + message)
            except OSError:
                self._replace(worker)
        return self._ticket

    def _share(self, packed: bytes) -> list[tuple[int, np.ndarray, bytes]]:
        """Rows that are asked for together, as bytes -> (worker, its rows, these as bytes)."""
        rows = np.frombuffer(packed, np.int32)
        parts = [(int(worker), rows[self.owner[rows] == worker]) for worker in np.unique(self.owner[rows])]
        return [(worker, part, part.tobytes()) for worker, part in parts]

    def receive(self, ticket: int) -> dict[int, str]:
        """Wait for what was asked. Row -> what went wrong."""
        asked, deadline = self._open[ticket], time.monotonic() + self._timeout
        while asked:
            ready = self._selector.select(max(0.0, deadline - time.monotonic()))
            for key, _ in ready:
                self._answer(key.fileobj, key.data)
            if not ready:
                for worker in list(asked):
                    self._replace(worker, f"Its worker did not answer within {self._timeout:g} s.")
        del self._open[ticket]
        return self._failed.pop(ticket)

    def _answer(self, pipe: Any, worker: int) -> None:
        """Take in one answer, whatever it was asked for."""
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            self._replace(worker)
            return
        ticket = int.from_bytes(message[:4], "little")
        del self._open[ticket][worker]
        if len(message) > 4:
            failures = {int(row): text for row, text in json.loads(message[4:]).items()}
            self._failed[ticket] |= failures
            self.lost |= failures.keys()
            self.restarts += len(failures)

    def _replace(self, worker: int, why: str = "") -> None:
        """Put a new process in the place of one that is gone or hangs. What it was asked has failed.

        `why` says that it hangs. Of its teams the busy one is to blame; with none, a process that ends by itself or
        hangs cannot start, and one that a signal ended was killed by somebody else.
        """
        process, pipe = self._workers[worker]
        self._selector.unregister(pipe)
        pipe.close()
        process.kill()
        process.join()
        mine = np.flatnonzero(self.owner == worker)
        killed = not why and process.exitcode < 0
        blamed = self.slots.busy & (self.owner == worker)
        if not blamed.any() and not killed:
            blamed[mine] = True
        why = why or f"{DIED} (exit code {process.exitcode})."
        for ticket, asked in self._open.items():
            self._failed[ticket] |= {int(row): why if blamed[row] else LOST for row in asked.pop(worker, ())}
        self.slots.busy[mine] = False
        self._workers[worker] = self._start(worker)
        self.restarts += 1
        self.lost |= {int(row) for row in mine}

    def groups(self, count: int) -> list[slice]:
        """Of a batch of `count` teams, those that are best stepped together; every worker has some of each group."""
        return groups(count, len(self._workers))

    def close(self) -> None:
        self._selector.close()
        for process, pipe in self._workers:
            pipe.close()  # a worker ends when nobody can talk to it any more
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()


class Executor(Protocol):
    """Whoever steps teams: `slots` holds what they are told and what they answer, `lost` the rows whose team is gone,
    `restarts` how often one was replaced, `workers` the number of processes, 0 where this one steps."""

    slots: Slots
    lost: set[int]
    restarts: int
    workers: int

    def send(self, rows: Sequence[int] | np.ndarray) -> int:
        """Ask for the rows' commands. Returns a ticket."""

    def receive(self, ticket: int) -> dict[int, str]:
        """Wait for what was asked. Row -> what went wrong."""

    def groups(self, count: int) -> list[slice]:
        """Of a batch of `count` teams, those that are best stepped together."""

    def close(self) -> None:
        """Let go of the teams."""


def groups(count: int, workers: int) -> list[slice]:
    """Two halves of `count` teams, so that one can be answered while the other steps; all of them where a half would
    not do for every worker."""
    if count < 2 * workers:
        return [slice(0, count)]
    return [slice(0, count // 2), slice(count // 2, count)]


def owners(count: int, workers: int) -> list[int]:
    """The worker of each of `count` teams: every group of them is shared out evenly."""
    sizes = [group.stop - group.start for group in groups(count, workers)]
    return [i * workers // size for size in sizes for i in range(size)]


def _work(pipe: Any, memory: Any, form: Form, count: int, packed: bytes) -> None:
    """A worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then closes the pipe
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warnings.simplefilter("ignore", Notice)  # the trainer has said it when it built the first team
    slots, teams, build = Slots(form, count, memory), dict[int, HostEnv](), unpack(packed)
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = pipe.recv_bytes()
            failures = serve(slots, teams, build, np.frombuffer(message[4:], np.int32).tolist())
            pipe.send_bytes(message[:4] + (json.dumps(failures).encode() if failures else b""))
    for team in teams.values():
        discard(team)


def _context() -> Any:
    """Processes that are forked from a server that has imported what they need and started no threads."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        from multiprocessing import forkserver

        context.set_forkserver_preload([__name__])
        with _single_threaded():
            forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """Workers share the cores among themselves, so none of them should use several."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """A new process would import the user's script; without it a script needs no `if __name__ == "__main__"`."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def pack(build: Callable[[bool], HostEnv]) -> bytes:
    """The builder as bytes, once at the start. What a script defined travels by value where cloudpickle is there."""
    by_value = importlib.util.find_spec("cloudpickle")
    try:
        return (importlib.import_module("cloudpickle") if by_value else pickle).dumps(build)
    except Exception as error:
        raise UsageError(
            f"The environment cannot go to worker processes ({error}): pass a function that builds it, or workers=0."
        ) from error


def unpack(packed: bytes) -> Callable[[bool], HostEnv]:
    """What `pack` packed, in a process that this one started."""
    return pickle.loads(packed)


def own_cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
