"""The Python blocks of docs/recipes.md run as they stand, with fewer steps."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

TEXT = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text()
BLOCKS = [block for block in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "flockrl.train" in block]


SLOW = [pytest.param(block, marks=pytest.mark.slow) if "for number" in block else block for block in BLOCKS]


@pytest.mark.parametrize("block", SLOW, ids=range(len(BLOCKS)))
def test_recipe_runs(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(re.sub(r"steps=[\d_]+", "steps=3200", block), {})
    assert capsys.readouterr().out.strip()


def test_the_network_is_a_network():
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "flockrl.train" not in block]
    program = {}
    exec(block, program)
    out, _ = program["Residual"]().init_with_output(jax.random.key(0), jnp.zeros((3, 5)))
    assert out.shape == (3, 64)


def test_the_sweep_is_a_suite(tmp_path):
    from flockrl.evidence.suite import read_suite

    (tmp_path / "sweep.toml").write_text(re.search(r"```toml\n(.*?)```", TEXT, re.S)[1])
    suite = read_suite(str(tmp_path / "sweep.toml"))
    assert {cell.label for cell in suite.cells} == {"ippo lr 1e-3", "ippo lr 3e-4"}
    assert len(suite.cells) == 10
