"""A trainer for one side of a game: it learns for that side, and the team that it publishes plays both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from relay_kit import SMALL, SPEC, episodes, message, serving, until

import flockrl
from flockrl.core.types import Observation
from flockrl.portable.model import Model
from flockrl.relay.client import Client
from flockrl.relay.learner import Learner

OBS = (3 * np.random.default_rng(0).normal(size=(64, 2, 3)) * np.array([[1, 1, 1], [1, 1, 0]])).astype(np.float32)


class Meadow:
    """An environment for the team of relay_kit, whose dog is paid for looking where its first number points."""

    spec = SPEC

    def look(self, key):
        return Observation(jax.random.normal(key, (2, 3)) * np.array([[1, 1, 1], [1, 1, 0]]))

    def reset(self, key):
        seen = self.look(key)
        return (jnp.int32(0), seen.obs), seen

    def step(self, key, state, action):
        seen = self.look(key)
        return (state[0] + 1, seen.obs), seen, action * state[1][:, 0], jnp.bool_(False), state[0] + 1 == SPEC.max_steps


@pytest.fixture(scope="module")
def dog(tmp_path_factory):
    """A run for sheep and dog, whose dog does several things."""
    settings = {**SMALL, "steps": 80, "envs": 2, "eval_episodes": 2, "eval_every": 80, "checkpoint_every": 80}
    run = flockrl.train("ippo", Meadow(), out=tmp_path_factory.mktemp("runs") / "dog", **settings)
    assert len(set(run.policy().act(OBS)[:, 1])) > 1
    return run


def make_trainer(dog, **more):
    return flockrl.Trainer({"sheep": "ippo", "dog": dog}, SPEC, hyperparams={"sheep": SMALL}, envs=2, steps=400, **more)


def params(trainer):
    return jax.tree.map(np.array, trainer.acquire_model().params)


def same(a, b):
    return all(jax.tree.leaves(jax.tree.map(lambda x, y: bool((np.asarray(x) == np.asarray(y)).all()), a, b)))


def test_a_trainer_of_one_side_learns_for_that_side(dog, tmp_path):
    trainer = make_trainer(dog)
    assert trainer.config.players["sheep"].config.lr_schedule == "constant"
    before = params(trainer)
    assert same(before["dog"], dog.params())
    for i in range(6):
        trainer.receive_trajectory(episodes([f"t{i}"], steps=7, seed=i))
    assert trainer.version == 2
    after = params(trainer)
    assert same(after["dog"], dog.params())
    assert not same(after["sheep"], before["sheep"])
    row = trainer.log_epoch()
    assert "sheep/policy_loss" in row
    assert not [name for name in row if name.startswith("dog/")]
    flockrl.export(trainer.acquire_model(), tmp_path / "model")
    check(Model(tmp_path / "model"), trainer, dog)


def check(model, trainer, dog):
    """The exported team: the dog of its run, and the sheep as it is now."""
    played = model.act(OBS, explore=False).action
    np.testing.assert_array_equal(played[:, 1], dog.policy().act(OBS)[:, 1])
    np.testing.assert_array_equal(played, trainer.acquire_model().act(OBS))
    assert model.metadata["spec"]["agents"] == ["sheep", "dog"]
    explored = model.act(OBS, rng=np.random.default_rng(0))
    assert (explored.action != played).any(axis=0).all()
    assert (explored.logp[:, 0] < 0).all()


def test_the_learning_side_needs_its_log_probabilities(dog):
    trainer, data = make_trainer(dog), episodes(["a"])
    trainer.receive_trajectory(data)
    data.logp[:, 0] = np.nan
    with pytest.raises(flockrl.UsageError, match="needs the log-probability"):
        trainer.receive_trajectory(data)


def test_sides_keep_buffers_of_their_own(dog):
    with pytest.raises(flockrl.UsageError, match="Each side has a buffer of its own"):
        make_trainer(dog, buffer_size=100)


def test_a_server_learns_for_one_side_and_publishes_the_team(dog, tmp_path):
    trainer = make_trainer(dog)
    before = params(trainer)

    def learner(relay):
        return Learner(trainer, relay.log, relay.store, relay.limits.log_bytes, publish_every=0.0)

    trainer.save_path = tmp_path / "trainer"
    with serving(tmp_path / "data", learner=learner) as (relay, address):
        client = Client(address)
        for i in range(6):
            client.put(message([f"t{i}"], steps=7, seed=i))
        until(lambda: client.status()["published"] == 2)
        assert client.status()["health"] == "training"
        client.model(tmp_path / "model")
        model = Model(tmp_path / "model")
        assert model.version == 2
        check(model, relay.learner.trainer, dog)
    after = params(trainer)
    assert same(after["dog"], before["dog"])
    assert not same(after["sheep"], before["sheep"])
