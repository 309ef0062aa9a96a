"""The benchmark harness: runs cells in parallel processes, here or on a cluster, skips finished ones, writes tables."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from flockrl.core.errors import UsageError
from flockrl.core.lock import lock
from flockrl.core.rundir import CONFIG, METRICS, RESULT, read_json, write_json
from flockrl.envs.host.workers import own_cores
from flockrl.evidence import cluster
from flockrl.evidence.cell import CELL
from flockrl.evidence.node import end_cell, start_cell
from flockrl.evidence.records import CELLS, SUITE, Record, collect, tidy, write_csv, write_parquet
from flockrl.evidence.suite import Cell, Suite
from flockrl.training.compilation import Platform

POLL = 0.1


@dataclass
class Work:
    """A cell and its progress. state: waiting, running, done or failed."""

    cell: Cell
    path: Path
    state: str = "waiting"
    complaint: str = ""
    slot: int = -1
    process: subprocess.Popen[str] | None = field(default=None, repr=False)
    errors: IO[str] | None = field(default=None, repr=False)

    @property
    def progress(self) -> tuple[int, float | None]:
        """Steps done, and the newest evaluation return."""
        step, score = 0, None
        try:
            for line in (self.path / METRICS).read_text().splitlines():
                row = json.loads(line)
                step, score = row["step"], row.get("eval_return", score)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            pass  # not there yet, or its last line is being written
        return step, score


Watch = Callable[[Sequence[Work], Work | None], None]
"""Called about four times a second with all cells and None, and whenever a cell ends with all cells and that one."""


def run_suite(
    suite: Suite, out: Path, jobs: int | None = None, watch: Watch | None = None, platform: Platform | None = None,
    ray: str | None = None, cores: int = 1,
) -> list[Work]:  # fmt: skip
    """Run the cells that are not finished; `write_tables` then writes the results.

    A call that was killed at any point and is repeated gives the same runs as an uninterrupted call.
    ray: the address of a Ray cluster, or auto, to run the cells on, each with so many cores; here by default.
    """
    works = [Work(cell, out / CELLS / cell.folder) for cell in suite.cells]
    _check_directory(suite, works, out)
    for work in works:
        if all((work.path / name).is_file() for name in (RESULT, CELL)):
            work.state = "done"
    watch = watch or (lambda works, ended: None)
    here = own_cores()
    slots = share_cores(here, jobs or len(here))
    try:
        if ray is None:
            _drive(works, slots, watch, platform)
        else:
            tasks = [_task(work, [], platform, absolute=True) for work in works]
            cluster.drive(works, tasks, out, ray, cores, watch, _ended)
    except KeyboardInterrupt:
        _stop(works)
        raise KeyboardInterrupt(f"Stopped and saved: the same command with --out {out} continues.") from None
    except BaseException:
        _stop(works)
        raise
    return works


def write_tables(out: Path) -> list[Record]:
    """results.csv (and .parquet): a row per evaluation. cells.csv: a row per cell, with time and memory."""
    records, _ = collect([out / CELLS])
    rows = tidy(records)
    write_csv(rows, out / "results.csv")
    write_parquet(rows, out / "results.parquet")
    write_csv([cell_row(record) for record in records], out / "cells.csv")
    return records


def cell_row(record: Record) -> dict[str, Any]:
    """A cell in one row. The last three columns depend on the machine and its load."""
    return {
        "algorithm": record.label,
        "environment": record.env,
        "seed": record.seed,
        "agents": len(record.evals[-1]["eval_return_per_agent"]),
        "steps": record.result["steps"],
        "final_return": record.final,
        "sampled_return": record.sampled,
        "best_return": record.result.get("best_eval_return"),
        "converged_at": record.converged_at,
        "stability": record.stability,
        "steps_per_second": record.result["steps_per_second"],
        "seconds": record.result["seconds"],
        "peak_memory_mb": record.cell.get("peak_memory_mb"),
    }


def _check_directory(suite: Suite, works: Sequence[Work], out: Path) -> None:
    """Check that `out` is empty or holds cells of this suite with the same settings, and create it."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is not a directory.")
    if out.is_dir() and any(out.iterdir()) and not (out / SUITE).is_file():
        raise UsageError(f"{out} holds something else than a benchmark: choose another --out.")
    for work in works:
        file = work.path / CONFIG
        if not file.is_file():
            continue
        differ = differing(file, work.cell.run.to_json())
        if differ:
            raise UsageError(
                f"{work.path} was run with other settings ({', '.join(differ)}): choose another --out for this suite."
            )
    try:
        (out / CELLS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"Cannot create {out}: {error.strerror}.") from error
    labels = {work.cell.folder: work.cell.label for work in works if work.cell.label}
    with lock(out, wait=True):
        before = _pieces(out / SUITE) if (out / SUITE).is_file() else {}
        cells = [*before.get("cells", ()), *(work.cell.folder for work in works)]  # pieces of a suite add to each other
        about = {
            "name": suite.name, "question": suite.question, "cells": list(dict.fromkeys(cells)),
            "labels": {**before.get("labels", {}), **labels},
        }  # fmt: skip
        write_json(out / SUITE, about)


def _pieces(file: Path) -> dict[str, Any]:
    """What a benchmark's directory says of the pieces that were run before."""
    before = read_json(file)
    cells, labels = before.get("cells", []), before.get("labels", {})
    if not (isinstance(cells, list) and isinstance(labels, dict) and all(isinstance(cell, str) for cell in cells)):
        raise UsageError(f"{file} is damaged: cells must be a list of names, and labels an object; remove that file.")
    return before


def differing(file: Path, run: Mapping[str, Any], ignored: Sequence[str] = ("versions",)) -> list[str]:
    """The settings in which a saved configuration differs from that of a run. One that a later version added is not
    compared; one that the run does not have differs, so that a file of somebody else brings in nothing."""
    saved, wanted = read_json(file), json.loads(json.dumps(run))
    changed = [name for name in wanted if name not in ignored and saved.get(name, wanted[name]) != wanted[name]]
    return changed + [name for name in saved if name not in (*wanted, "chosen")]


def share_cores(cores: list[int], jobs: int) -> list[list[int]]:
    """Divide the cores among the jobs. Small runs are as fast on one core as on two, so parallel runs save time."""
    if jobs == 1:
        return [cores]
    return [cores[i::jobs] or [cores[i % len(cores)]] for i in range(jobs)]


def _drive(works: Sequence[Work], slots: list[list[int]], watch: Watch, platform: Platform | None) -> None:
    free, shown = list(range(len(slots))), 0.0
    while any(work.state in ("waiting", "running") for work in works):
        for work in works:
            if work.state == "waiting" and free:
                work.slot = free.pop(0)
                _start(work, slots[work.slot], platform)
        time.sleep(POLL)
        for work in works:
            if work.process is not None and work.process.poll() is not None:
                _end(work)
                free.append(work.slot)
                watch(works, work)
        if time.monotonic() - shown > 0.25:
            watch(works, None)
            shown = time.monotonic()
    watch(works, None)


def _task(work: Work, cores: list[int], platform: Platform | None, absolute: bool = False) -> dict[str, Any]:
    """What a cell is told, see `evidence.cell`."""
    path = work.path.absolute() if absolute else work.path
    run = work.cell.run.to_json()
    return {"path": str(path), "run": run, "cores": cores, "platform": platform, "sampled": True}


def _start(work: Work, cores: list[int], platform: Platform | None) -> None:
    work.process, work.errors = start_cell(_task(work, cores, platform))
    work.state = "running"


def _end(work: Work) -> None:
    assert work.process is not None
    assert work.errors is not None
    status, complaint = end_cell(work.process, work.errors)
    work.process = None
    _ended(work, status, complaint)


def _ended(work: Work, status: int, complaint: str) -> None:
    """Record how a cell ended."""
    done = status == 0 and (work.path / RESULT).is_file()
    work.state, work.complaint = ("done", "") if done else ("failed", complaint or "it left no result")


def _stop(works: Sequence[Work]) -> None:
    """Ask the running cells to save and end, and wait for them."""
    running = [work.process for work in works if work.process is not None]
    for process in running:
        process.terminate()
    for process in running:
        process.wait()
