"""Where metrics go besides `metrics.jsonl`: TensorBoard, a table, Weights & Biases, MLflow. Callbacks like any other.

Nothing leaves the machine unless it is asked to: W&B writes its offline files into the run's directory unless
WANDB_MODE says otherwise, and so does MLflow unless MLFLOW_TRACKING_URI names a server.
"""

from __future__ import annotations

import csv
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flockrl.core.callbacks import Callback, Moment
from flockrl.core.errors import UsageError, install, nearest, notice, reason
from flockrl.core.rundir import CONFIG, METRICS, read_json, read_metrics, write_json
from flockrl.training.log import Board

PROJECT = "flockrl"
"""What W&B's project and MLflow's experiment are called."""


class Tracker(Callback):
    """A callback that holds something open for each run, by its directory, until `close`."""

    def __init__(self) -> None:
        self.open: dict[Path, Any] = {}

    def close(self) -> None:
        """Let go, whether training ended well or not."""
        for path, held in list(self.open.items()):
            self.shut(path, held)
        self.open.clear()

    def shut(self, path: Path, held: Any) -> None:
        """Let go of what is held open for a run."""


class Tensorboard(Tracker):
    """Events for TensorBoard in the run's directory."""

    def on_start(self, moment: Moment) -> None:
        self.open[moment.path] = Board(moment.path, moment.step or None)

    def on_iteration(self, moment: Moment) -> None:
        self.open[moment.path].write(moment.metrics)

    def shut(self, path: Path, held: Any) -> None:
        held.close()


class Csv(Tracker):
    """metrics.csv: the log points as a table, a column for each number. Written anew at every checkpoint."""

    def on_start(self, moment: Moment) -> None:
        self.open[moment.path] = None

    def on_checkpoint(self, moment: Moment) -> None:
        self.shut(moment.path, None)

    def shut(self, path: Path, held: Any) -> None:
        rows = [flat(row) for row in read_metrics(path)]
        names = list(dict.fromkeys(name for row in rows for name in row))
        file = (path / METRICS).with_suffix(".csv")
        temporary = file.with_suffix(".csv.tmp")
        try:
            with temporary.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, fieldnames=names, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            temporary.replace(file)
        except OSError as error:
            notice(f"Cannot write {file}: {reason(error)}.")


class Wandb(Tracker):
    """Weights & Biases, offline unless WANDB_MODE says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.wandb = _need("wandb", "wandb")

    def on_start(self, moment: Moment) -> None:
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        known = _remembered(moment.path / "wandb.json", {"id": uuid.uuid4().hex[:8]})
        self.open[moment.path] = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=_title(moment), id=known["id"],
            dir=str(moment.path), config=read_json(moment.path / CONFIG), mode=mode,
            resume=None if mode == "offline" else "allow", reinit="create_new",
            settings=self.wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True),
        )  # fmt: skip

    def on_iteration(self, moment: Moment) -> None:
        self.open[moment.path].log(flat(moment.metrics), step=moment.step)

    def shut(self, path: Path, held: Any) -> None:
        held.finish()


class Mlflow(Tracker):
    """MLflow: files in the run's directory unless MLFLOW_TRACKING_URI names a server."""

    def __init__(self) -> None:
        super().__init__()
        self.mlflow = _need("mlflow", "mlflow")

    def on_start(self, moment: Moment) -> None:
        address = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not address:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else it wants a data base for files
            address = (moment.path / "mlruns").absolute().as_uri()
        client = self.mlflow.MlflowClient(tracking_uri=address)
        found = client.get_experiment_by_name(PROJECT)
        experiment = client.create_experiment(PROJECT) if found is None else found.experiment_id
        file = moment.path / "mlflow.json"
        if not file.exists():
            run = client.create_run(experiment, run_name=_title(moment)).info.run_id
            settings = flat(read_json(moment.path / CONFIG))
            params = [self.mlflow.entities.Param(name, str(value)[:500]) for name, value in settings.items()]
            client.log_batch(run, params=params[:100])
        known = _remembered(file, {"run": "" if file.exists() else run})
        self.open[moment.path] = client, known["run"]

    def on_iteration(self, moment: Moment) -> None:
        client, run = self.open[moment.path]
        now = int(1000 * time.time())
        numbers = [(name, x) for name, x in flat(moment.metrics).items() if isinstance(x, int | float)]
        metrics = [self.mlflow.entities.Metric(name, float(x), now, moment.step) for name, x in numbers]
        client.log_batch(run, metrics=metrics)

    def shut(self, path: Path, held: Any) -> None:
        client, run = held
        client.set_terminated(run)


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": Tensorboard, "csv": Csv, "wandb": Wandb, "mlflow": Mlflow}
NONE = "none"


def names(log: str) -> list[str]:
    """`wandb,csv` as names of trackers, checked."""
    found = list(dict.fromkeys(name.strip() for name in log.split(",")))
    for name in found:
        if name not in (*TRACKERS, NONE):
            raise UsageError(f"There is no log {name!r}.{nearest(name, (*TRACKERS, NONE))}")
    if NONE in found and len(found) > 1:
        raise UsageError("log is none or names where to write, not both.")
    return [name for name in found if name != NONE]


def make_trackers(log: str) -> list[Tracker]:
    """The trackers by their names, separated by commas; none for none."""
    return [TRACKERS[name]() for name in names(log)]


def flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested values and lists by names of their own (config.lr, return_per_agent_0); those not known are left out."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            found |= {f"{before}{name}_{i}": x for i, x in enumerate(value)}
        elif value is not None:
            found[f"{before}{name}"] = value
    return found


def _title(moment: Moment) -> str:
    """What trackers call a run: the end of its path."""
    parts = moment.path.absolute().parts
    return "/".join(parts[-2:] if parts[-1].startswith("seed_") else parts[-1:])


def _remembered(file: Path, fresh: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier part of the run noted in this file; at first what is `fresh`."""
    if not file.exists():
        write_json(file, fresh)
    found = read_json(file)
    for name in fresh:
        if not isinstance(word := found.get(name), str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", word):
            raise UsageError(f"{file} does not name a {name} to go on with: remove it to begin a new one.")
    return found


def _need(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"Logging to {module} needs the extra `{extra}`: {install(extra)}.") from error
