"""Runs whose agents talk: exact resume, other channels in evaluation, measures, the command line."""

import jax
import numpy as np
import pytest
from conftest import TINY
from stop_at import StopAt

import flockrl
from flockrl.core.errors import UsageError
from flockrl.core.rundir import read_metrics
from flockrl.evaluation.talk import mutual_information
from flockrl.training.interrupt import Interrupted

TALK = {**TINY, "comm": "tarmac", "comm_size": 4, "channel": "loss=0.3,delay=2,top=2,access=round_robin"}


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    """A finished run on simple_spread whose agents talk over a bad line."""
    return flockrl.train("ippo", "mpe/simple_spread", out=tmp_path_factory.mktemp("runs") / "talking", **TALK)


def rows(run):
    return [
        {k: v for k, v in row.items() if k not in ("seconds", "steps_per_second")} for row in read_metrics(run.path)
    ]


def test_a_run_that_was_stopped_with_mail_on_its_way_goes_on_as_if_it_was_not(talking, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        flockrl.train("ippo", "mpe/simple_spread", out=path, callbacks=[StopAt(384)], **TALK)
    stopped = flockrl.Run(path).state()
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(stopped.actors.memory))
    flockrl.resume(path)
    run = flockrl.Run(path)
    assert rows(run) == rows(talking)
    jax.tree.map(np.testing.assert_array_equal, run.state(), talking.state())


def test_metrics_tell_how_much_was_said(talking):
    last = talking.metrics()[-1]
    assert last["messages_sent"] == pytest.approx(2 / 3)  # two of three may speak
    assert last["comm_bits"] == pytest.approx(2 / 3 * 32 * (16 + 4))
    # Each is heard by two after two steps, of 25 in an episode, less what is lost.
    assert last["messages_received"] + last["messages_lost"] == pytest.approx(2 * 2 / 3 * 23 / 25, rel=0.05)
    assert last["messages_lost"] / (last["messages_received"] + last["messages_lost"]) == pytest.approx(0.3, abs=0.05)


def test_another_channel_in_evaluation(talking):
    own = talking.evaluate(8).returns
    np.testing.assert_array_equal(talking.evaluate(8, channel=TALK["channel"]).returns, own)
    silent = talking.evaluate(8, channel="bits=0").returns
    assert (silent != own).any()
    np.testing.assert_array_equal(talking.evaluate(8, channel="loss=1").returns, silent)
    with pytest.raises(UsageError, match="round_robin"):
        talking.evaluate(8, channel="top=1")
    with pytest.raises(UsageError, match="leave out record"):
        talking.evaluate(8, channel="loss=0.5", record="x.arrow")


def test_silence_is_the_same_policy_without_its_ears(talking):
    """Parameters elsewhere stay: an ippo team without messages that is given them plays as the silenced one."""
    plain = flockrl.algos.assembly.make_algorithm(
        "ippo", talking.spec, flockrl.algos.presets.make_config("ippo", {k: TINY[k] for k in ("hidden",)}),
        envs=8, updates=1,
    )  # fmt: skip
    params = talking.params()
    bare = {**params, "actor": tuple({k: p[k] for k in ("torso", "head")} for p in params["actor"])}
    from flockrl.evaluation.playing import make_player

    returns, *_ = make_player(plain, talking.env, 8)(bare, jax.random.key(0))
    np.testing.assert_array_equal(returns, talking.evaluate(8, channel="bits=0").returns)


def test_the_command_line_tells_what_messages_do(talking, tiny_run, cli):
    status, out, _ = cli("eval", talking.path, "--episodes", 4)
    assert status == 0
    assert "silenced: return" in out
    assert "signalling" in out
    assert "nats" in out
    whole, silent = (cli("eval", talking.path, "--episodes", 4, *words)[1] for words in ((), ("--silence",)))
    assert "silenced" not in silent
    assert whole.partition("silenced: return ")[2][:6] == silent.partition("return ")[2][:6]
    assert cli("eval", talking.path, "--episodes", 4, "--channel", "loss=0.9")[0] == 0
    for words, says in (
        ((talking.path, "--channel", "los=1"), "Did you mean 'loss'"),
        ((talking.path, "--channel", "loss=1", "--silence"), "leave out --channel"),
        ((tiny_run.path, "--silence"), "train with --comm"),
    ):
        status, _, err = cli("eval", *words)
        assert status != 0
        assert says in err
        assert "Traceback" not in err
    status, _, err = cli("train", "mappo", "mpe/simple_spread", "--comm", "comnet")
    assert status != 0
    assert "commnet" in err
    for words, says in (
        (("--channel", "loss=0.1"), "comm=none"),
        (("--comm", "gat", "--channel", "x=1"), "name=value"),
    ):
        status, _, err = cli("train", "mappo", "mpe/simple_spread", *words)
        assert status != 0
        assert says in err
    status, _, err = cli("train", "iql_tabular", "matrix/climbing", "--comm", "commnet")
    assert status != 0
    assert "--comm" in err


def test_the_report_shows_what_messages_do(talking, tiny_run, cli, tmp_path):
    out = tmp_path / "report.html"
    status, _, err = cli("report", talking.path, tiny_run.path, "--out", out, "--no-animations")
    assert status == 0, err
    text = out.read_text()
    assert "<h2>Messages</h2>" in text
    assert text.count("Who listens to whom: ") == 1  # the other run's agents do not talk
    assert text.count("<rect") >= 9
    assert "agent_0 to agent_1" in text


def test_mutual_information_is_that_of_known_pairs():
    rng = np.random.default_rng(0)
    bit = rng.integers(0, 2, (4000, 1))
    side = rng.normal(size=(4000, 3))
    assert mutual_information(np.hstack([5.0 * bit, 0.1 * side]), bit) == pytest.approx(1, abs=0.06)
    assert mutual_information(side, bit) < 0.02
    assert mutual_information(np.zeros((4000, 2)), bit) == 0
    four = rng.integers(0, 4, (4000, 1))
    assert mutual_information(four, four) == pytest.approx(2, abs=0.02)
    flipped = np.where(rng.random((4000, 1)) < 0.1, 1 - bit, bit)
    assert mutual_information(flipped, bit) == pytest.approx(1 + 0.1 * np.log2(0.1) + 0.9 * np.log2(0.9), abs=0.03)
