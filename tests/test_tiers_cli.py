"""Managers and workers on the command line: names, settings behind them, files, what a run saves, and being killed."""

import json

import jax
import numpy as np
import pytest
from test_resume import final_arrays, flockrl_command, kill_when, rows

import flockrl
from flockrl.commands.main import main
from flockrl.commands.train import TrainFlags, parse_training

ENV = "hierarchy/goal_assignment:n=2,size=3,steps=6"


def parsed(name, *words):
    return parse_training(name, [ENV, *words], TrainFlags)[1]


def test_settings_stand_behind_the_names():
    words = ["--manager.lr", "0.5", "--worker.hidden", "32", "32", "--manager-every", "4", "--allocate", "hungarian"]
    found = parsed("manager=qmix,worker=ippo", *words)
    assert (found["manager"], found["worker"], found["manager_every"]) == ("qmix", "ippo", 4)
    assert found["manager_settings"] == {"lr": 0.5}
    assert found["worker_settings"] == {"hidden": (32, 32)}
    assert parsed("feudal", "--manager", "qmix", *words) == found
    assert parsed("feudal", "--manager=qmix", *words) == found
    assert parsed("manager=qmix", *words) == found


def test_a_level_below():
    found = parsed("manager=vdn,worker.manager=ippo", "--worker.goal", "agent", "--worker.manager.lr", "0.5")
    below = found["worker_settings"]
    assert (found["worker"], below["manager"], below["goal"], below["manager_settings"]) == (
        "feudal", "ippo", "agent", {"lr": 0.5},
    )  # fmt: skip
    assert flockrl.algos.presets.make_config("feudal", found).levels == 3


def test_files_with_a_table_for_each_tier(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text("manager_every = 2\n[manager]\nlr = 0.25\n[worker]\nhidden = [4]\n")
    found = parsed("manager=vdn,worker=ippo", "--config", str(file), "--worker.hidden", "6")
    assert found["manager_every"] == 2
    assert found["manager_settings"] == {"lr": 0.25}
    assert found["worker_settings"] == {"hidden": (6,)}


def test_help_lists_the_flags_of_both(capsys):
    assert main(["train", "manager=vdn,worker=ippo", "--help"]) == 0
    shown = capsys.readouterr().out
    for flag in ("--manager.lr", "--worker.hidden", "--manager-every", "--allocate", "--manager.buffer-size"):
        assert flag in shown
    assert "manager-settings" not in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["manager=vdn,wroker=ippo"], "A hierarchy has a manager and a worker, and not 'wroker'"),
        (["manager=vnd,worker=ippo"], "manager=vnd: There is no algorithm 'vnd'. Did you mean 'vdn'?"),
        (["manager=vdn,worker=ippo", "--worker.lrr", "1"], "Did you mean '--worker.lr'?"),
        (["manager=vdn,worker=ippo", "--worker.rollout-steps", "5"], "cannot have rollout_steps"),
        (["feudal", "--manager"], "--manager needs the name of an algorithm"),
        (["roles", "--environment-share", "0.5"], "environment_share is for goals that are entities"),
        (["roles", "--worker", "identity", "--manager-every", "1"], "leave out their settings, --goal and --allocate"),
        (
            ["manager=iql,worker=ippo", "--manager.importance", "--allocate", "auction"],
            "manager=iql: importance does not go with --allocate auction",
        ),
    ],
)
def test_what_is_wrong_gets_a_sentence(words, sentence, capsys):
    name, *rest = words
    assert main(["train", name, ENV, *rest]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["manager=vdn,worker=ippo", "--allocate", "hungarian", "--manager.learning-starts", "40",
         "--manager.steps-per-update", "8", "--manager.buffer-size", "400", "--manager.batch-size", "8"],
        ["roles", "--roles", "2", "--roles-after", "0.5"],
    ],
)  # fmt: skip
def test_killed_and_resumed_equals_uninterrupted(tmp_path, words):
    sizes = "--manager-every 3 --rollout-steps 12 --manager.hidden 8 --worker.hidden 8 --steps 2400 --envs 4"
    plan = "--eval-every 1200 --eval-episodes 4 --checkpoint-every 240 --quiet"
    words = ["train", words[0], ENV, *words[1:], *sizes.split(), *plan.split()]
    assert flockrl_command(*words, "--out", str(tmp_path / "whole")).wait() == 0
    killed = tmp_path / "killed"
    assert kill_when(flockrl_command(*words, "--out", str(killed)), killed / "metrics.jsonl", 8)
    assert flockrl_command("resume", str(killed), "--quiet").wait() == 0
    assert rows(killed) == rows(tmp_path / "whole")
    jax.tree.map(np.testing.assert_array_equal, final_arrays(killed), final_arrays(tmp_path / "whole"))
    saved = json.loads((killed / "config.json").read_text())
    assert saved["algorithm"] in ("feudal", "roles")
    assert saved["config"]["worker_settings"] == {"hidden": [8]}
