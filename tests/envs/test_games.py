"""Matrix games: payoffs by hand, endings, observations, files."""

import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.envs import make
from flockrl.envs.games.matrix import MatrixGame

KEY = jax.random.key(0)


def play(env, *actions):
    """Rewards [T, N], terminated and truncated [T], and the last observation of a sequence of joint actions."""
    state, seen = env.reset(KEY)
    rewards, ends, cuts = [], [], []
    for action in actions:
        state, seen, reward, terminated, truncated = env.step(KEY, state, jnp.array(action, jnp.int32))
        rewards.append(np.asarray(reward).tolist())
        ends.append(bool(terminated))
        cuts.append(bool(truncated))
    return rewards, ends, cuts, np.asarray(seen.obs)


@pytest.mark.parametrize(
    ("name", "action", "paid"),
    [
        ("climbing", (0, 0), [11, 11]),
        ("climbing", (0, 1), [-30, -30]),
        ("climbing", (1, 2), [6, 6]),
        ("climbing", (2, 1), [0, 0]),
        ("penalty", (0, 0), [-25, -25]),
        ("penalty", (2, 0), [10, 10]),
        ("penalty:k=-100", (2, 2), [-100, -100]),
        ("penalty:k=0", (0, 0), [0, 0]),
        ("prisoners_dilemma", (0, 0), [3, 3]),
        ("prisoners_dilemma", (0, 1), [0, 5]),
        ("prisoners_dilemma", (1, 0), [5, 0]),
        ("prisoners_dilemma", (1, 1), [1, 1]),
        ("stag_hunt", (0, 1), [0, 3]),
        ("stag_hunt", (0, 0), [4, 4]),
        ("matching_pennies", (1, 1), [1, -1]),
        ("matching_pennies", (1, 0), [-1, 1]),
        ("chicken", (0, 1), [2, 7]),
        ("chicken", (1, 1), [0, 0]),
        ("chicken:both=0,win=1,lose=-1,crash=-10", (1, 1), [-10, -10]),
        ("rock_paper_scissors", (1, 0), [1, -1]),
        ("rock_paper_scissors", (1, 2), [-1, 1]),
        ("shapley", (0, 0), [1, 0]),
        ("shapley", (0, 1), [0, 1]),
        ("lever", (3, 3), [1, 1]),
        ("lever", (9, 8), [0, 0]),
        ("battle_of_the_sexes", (0, 0), [3, 2]),
        ("battle_of_the_sexes", (1, 1), [2, 3]),
        ("battle_of_the_sexes", (1, 0), [0, 0]),
    ],
)
def test_payoffs(name, action, paid):
    assert play(make(f"games/{name}"), action)[0] == [paid]


def test_the_last_round_terminates_and_nothing_is_truncated():
    _, ends, cuts, _ = play(make("games/climbing:rounds=3"), (0, 0), (0, 0), (0, 0))
    assert ends == [False, False, True]
    assert cuts == [False] * 3
    assert play(make("games/climbing:rounds=1"), (0, 0))[1] == [True]


def test_rounds_are_the_length_and_best_is_the_optimum():
    env = make("games/climbing")
    assert env.spec.max_steps == 25
    assert env.best == 275
    assert make("games/penalty:rounds=2").best == 20
    assert make("games/chicken").best is None


def test_observation_is_one_unless_history_is_asked_for():
    assert play(make("games/climbing"), (2, 1))[3].tolist() == [[1], [1]]
    env = make("games/climbing:history=true")
    assert np.asarray(env.reset(KEY)[1].obs).tolist() == [[1, 0, 0, 0, 0, 0, 0]] * 2
    assert play(env, (2, 1))[3].tolist() == [[1, 0, 0, 1, 0, 1, 0]] * 2
    assert env.spec.obs_size == 7


def test_teams_follow_the_payoff():
    assert make("games/climbing").spec.sides == ("team", "team")
    assert make("games/climbing").spec.groups == (0, 0)
    assert make("games/matching_pennies").spec.sides == ("agent_0", "agent_1")
    assert make("games/matching_pennies").spec.groups == (0, 1)
    assert MatrixGame(np.ones((3, 3, 2))).spec.sides == ("team", "team"), "equal payoffs: one side, whatever the shape"


def test_unlike_numbers_of_actions():
    payoff = np.arange(2 * 3 * 4 * 3, dtype=float).reshape(2, 3, 4, 3)
    env = MatrixGame(payoff, rounds=1, history=True, name="mine")
    assert [space.n for space in env.spec.actions] == [2, 3, 4]
    assert env.spec.obs_size == 1 + 2 + 3 + 4
    assert env.spec.name == "mine"
    for action in np.ndindex(2, 3, 4):
        assert play(env, action)[0] == [payoff[action].tolist()]
    assert play(env, (3, 3, 3))[0] == [payoff[1, 2, 3].tolist()], "an action beyond the agent's own is its last"
    assert play(env, (3, 3, 3))[3][0].tolist() == [1, 0, 1, 0, 0, 1, 0, 0, 0, 1]


def test_common_payoff_of_three_and_the_shape_that_could_be_either():
    cube = np.arange(8).reshape(2, 2, 2)
    assert MatrixGame(cube).spec.num_agents == 2
    assert play(MatrixGame(cube), (1, 0))[0] == [[4, 5]]
    team = MatrixGame(cube, common=True)
    assert team.spec.num_agents == 3
    assert play(team, (1, 0, 1))[0] == [[5, 5, 5]]
    assert MatrixGame([1.0, 2.0]).spec.num_agents == 1


@pytest.mark.parametrize(
    ("first", "second", "paid", "place"),
    [((0, 1), (1, 1), 7, 1), ((1, 0), (1, 1), 8, 2), ((1, 0), (0, 1), 1, 2), ((1, 1), (0, 0), 0, 2)],
)
def test_two_step(first, second, paid, place):
    env = make("games/two_step")
    assert np.asarray(env.reset(KEY)[1].obs).tolist() == [[1, 0, 0]] * 2
    rewards, ends, cuts, seen = play(env, first, second)
    assert rewards == [[0, 0], [paid, paid]]
    assert ends == [False, True]
    assert cuts == [False, False]
    assert seen.argmax(axis=1).tolist() == [place, place]
    assert play(env, first)[3].argmax(axis=1).tolist() == [place, place]


def test_only_the_first_agent_chooses_the_matrix():
    assert play(make("games/two_step"), (0, 0))[3].argmax(axis=1)[0] == 1
    assert play(make("games/two_step"), (0, 1))[3].argmax(axis=1)[0] == 1


def test_games_from_files(tmp_path):
    payoff = [[[1, -1], [-1, 1], [0, 0]], [[2, 3], [4, 5], [6, 7]]]
    text, binary = tmp_path / "game.json", tmp_path / "game.npy"
    text.write_text(json.dumps(payoff))
    np.save(binary, np.array(payoff))
    for path in (text, binary):
        env = make(f"games/file:path={path},rounds=1")
        assert [space.n for space in env.spec.actions] == [2, 3]
        assert play(env, (1, 2))[0] == [[6, 7]]
    team = make("games/file", path=str(text), common=True)
    assert team.spec.num_agents == 3


@pytest.mark.parametrize(
    ("payoff", "words"),
    [
        ([[1, 2], [3]], "rows of equal length"),
        ([["a", "b"]], "tensor of numbers"),
        (5, r"an axis .* per agent, not shape \[\]"),
        ([], r"not shape \[0\]"),
        ([[1.0, float("nan")]], r"finite number, but the one at \[0, 1\] is nan"),
        ([[1.0, 1e300]], r"finite number, but the one at \[0, 1\] is inf"),
    ],
)
def test_bad_payoffs_are_refused_in_one_sentence(payoff, words, tmp_path):
    with pytest.raises(UsageError, match=words) as caught:
        MatrixGame(payoff)
    assert str(caught.value).startswith("games/matrix: ")
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(payoff))
    with pytest.raises(UsageError, match=words):
        make("games/file", path=str(path))


def test_a_payoff_per_agent_needs_the_right_last_axis():
    with pytest.raises(UsageError, match=r"shape \[A1, ..., AN, N\], not \[2, 2, 3\]"):
        MatrixGame(np.zeros((2, 2, 3)), common=False)


class Spring:
    """Unpickling this would leave a mark."""

    def __reduce__(self):
        return (exec, ("raise AssertionError('unpickled')",))


def test_files_are_never_unpickled(tmp_path):
    path = tmp_path / "trap.npy"
    np.save(path, np.array([Spring()], object), allow_pickle=True)
    with pytest.raises(UsageError, match=r"not a \.npy file of plain numbers"):
        make("games/file", path=str(path))
    path.write_bytes(pickle.dumps(Spring()))
    with pytest.raises(UsageError, match=r"not a \.npy file of plain numbers"):
        make("games/file", path=str(path))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("games/file", "path=FILE"),
        ("games/file:path=nowhere.json", "Cannot read nowhere.json: No such file"),
        ("games/file:path=game.txt", "must end in .json or .npy, not 'game.txt'"),
        ("games/penalty:k=1", "k must be a number of at most 0, not 1"),
        ("games/penalty:k=NaN", "at most 0, not nan"),
        ("games/penalty:k=-Infinity", "at most 0, not -inf"),
        ("games/climbing:rounds=0", "rounds must be a whole number of at least 1, not 0"),
        ("games/climbing:rounds=2.5", "rounds must be a whole number, not 2.5"),
        ("games/climbing:history=1", "history must be true or false, not 1"),
        ("games/climbing:round=3", "no setting 'round'. Did you mean 'rounds'"),
    ],
)
def test_bad_settings(name, words):
    with pytest.raises(UsageError, match=words):
        make(name)


def test_broken_files(tmp_path):
    for name, content in (("a.json", b"{"), ("b.json", b"\xff\xfe"), ("c.npy", b""), ("d.npy", b"\x93NUMPY\x01\x00")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=r"is not a .* file of plain numbers"):
            make("games/file", path=str(tmp_path / name))


def test_a_file_takes_no_more_memory_than_it_has(tmp_path):
    """A header that promises 12 TB, numbers that would be copied several times, and a file that is too long."""
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (400000000000, 2, 2), }"
    text += b" " * (118 - len(text) - 1) + b"\n"
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 64)
    with pytest.raises(UsageError, match=r"is not a \.npy file of plain numbers"):
        make("games/file", path=str(path))
    np.save(path, np.zeros(20_000_000, np.int8))
    with pytest.raises(UsageError, match="more than 1,000,000 joint actions"):
        make("games/file", path=str(path))
    with (tmp_path / "a.json").open("wb") as stream:
        stream.truncate(1 << 30)
    with pytest.raises(UsageError, match="too large for a game: 1024 MiB"):
        make("games/file", path=str(tmp_path / "a.json"))
    (tmp_path / "b.json").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="it is no file"):
        make("games/file", path=str(tmp_path / "b.json"))
