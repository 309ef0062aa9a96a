"""A trainer in somebody else's loop: what it learns, keeps, drops and takes in."""

import asyncio
import sys
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest

import flockrl
from flockrl.core.errors import UsageError
from flockrl.data.experience import join
from flockrl.data.schema import decode, encode

sys.path.insert(0, str(Path(__file__).parent / "data"))
from made import REAL, SPREAD, make_experience

SMALL = {"hidden": (8,), "rollout_steps": 10}
PPO = {**SMALL, "epochs": 2, "minibatches": 2}
REPLAY = {**SMALL, "batch_size": 8, "steps_per_update": 10, "learning_starts": 20, "buffer_size": 200}

REMEMBERING = {"memory": "gru", "memory_size": 5, "sequence": 10, "batch_size": 20}


class Wide(nn.Module):
    """A kernel of one's own."""

    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Dense(12)(x))


class Flat(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x.reshape(-1)


def _trainer(name="ippo", spec=SPREAD, settings=None, **options):
    family = {"ippo": PPO, "mappo": PPO, "ireinforce": SMALL}.get(name, REPLAY)
    return flockrl.Trainer(name, spec, hyperparams={**family, **(settings or {})}, envs=2, steps=400, **options)


def _episodes(spec=SPREAD, count=30, **options):
    lengths = np.random.default_rng(1).integers(1, 10, count).tolist()
    data = make_experience(spec, lengths, **options)
    return [data.pick([k]) for k in range(count)]


def _leaves(trainer):
    return [np.asarray(x) for x in jax.tree.leaves(trainer._state)]


def _equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(_leaves(a), _leaves(b), strict=True))


@pytest.mark.parametrize("name", ["ippo", pytest.param("iql", marks=pytest.mark.slow)])
def test_learning_from_rows_equals_learning_live(name):
    live, recorded = _trainer(name), _trainer(name)
    episodes = _episodes()
    trained = [live.receive_trajectory(episode) for episode in episodes]
    rows = encode(join(episodes), SPREAD)
    recorded.receive_trajectory(decode(rows, SPREAD))
    assert any(trained)
    assert not all(trained)
    assert live.version == recorded.version > 3
    assert live.stats == recorded.stats
    assert _equal(live, recorded)


@pytest.mark.parametrize(
    ("name", "spec", "settings"),
    [
        pytest.param("mappo", SPREAD, {"memory": "gru"}, id="mappo"),
        pytest.param("maddpg", REAL, {}, id="maddpg", marks=pytest.mark.slow),
        pytest.param("ireinforce", REAL, {}, id="ireinforce", marks=pytest.mark.slow),
        pytest.param("vdn", SPREAD, REMEMBERING, id="vdn", marks=pytest.mark.slow),
    ],
)
def test_a_loaded_trainer_goes_on_as_if_never_stopped(tmp_path, name, spec, settings):
    whole = _trainer(name, spec, settings)
    first = _trainer(name, spec, settings, save_path=tmp_path / "t")
    episodes = _episodes(spec)
    for episode in episodes[:17]:
        whole.receive_trajectory(episode)
        first.receive_trajectory(episode)
    first.save(note={"place": 17})
    second = flockrl.Trainer.load(tmp_path / "t")
    assert second.note == {"place": 17}
    for episode in episodes[17:]:
        whole.receive_trajectory(episode)
        second.receive_trajectory(episode)
    assert second.version == whole.version > 2
    assert second.stats == whole.stats
    assert second.log_epoch() == whole.log_epoch()
    assert _equal(whole, second)


def test_stale_trajectories_are_dropped_by_on_policy_learners():
    trainer = _trainer(max_version_lag=1)
    for episode in _episodes():
        trainer.receive_trajectory(episode)
    assert trainer.version == 2  # those of version 0 are too old from then on
    assert trainer.stats["dropped_stale"] > 10
    replaying = _trainer("iql")
    for episode in _episodes():
        replaying.receive_trajectory(episode)
    assert replaying.stats["dropped_stale"] == 0


def test_what_cannot_be_learned_from_is_refused():
    trainer = _trainer()
    with pytest.raises(UsageError, match=r"shape \[2, 3\]"):
        trainer.receive_trajectory(make_experience(REAL, [3]))
    unknown = make_experience(SPREAD, [3], rich=False)
    with pytest.raises(UsageError, match="log-probability"):
        trainer.receive_trajectory(unknown._replace(logp=np.full_like(unknown.logp, np.nan)))
    with pytest.raises(UsageError, match="whole trajectories"):
        _trainer(settings={"memory": "gru", "rollout_steps": 5})
    with pytest.raises(UsageError, match="obs_dim"):
        flockrl.Trainer.mappo(act_dim=2)
    with pytest.raises(AttributeError, match="mapo"):
        flockrl.Trainer.mapo(obs_dim=2, act_dim=2)


def test_a_trainer_by_name_trains_by_hand_and_forgets(tmp_path):
    trainer = flockrl.Trainer.mappo(
        obs_dim=6, act_dim=5, agents=3, save_path=tmp_path, buffer_size=20, hyperparams=PPO, envs=2, max_steps=9
    )
    assert trainer.config.rollout_steps == 10
    assert trainer.train_model() == {}
    episode = make_experience(SPREAD, [4], rich=False)
    assert asyncio.run(trainer.receive_trajectory_async(episode)) is False
    assert trainer.acquire_model(newer_than=0) is None
    assert trainer.train_model()["lr"] > 0
    policy = trainer.acquire_model(newer_than=0)
    assert policy.act(np.zeros((3, 6))).shape == (3,)
    row = trainer.log_epoch()
    assert row["return"] == pytest.approx(episode.reward.sum(0).mean(), rel=1e-5)
    assert (row["episodes"], row["episode_length"]) == (1, 4.0)
    assert trainer.log_epoch()["episodes"] == 0
    trainer.receive_trajectory(episode)
    trainer.reset_epoch()
    assert trainer.train_model() == {}
    trainer.save("mine")
    assert flockrl.Trainer.load(tmp_path, "mine").version == 1
    with pytest.raises(UsageError, match="already holds"):
        flockrl.Trainer.mappo(obs_dim=6, act_dim=5, save_path=tmp_path)


@pytest.mark.parametrize(
    ("name", "spec", "settings"),
    [
        pytest.param("maddpg", REAL, {}, id="maddpg"),
        pytest.param("maddpg", REAL, REMEMBERING, id="maddpg-gru", marks=pytest.mark.slow),
        pytest.param("mappo", SPREAD, {}, id="mappo", marks=pytest.mark.slow),
        pytest.param("ippo", SPREAD, {}, id="ippo", marks=pytest.mark.slow),
        pytest.param("vdn", SPREAD, {}, id="vdn", marks=pytest.mark.slow),
    ],
)
def test_a_team_that_grows_keeps_what_it_learned(name, spec, settings):
    trainer = _trainer(name, spec, settings)
    for episode in _episodes(spec)[:20]:
        trainer.receive_trajectory(episode)
    before, version = trainer.acquire_model(), trainer.version
    name = trainer.register_agent()
    assert name == f"a_{spec.num_agents}"
    after = trainer.acquire_model()
    obs = np.random.default_rng(0).normal(size=(50, spec.num_agents + 1, spec.obs_size)).astype(np.float32)
    np.testing.assert_allclose(after.act(obs)[:, :-1], before.act(obs[:, :-1]), atol=1e-6)
    assert trainer.version == version
    if trainer.algorithm == "mappo":  # critics read the newcomer with weights of 0
        kernel = trainer._state.params["critic"][0]["torso"]["dense_0"]["kernel"]
        assert not np.asarray(kernel)[-spec.obs_size :].any()
    if trainer.algorithm == "maddpg":  # observations and actions side by side, the newcomer's at the end of each part
        kernel = np.asarray(trainer._state.learned.params["critic"][0]["torso"]["dense_0"]["kernel"])
        assert np.flatnonzero(~kernel.any(1)).tolist() == ([6, 7, 8] if settings else [6, 7, 8, 13, 14])
    if settings:  # actions join behind the memory
        kernel = np.asarray(trainer._state.learned.params["critic"][0]["joined"]["kernel"])
        assert np.flatnonzero(~kernel.any(1)).tolist() == [5 + 4, 5 + 5]
    grown = make_experience(trainer.spec, [9] * 6, rich=False, seed=3, version=trainer.version)
    assert trainer.receive_trajectory(grown)
    # The old team's trajectories go on counting.
    old = make_experience(spec, [9] * 6, rich=False, seed=4, version=trainer.version)
    assert trainer.receive_trajectory(decode(encode(old, spec), trainer.spec))


def test_a_mixer_is_made_for_its_team():
    with pytest.raises(UsageError, match="fixed size"):
        _trainer("qmix").register_agent()


def test_a_kernel_of_ones_own_trains_and_resumes(tmp_path):
    trainer = _trainer(kernel=Wide, save_path=tmp_path)
    for episode in _episodes()[:15]:
        trainer.receive_trajectory(episode)
    shapes = [x.shape for x in jax.tree.leaves(trainer._state.params["actor"])]
    assert (6 + 3, 12) in shapes
    trainer.save()
    again = flockrl.Trainer.load(tmp_path, trust=True)
    obs = np.ones((3, 6), np.float32)
    assert np.array_equal(again.acquire_model().act(obs), trainer.acquire_model().act(obs))
    assert _trainer("maddpg", kernel=Wide).acquire_model().act(obs).shape == (3,)  # a critic that all read alike
    with pytest.raises(UsageError, match="keep all axes"):
        _trainer(kernel=Flat)
    with pytest.raises(UsageError, match="no kernel"):
        _trainer(kernel="nowhere:Net")
    with pytest.raises(UsageError, match=r"flax\.linen\.Module"):
        _trainer(kernel="json:JSONDecoder")


def test_a_side_may_have_the_name_of_a_setting():
    """`adversary` is a side of simple_tag, and a setting of those who train against one."""
    from flockrl.training.setup import configure_trainer

    spec = flockrl.make_env("mpe/simple_tag").spec
    sides = {"adversary": "ippo", "agent": "ippo"}
    _, config = configure_trainer(sides, spec, {"adversary": {"lr": 0.5}}, None, None, 4)
    assert config.players["adversary"].config.lr == 0.5
    with pytest.raises(UsageError, match="adversary needs rollouts of its own"):
        configure_trainer("ippo", spec, {"adversary": "observation:eps=0.1"}, None, None, 4)
