"""The Python blocks of docs/data.md run as they stand, in the order in which they come."""

import re
from pathlib import Path

import pytest

from flockrl.commands.main import main
from flockrl.data.experience import join
from flockrl.data.files import Files

TEXT = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def block(word):
    (found,) = (text for text in BLOCKS if word in text)
    return found


def test_importing_a_dataset(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(block("our archive"), {})
    assert main(["data", "validate", "meadow.arrow"]) == 0
    assert "50 trajectories, all good" in capsys.readouterr().out
    files = Files(["meadow.arrow"])
    piece = join(list(files))
    assert (piece.trajectories, piece.steps, files.about["source"]) == (50, 1000, "our archive")
    assert piece.whole.all()
    assert not piece.blind.any()
    (tmp_path / "runs").mkdir()
    (tmp_path / "meadow.arrow").rename(tmp_path / "runs" / "meadow.arrow")
    exec(block("memory_limit=1 << 30"), {})
    assert sum(int(line.split()[0]) for line in capsys.readouterr().out.splitlines()) == 50


def test_a_loop_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(block("trainer.episode()").replace("range(2000)", "range(330)"), {})
    first, *_ = map(float, capsys.readouterr().out.split())
    assert 0 < first <= 5
    assert (tmp_path / "runs" / "mine" / "trainer.json").exists()


def test_every_block_is_python():
    for text in BLOCKS:
        compile(text, "docs/data.md", "exec")
    assert len(BLOCKS) >= 4
    with pytest.raises(ValueError, match="values to unpack"):
        block("no such word")
