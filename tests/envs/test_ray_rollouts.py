"""Host environments in Ray actors equal those in this process, bit for bit, and an actor or node that dies too."""

import os

import cloudpickle
import host_envs
import jax
import numpy as np
import pytest
from conftest import TINY
from host_envs import Counter, complain, die, hang, once, raises_at_five
from ray_kit import SMALL, cluster
from test_resume import rows

import flockrl
from flockrl.core.errors import TrainingError, UsageError
from flockrl.envs.host.batch import HostBatch
from flockrl.envs.host.env import Host
from flockrl.envs.host.remote import Remote
from flockrl.envs.host.workers import Local

WAIT = 240.0
"""Seconds: machines that run tests may be slow."""


@pytest.fixture(scope="module")
def nodes():
    pytest.importorskip("ray")
    cloudpickle.register_pickle_by_value(host_envs)  # nodes do not have the tests
    with cluster(2, cpus=2) as made:
        yield made
    cloudpickle.unregister_pickle_by_value(host_envs)


def counters():
    return Host(lambda draw: Counter())


def play(executor, steps, disturb=lambda t: None, envs=4):
    """What random actions lead to."""
    batch, rng = HostBatch(executor, 0, envs), np.random.default_rng(0)

    def draw():
        return rng.integers(0, 2**32, (envs, 2), np.uint32)

    shown = [batch.reset(draw())]
    for t in range(steps):
        disturb(t)
        shown.append(batch.step(rng.integers(0, 3, (envs, 2)).astype(np.int32), draw(), draw())[1:7])
    executor.close()
    return shown, batch


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def remote(nodes, owner):
    return Remote(counters(), owner, WAIT, nodes.address)


@pytest.mark.slow
def test_actors_that_are_killed_leave_no_trace(nodes):
    import ray

    plain, _ = play(Local(counters(), 4), 60)
    executor = remote(nodes, [0, 0, 1, 1])

    def kill(t):
        if t in (10, 25, 26):
            ray.kill(executor._actors[t % 2])

    shown, batch = play(executor, 60, kill)
    same(plain, shown)
    assert executor.restarts == 3
    assert batch.cuts == 0
    assert sum(int(now[-1].sum()) for now in plain[1:]) > 10  # episodes ended


@pytest.mark.slow
@pytest.mark.parametrize("what", [complain, die])
def test_a_fault_of_the_environment_leaves_no_trace(nodes, tmp_path, what):
    plain, _ = play(Local(counters(), 4), 40)
    path = str(tmp_path / "happened")
    executor = Remote(Host(lambda draw: Counter(once(path, what))), [0, 0, 0, 0], WAIT, nodes.address)
    shown, batch = play(executor, 40)
    same(plain, shown)
    assert executor.restarts == 1
    assert batch.cuts == 0


LEARNERS = {
    "ippo": {},
    "iql": {"steps_per_update": 64, "batch_size": 16, "buffer_size": 2048, "learning_starts": 128},
}


def train(tmp_path, name, algorithm, env=None, **how):
    settings = {k: v for k, v in TINY.items() if k not in ("epochs", "minibatches")} | LEARNERS[algorithm]
    return flockrl.train(algorithm, env or counters(), out=tmp_path / name, **settings, **how)


@pytest.mark.slow
@pytest.mark.parametrize("acting", ["actors", "learner"])
@pytest.mark.parametrize("algorithm", LEARNERS)
def test_one_actor_equals_the_local_run(nodes, tmp_path, algorithm, acting):
    local = train(tmp_path, "local", algorithm, workers=0)
    actor = train(tmp_path, "actor", algorithm, workers=1, ray=nodes.address, acting=acting, worker_timeout=WAIT)
    assert rows(local.path) == rows(actor.path)
    same(local.state().learner, actor.state().learner)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "timeout"), [(die, WAIT), (hang, 15.0)])
def test_a_fault_on_an_actor_that_acts_leaves_no_trace(nodes, tmp_path, what, timeout):
    local, here = train(tmp_path, "local", "ippo", workers=0), os.getpid()
    trouble = once(str(tmp_path / "happened"), what)
    env = Host(lambda draw: Counter(lambda team: os.getpid() != here and trouble(team)))  # this process tries it first
    wild = train(tmp_path, "wild", "ippo", env, workers=2, ray=nodes.address, worker_timeout=timeout)
    assert wild.metrics()[-1]["restarts"] >= 1
    assert plain(local) == plain(wild)
    same(local.state().learner, wild.state().learner)


@pytest.mark.slow
@pytest.mark.parametrize("acting", ["actors", "learner"])
def test_an_environment_that_fails_again_and_again_stops_with_its_traceback(nodes, tmp_path, acting):
    here = os.getpid()  # where environments are looked at before training, and work

    def trouble(env):
        if os.getpid() != here:
            raises_at_five(env)

    env, how = (
        Host(lambda draw: Counter(trouble)),
        {"ray": nodes.address, "acting": acting, "worker_timeout": WAIT},
    )
    with pytest.raises(TrainingError, match=r"counter: environment \d fails again and again:(.|\n)*five is too many"):
        train(tmp_path, "wild", "ippo", env, **how)


def plain(run):
    return [{k: v for k, v in row.items() if k != "restarts"} for row in rows(run.path)]


class KillsNodes(flockrl.Callback):
    """Takes a node out of the cluster, twice, and puts another one in."""

    def __init__(self, nodes):
        self.nodes, self.killed = nodes, 0

    def on_iteration(self, moment):
        if moment.step in (256, 640):
            self.nodes.remove_node(self.nodes.workers.pop(0), allow_graceful=False)
            self.nodes.workers.append(self.nodes.add_node(num_cpus=2, **SMALL))
            self.killed += 1


@pytest.mark.slow
@pytest.mark.parametrize("acting", ["actors", "learner"])
def test_nodes_that_die_during_training_leave_no_trace(nodes, tmp_path, acting):
    local, killer = train(tmp_path, "local", "ippo", workers=0), KillsNodes(nodes)
    how = {"workers": 2, "ray": nodes.address, "acting": acting, "worker_timeout": WAIT}
    wild = train(tmp_path, "wild", "ippo", callbacks=[killer], **how)
    assert killer.killed == 2
    assert wild.metrics()[-1]["restarts"] >= 1
    assert plain(local) == plain(wild)
    same(local.state().learner, wild.state().learner)


def test_what_cannot_be(tmp_path):
    with pytest.raises(UsageError, match="ray is for workers, and workers is 0"):
        train(tmp_path, "a", "ippo", workers=0, ray="auto")
    with pytest.raises(UsageError, match="ray is for environments that run on the host"):
        flockrl.train("ippo", "probe/action", out=tmp_path / "a", ray="auto")


def test_without_ray_one_sentence_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs Ray: pip install 'flockrl\[ray\]'"):
        train(tmp_path, "a", "ippo", ray="auto")
