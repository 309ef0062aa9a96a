"""Watching a team: the film shows the episode that evaluation plays, in every environment, and what agents might do."""

import json

import jax
import numpy as np
import pytest
from conftest import TINY

import flockrl
from flockrl.algos.sides import random_side
from flockrl.core.spec import Box, Discrete, EnvSpec, MultiDiscrete
from flockrl.dash import film
from flockrl.dash.films import Films
from flockrl.envs.registry import SUITES, environments, make
from flockrl.evaluation.inside import DRAWS, look_inside
from flockrl.view.animation import frames

SPEC = EnvSpec(
    "mixed", ("a", "b", "c"), (Box((2,)),) * 3, (Discrete(3), MultiDiscrete((2, 2)), Box((2,), -1.0, 1.0)), max_steps=5
)


def test_chances_are_shares_of_draws():
    draws = np.array([[[0.0, 0], [1, 0], [0.5, -1]], [[2, 0], [1, 1], [0.5, 1]]])  # [2, N, W]
    avail = np.array([[[True, False, True, False], [True] * 4, [True] * 4]])
    assert film.chances(SPEC, 0, draws[:, 0], avail) == {"shares": [[0.5, 0.0, 0.5]], "legal": [True, False, True]}
    assert film.chances(SPEC, 1, draws[:, 1], None) == {"shares": [[0.0, 1.0], [0.5, 0.5]], "legal": None}
    assert film.chances(SPEC, 2, draws[:, 2], None) == {"mean": [0.5, 0.0], "deviation": [0.0, 1.0]}


def test_numbers_that_are_not_finite_can_be_sent():
    json.dumps(film.short(np.array([np.nan, np.inf, 1 / 3])), allow_nan=False)


def test_maps_of_attention_are_few_and_have_names():
    heads = [f"round 1, {x}" for x in ("mean of heads", "head 1", "head 2", "head 3")]
    names = film.map_names(np.zeros((2, 4, 5, 5)))  # two rounds, the mean of three heads and each
    assert names[:5] == [*heads, "round 2, mean of heads"]
    assert len(names) == 8
    assert film.map_names(np.zeros((1, 1, 5, 5))) == ["all"]
    assert film.map_names(np.zeros((3, 1, 5, 5))) == ["round 1", "round 2", "round 3"]
    assert len(film.map_names(np.zeros((8, 8, 5, 5)))) == film.MAPS
    assert film.map_names(None) == []


def test_values_that_nobody_has_are_left_out():
    assert [film.known(x) for x in (np.nan, np.inf, 1 / 3, 0.0)] == [None, None, 0.3333, 0.0]


def test_a_film_of_what_is_no_run(tmp_path):
    (tmp_path / "out").mkdir()
    assert film.main([str(tmp_path / "none"), str(tmp_path / "out")]) == 2
    assert "is not a run" in json.loads((tmp_path / "out" / "trouble.json").read_text())["text"]


def test_films_give_out_their_own_pictures_alone(tmp_path):
    films = Films()
    films._made["f1"] = tmp_path
    for name in ("0.png", "film.gif", "film.json", "secret.png"):
        (tmp_path / name).touch()
    assert films.file("f1", "0.png") == tmp_path / "0.png"
    assert films.file("f1", "film.gif") is not None
    for name in ("film.json", "secret.png", "../0.png", "9.png", "0.png/..", ""):
        assert films.file("f1", name) is None
    assert films.file("f2", "0.png") is None
    assert "trouble" in films.state("f2")


@pytest.fixture(scope="module")
def talkers(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "talkers"
    return flockrl.train("ippo", "comm/traffic_junction", comm="tarmac", out=path, **TINY)


def same(run, explore=False):
    """The film's episode, which is that of the run."""
    episode, inside = look_inside(run.algorithm, run.env, run.params(), jax.random.key(3), explore)
    other = run.episode(seed=3, explore=explore)
    for name in ("obs", "action", "reward"):
        assert np.array_equal(getattr(episode, name), getattr(other, name)), name
    assert len(inside) == len(episode.reward)
    return episode, inside


@pytest.mark.slow
def test_the_film_is_the_episode_that_evaluation_plays(talkers):
    episode, inside = same(talkers)
    same(talkers, explore=True)
    told = film.told(talkers.spec, episode, inside)
    json.dumps(told, allow_nan=False)
    step = told["steps"][5]
    assert all(abs(sum(one["shares"][0]) - 1) < 1e-2 for one in step["chances"])
    assert step["total"][0] == pytest.approx(sum(s["reward"][0] for s in told["steps"][:6]), abs=1e-2)


@pytest.mark.slow
def test_the_film_tells_what_critics_say(talkers):
    """Values are those of the checkpoint's critics for what each agent saw."""
    episode, inside = talkers.inside(3)
    told = film.told(talkers.spec, episode, inside)
    json.dumps(told, allow_nan=False)
    state = talkers.state().learner
    net, layers = state.params["critic"][0], []
    for t in (0, 7):
        hidden = episode.obs[t]
        for name in sorted(net["torso"]):
            layer = net["torso"][name]
            hidden = np.tanh(hidden @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
            layers.append(name)
        raw = (hidden @ np.asarray(net["head"]["kernel"]) + np.asarray(net["head"]["bias"]))[:, 0]
        mean, std = np.asarray(state.value_moments.mean), np.asarray(state.value_moments.std)
        found, alive = told["steps"][t]["value"], told["steps"][t]["alive"]
        wanted = raw * std + mean
        assert [x is None for x in found] == [not there for there in alive]
        for i in np.flatnonzero(alive):
            assert found[i] == pytest.approx(wanted[i], rel=2e-3, abs=1e-3)
    assert len(layers) == 2 * len(talkers.config.config.hidden)
    assert told["maps"] == ["all"]
    for step in told["steps"]:
        rows = np.array(step["attention"][0]).sum(-1)
        np.testing.assert_allclose(rows, np.array(step["alive"]) * 1.0, atol=2e-3)


@pytest.mark.slow
def test_who_is_not_there_is_not_heard(talkers):
    """Cars that are not on the road say nothing that others could hear."""
    _, inside = same(talkers)
    influence = np.stack([step.influence for step in inside])
    alive = np.stack([step.seen.alive[0] for step in inside])
    assert influence.shape == (len(inside), 5, 5)
    assert np.abs(influence[np.broadcast_to(~alive[:, None, :], influence.shape)]).max() < 1e-6
    both = alive[:, None, :] & alive[:, :, None] & ~np.eye(5, dtype=bool)
    assert influence[both].max() > 1e-6


@pytest.mark.slow
def test_an_environment_in_python(tmp_path):
    small = {**TINY, "steps": 256, "workers": 0}
    run = flockrl.train("ippo", "pettingzoo/mpe2.simple_spread_v3", out=tmp_path / "run", **small)
    episode, _ = same(run)
    assert len(episode.states) == len(episode.reward) + 1
    assert episode.states[0].ndim == 3
    (tmp_path / "out").mkdir()
    assert film.main([str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    told = json.loads((tmp_path / "out" / "film.json").read_text())
    assert (tmp_path / "out" / f"{told['pictures'] - 1}.png").is_file()


BUILT_IN = [f"{suite}/{name}" for suite in SUITES for name in environments(suite) if name != "file"]


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_environment_can_be_watched(name):
    env = make(name)
    episode, inside = look_inside(random_side(env.spec), env, (), jax.random.key(0), True, limit=3)
    assert len(frames(env, episode, 80)) >= len(inside)
    assert inside[0].draws.shape[0] == DRAWS
    json.dumps(film.told(env.spec, episode, inside), allow_nan=False)
