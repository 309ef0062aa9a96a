"""Cells of a benchmark as tasks of a Ray cluster: one for each cell, with its cores.

A task whose node is lost is given to another, where the cell resumes from its newest checkpoint; a cell that is
finished says so by itself. All nodes must see the benchmark's directory.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flockrl.core.cluster import RETRIES, connect_for
from flockrl.core.rundir import METRICS
from flockrl.evidence.node import run_cell

PATIENCE = 120.0
"""Seconds that cells have to save when they are asked to end."""


def drive(
    works: Sequence[Any], tasks: Sequence[dict[str, Any]], out: Path, address: str, cores: int,
    watch: Callable[[Sequence[Any], Any], None], end: Callable[[Any, int, str], None],
) -> None:  # fmt: skip
    """Run the waiting works, whose tasks these are, and tell `end` the status and complaint of each."""
    ray = connect_for(address, cores)
    marker = str((out / "suite.json").absolute())
    gpus = int(any(task["platform"] == "gpu" for task in tasks))
    remote = ray.remote(run_cell).options(num_cpus=cores, num_gpus=gpus, max_retries=RETRIES)
    waiting = [(work, task) for work, task in zip(works, tasks, strict=True) if work.state == "waiting"]
    open_tasks = {remote.remote(task, marker, cores): work for work, task in waiting}
    shown = 0.0
    try:
        while open_tasks:
            for ref in ray.wait(list(open_tasks), timeout=0.25)[0]:
                work = open_tasks.pop(ref)
                end(work, *_result(ray, ref))
                watch(works, work)
            _note_running(open_tasks.values())
            if time.monotonic() - shown > 0.25:
                watch(works, None)
                shown = time.monotonic()
    except BaseException:
        _stop(ray, list(open_tasks))
        raise
    watch(works, None)


def _result(ray: Any, ref: Any) -> tuple[int, str]:
    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        return 1, f"its task was lost {RETRIES} times: {str(error).splitlines()[0]}"


def _note_running(works: Any) -> None:
    """Whoever has begun to write is running."""
    for work in works:
        if work.state == "waiting" and (work.path / METRICS).exists():
            work.state = "running"


def _stop(ray: Any, refs: list[Any]) -> None:
    """Ask the cells to save and end, and wait for them."""
    with contextlib.suppress(Exception):  # what went wrong before is what matters
        for ref in refs:
            ray.cancel(ref)
        ray.wait(refs, num_returns=len(refs), timeout=PATIENCE)
