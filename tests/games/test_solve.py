"""flockrl solve, exploit and crossplay: what they print and write, files, and refusals in one sentence."""

import json
import zipfile

import numpy as np
import pytest
from conftest import TINY

import flockrl
from flockrl.core.errors import UsageError
from flockrl.games.files import read_game
from flockrl.games.markov import MarkovGame
from flockrl.training.respond import respond

CHICKEN = [[[6, 6], [2, 7]], [[7, 2], [0, 0]]]


def test_everything_about_chicken(cli, tmp_path):
    status, out, _ = cli("solve", "games/chicken", "--out", tmp_path / "chicken.png")
    assert status == 0
    names = ("pure Nash", "mixed Nash", "coarse correlated", "fairest", "maximin", "social optimum", "Pareto front")
    for words in (*names, "4.66667, 4.66667", "5.25, 5.25", "regret", "Evolutionarily stable: 0 (0.6667) + 1 (0.3333)"):
        assert words in out, words
    assert (tmp_path / "chicken.png").read_bytes()[:4] == b"\x89PNG"


def test_one_method_alone_and_learning(cli, tmp_path):
    status, out, _ = cli("solve", "games/chicken", "--method", "correlated")
    assert status == 0
    assert "5.25" in out
    assert "Nash " not in out.split("what")[1].split("Regret")[0]
    status, out, _ = cli(
        "solve", "games/shapley", "--method", "fictitious", "--iterations", "200", "--out", tmp_path / "a.svg"
    )
    assert status == 0
    assert "NashConv" in out
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_trees(cli, tmp_path):
    status, out, _ = cli("solve", "games/kuhn")
    assert status == 0
    assert "58 histories, 12 information sets" in out
    assert "-0.055555556" in out
    status, out, _ = cli("solve", "games/kuhn", "--method", "cfr", "--iterations", "100", "--out", tmp_path / "cfr.png")
    assert status == 0
    assert "0.016452" in out
    assert "exploitability 0.00822" in out
    assert "(NashConv / 2)" in out
    assert (tmp_path / "cfr.png").stat().st_size > 1000


def test_markov_games(cli):
    status, out, _ = cli("solve", "games/grid_game_2", "--method", "nash")
    assert status == 0
    assert "98.010000000" in out
    assert "49.005000000" in out
    status, out, _ = cli("solve", "games/two_step")
    assert status == 0
    assert "8.000000000" in out


def test_a_solver_that_does_not_converge_says_so(cli, tmp_path):
    """Best responses to each other in matching pennies go round for ever."""
    pennies = np.array([[[1, -1], [-1, 1]], [[-1, 1], [1, -1]]], float)
    content = {"transitions": np.full((1, 2, 2, 1), 1.0).tolist(), "payoffs": pennies[None].tolist(), "discount": 0.5}
    (tmp_path / "game.json").write_text(json.dumps(content))
    status, _, err = cli("solve", tmp_path / "game.json", "--method", "best-response")
    assert status == 0, "uniform play is where it begins, and already the equilibrium"
    content["payoffs"] = (pennies + np.array([[[0.5, -0.5], [0, 0]], [[0, 0], [0, 0]]]))[None].tolist()
    (tmp_path / "game.json").write_text(json.dumps(content))
    status, _, err = cli("solve", tmp_path / "game.json", "--method", "best-response")
    assert status == 1
    assert "did not converge to an equilibrium in 100 rounds: somebody would still gain" in err
    assert err.count("\n") == 1
    status, *_ = cli("solve", tmp_path / "game.json", "--method", "minimax")
    assert status == 0


def test_games_in_files(cli, tmp_path):
    (tmp_path / "payoffs.json").write_text(json.dumps(CHICKEN))
    np.save(tmp_path / "payoffs.npy", np.asfortranarray(CHICKEN))
    np.savez(tmp_path / "payoffs.npz", payoffs=np.array(CHICKEN))
    named = {"payoffs": CHICKEN, "players": ["ann", "bob"], "actions": [["swerve", "go"]] * 2}
    (tmp_path / "named.json").write_text(json.dumps(named))
    for name in ("payoffs.json", "payoffs.npy", "payoffs.npz", "named.json"):
        status, out, _ = cli("solve", tmp_path / name)
        assert status == 0
        assert "5.25, 5.25" in out
    assert "ann" in out
    assert "swerve (0.6667) + go (0.3333)" in out
    (tmp_path / "common.json").write_text("[[1, 0], [0, 2]]")
    assert read_game(tmp_path / "common.json").payoff[1, 1].tolist() == [2, 2]
    np.savez(tmp_path / "markov.npz", transitions=np.full((2, 2, 2), 0.4), payoffs=np.ones((2, 2, 1)), discount=0.9)
    game = read_game(tmp_path / "markov.npz")
    assert isinstance(game, MarkovGame)
    assert game.states == 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b"[[1, 2], [3]]", "rows of equal length"),
        ("a.json", b"{", "is not a .json file of plain numbers"),
        ("a.json", b"[" * 100_000, "is not a .json file of plain numbers"),
        ("a.json", b'{"payoffs": [[1]], "code": 1}', "has 'code', and a game of its kind has"),
        ("a.json", b'{"players": []}', "has no payoffs"),
        ("a.json", b'{"payoffs": [[[1, NaN]]]}', "must be a finite number"),
        ("a.json", b'{"payoffs": [[0, 1], [2, 3]], "players": [1, 2]}', "'players' must be names"),
        ("a.json", b'{"payoffs": [[0, 1], [2, 3]], "players": ["a"]}', "must fit the payoffs"),
        ("a.json", b'{"transitions": [1], "payoffs": [1]}', "has no discount"),
        ("a.json", b'{"transitions": [1], "payoffs": [1], "discount": 0.5}', "must have the shape"),
        ("a.json", b'{"transitions": [1], "payoffs": [1], "discount": "x"}', "discount must be a number"),
        ("a.json", b"[" * 40 + b"1" + b"]" * 40, "the payoff has 40 axes"),
        (
            "a.json",
            b'{"transitions": [1], "payoffs": [1], "discount": 1' + b"0" * 400 + b"}",
            "discount must be a number",
        ),
        ("a.json", b'{"transitions": [[[[1]]]], "payoffs": [[[[1e99, 0]]]], "discount": 0.5}', "of at most 1e+30"),
        (
            "a.json",
            b'{"transitions": [[[[1]]]], "payoffs": [[[[1, 0]]]], "discount": 0.5, "start": [NaN]}',
            "start must have one probability",
        ),
        ("a.npy", b"", "is not a .npy file of plain numbers"),
        ("a.npz", b"PK", "is not a .npz file of plain numbers"),
        ("a.toml", b"", "There is no environment"),
    ],
)
def test_malformed_files_get_a_sentence(cli, tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    status, out, err = cli("solve", tmp_path / name)
    assert status == 2
    assert words in err
    assert err.count("\n") == 1
    assert not out


def test_names_in_a_file_are_text(cli, tmp_path):
    """Neither markup, nor codes for the terminal, nor formulas."""
    names = {"players": ["\x1b[31mann[/red]", "$\\frac$"], "actions": [["[/]", "b"], ["$x^$", "\x1b]0;own\x07"]]}
    (tmp_path / "a.json").write_text(json.dumps({"payoffs": CHICKEN, **names}))
    status, out, _ = cli("solve", tmp_path / "a.json", "--out", tmp_path / "a.png")
    assert status == 0
    assert "\x1b" not in out
    assert "ann[/red]" in out
    status, out, _ = cli("solve", tmp_path / "a.json", "--method", "replicator", "--out", tmp_path / "b.png")
    assert status == 0
    assert "\x1b" not in out


@pytest.mark.parametrize(("shape", "method"), [
    ((2_500,), "correlated"), ((1_250, 2, 2), "correlated"), ((900_000,), "nash"), ((22_000, 1, 1, 3), "nash"),
])  # fmt: skip
def test_a_small_file_of_a_wide_game_takes_little_memory(cli, tmp_path, shape, method):
    np.save(tmp_path / "a.npy", np.zeros(shape, np.int8))
    status, _, err = cli("solve", tmp_path / "a.npy", "--method", method)
    assert status == 2
    *_, last = err.splitlines()  # before it, what was looked for
    assert last.startswith("flockrl: ")
    assert "too large" in last
    assert err.count("\n") <= 2


def test_many_actions_that_are_all_alike(cli, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(150, np.int8))
    status, out, _ = cli("solve", tmp_path / "a.npy", "--method", "nash")
    assert status == 0
    assert "pure Nash" in out


def test_arrays_are_refused_before_they_are_copied(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", payoffs=np.zeros(20_000_000, np.int8))
    with pytest.raises(UsageError, match="more than 1,000,000 joint actions"):
        read_game(tmp_path / "a.npz")
    np.save(tmp_path / "b.npy", np.zeros(4))
    (tmp_path / "b.npy").write_bytes((tmp_path / "b.npy").read_bytes().replace(b"(4,), ", b"(-1,),"))
    with pytest.raises(UsageError, match=r"is not a \.npy file of plain numbers"):
        read_game(tmp_path / "b.npy")


def test_headers_that_promise_too_much_allocate_nothing(tmp_path):
    whole = tmp_path / "a.npy"
    head = b"\x93NUMPY\x01\x00"
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (400000000000, 2, 2), }"
    text += b" " * (118 - len(text) - 1) + b"\n"
    whole.write_bytes(head + len(text).to_bytes(2, "little") + text + b"\0" * 64)
    with pytest.raises(UsageError, match=r"is not a \.npy file of plain numbers"):
        read_game(whole)
    np.save(whole, np.array([print], object), allow_pickle=True)
    with pytest.raises(UsageError, match=r"is not a \.npy file of plain numbers"):
        read_game(whole)
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("payoffs.npy", b"\0" * (300 << 20))
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(UsageError, match="too large for a game: unpacked"):
        read_game(bomb)
    long = tmp_path / "long.json"
    with long.open("wb") as stream:
        stream.truncate(20 << 20)
    with pytest.raises(UsageError, match="too large for a game: 20 MiB"):
        read_game(long)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("games/kuhn", "--method", "minimax"), "Games with hidden information are not solved by 'minimax'"),
        (("games/kuhn", "--discount", "0.9"), "is not discounted: leave out --discount"),
        (("games/kuhn", "--out", "a.png"), "has no progress to draw"),
        (("games/chicken", "--out", "a.txt"), "A picture is written as .png, .pdf, .svg"),
        (("games/chicken", "--iterations", "0"), "iterations must be at least 1"),
        (("games/soccer", "--discount", "2"), "discount must be from 0 to 1"),
        (("games/soccer", "--out", "a.png"), "no picture of a Markov game"),
        (("games/grid_game_1", "--method", "minimax"), "one gains what the other loses"),
        (("mpe/simple_spread",), "begins at random, and its draws are not listed"),
        (("nowhere.json",), "Cannot read nowhere.json: No such file"),
    ],
)
def test_refusals(cli, words, complaint):
    status, _, err = cli("solve", *words)
    assert status == 2
    assert complaint in err
    assert err.count("\n") == 1


def test_large_games_tell_what_is_looked_for_and_name_their_limits(cli, tmp_path):
    file = tmp_path / "twelve.npy"
    np.save(file, np.random.default_rng(0).normal(size=(2,) * 12 + (12,)))
    status, out, err = cli("solve", file, "--out", tmp_path / "deep" / "er" / "picture.svg")
    assert status == 0
    assert "up to 2,500 joint actions, and it has 4,096" in out
    assert "too large for mixed equilibria: with 12 players they are searched up to 1,388 joint actions" in out
    assert "degenerate" not in out
    assert "social optimum" in out  # which a part that is refused does not take along
    told = [line.removeprefix("twelve.npy has 4,096 joint actions: looking for ") for line in err.splitlines()]
    assert told[:2] == ["Nash equilibria ...", "correlated equilibria ..."]
    assert (tmp_path / "deep" / "er" / "picture.svg").stat().st_size > 1000


def test_nothing_is_made_where_there_is_nothing_to_draw(cli, tmp_path, monkeypatch):
    import matplotlib.figure

    def fail(*_, **__):
        raise ValueError("too large to draw")

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", fail)
    with pytest.raises(ValueError, match="too large to draw"):
        cli("solve", "games/chicken", "--out", tmp_path / "deep" / "picture.svg")
    monkeypatch.setattr("flockrl.games.overview.equilibria", lambda game: [])
    status, _, err = cli("solve", "games/chicken", "--method", "nash", "--out", tmp_path / "deep" / "picture.svg")
    assert status == 1
    assert "no equilibrium was found" in err
    assert not (tmp_path / "deep").exists()


def test_names_of_a_file_cannot_write_to_the_terminal(cli, tmp_path):
    file = tmp_path / "game.json"
    names = {"players": ["row\x1b[31m", "column"], "actions": [["a", "b"], ["c", "d"]]}
    file.write_text(json.dumps({"payoffs": [[[1, 0], [1, 0]], [[0, 0], [0, 0]]], **names}))
    status, out, _ = cli("solve", file)
    assert status == 0
    assert "Strictly dominated" in out
    assert "\x1b" not in out


# --- exploit and crossplay

QUICK = {**TINY, "steps": 512, "eval_every": 512, "checkpoint_every": 512}


@pytest.fixture(scope="module")
def kuhn(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "kuhn"
    flockrl.train("ippo", "games/kuhn", out=path, seeds=3, **QUICK)
    return path


def test_exploit_names_its_unit(cli, kuhn):
    status, out, _ = cli("exploit", kuhn / "seed_0")
    assert status == 0
    assert "NashConv" in out
    assert "(sum over players)" in out
    assert "(NashConv / 2), its policy as it samples, exact" in out
    assert "agent_1: gets" in out
    status, out, _ = cli("exploit", kuhn / "seed_0", "--greedy")
    assert "its most likely actions" in out


def test_nobody_exploits_a_team_without_opponents(cli, tiny_run):
    status, _, err = cli("exploit", tiny_run.path)
    assert status == 2
    assert "on one side: there is nobody to exploit them" in err


@pytest.mark.slow
def test_a_trained_response_gains_part_of_what_a_best_response_would(cli, kuhn, tmp_path):
    """A lower bound: what it gains lies below the exact gain, up to the noise of its episodes, and is most of it."""
    run = flockrl.Run(kuhn / "seed_0")
    exact = flockrl.exploit(run).gains[1]
    settings = {"rollout_steps": 32, "gamma": 1.0, "hidden": (16,), "entropy": 0.001}
    found = respond(
        run, "agent_1", steps=30_000, seeds=2, episodes=4_000, out=tmp_path / "response", settings=settings
    )  # fmt: skip
    assert found.low <= exact
    assert found.gain > 0.5 * exact
    assert found.low < found.gain < found.high
    assert len(found.all_gains) == len(found.runs) == 2
    assert found.curve[-1][0] >= 30_000
    status, out, _ = cli(
        "exploit", kuhn / "seed_0", "--approximate", "--side", "agent_1", "--steps", 512, "--episodes", 20,
        "--out", tmp_path / "other",
    )  # fmt: skip
    assert status == 0
    assert "a lower bound" in out


def test_who_beats_whom(cli, kuhn, tmp_path):
    page = tmp_path / "matrix.html"
    status, out, _ = cli("crossplay", kuhn, "--episodes", "40", "--explore", "--out", page)
    assert status == 0
    for words in ("Elo [95% interval]", "alpha-rank", "Nash average", "seed_2"):
        assert words in out
    text = page.read_text()
    assert text.count("<td title=") == 9
    assert "<script" not in text
    assert "http" not in text


def test_strangers_in_the_lever_game(tmp_path, cli):
    """Two teams that agree on unlike levers earn nothing with each other."""
    from flockrl.evidence.crossplay import cross_play

    path = tmp_path / "lever"
    runs = flockrl.train("ippo", "games/lever", out=path, seeds=3, **{**QUICK, "steps": 1024, "lr": 1e-2})
    found = cross_play(runs, episodes=4)
    pulls = [run.policy().act(np.ones((2, 1), np.float32)) for run in runs]
    paid = np.diag([1.0] * 9 + [0.9])
    expected = [[paid[a[0], b[1]] for b in pulls] for a in pulls]
    assert found.means == pytest.approx(np.array(expected), abs=1e-6)
    status, out, _ = cli("crossplay", path, "--episodes", "4")
    assert status == 0
    assert "Self-play" in out


def test_crossplay_refusals(cli, kuhn, tiny_run):
    for words, complaint in (
        ((kuhn / "seed_0",), "at least two runs"),
        ((kuhn / "seed_0", tiny_run.path), "their environments have unlike agents"),
        ((kuhn, "--out", "a.txt"), "written as an .html file"),
        ((kuhn, "--episodes", "0"), "episodes must be at least 1"),
    ):
        status, _, err = cli("crossplay", *words)
        assert status == 2
        assert complaint in err
        assert err.count("\n") == 1
