"""PSRO with learned oracles: gains by hand, mixtures of several networks examined and met, runs that can be opened."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stop_at import StopAt

import flockrl
from flockrl.algos.assembly import Sides
from flockrl.core.errors import UsageError
from flockrl.core.types import Actor
from flockrl.envs import make
from flockrl.games.query import Examiner
from flockrl.training import pools
from flockrl.training.interrupt import Interrupted
from flockrl.training.ledger import left_off, read_pools
from flockrl.training.pools import _gain, learned_psro

SMALL = {"hidden": (8,), "rollout_steps": 16, "lr": 0.02, "entropy": 0.0}


def test_gains_by_hand():
    """The first has rock, the second an even mixture of rock and paper; paper and scissors are new."""
    first = np.array([[0.0, -1, 1], [1, 0, -1]])
    payoffs = np.stack([first, -first], -1)
    weights = {"a": np.array([1.0]), "b": np.array([0.5, 0.5])}
    # rock gets -1/2 on average and paper 1/2; the second gets 1/2, and scissors against rock -1
    assert _gain(weights, payoffs) == pytest.approx((0.5 + 0.5) + (-1 - 0.5))
    assert _gain(weights, None) is None


def test_players_draw_apart_from_their_own_pools():
    """Matching pennies: the first always shows heads or always tails, evenly; the second always heads."""
    env = make("games/matching_pennies:rounds=1")

    def act(params, seen, memory, key, explore):
        logits = jnp.broadcast_to(params, (len(seen.obs), 2, 2))
        action = jax.random.categorical(key, logits) if explore else logits.argmax(-1)
        logp = jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]
        return action.astype(jnp.int32), memory, {"logp": logp} if explore else {}

    heads, tails = jnp.array([30.0, 0]), jnp.array([0.0, 30])
    team = Actor(act, lambda batch: ())
    gap = Examiner(env).gap_of_pools(team, [([0.5, 1.0], heads), ([0.5, 0.0], tails)])
    assert gap.gains == pytest.approx([1, 0], abs=1e-6), "only the second can be exploited"


@pytest.mark.slow
def test_rock_paper_scissors_by_learned_responses(tmp_path):
    """Each response learns what beats the mixture; with all three in the pools, their mixture is the equilibrium."""
    told = []
    found = learned_psro(
        "games/rock_paper_scissors:rounds=1", "ippo", steps=6_000, rounds=4, episodes=50, out=tmp_path, settings=SMALL,
        each=told.append,
    )  # fmt: skip
    assert [len(pool) for pool in found.pools.values()] == [5, 5]
    assert found.payoffs.shape == (5, 5, 2)
    assert np.abs(found.payoffs.sum(-1)).max() < 1e-6
    assert told[0].nash_conv < 0.1, "an untrained policy is nearly uniform, which is the equilibrium here"
    assert all(np.isclose(w.sum(), 1) for w in found.weights.values())
    run = flockrl.Run(found.runs["agent_0"][-1])
    assert isinstance(run.config.config, Sides)
    assert run.config.config.players["agent_1"].members == 5
    assert run.evaluate(episodes=4).returns.shape == (4, 2), "a run against a mixture is opened like any other"


@pytest.mark.slow
def test_pools_that_were_stopped_go_on_exactly(tmp_path, monkeypatch, cli):
    """Stopped after a round, and within a response; then compared with pools that were not stopped, bit for bit."""
    terms = {"steps": 960, "rounds": 2, "episodes": 20, "envs": 4, "settings": SMALL}
    game, out = "games/rock_paper_scissors:rounds=1", tmp_path / "stopped"
    whole = learned_psro(game, "ippo", out=tmp_path / "whole", **terms)

    def stop(told):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learned_psro(game, "ippo", out=out, each=stop, **terms)
    assert len(read_pools(out)["rounds"]) == 1
    real, calls = pools.train, []

    def train(*args, **settings):
        calls.append(settings["out"])
        return real(*args, callbacks=[StopAt(512)] if len(calls) == 2 else (), **settings)

    monkeypatch.setattr(pools, "train", train)
    with pytest.raises(Interrupted, match="continue with `flockrl resume"):
        learned_psro(game, "ippo", out=out, **terms)
    assert calls == [out / "round_2" / "agent_0", out / "round_2" / "agent_1"], "the first round is not learned again"
    status, printed, _ = cli("resume", out)
    assert status == 0
    assert "2 policies: NashConv" in printed
    assert len(calls) == 2, "what was begun went on, and nothing was trained anew"
    found = json.loads((out / "result.json").read_text())
    assert found["payoffs"] == whole.payoffs.tolist()
    assert found["nash_conv"] == whole.nash_conv
    for side, policies in whole.pools.items():
        for path, params in zip(found["runs"][side], policies[1:], strict=True):
            again = flockrl.Run(out / path).params()[side]
            assert all(map(np.array_equal, jax.tree.leaves(params), jax.tree.leaves(again)))
    assert cli("resume", out)[1].endswith("is finished: nothing to resume.\n")
    with pytest.raises(UsageError, match="grew with episodes 20, not 30"):
        learned_psro(game, "ippo", out=out, **{**terms, "episodes": 30})


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 3}, {"rounds": [[1, None, None]] * 3}, {"rounds": [[2, None, None]]}, {"payoffs": [[1]]},
        {"payoffs": "x"}, {"rounds": [[1, 0.1, 0.1]], "payoffs": None}, {"seed": "0"}, {"iterations": True},
        {"oracle": 3}, {"settings": []}, {"payoffs": [[[float("nan"), 0]]]},
    ],
)  # fmt: skip
def test_a_damaged_file_of_pools_is_one_sentence(cli, tmp_path, change):
    terms = {"env": "games/kuhn", "oracle": "ippo", "oracle_steps": 10, "iterations": 2, "meta": "nash", "episodes": 1}
    good = {**terms, "envs": 1, "seed": 0, "settings": {}, "rounds": [], "payoffs": None}
    (tmp_path / "pools.json").write_text(json.dumps({**good, **change}))
    status, _, err = cli("resume", tmp_path)
    assert status == 2
    assert "is damaged" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [("--processes", 2), ("--process", 1), ("--devices", 2), ("--steps", 100)])
def test_what_pools_do_not_take_is_refused(cli, tmp_path, words):
    (tmp_path / "pools.json").write_text("{}")
    status, _, err = cli("resume", tmp_path, *words)
    assert status == 2
    assert f"{words[0]} is for runs" in err


@pytest.mark.parametrize("change", [{"iterations": 10**12}, {"envs": 2**60}, {"episodes": 2**60}, {"meta": "best"}])
def test_absurd_numbers_in_a_file_of_pools_are_one_sentence(cli, tmp_path, change):
    terms = {"env": "games/kuhn", "oracle": "ippo", "oracle_steps": 10, "iterations": 2, "meta": "nash", "episodes": 1}
    rest = {"envs": 1, "seed": 0, "settings": {}, "rounds": [], "payoffs": None}
    (tmp_path / "pools.json").write_text(json.dumps({**terms, **rest, **change}))
    status, _, err = cli("resume", tmp_path)
    assert status == 2
    assert next(iter(change)) in err
    assert err.count("\n") == 1


def test_only_what_a_run_wrote_is_removed(tmp_path):
    path = tmp_path / "round_1" / "agent_0"
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds what no run wrote \(thesis.txt\): move it away"):
        left_off(path, None, False, anew=True)
    assert sorted(file.name for file in path.iterdir()) == ["checkpoints", "config.json", "thesis.txt"]
    (path / "thesis.txt").unlink()
    (tmp_path / "link").symlink_to(path.parent)
    with pytest.raises(UsageError, match="no run wrote"):
        left_off(tmp_path / "link" / "agent_0", None, False, anew=True)
    assert left_off(path, None, False, anew=False) is None
    assert path.exists()
    assert left_off(path, None, False, anew=True) is None
    assert not path.exists()


def test_pools_do_not_grow_in_a_run_of_several_seeds(cli, tmp_path):
    (tmp_path / "seed_0").mkdir()
    (tmp_path / "seed_0" / "config.json").write_text("{}")
    status, _, err = cli("train", "psro", "games/kuhn", "--oracle", "ippo", "--out", tmp_path)
    assert status == 2
    assert "already holds a run" in err
    assert not (tmp_path / "pools.json").exists()
    (tmp_path / "other" / "round_1").mkdir(parents=True)
    status, _, err = cli("train", "psro", "games/kuhn", "--oracle", "ippo", "--out", tmp_path / "other")
    assert status == 2
    assert "already holds something" in err


def test_code_that_a_file_of_pools_names_needs_trust(cli, tmp_path):
    terms = {"env": "python/own:Env", "oracle": "ippo", "oracle_steps": 10, "iterations": 2, "meta": "nash"}
    rest = {"episodes": 1, "envs": 1, "seed": 0, "settings": {"kernel": "own:Net"}, "rounds": [], "payoffs": None}
    (tmp_path / "pools.json").write_text(json.dumps({**terms, **rest}))
    status, _, err = cli("resume", tmp_path)
    assert status == 2
    assert "names code" in err
    assert "own:Net" in err


@pytest.mark.slow
def test_the_command_learns_responses_where_nothing_can_be_enumerated(cli, tmp_path):
    words = ["games/connect_four", "--oracle", "ippo", "--oracle-steps", 2000, "--iterations", 1, "--episodes", 16]
    status, out, _ = cli("train", "psro", *words, "--meta", "alpha-rank", "--out", tmp_path / "run")
    assert status == 0
    assert "1 policies: learned responses gain" in out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert np.shape(result["payoffs"]) == (2, 2, 2)
    assert (tmp_path / "run" / result["runs"]["agent_1"][0] / "config.json").is_file()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("games/kuhn", "--oracle", "ipo"), "There is no algorithm 'ipo'. Did you mean"),
        (("mpe/simple_spread", "--oracle", "ippo"), "are on one side"),
        (("games/kuhn", "--oracle", "ippo", "--oracle-steps", 0), "oracle_steps must be from 1 to"),
    ],
)
def test_refusals_are_one_sentence_and_leave_nothing(cli, tmp_path, words, complaint):
    status, _, err = cli("train", "psro", *words, "--out", tmp_path / "run")
    assert status == 2
    assert complaint in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()
