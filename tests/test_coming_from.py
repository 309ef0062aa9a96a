"""The page for people who come from other libraries: what it shows runs, and what it names exists."""

import re
from pathlib import Path

import pytest
from conftest import TINY

import flockrl
from flockrl.commands.completion import vocabulary

PAGE = (Path(__file__).parent.parent / "docs" / "coming-from.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SMALL = {**TINY, "steps": 128}


@pytest.mark.parametrize("block", BLOCKS, ids=["stable-baselines3", "rllib", "pettingzoo", "xuance"])
def test_a_snippet_runs_as_it_stands(block, tmp_path, monkeypatch):
    """With fewer steps."""
    train = flockrl.train
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flockrl, "train", lambda *names, **settings: train(*names, **{**settings, **SMALL}))
    exec(compile(block, "coming-from.md", "exec"), {})


def test_every_flag_and_name_on_the_page_exists():
    known = vocabulary()
    everything = {flag for flags in known.flags.values() for flag in flags} | {"--logdir"}
    flags = set(re.findall(r"`(--[a-z-]+)", PAGE)) | set(re.findall(r"flockrl [^`\n]*?(--[a-z-]+)", PAGE))
    assert len(flags) > 20
    assert not flags - everything
    commands = set(re.findall(r"`flockrl ([a-z]+)", PAGE))
    assert commands <= set(known.words[""])
    for algorithm, env in re.findall(r"flockrl(?: train |\.train\(\")(\w+)(?:\", \"| )([a-z]+/[\w.:=,-]+)", PAGE):
        assert algorithm in known.words["train"]
        assert env in known.words["ENV"] or any(env.startswith(name) for name in known.words["ENV"])


def test_settings_of_the_page_are_those_of_its_algorithms():
    settings = {flag[2:].replace("-", "_") for flag in vocabulary().flags["train ppo"]}
    for name in ("lr", "gamma", "rollout_steps", "epochs", "minibatches", "entropy", "clip", "max_grad_norm", "hidden"):
        assert name in settings
        assert name in PAGE
