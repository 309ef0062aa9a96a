"""Learning from recorded trajectories: bc, cql, replay learners; recording while training and evaluating."""

import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.bc import BCConfig
from flockrl.algos.presets import make_config
from flockrl.algos.q_learning import QConfig, QLearner
from flockrl.core.errors import UsageError
from flockrl.core.rundir import read_metrics
from flockrl.core.types import Trajectory
from flockrl.data.experience import join
from flockrl.data.files import Files, Writer
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program, make_source

sys.path.insert(0, str(Path(__file__).parent / "data"))
from made import REAL, SPREAD, make_experience

OFFLINE = {"steps": 1024, "envs": 4, "eval_episodes": 4, "hidden": (8,), "checkpoint_every": 128}
Q = {**OFFLINE, "rollout_steps": 16, "batch_size": 16, "learning_starts": 64, "steps_per_update": 16}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A small training that was recorded, and its file."""
    where = tmp_path_factory.mktemp("recorded")
    run = flockrl.train("mappo", "mpe/simple_spread", out=where / "run", record=where / "train.arrow", **TINY)
    return run, where / "train.arrow"


def test_a_recording_holds_the_training_and_does_not_change_it(recorded, tiny_run):
    run, file = recorded
    data = join(list(Files([file])))
    assert data.steps == 1024
    whole = data.pick(np.flatnonzero(data.length == 25))
    scores = whole.reward.reshape(-1, 25, 3).sum(1).mean(1)
    rows = [row for row in run.metrics() if row.get("episodes")]
    weighted = sum(row["return"] * row["episodes"] for row in rows) / sum(row["episodes"] for row in rows)
    assert len(scores) == sum(row["episodes"] for row in rows)
    assert scores.mean() == pytest.approx(weighted, rel=1e-4)
    assert set(data.version.tolist()) <= set(range(8))
    assert not np.isnan(data.logp).any()
    assert run.result["final_eval_return"] == pytest.approx(tiny_run.result["final_eval_return"], rel=1e-3)


def test_an_evaluation_can_be_recorded(recorded, tmp_path):
    run, _ = recorded
    result = run.evaluate(20, seed=3, explore=True, record=tmp_path / "eval.parquet")
    data = join(list(Files([tmp_path / "eval.parquet"])))
    assert data.trajectories == 20
    assert result.mean == pytest.approx(data.reward.reshape(20, 25, 3).sum(1).mean(), rel=1e-5)
    assert not np.isnan(data.logp).any()


@pytest.mark.parametrize(
    ("learner", "settings"),
    [
        ("cql", Q),
        ("bc", {**OFFLINE, "memory_limit": "1MB"}),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("bc", OFFLINE), ("td3_bc", Q), ("implicit_q", Q))),
    ],
)
def test_a_run_on_recorded_data_resumes_exactly(recorded, learner, settings, tmp_path):
    """Also where the recording is larger than the window in which it is shuffled."""
    _, file = recorded
    whole = flockrl.train(learner, f"data/{file}", out=tmp_path / "whole", **settings)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    (tmp_path / "cut" / "result.json").unlink()
    newest = sorted((tmp_path / "cut" / "checkpoints").iterdir(), key=lambda p: int(p.name))[-1]
    shutil.rmtree(newest)
    again = flockrl.resume(tmp_path / "cut")
    timeless = [{k: v for k, v in row.items() if "second" not in k} for row in read_metrics(whole.path)]
    assert timeless == [{k: v for k, v in row.items() if "second" not in k} for row in read_metrics(again.path)]
    assert learner != "cql" or timeless[-1]["conservative_gap"] > 0
    assert whole.evaluate(4).mean == again.evaluate(4).mean
    jax.tree.map(np.testing.assert_array_equal, whole.policy().params, again.policy().params)


def test_several_seeds_see_several_orders(recorded):
    program = make_program(
        RunConfig("bc", f"data/{recorded[1]}", TrainOptions(envs=4), BCConfig(rollout_steps=5)),
        make_source(f"data/{recorded[1]}"),
    )
    one, again, other = (program.rollouts(seed) for seed in (0, 0, 1))
    orders = [np.stack([next(stream).obs for _ in range(60)]) for stream in (one, again, other)]
    assert np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0][0], orders[2][0])
    assert not np.array_equal(orders[0][0], orders[0][52])  # the next pass has another order


def test_contradictions_are_mixed_wherever_they_stand(tmp_path):
    """The first half of a recording does one thing and the second half another: cloning ends with both."""
    data = make_experience(SPREAD, [9] * 320, rich=False)
    first = np.repeat(np.arange(320) < 160, 9)[:, None]
    data = data._replace(action=np.broadcast_to(np.where(first, 0, 3), data.action.shape).astype(np.int32))
    with Writer(tmp_path / "x.arrow", SPREAD) as writer:
        writer.add(data)
    settings = {**OFFLINE, "steps": 5760, "lr": 0.1, "rollout_steps": 9, "checkpoint_every": 5760}
    run = flockrl.train("bc", f"data/{tmp_path / 'x.arrow'}", out=tmp_path / "run", lr_schedule="constant", **settings)
    seen = np.random.default_rng(5).normal(size=(400, 3, 6)).astype(np.float32)
    second = (run.policy().act(seen, explore=True) == 3).mean()
    assert 0.35 < second < 0.65


def test_cloning_learns_what_the_data_does(tmp_path):
    data = make_experience(SPREAD, [9] * 60, rich=False)
    data = data._replace(action=(data.obs[..., 0] > 0).astype(np.int32) * 3)
    with Writer(tmp_path / "x.arrow", SPREAD) as writer:
        writer.add(data)
    settings = {**OFFLINE, "steps": 12_800, "envs": 16, "lr": 0.05, "rollout_steps": 32, "checkpoint_every": 12_800}
    run = flockrl.train("bc", f"data/{tmp_path / 'x.arrow'}", out=tmp_path / "run", **settings)
    rows = run.metrics()
    assert rows[-1]["loss"] < 0.3 < 1.0 < rows[1]["loss"]
    assert run.result["final_eval_return"] is None
    seen = np.random.default_rng(5).normal(size=(200, 3, 6)).astype(np.float32)
    right = run.policy().act(seen) == (seen[..., 0] > 0) * 3
    assert right.mean() > 0.95


def test_the_conservative_gap_is_a_soft_maximum_less_the_value_of_what_was_done():
    learner = QLearner(SPREAD, QConfig(conservative=2.0, hidden=(4,), rollout_steps=5), 5, 10)
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, 4, 3, 5)).astype(np.float32)
    action, avail = rng.integers(0, 5, (2, 4, 3)), rng.random((2, 4, 3, 5)) < 0.6
    np.put_along_axis(avail, action[..., None], True, -1)
    alive = rng.random((2, 4, 3)) < 0.7
    blank = np.zeros((2, 4, 3))
    seen = Trajectory(
        obs=blank, action=jnp.asarray(action), reward=blank, terminated=blank, truncated=blank, next_obs=blank,
        first=blank, avail=jnp.asarray(avail), alive=jnp.asarray(alive),
    )  # fmt: skip
    gaps = [
        np.log(np.exp(q[i][avail[i]].astype(float)).sum()) - q[i][action[i]] for i in np.ndindex(2, 4, 3) if alive[i]
    ]
    assert float(jax.jit(learner._gap)(q, seen)) == pytest.approx(np.mean(gaps), rel=1e-5)


def test_conservative_learning_follows_the_kind_of_actions(tmp_path, cli):
    data = make_experience(REAL, [9] * 20, rich=False)
    with Writer(tmp_path / "real.arrow", REAL) as writer:
        writer.add(data)
    name = f"data/{tmp_path / 'real.arrow'}"
    words = [
        "--steps",
        320,
        "--envs",
        4,
        "--rollout-steps",
        8,
        "--steps-per-update",
        32,
        "--batch-size",
        8,
        "--hidden",
        4,
    ]
    words += ["--learning-starts", 32, "--buffer-size", 320, "--conservative-actions", 2, "--quiet"]
    status, _, error = cli("train", "cql", name, "--out", tmp_path / "run", *words)
    assert status == 0, error
    run = flockrl.Run(tmp_path / "run")
    assert run.config.algorithm == "cql_continuous"
    assert run.config.config.conservative_actions == 2
    assert flockrl.Trainer("cql", REAL, envs=4).algorithm == "cql_continuous"
    assert flockrl.Trainer("cql", SPREAD, envs=4).algorithm == "cql"
    with pytest.raises(UsageError, match="cql_continuous has no setting 'mixer'"):
        flockrl.train("cql", name, mixer="sum", out=tmp_path / "other")
    with pytest.raises(UsageError, match="use cql_continuous instead"):
        make_algorithm("cql", REAL, make_config("cql", {}), envs=2, updates=1)
    status, _, error = cli("train", "cql", f"data/{tmp_path / 'nothing.arrow'}")
    assert status == 2
    assert "no trajectory file" in error


def test_what_does_not_go_together_is_said(recorded, tmp_path):
    _, file = recorded
    with pytest.raises(UsageError, match="fresh experience"):
        flockrl.train("ippo", f"data/{file}", out=tmp_path / "a")
    with pytest.raises(UsageError, match="data/FILE"):
        flockrl.train("bc", "mpe/simple_spread", out=tmp_path / "a")
    with pytest.raises(UsageError, match="one run"):
        flockrl.train("ippo", "mpe/simple_spread", seeds=2, record=tmp_path / "x.arrow", out=tmp_path / "a")
    with pytest.raises(UsageError, match="makes no new ones"):
        flockrl.train("cql", f"data/{file}", record=tmp_path / "x.arrow", out=tmp_path / "a")
    with pytest.raises(UsageError, match="whole trajectories"):
        flockrl.train("bc", f"data/{file}", memory="gru", rollout_steps=5, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()
