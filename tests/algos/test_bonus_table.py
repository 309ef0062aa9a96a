"""Bonuses beside families, talk and memory: a sample of the table learns for a few updates, finite and resumable."""

import itertools
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.envs import make
from flockrl.rollouts.compiled import scan_rollout, start
from flockrl.training.checkpoint import Checkpoints
from flockrl.training.loop import Interrupted

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from mortal import Sacrifice
from stop_at import StopAt

POLICY = {"hidden": (8,), "rollout_steps": 8}
REPLAY = POLICY | {"steps_per_update": 16, "batch_size": 64, "buffer_size": 256, "learning_starts": 0}
FAMILIES = {
    "ippo": POLICY, "mappo": POLICY, "ireinforce": POLICY, "iql": REPLAY, "qmix": REPLAY, "maddpg": REPLAY,
    "matd3": REPLAY, "masac": REPLAY,
}  # fmt: skip
BONUSES = {
    "count": {"bonus": "count", "bonus_on": "both"},
    "covering": {"bonus": "count", "bonus_kind": "covering", "bonus_bits": 8},
    "rnd": {"bonus": "rnd", "bonus_on": "state", "bonus_schedule": "linear"},
    "leader": {"bonus": "rnd", "bonus_kind": "leader", "bonus_entries": "0:4"},
    "icm": {"bonus": "icm", "bonus_on": "both"},
    "influence": {"bonus": "influence"},
}
TALK = {"silent": {}, "commnet": {"comm": "commnet"}, "late": {"comm": "tarmac", "channel": "loss=0.2"}}
MEMORY = {"none": {}, "gru": {"memory": "gru", "memory_size": 8}}
TABLE = list(itertools.product(FAMILIES, BONUSES, TALK, MEMORY))
SAMPLE = [TABLE[i] for i in np.random.default_rng(3).choice(len(TABLE), 12, replace=False)]
ENVS, UPDATES = 4, 4


def learn(algorithm, env, state, actors, number):
    actors, data, _ = scan_rollout(algorithm, algorithm.params(state), env, actors, jax.random.key(number))
    state, metrics = algorithm.update(state, data, jax.random.key(100 + number))
    return state, actors, metrics


def few_updates(name, env, settings, path):
    algorithm = make_algorithm(name, env.spec, make_config(name, settings), envs=ENVS, updates=UPDATES)
    step = jax.jit(lambda state, actors, number: learn(algorithm, env, state, actors, number))
    state, actors = algorithm.init(jax.random.key(0)), start(algorithm, env, jax.random.key(1), ENVS)
    for number in range(2):
        state, actors, metrics = step(state, actors, number)
    checkpoints = Checkpoints(path / "checkpoints")
    checkpoints.save(1, (state, actors), {})
    checkpoints.wait()
    shapes = jax.eval_shape(lambda: (state, actors))
    again, _ = checkpoints.restore(shapes, 1)
    checkpoints.close()
    for number in range(2, UPDATES):
        state, actors, metrics = step(state, actors, number)
        again = step(*again, number)[:2]
    jax.tree.map(np.testing.assert_array_equal, _plain((state, actors)), _plain(again))
    return metrics


def _plain(tree):
    return jax.tree.map(lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)  # fmt: skip # noqa: E501


@pytest.mark.slow
@pytest.mark.parametrize(("family", "bonus", "talk", "memory"), SAMPLE)
def test_bonuses_go_with_everything(family, bonus, talk, memory, tmp_path):
    settings = FAMILIES[family] | BONUSES[bonus] | TALK[talk] | MEMORY[memory]
    metrics = few_updates(family, make("explore/pass:size=10,steps=12"), settings, tmp_path)
    assert all(np.isfinite(float(x)) for x in metrics.values()), metrics
    assert float(metrics["bonus"]) > 0
    assert float(metrics["coverage"]) > 4


@pytest.mark.slow
@pytest.mark.parametrize("bonus", ["count", "icm", "influence"])
def test_the_dead_earn_nothing(bonus, tmp_path):
    metrics = few_updates("iql", Sacrifice(), REPLAY | {"bonus": bonus}, tmp_path)
    assert all(np.isfinite(float(x)) for x in metrics.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ippo", "masac"])
def test_bonuses_with_real_actions(name, tmp_path):
    env = make("mpe/simple_spread:continuous_actions=true")
    metrics = few_updates(name, env, FAMILIES[name] | {"bonus": "icm"}, tmp_path)
    assert all(np.isfinite(float(x)) for x in metrics.values())


@pytest.mark.slow
def test_tables_take_a_bonus(tmp_path):
    env = make("explore/pass:size=10,steps=12")
    metrics = few_updates("iql_tabular", env, {"rollout_steps": 4, "bonus": "count", "bonus_on": "state"}, tmp_path)
    assert float(metrics["bonus"]) > 0


@pytest.mark.slow
def test_a_run_with_sides_and_a_bonus_resumes_exactly(tmp_path):
    own = {"rollout_steps": 8, "hidden": (8,)}
    sides = {"adversary": own | {"bonus": "rnd"}, "agent": own | {"bonus": "count", "bonus_on": "state"}}
    run = {"steps": 256, "envs": 4, "eval_every": 128, "eval_episodes": 2, "checkpoint_every": 32}
    game = {"adversary": "ippo", "agent": "mappo"}
    whole = flockrl.train(game, "mpe/simple_tag", out=tmp_path / "whole", **run, **sides)
    with pytest.raises(Interrupted):
        flockrl.train(game, "mpe/simple_tag", out=tmp_path / "cut", callbacks=[StopAt(96)], **run, **sides)
    again = flockrl.resume(tmp_path / "cut")
    timing = ("seconds", "steps_per_second")

    def rows(run):
        return [{k: v for k, v in row.items() if k not in timing} for row in run.metrics()]

    assert rows(whole) == rows(again)
    assert any("adversary/coverage" in row for row in rows(whole))


@pytest.mark.slow
def test_recordings_take_no_bonus(tmp_path):
    own = {"steps": 256, "envs": 4, "eval_episodes": 2}
    flockrl.train("iql", "explore/k_step", out=tmp_path / "run", record=tmp_path / "k.arrow", **own, **REPLAY)
    with pytest.raises(flockrl.UsageError, match="recordings do not go anywhere"):
        flockrl.train("iql", f"data/{tmp_path / 'k.arrow'}", out=tmp_path / "no", bonus="count", **own, **REPLAY)


@pytest.mark.slow
def test_a_trainer_pays_for_what_is_new_and_goes_on_as_it_was(tmp_path):
    pair = EnvSpec("pair", ("a", "b"), (Box((2,)), Box((3,))), (Discrete(3), Discrete(2)), max_steps=4)
    settings = {"hidden": (8,), "rollout_steps": 8, "epochs": 1, "minibatches": 1, "bonus": "rnd", "bonus_on": "both"}
    trainer = flockrl.Trainer("ippo", pair, hyperparams=settings, envs=2, save_path=tmp_path / "t")

    def play():
        episode = trainer.episode()
        for t in range(4):
            episode.act({"a": np.full(2, t + 1.0), "b": np.full(3, t + 1.0)})
            episode.reward(0.0)
        return episode.end()

    data = [play() for _ in range(6)]
    for one in data[:4]:
        trainer.receive_trajectory(one)
    trainer.save()
    loaded = flockrl.Trainer.load(tmp_path / "t")
    told = []
    for each in (trainer, loaded):
        for one in data[4:]:
            each.receive_trajectory(one)
        told.append(each.train_model())
    assert told[0]["bonus"] > 0
    assert told[0]["coverage"] > 1
    assert told[0] == told[1]
