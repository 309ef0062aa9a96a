"""The command: a search in real processes, killed and continued; wrong input is one sentence."""

import json
import signal
import subprocess
import sys
import time

import pytest

from flockrl.commands.main import main

SETTINGS = [
    "iql_tabular", "games/two_step", "--steps", "12000", "--envs", "1", "--eval-episodes", "4", "--eval-every", "3000",
    "--checkpoint-every", "3000", "--table-size", "1024",
]  # fmt: skip
WORDS = ["tune", *SETTINGS, "--search", "lr=log:0.01:0.9", "--trials", "3", "--prune"]


def start(out, confirm):
    words = [*WORDS, "--confirm", str(confirm), "--out", str(out)]
    return subprocess.Popen([sys.executable, "-m", "flockrl", *words], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_search_that_is_killed_continues_with_the_same_command(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    (process := start(whole, 0)).communicate()
    assert process.returncode == 0
    process = start(cut, 2)
    events = cut / "search.jsonl"
    while not (events.exists() and events.read_text().count('"step"') >= 6):  # in the second trial
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (cut / "tuning.json").exists()
    text, _ = (process := start(cut, 2)).communicate()
    assert process.returncode == 0
    assert "On 2 fresh seeds the best settings give eval_return" in text
    assert events.read_bytes() == (whole / "search.jsonl").read_bytes()
    found = [json.loads((path / "tuning.json").read_text()) for path in (whole, cut)]
    assert len(found[1].pop("confirmation")["best"]) == 2
    assert found[0] == found[1]
    assert (cut / "trials.csv").read_bytes() == (whole / "trials.csv").read_bytes()
    assert not list(cut.glob("trials/*/checkpoints"))  # only settings are kept of trials
    assert (cut / "importance.png").is_file()
    # What was found is what `train --config` takes, and a finished search asks for nothing more.
    config = cut / "best.toml"
    assert main(["train", *SETTINGS[:2], "--config", str(config), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    run = json.loads((tmp_path / "run" / "config.json").read_text())
    assert run["config"]["lr"] == found[0]["best_settings"]["lr"]
    assert main([*WORDS, "--confirm", "0", "--out", str(cut)]) == 0


@pytest.mark.slow
def test_several_seeds_at_a_time_and_a_trial_that_fails(tmp_path, capsys):
    words = [*WORDS, "--seeds", "2", "--jobs", "2", "--confirm", "0", "--out", str(tmp_path / "out")]
    words[words.index("--trials") + 1] = "2"
    assert main(words) == 0
    assert len(list((tmp_path / "out").glob("trials/*/seed_1/result.json"))) == 2
    assert main([*words, "--objective", "eval_nothing", "--out", str(tmp_path / "bad")]) == 1
    assert "No trial was completed: " in capsys.readouterr().err


@pytest.mark.slow
def test_several_objectives_from_the_command_line(tmp_path, capsys):
    words = [word for word in WORDS if word != "--prune"]
    out = tmp_path / "out"
    assert main([*words, "--objective", "eval_return", "min:eval_return_std", "--confirm", "2", "--out", str(out)]) == 0
    told = json.loads((out / "tuning.json").read_text())
    assert [len(one["values"]) for one in told["front"]] == [2] * len(told["front"])
    assert list(told["confirmation_of_others"]) == ["eval_return_std"]
    assert "On 2 fresh seeds the best settings give eval_return_std" in capsys.readouterr().out


@pytest.mark.slow
def test_on_a_cluster_whose_node_dies_it_is_the_same_search(tmp_path):
    pytest.importorskip("ray")
    from ray_kit import SMALL, cluster

    here, there = tmp_path / "here", tmp_path / "there"
    (process := start(here, 0)).communicate()
    assert process.returncode == 0
    with cluster(1) as nodes:
        words = [*WORDS, "--confirm", "0", "--ray", nodes.address, "--out", str(there)]
        process = subprocess.Popen([sys.executable, "-m", "flockrl", *words], stdout=subprocess.PIPE, text=True)
        events = there / "search.jsonl"
        while not (events.exists() and events.read_text().count('"step"') >= 6):  # in the second trial
            assert process.poll() is None
            time.sleep(0.005)
        nodes.remove_node(nodes.workers.pop(), allow_graceful=False)
        nodes.workers.append(nodes.add_node(num_cpus=1, **SMALL))
        process.communicate()
        assert process.returncode == 0
    assert events.read_bytes() == (here / "search.jsonl").read_bytes()


WRONG = [
    (["--search", "lr=0.1:1", "--jobs", "2", "--ray", "auto"], "leave out --jobs or --ray"),
    (["--search", "lr=0.1:1", "--cores", "2"], "use it with --ray"),
    (["--search", "lr=0.1:1", "--objective", "loss", "min:loss"], "each once"),
    (["--search", "lr=0.1:0.01"], "from a lower to a higher number"),
    (["--search", "lrr=0.1:1"], "has no setting 'lrr'. Did you mean 'lr'?"),
    ([], "Say what to search"),
    (["--search", "lr=0.1:1", "--trials", "0"], "trials must be at least 1"),
    (["--search", "lr=0.1:1", "--confirm", "1"], "at least 2 seeds"),
    (["--search", "lr=0.1:1", "--sampler", "grid"], "sampler"),
    (["--search", "lr=0.1:1", "--out", "."], "holds something else than a search"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_wrong_input_gets_one_sentence(tmp_path, monkeypatch, cli, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    status, _, err = cli("tune", *SETTINGS, *words)
    assert status == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_without_optuna_one_sentence_names_the_extra(tmp_path, monkeypatch, cli):
    monkeypatch.setitem(sys.modules, "optuna", None)
    status, _, err = cli("tune", *SETTINGS, "--search", "lr=0.1:1", "--out", tmp_path / "out")
    assert status == 2
    assert "Tuning needs Optuna: pip install 'flockrl[tune]'" in err


def test_sides_are_not_tuned(cli):
    assert "One algorithm is tuned at a time" in cli("tune", "a=maddpg,b=random", "mpe/simple_tag")[2]
