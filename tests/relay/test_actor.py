"""Actors: forms of observations, what is recorded, the queue, hot swap, life without a server."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from relay_kit import SMALL, SPEC, ids_in, recorded, serving

from flockrl.core.errors import UsageError
from flockrl.data.form import Form
from flockrl.data.schema import decode
from flockrl.relay.actor import Actor
from flockrl.relay.outbox import QueueFull
from flockrl.training.pack import Packer

SEEN = {"sheep": [1.0, 2.0, 3.0], "dog": [4.0, 5.0]}
LIST = [np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0])]
ARRAY = np.array([[1, 2, 3], [4, 5, 0]], np.float32)


def play(actor, count=1, steps=3):
    for _ in range(count):
        for t in range(steps):
            actor.request_action(SEEN, reward=float(t))
        actor.flag_last_action(9.0)


def test_actions_come_in_the_form_of_the_observations(model_dir):
    actor = Actor(model_dir, seed=0)
    named = actor.request_action(SEEN)
    assert list(named) == ["sheep", "dog"]
    assert 0 <= named["sheep"] < 4
    assert 0 <= named["dog"] < 3
    assert len(actor.request_action(LIST)) == 2
    assert actor.request_action(ARRAY).shape == (2,)
    assert list(actor.request_action({"dog": [4.0, 5.0]})) == ["dog"]
    assert actor.request_action([None, [4.0, 5.0]])[0] is None


def test_a_team_of_one_may_pass_its_vector_alone(tmp_path):
    import flockrl
    from flockrl.core.spec import Box, Discrete, EnvSpec

    spec = EnvSpec("alone", ("it",), (Box((3,)),), (Discrete(4),), 5)
    trainer = flockrl.Trainer("ippo", spec, hyperparams=SMALL, envs=2, steps=400)
    flockrl.export(trainer.acquire_model(), tmp_path / "m")
    actor = Actor(tmp_path / "m", seed=0)
    assert actor.request_action([1.0, 2.0, 3.0]) in range(4)
    assert actor.request_action(np.ones(3)) in range(4)
    assert actor.request_action(np.ones((1, 3))).shape == (1,)


@pytest.mark.parametrize(
    ("obs", "says"),
    [
        ({"cat": [1.0]}, "no agent 'cat'"),
        ({"dog": [1.0]}, "must have 2 numbers"),
        ([[1.0, 2.0, 3.0]], "2 agents"),
        ({"dog": [np.nan, 1.0]}, "not finite"),
        ({}, "flag_last_action"),
        (3.0, "array, a list or a dict"),
    ],
)
def test_wrong_observations_are_told_at_once(model_dir, obs, says):
    with pytest.raises(UsageError, match=says):
        Actor(model_dir).request_action(obs)


@pytest.mark.parametrize("reward", [1e300, -1e300, np.nan, {"dog": 1e300}, [0.0, np.inf]])
def test_rewards_that_no_float32_holds_are_told_at_once(reward):
    with pytest.raises(UsageError, match="not finite"):
        Form(SPEC).reward(reward)


def test_a_mask_must_leave_something_to_do(model_dir):
    actor = Actor(model_dir)
    assert actor.request_action(SEEN, mask=[[0, 1, 0, 0], [0, 0, 1]]) == {"sheep": 1, "dog": 2}
    with pytest.raises(UsageError, match="leaves dog no action"):
        actor.request_action(SEEN, mask={"dog": [0, 0, 0]})


@pytest.fixture(scope="module")
def unlike_dir(tmp_path_factory):
    """A model of a team with all kinds of actions, and its spec."""
    import flockrl
    from flockrl.core.spec import Box, Discrete, EnvSpec, MultiDiscrete

    actions = (Discrete(4), Box((2,), (-1.0, 0.0), (1.0, 0.5)), MultiDiscrete((3, 2)))
    spec = EnvSpec("farm", ("sheep", "dog", "farmer"), (Box((3,)), Box((2,)), Box((3,))), actions, 20)
    path = tmp_path_factory.mktemp("unlike") / "model"
    trainer = flockrl.Trainer("ippo", spec, hyperparams=SMALL, envs=2, steps=400)
    flockrl.export(trainer.acquire_model(), path)
    return path, spec


def test_unlike_agents_act_and_are_recorded(unlike_dir, tmp_path):
    path, spec = unlike_dir
    actor = Actor(path, queue=tmp_path / "q", seed=0)
    seen = {**SEEN, "farmer": [6.0, 7.0, 8.0]}
    mask = {"sheep": [0, 1, 0, 0], "farmer": [0, 0, 1, 1, 0]}
    named = actor.request_action(seen, mask)
    assert type(named["sheep"]) is int
    assert named["sheep"] == 1
    assert named["dog"].shape == (2,)
    assert (named["dog"] >= [-1, 0]).all()
    assert (named["dog"] <= [1, 0.5]).all()
    assert named["farmer"].tolist() == [2, 0]
    assert named["farmer"].dtype == np.int32
    whole = np.array([[0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 1]], bool)  # the dog's row is not used
    array = np.array([[1, 2, 3], [4, 5, 0], [6, 7, 8]], np.float32)
    action = actor.request_action(array, whole, reward=1.0)
    assert action.shape == (3, 2)
    assert action[[0, 2]].tolist() == [[2, 0], [0, 1]]
    listed = actor.request_action([array[0], array[1, :2], array[2]], [None, None, [1, 1, 1, 0, 1]])
    assert listed[2][1] == 1
    actor.flag_last_action(5.0)
    actor.close()
    got = recorded(tmp_path / "q", spec)
    assert got.action.dtype == np.float32
    assert got.action[:2, [0, 2]].tolist() == [[[1, 0], [2, 0]], [[2, 0], [0, 1]]]
    assert got.avail[0].tolist() == [[0, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 1, 0]]
    assert got.avail[1, 1].tolist() == [1, 1, 0, 0, 0]
    assert np.isfinite(got.logp).all()
    packer = Packer(spec, 3, 1, whole=False)
    packer.add(got)
    assert np.array_equal(packer.take(()).action[:, 0], got.action)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ({"farmer": [1, 1, 1, 0, 0]}, "leaves farmer no action"),
        ({"farmer": [1, 1, 1]}, "masks of farmer must have 5 numbers"),
        ({"farmer": ([1, 1, 1], [1, 0])}, "masks of each agent must be a vector of numbers"),
        (np.zeros((3, 4)), "masks of sheep must have 4|masks of dog must have 2"),
    ],
)
def test_wrong_masks_of_unlike_agents(unlike_dir, mask, says):
    with pytest.raises(UsageError, match=says):
        Actor(unlike_dir[0]).request_action({**SEEN, "farmer": [6.0, 7.0, 8.0]}, mask)


def test_what_is_recorded_does_not_change_with_the_application_s_arrays(model_dir, tmp_path):
    actor = Actor(model_dir, queue=tmp_path / "q")
    obs, reward = ARRAY.copy(), np.array([1.0, 2.0], np.float32)
    actor.request_action(obs)
    obs += 1
    actor.request_action(obs, reward=reward)
    reward += 5
    obs += 1
    actor.flag_last_action(reward, truncated=True, obs=obs)
    obs += 1
    actor.close()
    got = recorded(tmp_path / "q")
    assert got.obs[:, 0, 0].tolist() == [1, 2]
    assert got.next_obs[1, 0, 0] == 3
    assert got.reward.tolist() == [[1, 2], [6, 7]]


def test_an_episode_is_recorded_as_it_happened(model_dir, tmp_path):
    actor = Actor(model_dir, queue=tmp_path / "q", env="field", seed=0)
    did = [actor.request_action(SEEN)]
    did.append(actor.request_action({"sheep": [2.0, 2.0, 2.0], "dog": [1.0, 1.0]}, reward={"sheep": 1.0, "dog": -1.0}))
    did.append(actor.request_action({"sheep": [3.0, 3.0, 3.0]}, mask={"sheep": [0, 0, 1, 0]}, reward={"dog": 5.0}))
    actor.flag_last_action(7.0, truncated=True, obs={"sheep": [4.0, 4.0, 4.0]})
    actor.close()
    got = recorded(tmp_path / "q")
    assert got.env.tolist() == ["field"]
    assert got.length.tolist() == [3]
    assert got.alive.tolist() == [[True, True], [True, True], [True, False]]
    assert got.reward.tolist() == [[1, -1], [0, 5], [7, 0]]
    assert got.terminated.tolist() == [[False, False], [False, True], [False, False]]  # the dog died at step 1
    assert got.truncated.tolist() == [[False, False], [False, False], [True, False]]
    assert got.action[:2].tolist() == [[x["sheep"], x["dog"]] for x in did[:2]]
    assert got.action[2, 0] == did[2]["sheep"] == 2
    assert got.next_obs[2, 0].tolist() == [4, 4, 4]
    assert not got.blind.any()
    assert np.isfinite(got.logp[got.alive]).all()
    assert (np.diff(got.time) > 0).all()


def test_a_cut_without_a_last_look_is_blind(model_dir, tmp_path):
    actor = Actor(model_dir, queue=tmp_path / "q")
    actor.request_action(SEEN)
    actor.flag_last_action(1.0, truncated=True)
    actor.request_action(SEEN)
    actor.flag_last_action(1.0)
    actor.close()
    assert recorded(tmp_path / "q").blind.tolist() == [True, False]


def test_endless_episodes_are_recorded_in_pieces(model_dir, tmp_path):
    actor = Actor(model_dir, queue=tmp_path / "q")
    for t in range(45):
        actor.request_action(SEEN, reward=float(t))
    actor.flag_last_action(45.0)
    actor.close()
    got = recorded(tmp_path / "q")
    assert got.length.tolist() == [20, 20, 5]
    assert got.step.tolist() == list(range(45))
    assert got.reward[:, 0].tolist() == [float(t) for t in range(1, 46)]
    assert np.flatnonzero(got.terminated[:, 0]).tolist() == [44]
    assert not got.blind.any()
    assert got.next_obs[19].tolist() == ARRAY.tolist()
    assert len(set(got.id)) == 3
    assert len(set(got.episode)) == 1


def test_one_seed_one_behaviour_and_greedy_without_exploration(model_dir):
    def actions(**options):
        actor = Actor(model_dir, **options)
        return [tuple(actor.request_action(SEEN).values()) for _ in range(30)]

    assert actions(seed=1) == actions(seed=1) != actions(seed=2)
    assert len(set(actions(explore=False))) == 1


def test_only_a_running_episode_can_end(model_dir):
    with pytest.raises(UsageError, match="no episode under way"):
        Actor(model_dir).flag_last_action(1.0)


def test_episodes_wait_on_disk_and_arrive_later_once_each(model_dir, tmp_path):
    with Actor(model_dir, queue=tmp_path / "q") as actor:
        play(actor, 5)
    with serving(tmp_path / "s") as (relay, address):
        with Actor(model_dir, server=address, queue=tmp_path / "q") as actor:
            play(actor, 2)
            assert actor.flush(10)
            assert actor.stats["acknowledged"] == 7
        assert len(set(ids_in(relay.log))) == relay.log.trajectories == 7
    os.remove(tmp_path / "q" / "sent.json")  # as if the acknowledgements had been lost
    with serving(tmp_path / "s") as (relay, address):
        with Actor(model_dir, server=address, queue=tmp_path / "q") as actor:
            assert actor.flush(10)
        assert relay.log.trajectories == 7
        assert relay.status()["known"] == 7


def test_a_server_that_is_not_there_disturbs_nobody(model_dir, tmp_path):
    actor = Actor(model_dir, server="127.0.0.1:9", queue=tmp_path / "q", send_every=0.01)
    began = time.monotonic()
    play(actor, 20)
    assert time.monotonic() - began < 2
    while not actor.stats["errors"]:
        time.sleep(0.01)
    assert not actor.close(timeout=0.1)
    assert recorded(tmp_path / "q").trajectories == 20


@pytest.mark.parametrize("policy", ["warn", "error"])
def test_a_full_queue_says_so(model_dir, tmp_path, policy, caplog):
    actor = Actor(model_dir, queue=tmp_path / "q", queue_limit=20_000, when_full=policy)
    if policy == "error":
        with pytest.raises(QueueFull):
            play(actor, 100)
    else:
        play(actor, 100)
        assert "not recorded" in caplog.text
    left, stats = actor.stats["recorded"], actor.stats
    assert stats["unrecorded"] == (1 if policy == "error" else 100 - left)
    assert 0 < stats["waiting_bytes"] <= 22_000  # a segment begins with its schema
    actor.close()
    assert recorded(tmp_path / "q").trajectories == left


def test_what_the_server_refuses_is_put_aside_and_the_rest_goes_on(model_dir, tmp_path, caplog):
    with serving(tmp_path / "s") as (relay, address):
        actor = Actor(model_dir, server=address, queue=tmp_path / "q", send_every=60, env="good")
        play(actor, 1)
        actor._env = "x" * 500
        play(actor, 1)
        actor._env = "good"
        play(actor, 1)
        with caplog.at_level(logging.ERROR):
            assert actor.flush(10)
        assert actor.stats["refused_by_server"] == 1
        assert "500" in caplog.text or "characters" in caplog.text
        assert relay.log.trajectories == 2
        assert len(list((tmp_path / "q" / "refused").iterdir())) == 1
        actor.close()


def test_a_damaged_episode_does_not_hold_up_the_others(model_dir, tmp_path, caplog):
    with serving(tmp_path / "s") as (relay, address):
        actor = Actor(model_dir, server=address, queue=tmp_path / "q", send_every=60)
        play(actor, 3)
        actor._outbox.log.sync()
        with open(tmp_path / "q" / "00000000.arrows", "r+b") as file:
            file.seek(actor._outbox.log.start.data + 300)
            file.write(b"damage")
        assert actor.flush(10)
        assert relay.log.trajectories == 2
        assert "an episode is lost" in caplog.text
        actor.close()


def renumber(source, target, version):
    """A copy of a model that says it is of another version."""
    shutil.copytree(source, target)
    about = json.loads((target / "metadata.json").read_text())
    about["policy_version"] = version
    (target / "metadata.json").write_text(json.dumps(about))


def test_a_new_model_acts_from_the_next_episode_on(model_dir, tmp_path):
    with serving(tmp_path / "s") as (relay, address):
        relay.store.publish(0, lambda folder: renumber(model_dir, folder, 0))
        actor = Actor(server=address, queue=tmp_path / "q", send_every=0.01, poll_every=0.01)
        assert actor.version == 0
        actor.request_action(SEEN)
        relay.store.publish(3, lambda folder: renumber(model_dir, folder, 3))
        while actor._outbox._model is None:
            time.sleep(0.01)
        actor.request_action(SEEN)
        assert actor.version == 0
        actor.flag_last_action(1.0)
        actor.request_action(SEEN)
        assert actor.version == 3
        actor.flag_last_action(1.0)
        actor.flush(10)
        actor.close()
        rows = [decode(relay.log.read(relay.log.start)[0], SPEC)]
        assert rows[0].version.tolist()[0] == 0
    # Without the server the model it gave last is still there.
    again = Actor(server="127.0.0.1:9", queue=tmp_path / "q", timeout=5)
    assert again.version == 3
    again.close(0.1)


def test_an_actor_without_any_model_says_so(tmp_path):
    with pytest.raises(UsageError, match="needs a model"):
        Actor()
    with pytest.raises(UsageError, match="queue="):
        Actor(server="127.0.0.1:9")
    with serving(tmp_path / "s") as (_, address), pytest.raises(UsageError, match="not published"):
        Actor(server=address, queue=tmp_path / "q", timeout=0.1)


CHILD = """
import sys
from flockrl.relay.actor import Actor
actor = Actor(sys.argv[1], queue=sys.argv[2], seed=0)
while True:
    for t in range(3):
        actor.request_action({"sheep": [1.0, 2.0, 3.0], "dog": [4.0, 5.0]}, reward=1.0)
    actor.flag_last_action(1.0)
    print(actor.stats["recorded"], flush=True)
"""


def test_an_actor_that_is_killed_loses_no_finished_episode(model_dir, tmp_path):
    total = 0
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(model_dir), str(tmp_path / "q")], stdout=subprocess.PIPE
        )
        said = [int(child.stdout.readline()) for _ in range(50)][-1]
        child.send_signal(signal.SIGKILL)
        rest = [int(line) for line in child.communicate()[0].split(b"\n")[:-1]]
        total += rest[-1] if rest else said
    got = recorded(tmp_path / "q")
    assert total <= got.trajectories <= total + 3  # killed between recording and saying so
    assert len(set(got.id)) == got.trajectories


ALLOWED = {"numpy", "pyarrow", "onnxruntime", "flockrl"}
BLOCK = """
import importlib.abc, importlib.machinery, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        found = importlib.machinery.PathFinder.find_spec(top)
        outside = found is not None and "site-packages" in str(found.origin or list(found.submodule_search_locations))
        if outside and top not in ALLOWED:
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)
sys.meta_path.insert(0, Block())
"""


def test_acting_needs_three_packages(model_dir, tmp_path):
    code = f"ALLOWED = {ALLOWED}" + BLOCK + CHILD.replace("while True:", "for _ in range(2):")
    code += "\nactor.close()\nimport json; print(json.dumps(sorted(sys.modules)))"
    words = [sys.executable, "-c", code, str(model_dir), str(tmp_path / "q")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert found >= ALLOWED
    assert not {"jax", "flax", "tyro"} & found
