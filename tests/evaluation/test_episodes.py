"""Recorded episodes and their pictures: complete, legible in size, and the right ones side by side."""

import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image

from flockrl.commands.main import main
from flockrl.core.errors import UsageError
from flockrl.envs.games.matrix import MatrixGame
from flockrl.envs.registry import make
from flockrl.evaluation.episodes import Episode, record, spread
from flockrl.evaluation.matches import random_actor
from flockrl.view.animation import frames, play, write_animation, write_gif, write_mp4, write_paths


def play_random(env, count=2, limit=6):
    return record(random_actor(env.spec), env, (), jax.random.key(3), count, True, limit)


ENVS = ["games/chicken", "games/two_step", "classic/pendulum", "classic/cartpole", "probe/unlike", "three agents"]


@pytest.mark.parametrize("name", ENVS)
def test_every_kind_of_environment_can_be_drawn(name):
    env = MatrixGame(np.arange(12).reshape(2, 3, 2), common=True) if name == "three agents" else make(name)
    episode = play_random(env)[0]
    pictures = frames(env, episode, 200)
    assert len(pictures) in (len(episode.reward), len(episode.reward) + 1)
    for picture in pictures:
        assert picture.shape == (200, 200, 3)
        assert picture.dtype == np.uint8
        assert 0.01 < (picture < 200).any(axis=-1).mean() < 0.9  # something is drawn, and not everything is ink
    if len(pictures) > 1 and name != "classic/cartpole":
        assert (pictures[0] != pictures[-1]).any()


def test_continuous_actions_without_a_renderer():
    env = make("probe/action:continuous=true")
    assert len(frames(env, play_random(env)[0], 100)) == 1


def test_the_payoff_of_the_round_is_marked():
    env = make("games/climbing:rounds=1")
    cells = {}
    for episode in play_random(env, count=12):
        first, second = episode.action[0]
        assert episode.score == env.payoff[first, second, 0]
        cells[first, second] = frames(env, episode, 120)[-1]
    assert len(cells) > 3
    pictures = list(cells.values())
    assert all((a != b).any() for i, a in enumerate(pictures) for b in pictures[:i])


def test_episodes_end_where_they_end_and_the_dead_earn_nothing():
    env = make("probe/death")
    (episode,) = play_random(env, count=1)
    assert episode.reward.sum(axis=0).tolist() == [1, 2, 3]
    assert len(episode.states) == len(episode.obs) + 1 == 4
    assert episode.score == 2


def test_best_median_and_worst():
    def scored(score):
        return Episode([], np.zeros(0), np.zeros(0), np.array([[score, score]]))

    found = spread([scored(x) for x in (3, 9, 1, 7, 5)])
    assert {name: episode.score for name, episode in found.items()} == {"best": 9, "median": 5, "worst": 1}


def test_animations_of_a_run(tiny_run, tmp_path, capsys):
    gif = tmp_path / "three.gif"
    assert (
        main(["eval", str(tiny_run.path), "--episodes", "20", "--seed", "3", "--gif", str(gif), "--side-by-side"]) == 0
    )
    image = Image.open(gif)
    assert image.n_frames > 15
    assert image.size == (3 * 300 + 2 * 12, 330)
    assert main(["eval", str(tiny_run.path), "--side-by-side"]) == 2
    assert "--gif" in capsys.readouterr().err


def test_plots_of_paths(tiny_run, tmp_path, capsys):
    file = tmp_path / "deep" / "paths.png"
    words = ["eval", str(tiny_run.path), "--episodes", "20", "--seed", "3", "--plot"]
    assert main([*words, str(file)]) == 0
    one = Image.open(file).size
    assert main([*words, str(file), "--side-by-side"]) == 0
    assert Image.open(file).size == (3 * one[0], one[1])
    assert main([*words, "paths.gif"]) == 2
    assert "a .png, .pdf or .svg file" in capsys.readouterr().err
    game = SimpleNamespace(env=SimpleNamespace(), config=SimpleNamespace(env="games/climbing"))
    with pytest.raises(UsageError, match="games/climbing has no places to plot"):
        write_paths(game, file)


def test_paths_are_where_everybody_was():
    env = make("mpe/simple_speaker_listener")
    world, _ = jax.jit(env.reset)(jax.random.key(0))
    later = world._replace(pos=world.pos + 1)
    paths = env.paths([world, later])
    assert paths.walked.shape == (2, 2, 2)
    np.testing.assert_allclose(paths.walked[1], world.pos[:2] + 1)
    np.testing.assert_allclose(paths.marks, later.pos[2:])
    assert len(paths.sizes) == len(paths.paint) == 2
    assert len(paths.mark_sizes) == len(paths.mark_paint) == 3


def test_an_episode_drawn_is_the_episode_played(tiny_run):
    first, again, other = play(tiny_run, 1, 60), play(tiny_run, 1, 60), play(tiny_run, 2, 60)
    assert len(first) == 26
    np.testing.assert_array_equal(first, again)
    assert (np.stack(first) != np.stack(other)).any()


def test_files(tiny_run, tmp_path, monkeypatch):
    pictures = [np.full((21, 31, 3), shade, np.uint8) for shade in (0, 120, 250)]
    write_gif(pictures, tmp_path / "a.gif")
    image = Image.open(tmp_path / "a.gif")
    assert (image.n_frames, image.size) == (3, (31, 21))
    if shutil.which("ffmpeg"):
        write_mp4(pictures, tmp_path / "a.mp4")
        assert (tmp_path / "a.mp4").read_bytes()[4:8] == b"ftyp"
    with pytest.raises(UsageError, match=r"\.gif or \.mp4"):
        write_animation(tiny_run, tmp_path / "a.avi")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="needs the program ffmpeg"):
        write_animation(tiny_run, tmp_path / "b.mp4")
