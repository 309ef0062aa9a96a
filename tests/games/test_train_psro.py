"""flockrl train psro and fictitious: what they print and write, and refusals in one sentence."""

import json

import numpy as np
import pytest
from game_kit import tree


def test_pools_of_kuhn_close_and_are_written(cli, tmp_path):
    status, out, _ = cli("train", "psro", "games/kuhn", "--iterations", 70, "--out", tmp_path / "run")
    assert status == 0
    assert "nobody gains by a best response: NashConv" in out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["nash_conv"] < 1e-9
    assert result["values"][0] == pytest.approx(-1 / 18)
    assert max(result["pool_sizes"]) <= 70
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["nash_conv"] == result["nash_conv"]
    saved = np.load(tmp_path / "run" / "policies.npz")
    game = tree("kuhn")
    policies = []
    for i, seat in enumerate(game.form.seats):
        assert (saved[f"shown_{i}"] == game.shown[i]).all()
        policies.append(np.append([1.0], saved[f"policy_{i}"][seat.owner[1:], seat.actions[1:]]))
        assert saved[f"mix_{i}"].sum() == pytest.approx(1)
        assert len(saved[f"pool_{i}"]) == result["pool_sizes"][i]
    assert game.form.gap(policies).nash_conv < 1e-9, "what is written is what was claimed"


def test_fictitious_play_cycles_on_shapleys_game(cli, tmp_path):
    status, out, _ = cli("train", "fictitious", "games/shapley", "--iterations", 500, "--out", tmp_path / "run")
    assert status == 0
    assert "stopped after 500 rounds" in out
    assert json.loads((tmp_path / "run" / "result.json").read_text())["nash_conv"] > 0.1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("psro", "games/soccer"), "is a game of states"),
        (("psro", "games/shapley"), "use uniform"),
        (("psro", "games/kuhn", "--iterations", 0), "iterations must be at least 1"),
        (("psro", "mpe/simple_tag"), "simple_tag"),
        (("psro", "games/kuhn", "--seed", 3), "--seed is for responses that are learned"),
        (("fictitious", "games/kuhn", "--oracle-steps", 100), "--oracle-steps is for responses that are learned"),
    ],
)
def test_refusals_are_one_sentence_and_leave_nothing(cli, tmp_path, words, complaint):
    status, _, err = cli("train", *words, "--out", tmp_path / "run")
    assert status == 2
    assert complaint in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()
