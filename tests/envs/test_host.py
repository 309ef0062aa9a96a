"""Host environments: the same numbers as the compiled path, with workers or without, through crashes and resumes."""

import multiprocessing
import os
import random
import signal
import threading
import time

import jax
import numpy as np
import pytest
from conftest import TINY
from host_envs import Counter, Fragile, complain, die, disguised, hang, once, raises_at_five
from zoo import Pair

import flockrl
from flockrl.algos.presets import make_config
from flockrl.core.rundir import read_json
from flockrl.envs import make
from flockrl.envs.host.batch import HostBatch, HostFault
from flockrl.envs.host.env import Host
from flockrl.envs.host.workers import Local, Workers, groups, owners
from flockrl.rollouts.compiled import scan_rollout
from flockrl.rollouts.host import host_rollout
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.interrupt import Interrupted
from flockrl.training.programs import make_program

SMALL = {"rollout_steps": 30, "epochs": 2, "minibatches": 2, "hidden": (8,)}


def programs(name, algorithm="mappo", **settings):
    """The compiled program and the one on the host for one environment."""
    sizes = {"envs": 4, "steps": 10**6, "eval_episodes": 4}
    config = make_config(algorithm, settings)
    compiled = RunConfig(algorithm, name, TrainOptions(**sizes), config)
    hosted = RunConfig(algorithm, name, TrainOptions(**sizes, workers=0), config)
    return make_program(compiled, make(name)), make_program(hosted, disguised(name))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mpe/simple_spread", SMALL),
        ("mpe/simple_spread", {**SMALL, "memory": "gru", "memory_size": 8}),
        ("mpe/simple_spread", {**SMALL, "comm": "ic3net", "channel": "loss=0.3,delay=1,top=2,access=round_robin"}),
        ("mpe/simple_spread", {**SMALL, "comm": "commnet", "channel": "range=0.8"}),
        ("probe/death", SMALL),
        ("probe/masks", SMALL),
        ("probe/state", SMALL),
    ],
    ids=["spread", "spread-gru", "spread-talk", "spread-range", "death", "masks", "state"],
)
def test_host_rollouts_equal_compiled_ones(name, settings):
    compiled, hosted = programs(name, **settings)
    key = jax.random.key(3)
    a, b = compiled.start_state(5), hosted.start_state(5)
    jax.tree.map(np.testing.assert_array_equal, a.learner, b.learner)
    params = compiled.algorithm.params(a.learner)
    rollout = jax.jit(lambda p, actors, k: scan_rollout(compiled.algorithm, p, compiled.env, actors, k))
    env = hosted.batch(5)
    actors, theirs = a.actors, b.actors
    for k in jax.random.split(key, 2):
        actors, one, ended = rollout(params, actors, k)
        theirs, two, finished = host_rollout(hosted.actor, params, env, theirs, k)
        assert jax.tree.structure(one) == jax.tree.structure(two)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), one, two)
        np.testing.assert_array_equal(one.action, two.action)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), ended, finished)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), actors[1:], theirs[1:])


def test_host_training_equals_compiled_training():
    compiled, hosted = programs("mpe/simple_spread", **SMALL)
    states = [program.start_state(1) for program in (compiled, hosted)]
    for program in (compiled, hosted):
        program.compile(1)
    (a, ended, one), (b, finished, two) = (p.run(s, 1, 2) for p, s in zip((compiled, hosted), states, strict=True))
    for name, value in one.items():
        np.testing.assert_allclose(value, two[name], rtol=2e-3, atol=1e-4, err_msg=name)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), ended, finished)
    scores = [program.evaluate(state, 1, 240) for program, state in ((compiled, a), (hosted, b))]
    np.testing.assert_allclose(scores[0][0], scores[1][0], rtol=1e-3)
    np.testing.assert_array_equal(scores[0][1], scores[1][1])


# --- executors


def play(executor, steps, envs=4, seed=0):
    """Random actions; everything that the batch showed."""
    batch, rng = HostBatch(executor, 0, envs), np.random.default_rng(seed)

    def draw():
        return rng.integers(0, 2**32, (envs, 2), np.uint32)

    shown = [batch.reset(draw())]
    for _ in range(steps):
        shown.append(batch.step(rng.integers(0, 3, (envs, 2)).astype(np.int32), draw(), draw())[1:7])
    executor.close()
    return shown, batch


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_workers_equal_no_workers():
    host = Host(lambda draw: Counter())
    plain, _ = play(Local(host, 4), 60)
    same(plain, play(Workers(host, [0, 0, 1, 1]), 60)[0])
    assert sum(int(now[-1].sum()) for now in plain[1:]) > 10  # episodes ended


@pytest.mark.parametrize(("count", "workers"), [(16, 2), (9, 2), (7, 3), (3, 2), (2, 2), (2, 1), (1, 1), (20, 8)])
def test_every_group_of_teams_is_shared_out_evenly(count, workers):
    owner, shares = np.array(owners(count, workers)), groups(count, workers)
    np.testing.assert_array_equal(np.concatenate([np.arange(count)[group] for group in shares]), np.arange(count))
    assert len(owner) == count
    for group in shares:
        load = np.bincount(owner[group], minlength=workers)
        assert len(load) == workers
        assert load.min() >= 1
        assert load.max() - load.min() <= 1


@pytest.mark.parametrize("what", [complain, die, hang])
def test_a_fault_leaves_no_trace_when_the_episode_can_be_played_again(tmp_path, what):
    plain, _ = play(Local(Host(lambda draw: Counter()), 4), 40)
    path = str(tmp_path / "happened")
    host = Host(lambda draw: Counter(once(path, what)))
    executor = Local(host, 4) if what is complain else Workers(host, [0, 0, 1, 1], timeout=3.0)
    faulty, batch = play(executor, 40)
    same(plain, faulty)
    assert executor.restarts >= 1  # a busy machine may take a healthy worker for hung as well
    assert batch.cuts == 0


def test_workers_that_are_killed_while_they_start_are_not_the_environments_fault(tmp_path):
    plain, _ = play(Local(Host(lambda draw: Counter()), 4), 20)
    executor = Workers(Host(Fragile(str(tmp_path / "starts"), 15)), [0, 0, 1, 1])
    disturbed, batch = play(executor, 20)
    same(plain, disturbed)
    assert (executor.restarts, batch.cuts) == (15, 0)


def not_repeatable(env):
    env.total += np.random.default_rng().random()  # nobody's seed


def test_an_episode_that_cannot_be_played_again_is_cut(tmp_path):
    trouble = once(str(tmp_path / "happened"), complain)
    host = Host(lambda draw: Counter(lambda env: (not_repeatable(env), trouble(env))))
    shown, batch = play(Local(host, 4), 20)
    assert batch.cuts == 1
    cut = [(t, i) for t, now in enumerate(shown[1:]) for i in range(4) if now[4][i].any()]
    ((t, i),) = cut  # the only truncation
    observation, final, reward, terminated, _, done = shown[t + 1]
    before = shown[t][0] if t else shown[0]
    np.testing.assert_array_equal(final.obs[i], before.obs[i])
    assert done[i]
    assert not terminated[i].any()
    assert reward[i].sum() == 0
    assert observation.obs[i, 0, 0] == 0  # a new episode


@pytest.mark.parametrize("workers", [False, True])
def test_an_environment_that_fails_again_and_again_stops_with_its_traceback(workers):
    host = Host(lambda draw: Counter(raises_at_five))
    with pytest.raises(HostFault, match=r"counter: environment \d fails again and again:(.|\n)*five is too many"):
        play(Workers(host, [0, 0, 1, 1]) if workers else Local(host, 4), 100)


def test_max_steps_truncates():
    class Endless(Counter):
        def reset(self, seed):
            super().reset(seed)
            self.end = 10**6
            return self.look()

    shown, _ = play(Local(Host(lambda draw: Endless()), 4), 13)
    assert shown[12][-1].all()
    assert shown[12][4].all()
    assert not shown[11][-1].any()


# --- whole runs


def rows(run):
    skip = ("seconds", "steps_per_second", "restarts")
    return [{k: v for k, v in row.items() if k not in skip} for row in run.metrics()]


def counter_run(tmp_path, name, **settings):
    return flockrl.train("ippo", Host(lambda draw: Counter()), out=tmp_path / name, **{**TINY, **settings})


def test_training_with_workers_equals_training_without(tmp_path):
    one = counter_run(tmp_path, "one", workers=0, steps=512)
    two = counter_run(tmp_path, "two", workers=2, steps=512)
    assert rows(one) == rows(two)
    assert one.evaluate(20).mean == two.evaluate(20).mean


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    class Stop(flockrl.Callback):
        """Presses Ctrl-C once."""

        def on_iteration(self, moment):
            if moment.step == 384 and moment.seed == 0:
                os.kill(os.getpid(), signal.SIGINT)

    host = Host(lambda draw: Counter())
    whole = counter_run(tmp_path, "whole", workers=0, seeds=2)
    with pytest.raises(Interrupted):
        flockrl.train("ippo", host, out=tmp_path / "cut", callbacks=[Stop()], workers=0, seeds=2, **TINY)
    parts = flockrl.resume(tmp_path / "cut", host)
    for a, b in zip(whole, parts, strict=True):
        assert rows(a) == rows(b)


def test_episodes_that_cannot_be_continued_begin_anew():
    """A batch takes up what another one left, unless the environment does not follow its seed."""
    words = np.arange(8, dtype=np.uint32).reshape(4, 2)
    action = np.ones((4, 2), np.int32)
    for trouble in (None, not_repeatable):
        host = Host(lambda draw, trouble=trouble: Counter(trouble))
        one, two = (HostBatch(Local(host, 4), 0, 4) for _ in range(2))
        one.reset(words)
        for t in range(2):  # episodes last for three steps at least
            one.step(action, words, words + 100 + t)
        fresh = two.restore(one.state(), np.full(4, 2), one.seen, words + 50)
        assert fresh.tolist() == [trouble is not None] * 4
        assert two.slots.length.tolist() == [0 if trouble else 2] * 4
        assert (two.seen.obs[:, 0, 0] == (0 if trouble else 2)).all()
        assert two.stands_at(one.state(), np.full(4, 2)) == (trouble is None)
        if trouble is None:
            same(one.step(action, words, words + 60)[1:], two.step(action, words, words + 60)[1:])


def test_unlike_actions_are_clipped_remembered_and_played_again():
    host, words = make(Pair), np.arange(4, dtype=np.uint32).reshape(2, 2)
    one, two = (HostBatch(Local(host, 2), 0, 2) for _ in range(2))
    one.reset(words)
    actions = np.array([[[2, 7], [9, -9]], [[1, 7], [0.5, 2.5]]], np.float32)
    Pair.log.clear()
    one.step(actions, words, words)
    one.step(actions[::-1], words, words + 1)
    high, inside = (2, [2, 0]), (1, [0.5, 2.5])
    assert [(a["picker"], a["mover"].tolist()) for a, _ in Pair.log] == [high, inside, inside, high]
    assert one.state()["actions"].shape == (2, 5, 2, 2)
    np.testing.assert_array_equal(one.state()["actions"][:, :2], np.stack([actions, actions[::-1]], 1))
    assert not two.restore(one.state(), np.full(2, 2), one.seen, words + 50).any()
    same(one.step(actions, words, words + 60)[1:], two.step(actions, words, words + 60)[1:])


def test_training_stops_with_the_last_checkpoint(tmp_path):
    calls = {"count": 0}

    def trouble(env):
        calls["count"] += 1
        if calls["count"] > 8 * 16 * 6:
            raise ValueError("worn out")

    with pytest.raises(flockrl.UsageError, match=r"last good checkpoint is .*checkpoints.*(.|\n)*worn out"):
        flockrl.train("ippo", Host(lambda draw: Counter(trouble)), out=tmp_path / "run", workers=0, **TINY)


def test_workers_are_refused_for_compiled_environments():
    with pytest.raises(flockrl.UsageError, match="workers is for environments that run on the host"):
        flockrl.train("ippo", "probe/action", workers=2, **TINY)
    with pytest.raises(flockrl.UsageError, match="worker_timeout is for workers, and workers is 0"):
        flockrl.train("ippo", Host(lambda draw: Counter()), workers=0, worker_timeout=3.0, **TINY)


def dies_now_and_then(env):
    if random.random() < 0.008:  # nobody's seed, in the middle of a step
        die()


def test_killing_workers_again_and_again_changes_nothing(tmp_path):
    """Every step is counted and every return is checked: the run equals the one that nobody disturbed."""
    settings = {"steps": 1024, "eval_every": 512}
    quiet = counter_run(tmp_path, "quiet", workers=0, **settings)
    host = Host(lambda draw: Counter())
    host.build = lambda draw: Counter(dies_now_and_then)  # the checks at the start play in this process
    disturbed = flockrl.train("ippo", host, out=tmp_path / "disturbed", workers=2, **{**TINY, **settings})
    assert disturbed.metrics()[-1]["restarts"] >= 1
    assert rows(disturbed) == rows(quiet)
    assert not multiprocessing.active_children()


class Killer(flockrl.Callback):
    """Kills a worker every three seconds, whatever it is doing, and stops the run after two minutes."""

    def __init__(self, seconds=120, pause=3):
        self.kills, self.over = 0, threading.Event()
        self.seconds, self.pause = seconds, pause

    def on_start(self, moment):
        self.end = time.monotonic() + self.seconds
        threading.Thread(target=self.kill, daemon=True).start()

    def kill(self):
        while not self.over.wait(self.pause):
            if workers := multiprocessing.active_children():
                os.kill(random.choice(workers).pid, signal.SIGKILL)
                self.kills += 1

    def on_iteration(self, moment):
        if time.monotonic() > self.end:
            moment.stop("two minutes are over")
            self.over.set()


class StopAt(flockrl.Callback):
    def __init__(self, step):
        self.step = step

    def on_iteration(self, moment):
        if moment.step == self.step:
            moment.stop("far enough")


@pytest.mark.slow
def test_two_minutes_of_killing_workers(tmp_path):
    """A real environment: every step is there, and the run equals, to the last bit, the one that nobody disturbed."""
    pytest.importorskip("mpe2")
    name, settings = "pettingzoo/mpe2.simple_spread_v3", {"steps": 1_000_000, "eval_episodes": 4}
    killer = Killer()
    disturbed = flockrl.train("mappo", name, out=tmp_path / "disturbed", workers=2, callbacks=[killer], **settings)
    steps = disturbed.result["steps"]
    last = [row for row in disturbed.metrics() if "restarts" in row][-1]
    assert killer.kills > 30
    assert last["restarts"] > 20  # fewer than kills: one may be hit twice before it is noticed, or during an evaluation
    assert last["cut_episodes"] == 0
    assert sum(row.get("episodes") or 0 for row in disturbed.metrics()) * 25 == steps
    stop = StopAt(steps)
    quiet = flockrl.train("mappo", name, out=tmp_path / "quiet", workers=2, callbacks=[stop], **settings)
    assert rows(disturbed) == rows(quiet)
    same(disturbed.params(), quiet.params())
    print(f"{killer.kills} kills, {last['restarts']:.0f} restarts, {steps} steps")


def test_what_a_run_chose_by_itself_is_kept(tmp_path, tiny_run, monkeypatch):
    """And is no setting: a run that takes this configuration chooses again."""
    monkeypatch.setattr("flockrl.envs.host.executor.measure", lambda host: 1e-9)  # seconds for a step
    device = {"platform": "cpu", "device": jax.devices()[0].device_kind}
    assert read_json(tiny_run.path / "config.json")["chosen"] == {**device, "learner": "gamma 0.96"}
    host = Host(lambda draw: Counter())
    run = flockrl.train("ippo", host, out=tmp_path / "run", **{**TINY, "steps": 128})
    config = read_json(run.path / "config.json")
    assert (config["workers"], config["chosen"]) == (None, {**device, "workers": 0, "learner": "gamma 0.95"})
    assert "chosen" not in flockrl.Run(run.path, host).config.to_json()
    run = flockrl.train("ippo", host, out=tmp_path / "one", **{**TINY, "steps": 128}, workers=1)
    assert read_json(run.path / "config.json")["chosen"]["workers"] == 1
