"""Animations of environments that run on the host: their own pictures, or what agents saw and did."""

import contextvars
import sys

import numpy as np
import pytest
from conftest import TINY
from PIL import Image

import flockrl
from flockrl.commands.main import main

MODULE = '''
import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    """Ten steps on a line."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(-10, 10, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    max_steps = 10

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.integers(-3, 3)), 0
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x, self.t = self.x + 2 * action - 1, self.t + 1
        return np.array([self.x], np.float32), -abs(self.x), False, self.t == 10, {}

    def render(self):
        return np.full((24, 32, 3), 255, np.uint8) if self.render_mode == "rgb_array" else None


class Plain(Walk):
    def __init__(self):
        super().__init__()


class Failing(Plain):
    def render(self):
        raise RuntimeError("no screen")
'''


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    """Runs on environments of a user by name: one that takes render_mode, one that draws nothing, one that fails."""
    folder = tmp_path_factory.mktemp("walks")
    (folder / "walking.py").write_text(MODULE)
    settings = {**TINY, "steps": 128, "workers": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("Walk", "Plain", "Failing"):
            flockrl.train("ppo", f"python/walking:{name}", out=folder / name, **settings)
    yield folder
    sys.modules.pop("walking", None)


@pytest.mark.parametrize(("name", "size"), [("Walk", (32, 24)), ("Plain", (400, 400))])
@pytest.mark.parametrize("explore", [[], ["--explore"]], ids=["greedy", "sampled"])
def test_an_environment_by_name_is_drawn_without_having_been_asked_to(tmp_path, walks, name, size, explore):
    file = tmp_path / "episode.gif"
    words = ["eval", str(walks / name), "--episodes", "2", "--gif", str(file), "--trust", *explore]
    assert contextvars.copy_context().run(main, words) == 0  # trust ends with the context
    assert Image.open(file).size == size


def test_a_render_that_fails_is_replaced_with_a_word(walks):
    from flockrl.view.animation import play

    with pytest.warns(UserWarning, match="render failed, so that what agents see and do is drawn: no screen"):
        pictures = play(flockrl.Run(walks / "Failing", trust=True))
    assert pictures[0].shape == (400, 400, 3)
    assert len(pictures) == 10


def test_an_environment_without_a_render_says_so_once(walks, monkeypatch):
    from flockrl.view.animation import play

    def render(self):
        raise NotImplementedError

    monkeypatch.setattr(sys.modules["walking"].Failing, "render", render)
    with pytest.warns(UserWarning, match="render") as told:
        play(flockrl.Run(walks / "Failing", trust=True))
    assert [str(word.message) for word in told] == [
        "The environment has no render of its own, so that what agents see and do is drawn."
    ]


def test_a_recorded_host_episode_is_the_one_that_evaluation_plays(walks):
    run = flockrl.Run(walks / "Plain", trust=True)
    episode = run.episode(3)
    assert episode.obs.shape == (10, 1, 1)
    moved = np.diff(episode.obs[:, 0, 0])
    np.testing.assert_array_equal(moved, 2 * episode.action[:-1, 0] - 1)
    np.testing.assert_allclose(episode.reward[:-1, 0], -np.abs(episode.obs[1:, 0, 0]))
