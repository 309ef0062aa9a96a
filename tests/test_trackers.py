"""What trackers write is read back by their own libraries and holds every metric; nothing is sent anywhere."""

import csv
import json
import os
import socket
import sys

import pytest
from conftest import TINY
from stop_at import StopAt

import flockrl
from flockrl.core.errors import UsageError
from flockrl.training.interrupt import Interrupted
from flockrl.training.trackers import _remembered, flat, names

ON_PATH = "mpe/simple"


@pytest.fixture
def alone(monkeypatch):
    """A machine that nobody answers to from outside."""
    usual = socket.socket.connect

    def connect(self, address):
        local = isinstance(address, str | bytes) or address[0] in ("127.0.0.1", "localhost", "::1")
        assert local, f"something was sent to {address}"
        return usual(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    for name in ("WANDB_MODE", "WANDB_API_KEY", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def train(out, log, **more):
    return flockrl.train("ippo", ON_PATH, out=out, **{**TINY, "log": log, **more})


def expected(run):
    """Every number of every log point: (name, step) -> value."""
    rows = run.metrics()
    return {(name, row["step"]): x for row in rows for name, x in flat(row).items()}


def test_a_table_holds_every_metric_and_none_is_none(tmp_path):
    with pytest.raises(Interrupted):
        train(tmp_path / "run", "csv", callbacks=[StopAt(512)])
    run = flockrl.resume(tmp_path / "run")
    rows = list(csv.DictReader((run.path / "metrics.csv").open()))
    found = {(name, int(row["step"])): float(x) for row in rows for name, x in row.items() if x != ""}
    assert found == {key: float(x) for key, x in expected(run).items()}
    assert not list(run.path.glob("events*"))


def test_names():
    assert names("wandb, csv") == ["wandb", "csv"]
    assert names("none") == []
    with pytest.raises(UsageError, match=r"There is no log .wanbd.\. Did you mean .wandb."):
        names("wanbd")
    with pytest.raises(UsageError, match="not both"):
        names("none,csv")
    with pytest.raises(UsageError, match="no log ''"):
        names("")


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_what_is_missing_is_named(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf"needs the extra `{name}`: pip install 'flockrl\[{name}\]'"):
        train(tmp_path / "run", name)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["{}", '{"id": 1}', '{"id": "../../x"}'])
def test_what_is_remembered_is_a_name(tmp_path, content):
    (tmp_path / "wandb.json").write_text(content)
    with pytest.raises(UsageError, match="remove it to begin a new one"):
        _remembered(tmp_path / "wandb.json", {"id": "fresh"})


def test_flat():
    assert flat({"a": 1, "b": [2, 3], "c": None, "d": {"e": "f"}}) == {"a": 1, "b_0": 2, "b_1": 3, "d.e": "f"}


@pytest.mark.slow
def test_mlflow_reads_back_every_metric(tmp_path, alone):
    mlflow = pytest.importorskip("mlflow")
    with pytest.raises(Interrupted):
        train(tmp_path / "run", "mlflow", callbacks=[StopAt(512)])
    run = flockrl.resume(tmp_path / "run")
    client = mlflow.MlflowClient(tracking_uri=(run.path / "mlruns").absolute().as_uri())
    (experiment,) = [x for x in client.search_experiments() if x.name == "flockrl"]
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.status == "FINISHED"
    assert logged.data.params["config.epochs"] == "2"
    found = {
        (name, point.step): point.value
        for name in logged.data.metrics
        for point in client.get_metric_history(logged.info.run_id, name)
    }
    assert found == {key: pytest.approx(x) for key, x in expected(run).items()}


def wandb_records(file):
    """The records of an offline file, framed as in a log of LevelDB: blocks of 32 KB, 7 bytes before each chunk."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # the whole of a record, or its end
            yield Record.FromString(whole)
            whole = b""


@pytest.mark.slow
def test_wandb_reads_back_every_metric(tmp_path, alone):
    pytest.importorskip("wandb")
    run = train(tmp_path / "run", "wandb,tensorboard")
    (file,) = run.path.glob("wandb/offline-run-*/*.wandb")
    found = {}
    for record in wandb_records(file):
        if record.HasField("history"):
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            found |= {(name, row["_step"]): x for name, x in row.items() if not name.startswith("_")}
    assert found == {key: pytest.approx(x) for key, x in expected(run).items()}
    assert list(run.path.glob("events*"))
    assert json.loads((run.path / "wandb.json").read_text())["id"] in file.name
    assert "WANDB_MODE" not in os.environ
