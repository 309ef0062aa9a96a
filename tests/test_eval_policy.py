"""`flockrl eval --policy`: policies that come with an environment, and random play, without a run."""

import pytest

SIGNAL = "comm/signalling"


def test_a_policy_of_an_environment_is_played(cli):
    status, out, _ = cli("eval", "--policy", "told", SIGNAL, "--episodes", 50)
    assert status == 0
    assert f"told in {SIGNAL}: return 1.000 ± 0.000 (mean over agents and 50 episodes; ± standard error)" in out
    assert "  success 1 ± 0\n" in out
    assert "leader 1.000, follower_0 1.000" in out


def test_random_play_needs_no_policies(cli):
    status, out, _ = cli("eval", "--policy", "random", "games/stag_hunt:rounds=2", "--episodes", 8)
    assert status == 0
    assert "random in games/stag_hunt:rounds=2: return " in out
    assert "agent_0: return " in out


def test_random_play_on_the_host(cli):
    pytest.importorskip("gymnasium")
    status, out, _ = cli("eval", "--policy", "random", "gymnasium/CartPole-v1", "--episodes", 3)
    assert status == 0
    assert "random in gymnasium/CartPole-v1: return " in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "nonsense", SIGNAL], "has no policy 'nonsense'. Choose from: leader_only, random, told."),
        (["--policy", "tld", SIGNAL], "Did you mean 'told'?"),
        (["--policy", "told", "comm/signaling"], "Did you mean 'signalling'?"),
        (["--policy", "told", SIGNAL, "--explore"], "--explore is for a run"),
        (["--policy", "told", SIGNAL, "--best"], "--best is for a run"),
        (["--policy", "told", SIGNAL, "--record", "x.arrow"], "--record is for a run"),
        (["--policy", "told", SIGNAL, "--against", "leader=random", "--gif", "x.gif"], "--against only counts"),
        (["--policy", "told", "runs", "--env", SIGNAL], "name the environment in place of RUN"),
        (["--policy", "told", SIGNAL, "--episodes", "0"], "episodes must be at least 1"),
        (["--policy", "told", SIGNAL, "--episodes", "1e9"], "episodes must be at most 1,000,000"),
        (["--policy", "told", SIGNAL, "--silence"], "--silence is for a run"),
        (["--policy", "told", SIGNAL, "--channel", "loss=0.5"], "--channel is for a run"),
        (["--policy", "told", SIGNAL, "--seed", "-1"], "seed must lie between 0 and 2^32 - 1, not -1"),
        (["--policy", "told", SIGNAL, "--seed", "1" + "0" * 20], "seed must lie between 0 and 2^32 - 1"),
        (["--policy", "told", "/"], "is a directory: name an environment"),
    ],
)
def test_what_does_not_go_together_is_refused(cli, words, says):
    status, out, error = cli("eval", *words)
    assert status == 2
    assert says in error
    assert not out


def test_a_policy_can_be_drawn(cli, tmp_path):
    file = tmp_path / "x.gif"
    status, out, _ = cli("eval", "--policy", "told", SIGNAL, "--episodes", 5, "--gif", file, "--side-by-side")
    assert status == 0
    assert f"wrote {file}" in out
    assert file.read_bytes().startswith(b"GIF8")


def test_the_list_names_policies(cli):
    _, out, _ = cli("list", "envs")
    assert "[policies: always_gas, omniscient]" in out
    assert "[sides: adversary, agent]" in out
