"""The examples run as they stand."""

import os
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
