"""A benchmark on a Ray cluster: nodes die in the middle, and the tables are those of a quiet day."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from ray_kit import SMALL, cluster

from flockrl.evidence import harness
from flockrl.evidence.node import claimed, run_cell
from flockrl.evidence.suite import make_suite

CONTENT = {
    "algorithms": ["iql_tabular"], "environments": ["games/two_step"], "seeds": 3,
    "settings": {
        "steps": 240_000, "envs": 1, "eval_episodes": 4, "eval_every": 24_000, "checkpoint_every": 12_000,
        "table_size": 1024,
    },
}  # fmt: skip


class Killer:
    """Kills a node as soon as a cell is in the middle, twice, and notes when cells were finished."""

    def __init__(self, nodes):
        self.nodes, self.killed, self.finished = nodes, 0, {}

    def __call__(self, works, ended):
        if ended is not None and ended.state == "done":
            self.finished[ended.path] = (ended.path / "result.json").stat().st_mtime_ns
        middle = [w for w in works if w.state != "done" and list((w.path / "checkpoints").glob("[0-9]*000"))]
        if self.killed < 2 and len(middle) > self.killed:
            self.nodes.remove_node(self.nodes.workers.pop(0), allow_graceful=False)
            self.killed += 1
            self.nodes.workers.append(self.nodes.add_node(num_cpus=1, wait=False, **SMALL))


@pytest.mark.slow
def test_nodes_that_die_leave_no_trace_in_the_tables(tmp_path):
    pytest.importorskip("ray")
    suite = make_suite("own", CONTENT, {})
    quiet, wild = tmp_path / "quiet", tmp_path / "wild"
    harness.run_suite(suite, quiet, 1)
    harness.write_tables(quiet)
    with cluster(2) as nodes:
        killer = Killer(nodes)
        works = harness.run_suite(suite, wild, watch=killer, ray=nodes.address)
        assert [(work.state, work.complaint) for work in works] == [("done", "")] * 3
        assert killer.killed == 2
        assert {path: (path / "result.json").stat().st_mtime_ns for path in killer.finished} == killer.finished
        harness.write_tables(wild)
        assert (wild / "results.csv").read_bytes() == (quiet / "results.csv").read_bytes()
        before = {work.path: (work.path / "result.json").stat().st_mtime_ns for work in works}
        harness.run_suite(suite, wild, ray=nodes.address)  # nothing is left to do
        assert {path: (path / "result.json").stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_continues(tmp_path):
    """On a cluster that the command starts by itself."""
    pytest.importorskip("ray")
    settings = [f"{name}={value}" for name, value in CONTENT["settings"].items()]
    words = [
        "bench", "--algorithms", "iql_tabular", "--environments", "games/two_step", "--seeds", "1", "--ray", "auto",
        "--out", str(tmp_path / "out"), "--set", *settings,
    ]  # fmt: skip
    command = [sys.executable, "-m", "flockrl", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    cell = tmp_path / "out" / "cells" / "iql_tabular-games-two_step" / "seed_0"
    while not list((cell / "checkpoints").glob("[0-9]*000")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "continues" in errors
    assert not (cell / "result.json").exists()
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert json.loads((cell / "result.json").read_text())["steps"] == 240_000


def test_a_node_that_does_not_see_the_directory_says_so(tmp_path):
    status, why = run_cell({"path": str(tmp_path / "cell")}, str(tmp_path / "suite.json"), 1)
    assert status == 1
    assert "choose an --out that all nodes share" in why
    assert not (tmp_path / "cell").exists()


def test_cores_are_claimed_once(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5}, raising=False)
    with claimed(1) as first, claimed(1) as second, claimed(1) as third:
        assert (first, second, third) == ([3], [5], [])
    with claimed(2) as both:
        assert both == [3, 5]


def test_nobody_else_makes_the_place_where_cores_are_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5}, raising=False)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    trap = tmp_path / f"flockrl-cores-{os.getuid()}"
    trap.mkdir()
    (trap / "3").symlink_to(precious)
    trap.chmod(0o777)
    with claimed(1) as found:
        assert found == []
    trap.chmod(0o700)
    with claimed(1):
        assert precious.read_text() == "mine"


WRONG = [
    (("--jobs", "1", "--ray", "auto"), "leave out --jobs or --ray"),
    (("--cores", "2"), "use it with --ray"),
    (("--cores", "0", "--ray", "auto"), "cores must be at least 1"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_wrong_input_gets_one_sentence(cli, tmp_path, words, sentence):
    status, _, err = cli("bench", "smoke", "--out", tmp_path / "out", *words)
    assert status == 2
    assert sentence in err


def test_without_ray_one_sentence_names_the_extra(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, _, err = cli("bench", "smoke", "--ray", "auto", "--out", tmp_path / "out")
    assert status == 2
    assert "Running on a cluster needs Ray: pip install 'flockrl[ray]'" in err


def test_importing_flockrl_imports_neither_ray_nor_optuna():
    code = """
import sys, importlib, flockrl
for name in ("training.train", "evidence.harness", "tuning.search", "commands.tune", "commands.evidence"):
    importlib.import_module(f"flockrl.{name}")
flockrl.train, flockrl.Run
print([name for name in ("ray", "optuna", "wandb", "mlflow") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr
