"""Actors on full disks, with damaged files, with models that are no good, and with a server that is not the old one."""

import errno
import json
import os
import shutil
import threading
import time

import numpy as np
import pytest
from relay_kit import SMALL, SPEC, episodes, recorded, serving, until

from flockrl.core.errors import UsageError
from flockrl.data.schema import decode
from flockrl.portable.model import Model
from flockrl.relay.actor import Actor
from flockrl.relay.client import Client
from flockrl.relay.outbox import Outbox, QueueFull

SEEN = {"sheep": [1.0, 2.0, 3.0], "dog": [4.0, 5.0]}


def play(actor, steps=3):
    for t in range(steps):
        actor.request_action(SEEN, reward=float(t))
    actor.flag_last_action(9.0)


def failing(monkeypatch, number):
    """Every write to a log fails, until the result is called."""

    def fail(*_):
        raise OSError(number, os.strerror(number))

    context = monkeypatch.context()
    context.__enter__().setattr(os, "pwrite", fail)
    return lambda: context.__exit__(None, None, None)


# The queue


@pytest.mark.parametrize("policy", ["warn", "error"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_is_a_full_queue_and_the_next_episode_is_recorded(
    model_dir, tmp_path, monkeypatch, policy, number, caplog
):
    actor = Actor(model_dir, queue=tmp_path / "q", when_full=policy)
    play(actor)
    heal = failing(monkeypatch, number)
    if policy == "error":
        with pytest.raises(QueueFull, match="cannot be written"):
            play(actor)
    else:
        play(actor)
        assert os.strerror(number) in caplog.text
    heal()
    play(actor)
    assert actor.stats["unrecorded"] == 1
    actor.close()
    assert recorded(tmp_path / "q").episode.tolist() == [1, 3]


def test_after_a_full_queue_episodes_go_on(model_dir, tmp_path):
    actor = Actor(model_dir, queue=tmp_path / "q", queue_limit=20_000, when_full="error")
    while actor.stats["waiting_bytes"] < 18_000:
        play(actor)
    with pytest.raises(QueueFull, match="is full"):
        play(actor, steps=20)
    actor._outbox._limit += 10_000
    play(actor)
    count = actor.stats["recorded"]
    actor.close()
    assert recorded(tmp_path / "q").episode.tolist() == [*range(1, count), count + 1]


@pytest.mark.parametrize("policy", ["warn", "error"])
def test_a_piece_that_cannot_be_recorded_leaves_the_rest_in_order(model_dir, tmp_path, monkeypatch, policy):
    """The middle one of three pieces of an episode is lost."""
    actor, heal = Actor(model_dir, queue=tmp_path / "q", when_full=policy), None
    for t in range(50):
        if t == 40:
            heal = failing(monkeypatch, errno.ENOSPC)
            if policy == "error":
                with pytest.raises(QueueFull):
                    actor.request_action(SEEN, reward=40.0)
        actor.request_action(SEEN, reward=float(t))  # after the error once more
        if t == 40:
            heal()
    actor.flag_last_action(50.0)
    play(actor)
    actor.close()
    got = recorded(tmp_path / "q")
    assert got.length.tolist() == [20, 10, 3]
    assert got.reward[:30, 0].tolist() == [float(t + 1) for t in [*range(20), *range(40, 50)]]
    assert got.step[:30].tolist() == [*range(20), *range(40, 50)]


def test_a_request_that_fails_may_be_made_again(model_dir, tmp_path, monkeypatch):
    actor = Actor(model_dir, queue=tmp_path / "q")

    def fail(*_):
        raise RuntimeError("no")

    for t in range(4):
        if t in (0, 2):
            with monkeypatch.context() as patched:
                patched.setattr(actor._model, "act", fail)
                with pytest.raises(RuntimeError):
                    actor.request_action(SEEN, reward=float(t))
        actor.request_action(SEEN, reward=float(t))
    actor.flag_last_action(4.0)
    with monkeypatch.context() as patched:
        patched.setattr(actor._model, "act", fail)
        with pytest.raises(RuntimeError):
            actor.request_action(SEEN)
    actor.flag_last_action(0.0)  # an episode in which nothing was done
    play(actor)
    actor.close()
    got = recorded(tmp_path / "q")
    assert got.length.tolist() == [4, 3]
    assert got.reward[:4, 0].tolist() == [1, 2, 3, 4]


BAD_PLACES = [
    [1, 2, 3], None, "x", [0, "a", {}], [True, True, True], {"a": 1}, 5, [10**30, 10**30, 10**30], [0, 10**18, 40],
    [-1, 0, 0], [0, 2500, 40], [0, 5.0, 1.0], [0, 1, 2, 3], [], [[0, 0, 0]],
]  # fmt: skip


@pytest.mark.parametrize("saved", [*map(json.dumps, BAD_PLACES), "[" * 100_000, "", "\x00", "[0, 1"])
def test_a_place_that_cannot_be_trusted_sends_everything_again(model_dir, tmp_path, saved):
    with Actor(model_dir, queue=tmp_path / "q") as actor:
        for _ in range(4):
            play(actor)
    (tmp_path / "q" / "sent.json").write_text(saved)
    box = Outbox(tmp_path / "q", SPEC, None, ("", 0), 1 << 20, 0.1, 0.1)
    assert box._sent == box.log.start
    box.close(0.1)


def test_the_place_that_was_reached_is_kept_between_messages(model_dir, tmp_path):
    with Actor(model_dir, queue=tmp_path / "q") as actor:
        for _ in range(4):
            play(actor)
    box = Outbox(tmp_path / "q", SPEC, None, ("", 0), 1 << 20, 0.1, 0.1)
    _, place = box.log.read(box.log.start)
    box._move(place)
    box.close(0.1)
    box = Outbox(tmp_path / "q", SPEC, None, ("", 0), 1 << 20, 0.1, 0.1)
    assert box._sent == place
    box.close(0.1)


def test_a_full_disk_does_not_keep_what_was_sent(model_dir, tmp_path):
    """The place cannot be saved, and yet the segments that were acknowledged make room."""
    with serving(tmp_path / "s") as (relay, address):
        actor = Actor(model_dir, server=address, queue=tmp_path / "q", queue_limit=40_000, send_every=60)
        while len(list((tmp_path / "q").glob("*.arrows"))) < 3:
            play(actor)
        (tmp_path / "q" / "sent.json.part").mkdir()  # which makes writing it fail
        assert actor.flush(10)
        until(lambda: len(list((tmp_path / "q").glob("*.arrows"))) == 1)
        assert relay.log.trajectories == actor.stats["recorded"]
        actor.close()


def test_no_model_is_lost_between_threads(model_dir, tmp_path):
    """A model that arrives while the last one is taken is there at the next call."""
    box = Outbox(tmp_path / "q", SPEC, None, ("", 0), 1 << 20, 0.1, 0.1)

    taken = []
    with box._lock:  # as the thread that fetches holds it
        box._model = "first"
        thread = threading.Thread(target=lambda: taken.append(box.take_model()))
        thread.start()
        thread.join(0.05)
        box._model = "second"
    thread.join()
    assert (taken, box._model) == (["second"], None)
    box.close(0.1)


# Models


def changed(source, target, **fields):
    """A copy of a model whose metadata says something else."""
    shutil.copytree(source, target)
    about = json.loads((target / "metadata.json").read_text())
    (target / "metadata.json").write_text(json.dumps({**about, **fields}))
    return target


def test_damaged_models_of_an_actor_are_left_out(model_dir, tmp_path, caplog):
    for version in (1, 2, 3, 4):
        changed(model_dir, tmp_path / "q" / "models" / f"{version:010d}", policy_version=version)
    (tmp_path / "q" / "models" / "0000000004" / "metadata.json").write_text("[")
    next((tmp_path / "q" / "models" / "0000000003").glob("*.onnx")).unlink()
    (tmp_path / "q" / "models" / "0000000005").mkdir()
    actor = Actor(server="127.0.0.1:9", queue=tmp_path / "q", timeout=5)
    assert actor.version == 2
    assert caplog.text.count("is left out") == 3
    actor.close(0.1)


@pytest.mark.parametrize("wrong", ["other", "memory", "version", "sha", "empty"])
def test_a_model_that_is_not_usable_does_not_take_over(model_dir, tmp_path, wrong, caplog):
    import flockrl
    from flockrl.core.spec import EnvSpec

    def write(folder):
        if wrong == "other":
            spec = EnvSpec("other", SPEC.agents, SPEC.observations, SPEC.actions, 20)
            changed(model_dir, folder, policy_version=5, spec=flockrl.core.spec.spec_to_json(spec))
        elif wrong == "memory":
            changed(model_dir, folder, policy_version=5, initial_memory=[1])
        elif wrong == "version":
            changed(model_dir, folder, policy_version=6)
        elif wrong == "sha":
            changed(model_dir, folder, policy_version=5, sha256="0" * 64)
        else:
            folder.mkdir()
            (folder / "metadata.json").write_text("{}")

    with serving(tmp_path / "s") as (relay, address):
        relay.store.publish(0, lambda folder: changed(model_dir, folder, policy_version=0))
        actor = Actor(server=address, queue=tmp_path / "q", send_every=0.01, poll_every=0.01)
        asked = []
        call = actor._outbox._client.call
        actor._outbox._client.call = lambda name, body=b"": asked.append((name, bytes(body))) or call(name, body)
        relay.store.publish(5, write)
        until(lambda: actor.stats["refused_models"])
        asked.clear()
        until(lambda: len([name for name, _ in asked if name == "model"]) > 3)
        assert actor.stats["refused_models"] == 1
        assert caplog.text.count("The model that acts stays") == 1
        assert all(json.loads(body)["newer_than"] == 5 for name, body in asked if name == "model")
        play(actor)
        assert actor.version == 0
        relay.store.publish(7, lambda folder: changed(model_dir, folder, policy_version=7))
        until(lambda: actor._outbox._model is not None)
        play(actor)
        assert actor.version == 7
        actor.close()


def counting():
    """A policy that counts its steps."""
    import jax.numpy as jnp

    from flockrl.core.types import Actor as Acting
    from flockrl.policies.policy import Policy

    def act(params, seen, memory, key, explore):
        return jnp.zeros(seen.obs.shape[:2], jnp.int32), memory + 1, {"logp": jnp.zeros(seen.obs.shape[:2])}

    return Policy(Acting(act, lambda batch: jnp.zeros(batch)), {}, SPEC, name="mine", share="none")


class Changed:
    """A session whose outputs are changed by name."""

    def __init__(self, session, **outputs):
        self.session, self.outputs = session, outputs

    def run(self, names, feed):
        outs = self.session.run(names, feed)
        return [self.outputs.get(name, lambda x: x)(x) for name, x in zip(names, outs, strict=True)]


def test_a_model_is_tried_before_it_acts(tmp_path):
    import flockrl

    model = Model(flockrl.export(counting(), tmp_path / "m"))
    model.try_out()
    session = model._session
    for name, change in [
        ("action", lambda x: x[:, :1]),
        ("action", lambda x: x.astype(np.int64)),
        ("action", lambda x: x + 3),
        ("sampled", lambda x: x[..., None]),
        ("sampled", lambda x: x - 1),
        ("logp", lambda x: x * np.nan),
        ("logp", lambda x: x[:, :1]),
        ("next_memory_0", lambda x: np.stack([x, x], 1)),
        ("next_memory_0", lambda x: x.astype(np.float64)),
        ("next_memory_0", lambda x: x * np.nan),
    ]:
        model._session = Changed(session, **{name: change})
        with pytest.raises(UsageError, match=r"wrong form|does not exist|fails"):
            model.try_out()


def test_actions_that_do_not_exist_never_reach_the_application(model_dir):
    model = Model(model_dir)
    rng, obs, session = np.random.default_rng(0), np.zeros((2, 3), np.float32), model._session

    for action, good in (([3, 2], True), ([4, 2], False), ([3, 3], False), ([-1, 0], False)):
        model._session = Changed(session, sampled=lambda x, to=action: np.zeros_like(x) + np.array(to, np.int32))
        for batch in (obs, np.stack([obs] * 40)):
            if good:
                assert model.act(batch, rng=rng).action.reshape(-1, 2)[-1].tolist() == action
            else:
                with pytest.raises(UsageError, match="does not exist"):
                    model.act(batch, rng=rng)


def test_real_actions_stay_within_their_bounds(tmp_path):
    import flockrl
    from flockrl.core.spec import Box, EnvSpec

    spec = EnvSpec("field", ("a", "b"), (Box((3,)),) * 2, (Box((2,), (-1.0, 0.0), (1.0, 0.5)), Box((1,))), 20)
    trainer = flockrl.Trainer("ippo", spec, hyperparams=SMALL, envs=2, steps=400)
    model = Model(flockrl.export(trainer.acquire_model(), tmp_path / "m"))
    model.try_out()
    session, obs = model._session, np.zeros((2, 3), np.float32)
    for value, answer in ((3.0, [[1, 0.5], [3, 3]]), (np.inf, [[1, 0.5], [3.4e38] * 2]), (np.nan, None)):
        model._session = Changed(session, sampled=lambda x, value=value: np.full_like(x, value))
        if answer is None:
            with pytest.raises(UsageError, match="does not exist"):
                model.act(obs, rng=np.random.default_rng(0))
        else:
            got = model.act(obs, rng=np.random.default_rng(0)).action
            assert got[0].tolist() == answer[0]
            assert np.allclose(got[1], answer[1], rtol=0.01)


def test_foreign_and_damaged_exports_are_one_sentence(model_dir, tmp_path):
    def case(**fields):
        return changed(model_dir, tmp_path / str(len(list(tmp_path.iterdir()))), **fields)

    saved = json.loads((model_dir / "metadata.json").read_text())
    outputs, inputs = saved["outputs"], saved["inputs"]
    huge = [{**inputs[0], "shape": ["batch", 10**6, 10**6]}, *inputs[1:]]
    for path, says in [
        (case(inputs=huge), "no usable inputs"),
        (case(inputs=[{**inputs[0], "shape": 3}]), "no usable inputs"),
        (case(inputs=[{**inputs[0], "name": []}]), "no usable inputs"),
        (case(outputs=[x for x in outputs if x["name"] != "action"]), "other outputs"),
        (case(policy_version=10**30), "policy_version"),
        (case(policy_version=True), "policy_version"),
        (case(spec={**saved["spec"], "max_steps": -1}), "max_steps"),
    ]:
        with pytest.raises(UsageError, match=says):
            Model(path)
    for text in ("{}", "[]", "[" * 100_000, '{"format":' * 5000, "null", "\x00", '"' + "x" * 100):
        path = case()
        (path / "metadata.json").write_text(text)
        with pytest.raises(UsageError):
            Model(path)
    path = case()
    (path / "metadata.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not valid JSON"):
        Model(path)
    path = case()
    os.truncate(path / "metadata.json", 1 << 35)  # takes no room
    with pytest.raises(UsageError, match="more than"):
        Model(path)
    path = case()
    file = path / saved["model_file"]
    os.truncate(file, 1 << 35)
    with pytest.raises(UsageError, match="more than"):
        Model(path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UsageError, match="not a file"):
        Model(path)


def test_weights_in_other_files_are_not_read(tmp_path, model_dir):
    onnx = pytest.importorskip("onnx")
    import hashlib

    path = changed(model_dir, tmp_path / "m")
    file = next(path.glob("*.onnx"))
    graph = onnx.load(file)
    tensor = max(graph.graph.initializer, key=lambda x: len(x.raw_data))
    (tmp_path / "secret").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    file.write_bytes(graph.SerializeToString())
    about = json.loads((path / "metadata.json").read_text())
    about["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (path / "metadata.json").write_text(json.dumps(about))
    with pytest.raises(UsageError, match="weights in other files"):
        Model(path)


# The server's identity


def served(relay, model_dir, version):
    relay.store.publish(version, lambda folder: changed(model_dir, folder, policy_version=version))


def versions_in(log):
    found, place = {}, log.start
    while (entry := log.read(place)) is not None:
        rows, place = entry
        data = decode(rows, SPEC)
        found |= dict(zip(data.episode.tolist(), data.version.tolist(), strict=True))
    return found


def test_a_server_that_lost_its_data_does_not_pass_for_the_old_one(model_dir, tmp_path, caplog):
    with serving(tmp_path / "old") as (relay, address):
        served(relay, model_dir, 9)
        actor = Actor(server=address, queue=tmp_path / "q", send_every=60)
        play(actor)
        assert actor.flush(10)
        assert actor._model.identity == relay.store.identity
        assert versions_in(relay.log) == {1: 9}
    play(actor)
    actor.close(0.1)
    with serving(tmp_path / "new") as (relay, address):
        served(relay, model_dir, 2)
        actor = Actor(server=address, queue=tmp_path / "q", send_every=0.01)
        assert actor.version == 2
        play(actor)
        assert actor.flush(10)
        assert sorted(versions_in(relay.log).values()) == [-1, 2]
        assert caplog.text.count("another trainer") == 1
        assert [path.name for path in (tmp_path / "q" / "models").glob("0*")] == ["0000000002"]
        actor.close()


def test_an_actor_under_way_takes_the_lower_version_of_another_trainer(model_dir, tmp_path, caplog):
    with serving(tmp_path / "s") as (relay, address):
        served(relay, model_dir, 9)
        actor = Actor(server=address, queue=tmp_path / "q", send_every=0.01, poll_every=0.01)
        actor.request_action(SEEN)
        shutil.rmtree(tmp_path / "s" / "models")
        relay.store.__init__(tmp_path / "s" / "models")  # another server at the same address
        served(relay, model_dir, 2)
        until(lambda: actor._outbox._model is not None)
        actor.flag_last_action(1.0)  # made by version 9 of a trainer that is no more
        play(actor)
        assert actor.version == 2
        assert actor.flush(10)
        assert versions_in(relay.log) == {1: -1, 2: 2}
        time.sleep(0.1)
        assert caplog.text.count("another trainer") == 1
        actor.close()


def test_a_server_without_an_identity_is_taken_as_it_was(model_dir, tmp_path):
    with serving(tmp_path / "s") as (relay, address):
        served(relay, model_dir, 3)
        relay.store.identity = ""
        actor = Actor(server=address, queue=tmp_path / "q", send_every=0.01)
        play(actor)
        assert actor.flush(10)
        assert versions_in(relay.log) == {1: 3}
        assert Client(address).model(tmp_path / "m", 3, "abc") is None
        actor.close()


def test_an_identity_lasts_and_is_made_once(tmp_path):
    from flockrl.relay.store import Store

    first = Store(tmp_path / "a").identity
    assert len(first) == 32
    assert Store(tmp_path / "a").identity == first != Store(tmp_path / "b").identity
    (tmp_path / "a" / "identity").write_bytes(b"\xff\xff")
    assert len(Store(tmp_path / "a").identity) == 32


def test_learners_that_need_the_version_refuse_what_has_none():
    from flockrl.data.schema import BadData
    from flockrl.relay.learner import Learner

    class Trainer:
        algorithm = "ippo"
        facts = type("Facts", (), {"on_policy": True})

        def check(self, data):
            pass

    learner = Learner.__new__(Learner)
    learner.trainer = Trainer()
    learner.check(episodes(["a"], version=0))
    with pytest.raises(BadData, match="which version"):
        learner.check(episodes(["a"], version=-1))
    learner.trainer.facts.on_policy = False
    learner.check(episodes(["a"], version=-1))
