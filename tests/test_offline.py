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
from flockrl.algos.q_learning import QConfig, QLearner
from flockrl.core.errors import UsageError
from flockrl.core.rundir import read_metrics
from flockrl.core.types import Trajectory
from flockrl.data.experience import join
from flockrl.data.files import Files, Writer

sys.path.insert(0, str(Path(__file__).parent / "data"))
from made import SPREAD, make_experience

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


def test_a_run_on_recorded_data_resumes_exactly(recorded, tmp_path):
    _, file = recorded
    whole = flockrl.train("cql", f"data/{file}", out=tmp_path / "whole", **Q)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    (tmp_path / "cut" / "result.json").unlink()
    newest = sorted((tmp_path / "cut" / "checkpoints").iterdir(), key=lambda p: int(p.name))[-1]
    shutil.rmtree(newest)
    again = flockrl.resume(tmp_path / "cut")
    timeless = [{k: v for k, v in row.items() if "second" not in k} for row in read_metrics(whole.path)]
    assert timeless == [{k: v for k, v in row.items() if "second" not in k} for row in read_metrics(again.path)]
    assert timeless[-1]["conservative_gap"] > 0
    assert whole.evaluate(4).mean == again.evaluate(4).mean


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
