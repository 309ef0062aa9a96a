"""Two processes that train one learner: the same run as one process, interrupted together, resumed together."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from processes_script import SMALL

import flockrl
from flockrl.core.errors import UsageError
from flockrl.training.processes import Processes

HERE = Path(__file__).parent


def both(what, out):
    """Run the script in two processes: their exit statuses."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"}
    words = [sys.executable, str(HERE / "processes_script.py"), what, str(port)]
    started = [
        subprocess.Popen([*words, str(number), str(out)], env=env, stderr=subprocess.PIPE, text=True)
        for number in (0, 1)
    ]
    errors = [process.communicate()[1] for process in started]
    return [process.returncode for process in started], errors


def apart(one, other):
    """The largest difference of parameters and optimiser states."""
    pairs = zip(*(jax.tree.leaves(run.state().learner) for run in (one, other)), strict=True)
    return max(float(np.abs(np.asarray(a, float) - np.asarray(b, float)).max(initial=0)) for a, b in pairs)


@pytest.mark.slow
def test_two_processes_train_one_learner(tmp_path):
    out = tmp_path / "two"
    statuses, errors = both("train", out)
    assert statuses == [130, 130], errors
    assert flockrl.Run(out).steps()[-1] == 1280
    assert not (out / "result.json").exists()
    assert list(tmp_path.iterdir()) == [out]  # the other one left nothing here
    statuses, errors = both("resume", out)
    assert statuses == [0, 0], errors
    one = flockrl.train("ippo", "mpe/simple_spread", out=tmp_path / "one", **SMALL)
    two = flockrl.Run(out)
    assert two.result["steps"] == 20 * 128
    assert apart(one, two) < 1e-4


def test_what_cannot_be():
    with pytest.raises(UsageError, match="add --coordinator HOST:PORT"):
        Processes(processes=2).join()
    with pytest.raises(UsageError, match="between 0 and processes - 1, not 2 of 2"):
        Processes("127.0.0.1:1", 2, 2).join()
    Processes().join()
