"""Several devices are one: the same numbers up to rounding, and checkpoints move between layouts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TINY

import flockrl
from flockrl.core.errors import UsageError

HERE = Path(__file__).parent
FOUR = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"


def on_four(*words):
    """Run Python in a process whose CPU has four devices."""
    env = {**os.environ, "XLA_FLAGS": FOUR, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"}
    done = subprocess.run([sys.executable, *map(str, words)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ippo", "qmix"])
def test_four_devices_equal_one_and_checkpoints_move(tmp_path, name):
    found = json.loads(on_four(HERE / "devices_script.py", tmp_path, name).splitlines()[-1])[name]
    assert found["steps"] == 20 * 128
    assert found["updates"] >= 20
    assert set(found) == {"steps", "updates", "four", "1-4", "4-1"}
    assert max(found[layout] for layout in ("four", "1-4", "4-1")) < 1e-4, found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ippo", "qmix"])
def test_seeds_side_by_side_on_devices_equal_the_seeds_alone(tmp_path, name):
    found = json.loads(on_four(HERE / "seeds_script.py", name, tmp_path).splitlines()[-1])
    assert found["places"] == {"0": 0, "1": 1, "2": 0}
    assert found["beside"] == [True] * 3
    assert found["resumed"] == [True] * 3
    assert found["population"] == [True] * 3 * (name == "ippo")
    assert "2 seeds leave some of 4 idle: use --devices 2" in found["refused"]


SHARDS = """
import jax, flockrl
from flockrl.envs.registry import make
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program
from flockrl.algos.presets import make_config
config = make_config("ippo", dict(rollout_steps=4, hidden=(8,), epochs=1, minibatches=2))
run = RunConfig("ippo", "probe/action", TrainOptions(steps=64, envs=8, eval_episodes=4, devices=4), config)
program = make_program(run, make(run.env))
program.compile(0)
state = program.start_state(0)
print({s.data.shape[0] for s in state.actors.lengths.addressable_shards}, program.chosen)
print({str(x.sharding.is_fully_replicated) for x in jax.tree.leaves(state.learner)})
text = program._advance.as_text()
print("all-reduce" in text)
"""


@pytest.mark.slow
def test_every_device_has_its_part():
    shares, copies, sums = on_four("-c", SHARDS).splitlines()
    assert shares == "{2} {'devices': 4}"
    assert copies == "{'True'}"
    assert sums == "True"


def test_what_cannot_be(tmp_path):
    with pytest.raises(UsageError, match="devices must be at least 1, or all"):
        flockrl.train("ippo", "probe/action", out=tmp_path / "a", devices=0)
    with pytest.raises(UsageError, match="devices must be one of all, not 'many'"):
        flockrl.train("ippo", "probe/action", out=tmp_path / "a", devices="many")
    with pytest.raises(UsageError, match="has 1 device and not 64: use --devices 1 or all"):
        flockrl.train("ippo", "probe/action", out=tmp_path / "a", **{**TINY, "envs": 64}, devices=64)
    assert not (tmp_path / "a").exists()


def test_environments_on_the_host_use_one_device(tmp_path):
    pytest.importorskip("gymnasium")
    with pytest.raises(UsageError, match="Several devices are for compiled environments, and gymnasium/CartPole-v1"):
        flockrl.train("ppo", "gymnasium/CartPole-v1", out=tmp_path / "a", devices=2)
