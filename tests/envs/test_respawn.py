"""Agents that die and live again within an episode, and episodes in which nobody lives for a while."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY

import flockrl
from flockrl.algos.sides import random_side
from flockrl.core.spec import spec_from_json, spec_to_json
from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.data.files import Files
from flockrl.envs import check, make
from flockrl.envs.api import advance_batch, reset_batch
from flockrl.envs.checks.compiled import problems
from flockrl.rollouts.compiled import scan_rollout, start

KEY = jax.random.key(0)


class Blink:
    """Two agents that live in turns: nobody, then the first, then nobody, then both. The state counts the steps."""

    LIVES = np.array([[0, 0], [1, 0], [0, 0], [1, 1], [0, 0]], bool)

    def __init__(self, **more):
        boxes, actions = (Box((1,), 0.0, 9.0),) * 2, (Discrete(2),) * 2
        facts = {"respawn": True, "reward_after_death": False, **more}
        self.spec = EnvSpec("blink", ("a", "b"), boxes, actions, max_steps=4, **facts)

    def observe(self, t):
        return Observation(jnp.full((2, 1), t, jnp.float32), alive=jnp.asarray(self.LIVES)[t])

    def reset(self, key):
        return jnp.int32(0), self.observe(jnp.int32(0))

    def step(self, key, state, action):
        left = jnp.asarray(self.LIVES)[state] & ~jnp.asarray(self.LIVES)[state + 1]
        return state + 1, self.observe(state + 1), jnp.ones(2), left, state + 1 >= 4


def test_the_dead_do_not_end_an_episode_of_agents_that_come_back():
    env, actions = Blink(), jnp.zeros((1, 2), jnp.int32)
    state, seen = reset_batch(env, KEY, 1)
    ends, deaths = [], []
    for _ in range(4):
        now = advance_batch(env, KEY, state, seen, actions)
        state, seen = now.state, now.final
        ends.append(bool(now.done[0]))
        deaths.append(np.asarray(now.terminated[0]).tolist())
    assert ends == [False, False, False, True]
    assert deaths == [[False] * 2, [True, False], [False] * 2, [True, True]]


def test_the_kit_takes_them_and_names_what_is_wrong():
    check(Blink())
    assert "no agent is alive after reset; where agents come later" in problems(Blink(respawn=False))[0]
    mortal = make("comm/traffic_junction:rate=1")
    mortal.spec = replace(mortal.spec, respawn=False)
    assert any("no agent is alive after reset" in sentence for sentence in problems(mortal))
    silent = Blink()
    silent.observe = lambda t: Observation(jnp.full((2, 1), t, jnp.float32))
    assert problems(silent)[0].startswith("blink: reset leaves out alive, but spec.respawn says")
    lost = Blink()
    step = lost.step
    lost.step = lambda key, state, action: (*step(key, state, action)[:3], jnp.zeros(2, bool), state + 1 >= 4)
    assert "alive ends with step 2, but neither terminated nor truncated says so" in problems(lost)[0]
    endless = Blink()
    endless.step = lambda key, state, action: (*step(key, state, action)[:4], jnp.zeros(2, bool))
    assert "still going on after spec.max_steps = 4" in problems(endless)[0]


def test_the_kit_compares_neighbours_with_the_spec():
    env = make("comm/switch_riddle:bit=false")
    env.spec = replace(env.spec, neighbours=False)
    assert "reset gives neighbours, but spec.neighbours is False" in problems(env)[0]
    env = make("comm/switch_riddle")
    env.spec = replace(env.spec, neighbours=True)
    assert "reset leaves out neighbours, but spec.neighbours is True" in problems(env)[0]


def test_a_spec_says_so_in_json():
    spec = make("comm/traffic_junction").spec
    assert spec_from_json(spec_to_json(spec)) == spec
    assert spec.respawn
    old = {name: value for name, value in spec_to_json(spec).items() if name != "respawn"}
    assert not spec_from_json(old).respawn


@pytest.fixture(scope="module")
def rollout():
    """40 steps, two episodes, of 16 crossings where everyone gives gas or brakes at random: numpy arrays."""
    env = make("comm/traffic_junction:rate=0.6")
    player = random_side(env.spec)._replace(rollout_steps=40)
    run = jax.jit(lambda key: scan_rollout(player, (), env, start(player, env, key, 16), key)[1:])
    return jax.device_get(run(KEY))


def test_rollouts_have_lives_one_after_the_other(rollout):
    trajectory, episodes = rollout
    alive, terminated, truncated = trajectory.alive, trajectory.terminated, trajectory.truncated
    assert (episodes.number, episodes.lengths) == (32, 640)
    assert trajectory.first[[0, 20]].all()
    assert trajectory.first.sum() == 32
    assert not alive[[0, 20]].any()
    inside = np.arange(40)[:-1] % 20 != 19
    lives = (alive & ~terminated)[:-1][inside]
    assert alive[1:][inside][lives].all()  # who did not leave is there in the next step
    assert not terminated[~alive].any()
    assert not truncated[~alive].any()
    assert truncated[19][alive[19] & ~terminated[19]].all()
    assert not truncated[:19].any()
    assert (trajectory.reward[~alive] == 0).all()
    left = np.logical_or.accumulate(terminated[:20], 0)[:-1]
    assert (alive[1:20] & left).any()  # places are taken again


def test_a_run_measures_success_and_its_recording_can_be_read(tmp_path):
    """A recording has no rows of steps in which nobody lived."""
    run = flockrl.train("ippo", "comm/traffic_junction:rate=0.05", out=tmp_path / "run", **{**TINY, "steps": 256})
    row = run.metrics()[-1]
    assert 0 <= row["eval_success"] <= 1
    assert row["eval_throughput"] >= 0
    result = run.evaluate(12)
    assert {name: values.shape for name, values in result.measures.items()} == {"success": (12,), "throughput": (12,)}
    run.evaluate(12, record=tmp_path / "x.arrow")
    files = Files([tmp_path / "x.arrow"])
    data = next(iter(files.read(files.paths[0])))
    assert (np.diff(data.step)[~data.first[1:]] > 1).any()
    assert data.alive.any(1).all()
