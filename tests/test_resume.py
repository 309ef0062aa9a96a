"""A run killed at any moment and resumed equals the run that was never killed, bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from conftest import TINY
from stop_at import StopAt

import flockrl
from flockrl.core.rundir import read_metrics
from flockrl.training.checkpoint import Checkpoints
from flockrl.training.interrupt import Interrupted

TIMING = {"seconds", "steps_per_second"}
COMMON = [
    "mpe/simple_spread", "--envs", "8", "--rollout-steps", "16", "--hidden", "8", "--steps", "7680",
    "--eval-every", "1280", "--eval-episodes", "4", "--checkpoint-every", "640", "--quiet",
]  # fmt: skip
PPO = ["mappo", "--epochs", "2", "--minibatches", "2", "--memory-size", "8"]
OFF_POLICY = [
    "--steps-per-update", "64", "--batch-size", "16", "--buffer-size", "2048", "--learning-starts", "512",
    "--prioritized", "--n-step", "3",
]  # fmt: skip
LEARNERS = {
    "mappo": PPO,
    "mappo-gru": [*PPO, "--memory", "gru"],
    "masac": ["masac", *OFF_POLICY],
    "qmix-gru": ["qmix", *OFF_POLICY, "--memory", "gru", "--memory-size", "8", "--sequence", "16", "--burn-in", "2"],
}


def flockrl_command(*words):
    return subprocess.Popen([sys.executable, "-m", "flockrl", *words], env=dict(os.environ))


def rows(path):
    return [{k: v for k, v in row.items() if k not in TIMING} for row in read_metrics(path)]


def final_arrays(path):
    run = flockrl.Run(path)
    checkpoints = Checkpoints(path / "checkpoints")
    state, _ = checkpoints.restore(run.program.shape(), checkpoints.steps()[-1])
    checkpoints.close()
    return state


def kill_when(process, file, lines):
    """SIGKILL once the metrics file has so many lines. Returns whether the process was still running."""
    while process.poll() is None:
        if file.exists() and file.read_bytes().count(b"\n") >= lines:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.001)
    return False


@pytest.mark.parametrize(
    ("learner", "seeds"),
    [
        ("mappo", 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("masac", 1),
                ("mappo", 2),
                ("mappo-gru", 1),
                ("mappo-gru", 2),
                ("qmix-gru", 1),
                ("qmix-gru", 2),
            )
        ),
    ],
)
def test_killed_and_resumed_equals_uninterrupted(tmp_path, learner, seeds):
    """The replay and its priorities included, where there is one."""
    words = ["train", *LEARNERS[learner], *COMMON, "--seeds", str(seeds)]
    assert flockrl_command(*words, "--out", str(tmp_path / "whole")).wait() == 0
    names = [""] if seeds == 1 else ["seed_0", "seed_1"]
    killed = tmp_path / "killed"
    process = flockrl_command(*words, "--out", str(killed))
    kills = 0
    rng = np.random.default_rng(seeds)
    for lines in (1, rng.integers(3, 55)):
        kills += kill_when(process, killed / names[-1] / "metrics.jsonl", lines)
        process = flockrl_command("resume", str(killed), "--quiet")
    assert process.wait() == 0
    assert kills == 2
    for name in names:
        assert rows(killed / name) == rows(tmp_path / "whole" / name)
        jax.tree.map(
            np.testing.assert_array_equal, final_arrays(killed / name), final_arrays(tmp_path / "whole" / name)
        )


def test_a_seed_in_company_equals_the_seed_alone(tmp_path):
    together = flockrl.train("ippo", "mpe/simple_spread", seeds=2, seed=3, out=tmp_path / "both", **TINY)
    alone = flockrl.train("ippo", "mpe/simple_spread", seed=4, out=tmp_path / "one", **TINY)
    assert rows(together[1].path) == rows(alone.path)
    assert rows(together[0].path) != rows(alone.path)


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path, tiny_run):
    path = tmp_path / "run"
    with pytest.raises(Interrupted, match="flockrl resume"):
        flockrl.train("mappo", "mpe/simple_spread", out=path, callbacks=[StopAt(384)], **TINY)
    assert Checkpoints(path / "checkpoints").steps()[-1] == 384
    assert not (path / "result.json").exists()
    flockrl.resume(path)
    assert rows(path) == rows(tiny_run.path)


@pytest.mark.slow
def test_actors_that_remember_resume_in_the_middle_of_an_episode(tmp_path):
    """What actors remember, their noise's state and the priorities of stretches included."""
    settings = {
        "steps": 1024, "envs": 8, "rollout_steps": 16, "hidden": (8,), "eval_every": 512, "eval_episodes": 4,
        "checkpoint_every": 256, "steps_per_update": 64, "batch_size": 16, "buffer_size": 512, "learning_starts": 256,
        "memory": "gru", "memory_size": 8, "sequence": 16, "burn_in": 2, "n_step": 3, "prioritized": True,
        "explore": "ou",
    }  # fmt: skip
    env = "mpe/simple_spread:continuous_actions=true"
    whole = flockrl.train("maddpg", env, out=tmp_path / "whole", **settings)
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        flockrl.train("maddpg", env, out=path, callbacks=[StopAt(640)], **settings)
    stopped = final_arrays(path)
    assert int(stopped.iteration) == 5
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(stopped.actors.memory))
    flockrl.resume(path)
    assert rows(path) == rows(whole.path)
    jax.tree.map(np.testing.assert_array_equal, final_arrays(path), final_arrays(whole.path))


def test_resuming_a_finished_run_changes_nothing(tiny_run):
    before = (tiny_run.path / "metrics.jsonl").read_bytes(), (tiny_run.path / "result.json").read_bytes()
    flockrl.resume(tiny_run.path)
    assert before == ((tiny_run.path / "metrics.jsonl").read_bytes(), (tiny_run.path / "result.json").read_bytes())


def copy_of(run, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(run.path, path)
    return path


def test_an_unfinished_checkpoint_is_not_mistaken_for_a_good_one(tmp_path, tiny_run):
    path = copy_of(tiny_run, tmp_path)
    shutil.copytree(path / "checkpoints" / "1024", path / "checkpoints" / "2048.orbax-checkpoint-tmp-1")
    assert Checkpoints(path / "checkpoints").steps()[-1] == 1024
    assert flockrl.Run(path).evaluate(4).mean == tiny_run.evaluate(4).mean


def largest_file(path):
    return max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


@pytest.mark.parametrize("part", ["state", "meta"])
@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_gets_a_clear_error(tmp_path, tiny_run, part, how):
    path = copy_of(tiny_run, tmp_path)
    files = [p for p in (path / "checkpoints" / "1024" / part).rglob("*") if p.is_file()]
    for file in files:
        content = bytearray(file.read_bytes())
        if how == "flip":
            content[len(content) // 2] ^= 0xFF
            file.write_bytes(content)
        elif how == "cut":
            file.write_bytes(content[: len(content) // 2])
        else:
            file.unlink()
    with pytest.raises(flockrl.UsageError, match="is damaged"):
        flockrl.Run(path).evaluate(4)


def test_a_flipped_bit_anywhere_in_the_arrays_is_noticed_or_harmless(tmp_path, tiny_run):
    """Every single file of the state, damaged alone: an error, or the very same numbers."""
    expected = tiny_run.evaluate(4).mean
    noticed = 0
    source = tiny_run.path / "checkpoints" / "1024" / "state"
    for file in [p.relative_to(source) for p in source.rglob("*") if p.is_file()]:
        path = copy_of(tiny_run, tmp_path)
        damaged = path / "checkpoints" / "1024" / "state" / file
        content = bytearray(damaged.read_bytes())
        if content:
            content[len(content) // 3] ^= 0x10
        damaged.write_bytes(content)
        try:
            assert flockrl.Run(path).evaluate(4).mean == expected
        except flockrl.UsageError:
            noticed += 1
        shutil.rmtree(path)
    assert noticed > 0


def test_a_foreign_checkpoint_gets_a_clear_error(tmp_path, tiny_run):
    path = copy_of(tiny_run, tmp_path)
    config = json.loads((path / "config.json").read_text())
    config["config"]["hidden"] = [9]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(flockrl.UsageError, match="belongs to another configuration"):
        flockrl.Run(path).evaluate(4)
