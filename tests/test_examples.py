"""The examples run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SMALLER = {
    "predators": ["--seeds", "1", "--episodes", "8"],
    "own_loop": ["--steps", "600"],
    "members": ["--episodes", "8"],
    "fleet": ["--episodes", "8", "--rounds", "1", "--flights", "16"],
}


SLOW = {
    "explore", "predators", "factorise", "train_and_act", "teams_that_grow", "own_gymnasium", "own_loop", "relay_game",
    "members", "fleet",
}  # fmt: skip


@pytest.mark.parametrize(
    "example",
    [pytest.param(e, id=e.stem, marks=pytest.mark.slow if e.stem in SLOW else ()) for e in EXAMPLES],
)
def test_example_runs(example, tmp_path):
    words = [sys.executable, str(example), "--steps", "3200", *SMALLER.get(example.stem, [])]
    done = subprocess.run(words, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if example.stem == "fleet":
        check_fleet(done.stdout, tmp_path / "fleet.html")


def check_fleet(printed, report):
    """What a fleet that went the whole way has to show, however little it was trained."""
    figures = {
        line[:44].strip(): [float(x) for x in re.findall(r"-?\d+\.?\d*", line[44:])] for line in printed.splitlines()
    }
    processes, program = figures["one flight: by processes, and in one program"]
    assert processes == pytest.approx(program, abs=0.01)  # every message arrived, and every drone flew its own model
    assert "version 1 comes back" in printed  # the server learned from the 16 flights of one update
    assert figures["when it is lost"][0] > figures["before"][0] + 20  # nobody else was near the area of the lost drone
    assert "data:image/gif" in report.read_text()
