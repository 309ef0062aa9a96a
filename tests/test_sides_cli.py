"""Sides on the command line: settings, files, what runs write, matches, exports, and runs that are killed."""

import json
import re
import shutil
import time

import jax
import numpy as np
import pytest
from test_resume import final_arrays, flockrl_command, kill_when, rows

import flockrl
from flockrl.commands.main import main

ENV = "mpe/simple_tag"
FLAGS = [
    "--steps", "3000", "--envs", "4", "--eval-every", "3000", "--eval-episodes", "2", "--checkpoint-every", "500",
    "--quiet",
]  # fmt: skip
"""Thirty iterations."""
OWN = ["--rollout-steps", "25", "--epochs", "1", "--minibatches", "2", "--hidden", "8"]
ADVERSARY = [f"--adversary.{word[2:]}" if word.startswith("--") else word for word in OWN]
REPLAY = [
    "--agent.rollout-steps", "25", "--agent.hidden", "8", "--agent.steps-per-update", "50", "--agent.batch-size", "8",
    "--agent.buffer-size", "400", "--agent.learning-starts", "200",
]  # fmt: skip
TOML = """
eval_episodes = 2
[adversary]
rollout_steps = 25
epochs = 1
minibatches = 2
hidden = [8]
lr = 0.5
gamma = 0.9
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("sides")


@pytest.fixture(scope="module")
def prey(place):
    """Two seeds of IPPO for all agents."""
    assert main(["train", "ippo", ENV, *FLAGS, *OWN, "--seeds", "2", "--out", str(place / "prey")]) == 0
    return place / "prey"


@pytest.fixture(scope="module")
def hunt_words(place, prey):
    (place / "hunt.toml").write_text(TOML)
    players = f"adversary=ippo,agent={prey / 'seed_0'}"
    return ["train", players, ENV, *FLAGS, "--config", str(place / "hunt.toml"), "--adversary.lr", "7e-4"]


@pytest.fixture(scope="module")
def hunt(place, hunt_words):
    """Adversaries that learn against the first seed of `prey`."""
    assert main([*hunt_words, "--out", str(place / "hunt")]) == 0
    return place / "hunt"


def read(path):
    return json.loads(path.read_text())


# Settings


def test_settings_of_a_side_reach_its_learner(hunt, prey):
    """From the file, and from flags, which win."""
    config = read(hunt / "config.json")
    own = config["config"]["adversary"]
    assert (own["lr"], own["gamma"], own["hidden"], own["rollout_steps"]) == (7e-4, 0.9, [8], 25)
    assert list(config["config"]) == ["adversary"]
    assert config["algorithm"] == f"adversary=ippo,agent={prey / 'seed_0'}"
    assert config["sides"]["adversary"] == {"kind": "learner", "algorithm": "ippo"}
    agent = config["sides"]["agent"]
    assert (agent["kind"], agent["algorithm"], agent["source"]) == ("frozen", "ippo", str(prey / "seed_0"))
    assert agent["config"] == read(prey / "seed_0" / "config.json")["config"]


def test_help_lists_the_settings_of_learners(cli):
    status, text, _ = cli("train", "adversary=ippo,agent=random", "--help")
    assert status == 0
    assert "--adversary.lr" in text
    assert "--adversary.epochs" in text
    assert "--agent." not in text


@pytest.mark.parametrize(
    ("players", "more", "sentence"),
    [
        ("wolf=ippo,agent=random", [], "has no side 'wolf': its sides are adversary, agent."),
        ("adversary=ippo", [], "Say who plays for agent of"),
        ("adversary=ipo,agent=random", [], "adversary=ipo: there is no such algorithm or run"),
        ("adversary=ipo,agent=random", [], "Did you mean 'ippo'?"),
        ("adversary=ippo,agent", [], "Write sides as SIDE=PLAYER"),
        ("adversary=ippo,adversary=ippo", [], "each once"),
        ("adversary=random,agent=random", [], "No side learns"),
        ("adversary=ippo,agent=random", ["--agent.lr", "1"], "--agent.lr"),
        ("adversary=ippo,agent=random", ["--adversary.lrr", "1"], "'--adversary.lr'"),
        ("adversary=ippo,agent=random", ["--lr", "1"], "'--lr'"),
        ("adversary=ippo,agent=random", ["--adversary.lr", "-1"], "lr must be above 0, not -1"),
        ("adversary=ippo,agent=nowhere:none", [], "There is no script 'nowhere:none'"),
        ("adversary=bc,agent=random", [], "learns from recorded trajectories"),
    ],
)
def test_wrong_sides_get_one_sentence(cli, tmp_path, players, more, sentence):
    status, _, error = cli("train", players, ENV, *more, "--out", tmp_path / "run")
    assert status == 2
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[agent]\nlr = 0.1\n", "agent does not learn, so that it has no settings: leave out lr."),
        ("lr = 0.1\n", "There is no setting 'lr': settings of a side stand under its name (adversary.lr)."),
        ("adversary = 3\n", "Settings of the side adversary must be given by name"),
        ("[adversary]\nlrr = 3\n", "ippo has no setting 'lrr'"),
    ],
)
def test_settings_in_a_file_that_nobody_takes_are_refused(cli, tmp_path, text, sentence):
    (tmp_path / "own.toml").write_text(text)
    words = ["adversary=ippo,agent=random", ENV, "--config", tmp_path / "own.toml", "--out", tmp_path / "run"]
    status, _, error = cli("train", *words)
    assert status == 2
    assert sentence in error
    assert not (tmp_path / "run").exists()


def test_settings_of_a_frozen_side_are_refused(hunt):
    with pytest.raises(flockrl.UsageError, match="agent does not learn"):
        flockrl.train({"adversary": "ippo", "agent": flockrl.Run(hunt)}, ENV, agent={"lr": 0.1})


@pytest.mark.slow
def test_the_saved_configuration_repeats_the_run(cli, hunt, hunt_words, tmp_path):
    words = [*hunt_words[:3], "--config", hunt / "config.json", "--quiet", "--out", tmp_path / "again"]
    assert cli(*words)[0] == 0
    assert rows(tmp_path / "again") == rows(hunt)


# What a run writes


def test_figures_are_told_by_side_and_the_best_is_not_an_average(hunt):
    metrics = flockrl.Run(hunt).metrics()
    last = metrics[-1]
    adversaries, agent = last["return_per_agent"][:3], last["return_per_agent"][3]
    assert last["return_adversary"] == pytest.approx(np.mean(adversaries))
    assert last["return_agent"] == pytest.approx(agent)
    played = last["eval_return_per_agent"]
    assert last["eval_return_adversary"] == pytest.approx(np.mean(played[:3]))
    assert last["eval_return_agent"] == pytest.approx(played[3])
    result = read(hunt / "result.json")
    assert result["best_eval_return"] is None
    for side in ("adversary", "agent"):
        values = [row[f"eval_return_{side}"] for row in metrics if f"eval_return_{side}" in row]
        assert len(values) == 2
        assert result[f"best_eval_return_{side}"] == max(values)
        assert result[f"final_eval_return_{side}"] == values[-1]
    assert "adversary/policy_loss" in last
    assert not [name for row in metrics for name in row if name.startswith("agent/")]


def test_resuming_a_finished_run_says_so(cli, hunt):
    before = (hunt / "metrics.jsonl").read_bytes(), (hunt / "result.json").read_bytes()
    status, text, error = cli("resume", hunt)
    assert (status, error) == (0, "")
    assert text.startswith(f"{hunt} is finished: nothing to resume.")
    assert before == ((hunt / "metrics.jsonl").read_bytes(), (hunt / "result.json").read_bytes())


def test_list_envs_shows_the_sides(cli):
    status, text, _ = cli("list", "envs")
    assert status == 0
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert lines[ENV].endswith("[sides: adversary, agent]")
    assert "sides" not in lines["mpe/simple_spread"]


# Matches


def scores(text):
    """(adversary, agent) of every line of a match."""
    return [tuple(map(float, pair)) for pair in re.findall(r"adversary (-?[\d.]+)[^,]*, agent (-?[\d.]+)", text)]


def test_eval_prints_each_side(cli, hunt):
    status, text, _ = cli("eval", hunt, "--episodes", "3", "--seed", "5")
    assert status == 0
    result = flockrl.Run(hunt).evaluate(3, seed=5)
    assert f"  adversary: return {result.per_agent[:3].mean():.3f}\n" in text
    assert f"  agent: return {result.per_agent[3]:.3f}\n" in text


def test_eval_against_chance_and_against_every_seed_of_a_run(cli, hunt, prey):
    result = flockrl.Run(hunt).evaluate(3, seed=5)
    status, text, _ = cli("eval", hunt, "--episodes", "3", "--seed", "5", "--against", "agent=random")
    assert status == 0
    assert text.startswith(f"{hunt} against agent=random: adversary ")
    assert text.count(" \u00b1 ") == 2
    [chance] = scores(text)
    status, text, _ = cli("eval", hunt, "--episodes", "3", "--seed", "5", "--against", f"agent={prey}")
    assert status == 0
    first, second, both = text.splitlines()
    assert f"agent={prey / 'seed_0'}" in first
    assert f"agent={prey / 'seed_1'}" in second
    assert both.startswith("mean over 2 pairs: ")
    (own, other), mean = scores(text)[:2], scores(text)[2]
    # It learned against the first seed: that match is the run's own.
    assert own == pytest.approx((result.per_agent[:3].mean(), result.per_agent[3]), abs=6e-4)
    assert other != own
    assert chance != own
    assert mean == pytest.approx(np.mean([own, other], axis=0), abs=1e-3)


@pytest.mark.parametrize(
    ("against", "sentence"),
    [
        ("random", "Write opponents as SIDE=PLAYER"),
        ("fox=random", "has no side 'fox': its sides are adversary, agent."),
        ("agent=ippo", "agent=ippo: in a match a side is played by a run"),
        ("agent=nobody", "agent=nobody: there is no such algorithm or run"),
    ],
)
def test_wrong_opponents_get_one_sentence(cli, hunt, against, sentence):
    status, _, error = cli("eval", hunt, "--episodes", "2", "--against", against)
    assert status == 2
    assert sentence in error
    assert error.count("\n") == 1


# Exports


def test_export_of_one_side(cli, hunt, tmp_path):
    status, _, error = cli("export", hunt, "--side", "adversary", "--out", tmp_path / "model")
    assert (status, error) == (0, "")
    assert read(tmp_path / "model" / "metadata.json")["spec"]["agents"] == ["adversary_0", "adversary_1", "adversary_2"]
    status, _, error = cli("export", hunt, "--side", "agent", "--out", tmp_path / "none")
    assert status == 2
    assert "for all agents: name that run instead" in error
    status, _, error = cli("export", hunt, "--side", "fox", "--out", tmp_path / "none")
    assert "has no side 'fox': its sides are adversary, agent." in error


# Runs that are killed


def same_end(a, b):
    assert rows(a) == rows(b)
    jax.tree.map(np.testing.assert_array_equal, final_arrays(a), final_arrays(b))


def test_two_unlike_learners_killed_and_resumed_equal_the_uninterrupted(tmp_path):
    """One with a rollout's experience, one with a replay, in the same run."""
    words = ["train", "adversary=ippo,agent=iddpg", ENV, *FLAGS, *ADVERSARY, *REPLAY]
    process = flockrl_command(*words, "--out", str(tmp_path / "killed"))
    assert kill_when(process, tmp_path / "killed" / "metrics.jsonl", 9)
    assert not (tmp_path / "killed" / "result.json").exists()
    assert main(["resume", str(tmp_path / "killed"), "--quiet"]) == 0
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    same_end(tmp_path / "killed", tmp_path / "whole")
    learned = final_arrays(tmp_path / "whole").learner["agent"].learned
    assert int(learned.updates) > 40


@pytest.mark.slow
def test_a_run_is_resumed_without_the_run_that_it_froze(tmp_path, hunt, prey, hunt_words):
    """What it needs of that run is in its first checkpoint."""
    frozen = tmp_path / "frozen"
    shutil.copytree(prey / "seed_0", frozen)
    words = [word.replace(str(prey / "seed_0"), str(frozen)) for word in hunt_words]
    killed = tmp_path / "killed"
    process = flockrl_command(*words, "--out", str(killed))
    while process.poll() is None and not any(path.name.isdigit() for path in killed.glob("checkpoints/*")):
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert not (killed / "result.json").exists()
    shutil.rmtree(frozen)
    assert main(["resume", str(killed), "--quiet"]) == 0
    same_end(killed, hunt)


def test_a_run_that_was_killed_before_it_kept_its_frozen_side_is_refused(cli, tmp_path, hunt):
    shutil.copy(hunt / "config.json", tmp_path / "config.json")
    status, _, error = cli("resume", tmp_path)
    assert status == 2
    assert "was stopped before it saved what it begins with: train it again." in error
