"""Which executor steps a host environment: this process, worker processes, or actors of a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.envs.host.env import Host, random_action
from flockrl.envs.host.remote import Remote, Stepper, actors
from flockrl.envs.host.workers import TIMEOUT, Executor, Local, Workers, own_cores, owners, pack

CHEAP = 5e-4
"""Seconds for one step of all environments below which handing them to processes does not pay."""
MEASURED = 0.25
"""Seconds that the measurement takes at most."""


def measure(host: Host, seconds: float = MEASURED) -> float:
    """Seconds that one step of one team takes, resets included, with random actions."""
    team, rng = host.first, np.random.default_rng(0)
    seen, steps, spent = team.reset(0), 0, 0.0
    while steps < 3 or (steps < 1000 and spent < seconds):
        action = random_action(host.form, seen, rng)
        began = time.perf_counter()
        seen, _, terminated, truncated = team.step(action, steps)
        steps += 1
        over = np.asarray(terminated) | np.asarray(truncated)
        if (over | ~np.asarray(seen.alive) if seen.alive is not None else over).all():
            seen = team.reset(steps)
        spent += time.perf_counter() - began
    return spent / steps


def choose(host: Host, envs: int) -> tuple[int, str]:
    """How many workers, and why: none when stepping all environments is quick, else one per core."""
    cores = len(own_cores())
    step = measure(host)
    shown = f"a step takes {1e3 * step:.3g} ms" if step >= 1e-4 else f"a step takes {1e6 * step:.3g} µs"
    if cores == 1 or envs == 1 or step * envs < CHEAP:
        return 0, f"stepped in this process ({shown})"
    count = min(cores, envs)
    return count, f"stepped by {count} workers ({shown})"


def open_executor(
    host: Host, batches: Sequence[int], workers: int | None, timeout: float | None = None, ray: str | None = None,
    life: type[Stepper] = Stepper, more: Sequence[Any] = (),
) -> tuple[Executor, str]:  # fmt: skip
    """Whoever steps batches of so many teams, and a line about it. `workers` None lets a measurement choose.

    The rows of every batch are spread over all workers. ray: the cluster whose actors they are, of the kind `life` and
    made with `more`; by default processes.
    """
    note, limit = "", TIMEOUT if timeout is None else timeout
    if ray is not None:
        count = min(actors(ray, workers), max(batches))
        owner = [worker for size in batches for worker in owners(size, count)]
        return Remote(host, owner, limit, ray, life, more), f"stepped by {count} Ray actor{'s' * (count > 1)}"
    if workers is None:
        workers, note = choose(host, max(batches))
        if workers and not _travels(host):
            workers, note = 0, "stepped in this process (the environment cannot be sent to others)"
    if not workers:
        return Local(host, sum(batches)), note or "stepped in this process"
    workers = min(workers, max(batches))
    owner = [worker for count in batches for worker in owners(count, workers)]
    note = note or f"stepped by {workers} worker{'s' * (workers > 1)}"
    return Workers(host, owner, limit), note


def _travels(host: Host) -> bool:
    try:
        return bool(pack(host.build))
    except UsageError:
        return False
