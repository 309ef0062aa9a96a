"""Families, credit, bonuses, talk and memory: what makes no sense together is refused in a sentence, and of the rest a
sample learns for a few updates, finite and resumable."""

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
from flockrl.training.interrupt import Interrupted

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from mortal import Sacrifice
from stop_at import StopAt

POLICY = {"hidden": (8,), "rollout_steps": 8}
REPLAY = POLICY | {"steps_per_update": 16, "batch_size": 64, "buffer_size": 256, "learning_starts": 0}
FAMILIES = {
    "ippo": POLICY, "mappo": POLICY, "ireinforce": POLICY, "iql": REPLAY, "qmix": REPLAY, "maddpg": REPLAY,
    "matd3": REPLAY, "masac": REPLAY, "coma": POLICY, "happo": POLICY, "hatrpo": POLICY, "vdac_mix": POLICY,
    "hasac": REPLAY, "maac": REPLAY,
}  # fmt: skip
CREDIT = ("none", "difference", "aristocrat", "shapley", "counterfactual")
BONUSES = {
    "none": {},
    "count": {"bonus": "count", "bonus_on": "both"},
    "actions": {"bonus": "count", "bonus_on": "state", "bonus_actions": True},
    "covering": {"bonus": "count", "bonus_kind": "covering", "bonus_bits": 8},
    "rnd": {"bonus": "rnd", "bonus_on": "state", "bonus_schedule": "linear"},
    "leader": {"bonus": "rnd", "bonus_kind": "leader", "bonus_entries": "0:4"},
    "icm": {"bonus": "icm", "bonus_on": "both"},
    "influence": {"bonus": "influence"},
    "belief": {"bonus": "belief", "bonus_entries": "0:2"},
}
TALK = {"silent": {}, "commnet": {"comm": "commnet"}, "late": {"comm": "tarmac", "channel": "loss=0.2"}}
MEMORY = {"none": {}, "gru": {"memory": "gru", "memory_size": 8}}
TABLE = list(itertools.product(FAMILIES, CREDIT, BONUSES, TALK, MEMORY))
IN_TURN, PPO = ("happo", "hatrpo", "hasac"), ("ippo", "mappo", "coma")


def refused(family, credit, bonus, talk, memory):
    """What makes no sense together, with rewards that the environment tells."""
    credited = credit != ("counterfactual" if family == "coma" else "none")
    if bonus == "belief":  # the rover game has no global state
        return True
    if family in IN_TURN and (credited or talk != "silent"):
        return True
    if (family in ("vdac_mix", "qmix") and credited) or (family == "maac" and memory != "none"):
        return True
    if credit == "counterfactual":
        return family not in PPO
    return credit == "aristocrat" and FAMILIES[family] is REPLAY


def picked(rows, count, seed):
    return [rows[i] for i in np.random.default_rng(seed).choice(len(rows), count, replace=False)]


SENSE = [row for row in TABLE if not refused(*row)]
SAMPLE = picked(SENSE, 14, 3)
ENVS, UPDATES = 4, 4
ROVER = "credit/rover:n=3,coupling=2,steps=9"


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


def settings_of(family, credit, bonus, talk, memory):
    return FAMILIES[family] | {"credit": credit} | BONUSES[bonus] | TALK[talk] | MEMORY[memory]


def test_the_table_is_built_or_refused_in_a_sentence():
    spec, rows = make(ROVER).spec, picked(TABLE, 120, 5)

    def build(row):
        make_algorithm(row[0], spec, make_config(row[0], settings_of(*row)), envs=ENVS, updates=UPDATES)

    for row in rows:
        if refused(*row):
            with pytest.raises(flockrl.UsageError, match=r"use .*\.$"):
                build(row)
        else:
            build(row)
    assert 20 < sum(refused(*row) for row in rows) < 100


@pytest.mark.parametrize(
    "row",
    [
        ("iql", "difference", "actions", "silent", "none"),
        *(pytest.param(row, marks=pytest.mark.slow, id="-".join(row)) for row in SAMPLE),
    ],
)
def test_what_makes_sense_learns_and_resumes(row, tmp_path):
    metrics = few_updates(row[0], make(ROVER), settings_of(*row), tmp_path)
    assert all(np.isfinite(float(x)) for x in metrics.values()), metrics
    if row[2] != "none":
        assert float(metrics["bonus"]) > 0
        assert float(metrics["coverage"]) > 4
    assert ("credit" in metrics) == (row[1] != "none")


@pytest.mark.slow
@pytest.mark.parametrize("bonus", ["count", "icm", "influence", "belief"])
def test_the_dead_earn_nothing(bonus, tmp_path):
    metrics = few_updates("iql", Sacrifice(state=bonus == "belief"), REPLAY | {"bonus": bonus}, tmp_path)
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
