"""Datasets of Minari become trajectory files."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from flockrl.commands.main import main
from flockrl.core.errors import UsageError
from flockrl.data.experience import join
from flockrl.data.files import Files
from flockrl.evaluation.minari import Dataset

ROOM = spaces.Dict({"goal": spaces.Discrete(3), "place": spaces.Box(-1, 1, (2,))})


class Made:
    """What `minari.load_dataset` returns, as far as it is used."""

    def __init__(self, acts, env_spec=None):
        self.observation_space, self.action_space, self.env_spec = ROOM, acts, env_spec

    def iterate_episodes(self):
        rng = np.random.default_rng(0)
        for length, ended in ((3, True), (4, False)):
            seen = {"goal": np.arange(length + 1) % 3, "place": rng.uniform(-1, 1, (length + 1, 2))}
            discrete = isinstance(self.action_space, spaces.Discrete)
            actions = 5 + np.arange(length) % 2 if discrete else rng.uniform(-1, 1, (length, 2, 2))
            last = np.arange(length) == length - 1
            yield SimpleNamespace(
                observations=seen, actions=actions, rewards=np.arange(length, dtype=float),
                terminations=last & ended, truncations=last & (not ended),
            )  # fmt: skip


def test_a_dataset_becomes_a_file(tmp_path, monkeypatch, capsys):
    source = Made(spaces.Discrete(2, start=5), SimpleNamespace(id="Room-v0", max_episode_steps=9))
    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset=lambda name, download: source))
    out = tmp_path / "room.parquet"
    assert main(["data", "convert", "minari:rooms/room-v0", "--out", str(out)]) == 0
    assert main(["data", "validate", str(out)]) == 0
    files = Files([out])
    data = join(list(files))
    assert (files.spec.name, files.spec.max_steps, files.about["source"]) == (
        "gymnasium/Room-v0", 9, "minari:rooms/room-v0",
    )  # fmt: skip
    assert data.length.tolist() == [3, 4]
    assert data.action[:, 0].tolist() == [0, 1, 0, 0, 1, 0, 1]
    assert data.obs[:3, 0, :3].tolist() == np.eye(3).tolist()
    assert data.reward[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert data.terminated[:, 0].tolist() == [False, False, True, False, False, False, False]
    assert data.truncated[-1, 0]
    assert not data.blind.any()
    assert data.next_obs[-1, 0, :3].tolist() == [0, 1, 0]  # the fifth observation of the second episode
    capsys.readouterr()
    assert main(["data", "convert", "minari:a", "minari:b", "--out", str(tmp_path / "x.arrow")]) == 2
    assert "converted alone" in capsys.readouterr().err


def test_real_actions_and_what_cannot_be_imported():
    data = join(list(Dataset(Made(spaces.Box(-1, 1, (2, 2))), "own")))
    assert data.action.shape == (7, 1, 4)
    with pytest.raises(UsageError, match="MultiDiscrete"):
        Dataset(Made(spaces.MultiDiscrete([2, 2])), "own")


def test_without_minari_and_without_the_dataset(tmp_path, monkeypatch, capsys):
    def fail(name, download):
        raise FileNotFoundError("no such thing\nat all")

    words = ["data", "convert", "minari:nowhere", "--out", str(tmp_path / "x.arrow")]
    monkeypatch.setitem(sys.modules, "minari", None)
    assert main(words) == 2
    assert "pip install 'minari" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset=fail))
    assert main(words) == 2
    assert capsys.readouterr().err == "flockrl: Minari cannot load nowhere: no such thing\n"
    assert not list(tmp_path.iterdir())
