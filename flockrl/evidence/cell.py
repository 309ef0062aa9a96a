"""One cell of a benchmark in a process of its own: `python -m flockrl.evidence.cell`, started by the harness.

The first line of standard input is the task as JSON; the pipe then stays open as long as the harness runs. When the
pipe closes, this process ends too, so that it never writes to a cell which a restarted benchmark is running.

A trial of a search is a cell that asks: after each evaluation it writes a line {"step", "values"} to standard output,
with a value for each objective, and goes on when the answer, a line on standard input, says so.

A cell of a benchmark also plays as many episodes as its evaluations have with the policy that explores: `sampled` in
`cell.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CELL = "cell.json"
LOCK = ".lock"
GO, STOP = "go", "stop"
"""Answers to a cell that asks."""


def main() -> int:
    work = json.loads(sys.stdin.readline())
    if work["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, work["cores"])  # before JAX counts its cores
    answers: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(answers,), daemon=True).start()
    from flockrl.core.errors import UsageError
    from flockrl.training.compilation import prepare

    path = Path(work["path"])
    path.mkdir(parents=True, exist_ok=True)
    try:
        prepare(work["platform"])
        with _alone(path):
            _run(path, work, _asking(work, answers))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _run(path: Path, work: dict[str, Any], callbacks: Sequence[Any]) -> None:
    """Train, or continue from the newest checkpoint."""
    saved, seeds = work["run"], work.get("seeds", 1)
    from flockrl.core.rundir import CONFIG, write_json
    from flockrl.training.train import resume, train

    begun = [path / CONFIG] if seeds == 1 else [path / f"seed_{saved['seed'] + i}" / CONFIG for i in range(seeds)]
    if all(file.is_file() for file in begun):
        run = resume(path, callbacks=callbacks, trust=True)  # the harness has compared its config with the suite's
    else:
        options = {k: v for k, v in saved.items() if k not in ("algorithm", "env", "config", "versions")}
        how: dict[str, Any] = {"seeds": seeds, "callbacks": callbacks}
        run = train(saved["algorithm"], saved["env"], out=path, **how, **options, **saved["config"])
    about: dict[str, Any] = {"peak_memory_mb": peak_memory_mb()}
    if work.get("sampled"):
        about["sampled"] = _sampled(run)
    write_json(path / CELL, about)


def _sampled(run: Any) -> dict[str, Any]:
    """An evaluation of the finished run in which the policy explores, by the names that greedy ones have."""
    from flockrl.training.figures import evaluated, parties

    options = run.config.options
    result = run.evaluate(options.eval_episodes, options.seed, explore=True)
    return evaluated(result, parties(run.spec, run.config.config), run.env)


def peak_memory_mb() -> float | None:
    """The largest resident size of this process so far; None where the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process works on this cell. The lock ends with the process that holds it."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (path / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _listen(answers: queue.Queue[str]) -> None:
    """Take in answers, and end when the harness does."""
    for line in sys.stdin:
        answers.put(line.strip())
    os._exit(1)


def _asking(work: dict[str, Any], answers: queue.Queue[str]) -> list[Any]:
    """The callback of a cell that asks; none where the task does not say so."""
    if "objectives" not in work:
        return []
    from flockrl.core.callbacks import Callback, Moment
    from flockrl.core.types import EvalResult

    talk = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what others print is no question
    found: dict[int, dict[int, list[float]]] = {}

    class Asking(Callback):
        def on_evaluation(self, moment: Moment, result: EvalResult) -> None:
            seen = found.setdefault(moment.step, {})
            seen[moment.seed] = [float(moment.metrics[name]) for name in work["objectives"]]
            if moment.step == 0 or len(seen) < work["seeds"]:
                return
            values = [sum(column) / len(seen) for column in zip(*seen.values(), strict=True)]
            print(json.dumps({"step": moment.step, "values": values}), file=talk, flush=True)
            if answers.get() == STOP:
                moment.stop("pruned")

    return [Asking()]


if __name__ == "__main__":
    sys.exit(main())
