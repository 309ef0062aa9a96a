"""The command line: what it writes, and one clear sentence for every kind of wrong input."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TINY
from PIL import Image

import flockrl
from flockrl.algos.presets import make_config
from flockrl.commands.main import COMMANDS
from flockrl.commands.parsing import parse
from flockrl.core.errors import UsageError
from flockrl.core.settings import parse_settings
from flockrl.training.config import read_settings

FLAGS = [
    "--steps", "512", "--envs", "8", "--rollout-steps", "16", "--epochs", "2", "--minibatches", "2",
    "--hidden", "8", "--eval-every", "256", "--eval-episodes", "4",
]  # fmt: skip


def test_off_policy_learners_say_what_their_replay_takes(cli, tmp_path):
    pace = ["--steps-per-update", "32", "--batch-size", "16", "--learning-starts", "128", "--buffer-size", "1000"]
    flags = ["--steps", "256", "--envs", "8", "--rollout-steps", "8", "--hidden", "8", "--eval-episodes", "4", *pace]
    status, text, _ = cli(
        "train", "maddpg", "mpe/simple_spread:continuous_actions=true", *flags, "--out", tmp_path / "r"
    )
    assert status == 0
    assert "replay of 1,024 transitions, 1 MB" in text


def test_a_single_agent_name_points_to_its_team_versions(cli):
    status, _, error = cli("train", "sac", "mpe/simple_spread")
    assert status == 2
    assert "use isac or masac instead" in error
    assert error.count("\n") == 1


def test_train_writes_the_run_directory(cli, tmp_path):
    out = tmp_path / "run"
    status, text, _ = cli("train", "mappo", "mpe/simple_spread:N=2", *FLAGS, "--lr", "7e-4", "--out", out)
    assert status == 0
    assert "final eval" in text
    config = json.loads((out / "config.json").read_text())
    assert (config["algorithm"], config["env"], config["steps"]) == ("mappo", "mpe/simple_spread:N=2", 512)
    assert config["config"]["lr"] == 7e-4
    assert {"flockrl", "jax", "python"} <= set(config["versions"])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 128, 256, 384, 512]
    assert [row["step"] for row in rows if "eval_return" in row] == [0, 256, 512]
    for row in rows:
        if "eval_return" in row:
            assert row["eval_episodes"] == 4
            assert row["eval_return_std"] >= 0
        if row["step"]:
            assert {"return", "return_per_agent", "episode_length", "steps_per_second", "value_loss"} <= set(row)
    finished = next(row for row in rows if row.get("episodes"))
    assert finished["return"] == pytest.approx(sum(finished["return_per_agent"]) / 2)
    assert finished["episode_length"] == 25
    result = json.loads((out / "result.json").read_text())
    assert result["steps"] == 512
    assert result["final_eval_return"] == rows[-1]["eval_return"]
    assert result["best_eval_return"] == max(row["eval_return"] for row in rows if "eval_return" in row)
    assert {"seconds", "compile_seconds", "steps_per_second", "final_return"} <= set(result)
    assert Image.open(out / "curve.png").size[0] > 400
    assert list((out / "checkpoints").iterdir())
    assert list(out.glob("events.out.tfevents.*"))


def test_seeds_side_by_side(cli, tmp_path):
    out = tmp_path / "many"
    status, text, _ = cli("train", "ippo", "mpe/simple", *FLAGS, "--seeds", 2, "--seed", 5, "--out", out)
    assert status == 0
    assert (out / "curve.png").exists()
    configs = [json.loads((out / f"seed_{s}" / "config.json").read_text()) for s in (5, 6)]
    assert [c["seed"] for c in configs] == [5, 6]
    finals = [json.loads((out / f"seed_{s}" / "result.json").read_text())["final_eval_return"] for s in (5, 6)]
    assert finals[0] != finals[1]
    assert "2 seeds" in text


def test_eval_reports_and_draws(cli, tmp_path, tiny_run):
    gif = tmp_path / "episode.gif"
    status, text, _ = cli("eval", tiny_run.path, "--episodes", 20, "--seed", 3, "--gif", gif)
    assert status == 0
    assert "20 greedy episodes" in text
    assert f"{tiny_run.evaluate(20, seed=3).mean:.3f}" in text
    assert Image.open(gif).n_frames > 15


def test_quiet_prints_nothing(cli, tmp_path):
    status, text, err = cli("train", "ippo", "mpe/simple", *FLAGS, "--quiet", "--out", tmp_path / "q")
    assert (status, text, err) == (0, "", "")


def test_config_file_repeats_a_run_and_flags_win(cli, tmp_path, tiny_run):
    saved = tiny_run.path / "config.json"
    assert cli("train", "mappo", "mpe/simple_spread", "--config", saved, "--out", tmp_path / "a", "--quiet")[0] == 0
    again = json.loads((tmp_path / "a" / "config.json").read_text())
    assert again == json.loads(saved.read_text())
    final = json.loads((tmp_path / "a" / "result.json").read_text())["final_eval_return"]
    assert final == tiny_run.result["final_eval_return"]
    toml = tmp_path / "c.toml"
    toml.write_text('steps = 256\nlr = 1e-4\n[config]\nhidden = [8]\nactivation = "relu"\nrollout_steps = 16\n')
    words = ("train", "mappo", "mpe/simple", "--config", toml, "--lr", "2e-4", "--envs", "8", "--quiet")
    assert cli(*words, "--out", tmp_path / "b")[0] == 0
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (config["steps"], config["config"]["activation"], config["config"]["lr"]) == (256, "relu", 2e-4)


def test_list_names_everything(cli):
    status, text, _ = cli("list")
    assert status == 0
    for name in ("mappo", "ia2c", "mpe/simple_spread", "games/climbing", "probe/memory", "local_ratio=0.5"):
        assert name in text
    assert "mpe/" not in cli("list", "algorithms")[1]
    assert "\nfictitious " in cli("list", "algorithms")[1]
    assert "mappo" not in cli("list", "envs")[1]


def test_help_teaches(cli):
    status, text, _ = cli("train", "mappo", "--help")
    assert status == 0
    for word in ("--lr", "--gae-lambda", "--steps", "--seeds", "--checkpoint-every", "Adam's learning rate", "default"):
        assert word in text
    assert cli("--help")[0] == 0
    assert cli()[0] == 2


WRONG = [
    (("train", "mapo", "mpe/simple_spread"), "Did you mean 'mappo'?"),
    (("train", "mappo", "mpe/simple_sprad"), "Did you mean 'simple_spread'?"),
    (("train", "mappo", "mpi/simple_spread"), "Did you mean 'mpe/simple_spread'?"),
    (("train", "mappo", "mpe/simple_spread:n=5"), "has no setting 'n'"),
    (("train", "mappo", "mpe/simple_spread:N"), "name=value"),
    (("train", "mappo", "mpe/simple_spread:N=0"), "N must be a whole number of at least 1"),
    (("train", "mappo", "mpe/simple_spread", "--gama", "0.9"), "Did you mean '--gamma'?"),
    (("train", "mappo", "mpe/simple_spread", "--lr", "-1"), "lr must be above 0, not -1.0"),
    (("train", "mappo", "mpe/simple_spread", "--lr", "fast"), "--lr"),
    (("train", "mappo", "mpe/simple_spread", "--config", "a.toml", "--config=b.toml"), "names one file, not 2"),
    (("train", "mappo", "mpe/simple_spread", "--envs", "0"), "envs must be at least 1"),
    (("train", "mappo", "mpe/simple_spread", "--seeds", "0"), "seeds must be at least 1"),
    (("train", "mappo", "mpe/simple_spread", "--seeds", "100000"), "seeds must be at most 1,000"),
    (("train", "mappo", "mpe/simple_spread", "--steps", "1e30"), "steps must be at most"),
    (("train", "mappo", "mpe/simple_spread", "--steps", "1e14"), "more than 2,147,483,647: lower --steps"),
    (("train", "mappo", "mpe/simple_spread", "--eval-episodes", "1e12"), "eval_episodes must be at most"),
    (("train", "mappo", "mpe/simple_spread", "--init-partly"), "init_partly changes what init_from takes over"),
    (("train", "mappo", "mpe/simple_spread", "--config", "/dev/zero"), "it is no file"),
    (("train", "mappo", "mpe/simple_spread", "--shaping", "../hints:potential"), "write it as package.module:name"),
    (("train", "mappo", "mpe/simple_spread", "--shaping", "math:pi"), "must be a function, not float"),
    (("train", "ippo", "games/kuhn", "--self-play", "--sparring", "math:pi"), "script math:pi must be a function"),
    (("train", "mappo", "mpe/simple_spread:N=100000"), "N must be a whole number of at most 10,000"),
    (("train", "mappo", "mpe/simple_spread", "--minibatches", "5"), "minibatches (5) must divide"),
    (("train", "mappo", "mpe/simple_spread", "--config", "nowhere.json"), "Cannot read nowhere.json"),
    (("train", "ppo", "mpe/simple_spread"), "ppo trains one agent"),
    (("train", "mappo"), "ENV"),
    (("resume", "nowhere"), "There is no run at nowhere"),
    (("eval", "nowhere"), "There is no run at nowhere"),
    (("evaluate", "x"), "There is no command 'evaluate'. Did you mean 'eval'?"),
    (("list", "teams"), "algorithms or envs"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_wrong_input_gets_one_sentence(cli, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    status, _, err = cli(*words)
    assert status == 2
    assert sentence in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_complaints_hold_no_codes_for_the_terminal(cli, tmp_path):
    (tmp_path / "config.json").write_text('{"algorithm": "\\u001b]0;own\\u0007", "env": "mpe/simple_spread"}')
    status, _, err = cli("eval", tmp_path)
    assert status == 2
    assert "\\x1b]0;own\\x07" in err
    assert "\x1b" not in err


@pytest.mark.parametrize("value", ["[" * 100_000, "1" * 5_000], ids=["deep", "long"])
def test_settings_that_are_no_json_stay_text(value):
    assert parse_settings(f"N={value}") == {"N": value}


@pytest.mark.parametrize(("name", "content"), [("a.json", "[" * 100_000), ("a.toml", "a = " + "[" * 100_000)])
def test_settings_that_are_too_deep_get_a_sentence(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match="is not valid JSON or TOML"):
        read_settings(tmp_path / name)


def test_too_little_memory_is_told_in_a_sentence(cli, monkeypatch):
    def greedy(_):
        raise MemoryError("Unable to allocate 298. GiB")

    monkeypatch.setitem(COMMANDS, "list", greedy)
    status, _, err = cli("list")
    assert (status, err) == (1, "flockrl: There is not enough memory: Unable to allocate 298. GiB.\n")


@pytest.mark.parametrize("settings", [{"hidden": [8] * 1000}, {"comm": "commnet", "comm_rounds": 4096}])
def test_networks_have_a_bounded_depth(settings):
    with pytest.raises(UsageError, match=r"at most 100|from 1 to 64"):
        make_config("ippo", settings)


def test_bad_config_files_are_named(cli, tmp_path):
    file = tmp_path / "c.json"
    cases = {
        '{"lr": "fast"}': "lr must be a finite number",
        '{"gama": 1}': "Did you mean 'gamma'",
        "{": "not valid JSON",
        '{"hidden": 3}': "hidden must be a list",
        '{"critic": "both"}': "critic must be one of own, central",
        "[]": "must be an object",
    }
    for text, sentence in cases.items():
        file.write_text(text)
        status, _, err = cli("train", "mappo", "mpe/simple", "--config", file, "--out", tmp_path / "run")
        assert (status, sentence in err) == (2, True), err
        assert not (tmp_path / "run").exists()


def test_an_existing_run_is_not_touched(cli, tiny_run):
    before = {p: p.read_bytes() for p in tiny_run.path.iterdir() if p.is_file()}
    status, _, err = cli("train", "mappo", "mpe/simple_spread", "--out", tiny_run.path)
    assert status == 2
    assert "already holds a run" in err
    assert before == {p: p.read_bytes() for p in tiny_run.path.iterdir() if p.is_file()}


def test_a_diverging_run_stops_and_names_the_last_good_checkpoint(cli, tmp_path):
    out = tmp_path / "run"
    words = [*FLAGS, "--lr", "1e30", "--max-grad-norm", "None", "--activation", "relu", "--no-normalize-value"]
    status, _, err = cli("train", "mappo", "mpe/simple_spread", *words, "--checkpoint-every", "128", "--out", out)
    assert status == 1
    assert "stopped at step" in err
    assert "checkpoint" in err
    assert len(err.strip().splitlines()) == 1


def test_tiny_settings_are_what_the_other_tests_assume(tiny_run):
    assert tiny_run.result["steps"] == TINY["steps"]


MEANT = [
    (("train", "mappo", "mpe/simple_spread", "--learning-rate", "1e-3"), "Did you mean '--lr'?"),
    (("train", "mappo", "mpe/simple_spread", "--device", "gpu"), "Did you mean '--platform'?"),
    (("train", "mappo", "mpe/simple_spread", "--gpu"), "Did you mean '--platform'?"),
    (("train", "mappo", "mpe/simple_spread", "--num-envs", "8"), "Did you mean '--envs'?"),
    (("train", "mappo", "mpe/simple_spread", "--total-timesteps=9"), "Did you mean '--steps'?"),
    (("train", "maddpg", "mpe/simple_spread", "--batch", "8"), "Did you mean '--batch-size'?"),
    (("train", "mappo", "mpe/simple_spread", "--discount", "0.9"), "Did you mean '--gamma'?"),
    (("train", "mappo", "mpe/simple_spread", "--frobnicate", "1"), "`flockrl train mappo --help` lists its options."),
    (("train", "adversary=mappo,agent=random", "mpe/simple_tag", "--adversary.learning-rate", "1"), "--adversary.lr'?"),
    (("train", "mappo", "smac/3m"), "Did you mean 'jaxmarl/HeuristicEnemySMAX:scenario=3m'?"),
    (("train", "ppo", "CartPole-v1"), "Did you mean 'gymnasium/CartPole-v1'?"),
    (("train", "ppo", "gym/CartPole-v1"), "Did you mean 'gymnasium/CartPole-v1'?"),
    (("train", "mappo", "mpe2/simple_spread_v3"), "Did you mean 'pettingzoo/mpe2.simple_spread_v3'?"),
    (("train", "mappo", "simple_spread_v3"), "Did you mean 'pettingzoo/mpe2.simple_spread_v3'?"),
    (("train", "mappo", "pettingzoo/simple_spread_v3"), "Did you mean 'pettingzoo/mpe2.simple_spread_v3'?"),
    (("train", "mappo", "pettingzoo/nowhere.at_all"), "There is no module 'nowhere.at_all'"),
    (("train", "mappo", "mpe/simple_spread", "--steps", "1.5"), "expected a whole number"),
    (("train", "mappo", "mpe/simple_spread", "--steps", "inf"), "expected a whole number"),
    (("test", "runs/x"), "Did you mean 'eval'?"),
]


@pytest.mark.parametrize(("words", "sentence"), MEANT, ids=[" ".join(words[1:]) for words, _ in MEANT])
def test_what_is_meant_is_suggested_by_meaning_or_not_at_all(cli, words, sentence):
    status, _, err = cli(*words)
    assert status == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_settings_in_python_are_suggested_by_meaning_too():
    with pytest.raises(flockrl.UsageError, match="Did you mean 'lr'"):
        flockrl.train("mappo", "mpe/simple_spread", learning_rate=1e-3)


@pytest.mark.parametrize(("word", "number"), [("1e6", 10**6), ("5_000_000", 5 * 10**6), ("2.5e3", 2500), ("-3", -3)])
def test_whole_numbers_are_taken_as_people_write_them(word, number):
    flags = dataclasses.make_dataclass("Flags", [("steps", int | None, None), ("hidden", tuple[int, ...], (8,))])
    given = parse(flags, ["--steps", word, "--hidden", "1e1", "4"], "flockrl x", "")
    assert (given.steps, given.hidden) == (number, (10, 4))
    assert type(given.steps) is int


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_nobody_reads_any_more_is_no_error(unbuffered):
    command = [sys.executable, "-m", "flockrl", "list", "algorithms"]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_list_says_what_is_not_installed(cli, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "rware" else found(name))
    lines = {line.split("/")[0]: line for line in cli("list", "envs")[1].splitlines()}
    assert "not installed: pip install 'flockrl[rware]', or in a checkout pip install -e '.[rware]'" in lines["rware"]
    assert "not installed" not in lines["python"] + lines["gymnasium"] + lines["mpe"]


def test_the_benchmark_of_speed_leaves_out_what_is_not_installed(monkeypatch, capsys):
    folder = Path(__file__).parent.parent / "bench"
    monkeypatch.syspath_prepend(str(folder))
    speed = importlib.import_module("speed")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert list(speed.results("host-16", 1)) == []
    assert "host-16 is left out: it needs mpe2" in capsys.readouterr().err
