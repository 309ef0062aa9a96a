"""Actors that act: whole rollouts travel, and they equal those of acting in one place, bit for bit."""

import dataclasses
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from conftest import TINY
from host_envs import Counter, disguised, raises_at_five
from ray_kit import Near
from test_resume import rows

import flockrl
from flockrl.algos.presets import make_config
from flockrl.core.errors import UsageError
from flockrl.envs.host.batch import ATTEMPTS, HostFault
from flockrl.envs.host.env import Host
from flockrl.rollouts.host import host_rollout
from flockrl.rollouts.remote import remote_rollout
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.interrupt import Interrupted
from flockrl.training.programs import make_program

REPLAY = {"steps_per_update": 64, "batch_size": 16, "buffer_size": 2048, "learning_starts": 128}
GRU = {"memory": "gru", "memory_size": 8}
LEARNERS = {
    "ippo": {},
    "iql": REPLAY,
    "mappo-gru": {**GRU, "normalize_obs": True},
    "vdn-gru": {**REPLAY, **GRU, "sequence": 16},
}
KEPT = {"rollout_steps", "hidden"}
"""Of the settings of tiny runs, those that every learner has."""
REMOTE = "flockrl.envs.host.remote.connect", "flockrl.training.hosted.require_ray"


def slow(*cases):
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


@pytest.fixture
def near(monkeypatch):
    """Ray in this process."""
    made = Near()
    monkeypatch.setattr(REMOTE[0], lambda address: made)
    monkeypatch.setattr(REMOTE[1], lambda: None)
    return made


def counters(trouble=None):
    return Host(lambda draw: Counter(trouble))


def settings(learner):
    options = {field.name for field in dataclasses.fields(TrainOptions)}
    on_policy = learner.split("-")[0] in ("ippo", "mappo")
    return {k: v for k, v in TINY.items() if on_policy or k in KEPT | options} | LEARNERS[learner]


def train(path, learner="ippo", env=None, **how):
    return flockrl.train(learner.split("-")[0], env or counters(), out=path, **{**settings(learner), **how})


def program(learner="ippo", env=None, **how):
    """A program that is ready, and its state at the start."""
    options = {field.name for field in dataclasses.fields(TrainOptions)}
    given = settings(learner)
    config = make_config(learner.split("-")[0], {k: v for k, v in given.items() if k not in options})
    kept = TrainOptions(**{k: v for k, v in given.items() if k in options}, **how)
    made = make_program(RunConfig(learner.split("-")[0], "counter", kept, config), env or counters())
    return made, made.start_state(5)


def rollouts(made, state, count=3, disturb=lambda i: None):
    """What comes of rollouts in a row: actors, trajectory, episodes of each."""
    params, actors, found = made.player.params(state.learner), state.actors, []
    play = remote_rollout if made.remote else host_rollout
    for i, key in enumerate(jax.random.split(jax.random.key(3), count)):
        disturb(i)
        found.append(play(made.actor, params, made.batch(5), actors, key))
        actors = found[-1][0]
    return found


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def figures(run):
    return [{k: v for k, v in row.items() if k != "restarts"} for row in rows(run.path)]


@pytest.mark.parametrize("learner", ["ippo", "vdn-gru", *slow("iql", "mappo-gru")])
def test_rollouts_equal_local_ones(near, learner):
    local = rollouts(*program(learner, workers=0))
    assert sum(int(ended.number) for *_, ended in local) > 10
    for actors in (1, 3):
        same(local, rollouts(*program(learner, workers=actors, ray="auto")))
    assert len(near.actors) == 4


@pytest.mark.parametrize("learner", slow(*LEARNERS))
def test_runs_equal_local_ones(near, tmp_path, learner):
    local = train(tmp_path / "local", learner, workers=0)
    run = train(tmp_path / "run", learner, workers=2, ray="auto")
    assert figures(local) == figures(run)
    same(local.state(), run.state())


@pytest.mark.parametrize("name", slow("probe/masks", "probe/state"))
def test_masks_and_states_travel(near, name):
    local = rollouts(*program(env=disguised(name), workers=0))
    same(local, rollouts(*program(env=disguised(name), workers=2, ray="auto")))


def test_actors_that_die_leave_no_trace(near):
    """Between rollouts, and after playing one that then nobody hears of."""
    local, dies = rollouts(*program("mappo-gru", workers=0)), iter([True, False, False, False, False, True])
    made, state = program("mappo-gru", workers=2, ray="auto")
    near.fate = lambda actor, method: method == "rollout" and next(dies, False)
    same(local, rollouts(made, state, disturb=lambda i: near.kill(near.actors[-1])))
    assert made.batch(5).executor.restarts == 3 + 2
    assert made.batch(5).cuts == 0


def test_a_rollout_whose_actors_die_again_and_again_is_acted_here(near):
    local, stepped = rollouts(*program(workers=0)), []
    made, state = program(workers=2, ray="auto")

    def disturb(i):
        near.fate = lambda actor, method: i == 1 and method == "rollout"
        stepped.append(near.calls.count("serve"))

    same(local, rollouts(made, state, disturb=disturb))
    assert stepped[0] == stepped[1]  # the first rollout was played by actors
    assert stepped[2] >= stepped[1] + 2 * TINY["rollout_steps"]
    assert made.batch(5).executor.restarts == 2 * ATTEMPTS
    assert made.batch(5).cuts == 0


@pytest.mark.slow
def test_an_interrupted_run_goes_on_wherever_policies_act(near, tmp_path):
    class Stop(flockrl.Callback):
        def on_iteration(self, moment):
            if moment.step == 384:
                os.kill(os.getpid(), signal.SIGINT)

    whole = train(tmp_path / "whole", workers=0)
    with pytest.raises(Interrupted):
        train(tmp_path / "cut", workers=2, ray="auto", callbacks=[Stop()])
    resumed = flockrl.resume(tmp_path / "cut", counters())
    assert figures(whole) == figures(resumed)
    same(whole.state(), resumed.state())


def forgetful(env):
    env.total += np.random.default_rng().random()  # nobody's seed


def test_episodes_that_cannot_be_played_again_begin_anew(near):
    made, state = program("mappo-gru", env=counters(forgetful), workers=2, ray="auto")
    shown = rollouts(made, state, disturb=lambda i: near.kill(near.actors[-1]) if i == 1 else None)
    (before, _, _), (_, trajectory, _) = shown[:2]
    owner, running = made.batch(5).executor.owner[:8], ~before.first
    lost = (owner == 1) & (before.lengths > 0)
    assert lost.any()
    assert (trajectory.first[0] == before.first | lost).all()
    assert made.batch(5).cuts == lost.sum()
    for memory in jax.tree.leaves(trajectory.memory):
        assert not memory[lost].any()
        assert memory[running & ~lost].any()
    assert (trajectory.obs[0, lost, :, 0] == 0).all()
    assert made.batch(5).stands_at(shown[-1][0].env, shown[-1][0].lengths)


def test_a_fault_names_the_environment_and_its_traceback(near):
    made, state = program(env=counters(raises_at_five), workers=2, ray="auto")
    with pytest.raises(HostFault, match=r"counter: environment \d fails again and again:(.|\n)*five is too many"):
        rollouts(made, state, 20)


def test_what_cannot_be(tmp_path):
    with pytest.raises(UsageError, match="acting says where policies act that have Ray actors"):
        train(tmp_path / "a", acting="learner")
    with pytest.raises(UsageError, match="acting is for environments that run on the host"):
        flockrl.train("ippo", "probe/action", out=tmp_path / "a", acting="actors")
    with pytest.raises(UsageError, match="acting must be one of"):
        train(tmp_path / "a", ray="auto", acting="here")


def test_parameters_are_put_once_and_a_rollout_is_one_call(near):
    made, state = program(workers=2, ray="auto")
    assert near.calls.count("put") == 1  # how to act
    near.calls.clear()
    rollouts(made, state, 3)
    assert near.calls == ["put", "rollout", "rollout"] * 3


def test_an_actor_that_hangs_ends():
    script = "import time; from flockrl.rollouts.remote import Watch; watch = Watch(0.5); watch.beat(); time.sleep(60)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
