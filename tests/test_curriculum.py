"""Curricula: stages of one run, when they begin, what goes on from one to the next, and resuming in the middle."""

import json

import jax
import numpy as np
import pytest
from stop_at import StopAt

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.core.errors import UsageError
from flockrl.envs import make
from flockrl.training.config import TrainOptions
from flockrl.training.curriculum import Staged, carried
from flockrl.training.interrupt import Interrupted
from flockrl.training.stages import CHANCE, Curriculum, Met, Position, curriculum_of, position_of

RUN = {
    "steps": 480, "envs": 4, "rollout_steps": 20, "epochs": 1, "minibatches": 1, "hidden": (8,), "eval_every": 80,
    "eval_episodes": 2, "checkpoint_every": 80,
}  # fmt: skip


def options(text, when=None, steps=900):
    return TrainOptions(steps=steps, curriculum=text, curriculum_when=when)


def test_what_a_user_says():
    assert curriculum_of(options("N=2,3,5")) == Curriculum("N", (2, 3, 5), "steps", 300.0)
    assert curriculum_of(options("rate=0.05,0.1", "eval_success:0.9")).values == (0.05, 0.1)
    assert curriculum_of(options("N=2..4", "steps:50")).values == (2, 3, 4)
    assert curriculum_of(options("N=4..2")).values == (4, 3, 2)
    assert curriculum_of(options("rate=0.1..0.4:4")).values == (0.1, 0.2, 0.3, 0.4)
    assert curriculum_of(options("N=8..2:3")).values == (8, 5, 2)
    assert curriculum_of(options("rate=1..2:3")).values == (1.0, 1.5, 2.0)
    assert curriculum_of(options("N=2,3", "progress")) == Curriculum("N", (2, 3), "eval_return", None)
    assert curriculum_of(options("N=2,3", "progress:eval_success")).metric == "eval_success"
    assert curriculum_of(TrainOptions()) is None
    stages = curriculum_of(options("N=2,3"))
    assert stages.env("mpe/simple_spread", 1) == "mpe/simple_spread:N=3"
    assert stages.env("mpe/simple_spread:N=7,local_ratio=0.2", 0) == "mpe/simple_spread:local_ratio=0.2,N=2"
    for text, when in (
        ("N=2", None), ("N", None), ("N=1..5000", None), ("N=2,3", "eval_return"), ("N=2,3", "steps:0"),
        ("x=0.1..0.4", None), ("x=0.1..0.4:1", None), ("N=2,3", "progress:return"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="Write"):
            curriculum_of(options(text, when))
    with pytest.raises(UsageError, match="needs a curriculum"):
        curriculum_of(TrainOptions(curriculum_when="steps:5"))
    with pytest.raises(UsageError, match="stage 7"):
        position_of(stages, {"stage": 7})


def staged(metric, level, stages=3):
    program = object.__new__(Staged)
    program.curriculum = Curriculum("N", tuple(range(2, 2 + stages)), metric, level)
    program.position = position_of(program.curriculum)
    return program


def test_when_the_next_stage_begins():
    by_steps = staged("steps", 100)
    assert [by_steps.after(step, {}, 0) for step in (99, 100)] == [0, 1]
    by_steps.position = Position(1)
    assert [by_steps.after(step, {}, 0) for step in (199, 200)] == [1, 2]
    by_steps.position = Position(2)
    assert by_steps.after(10_000, {}, 0) == 2
    by_success = staged("eval_return", -12)
    rows = ({}, {"eval_return": -12.5}, {"eval_return": -12})
    assert [by_success.after(5, row, 0) for row in rows] == [0, 0, 1]
    with pytest.raises(UsageError, match="no 'eval_success'"):
        staged("eval_success", 1).after(5, {"eval_return": 3.0}, 0)


def test_progress_is_what_changes_by_hand():
    met = Met().after(4.0)
    assert (met, met.progress) == (Met(1, 4.0, 4.0), 0.0)
    met = met.after(8.0)  # the fast mean goes to 6, the slow one to 5
    assert (met, met.progress) == (Met(2, 6.0, 5.0), 1.0)
    met = met.after(2.0)
    assert (met, met.progress) == (Met(3, 4.0, 4.5), 0.5)  # what is forgotten counts, too
    still = Met(9, 3.0, 3.0)
    position = Position(0, 0, (Met(2, 6.0, 5.0), still, Met(3, 1.0, 4.0)))
    expected = (1 - CHANCE) * np.array([0.25, 0, 0.75]) + CHANCE / 3
    np.testing.assert_allclose(position.weights(), expected)
    np.testing.assert_allclose(Position(0, 0, (still, still)).weights(), [0.5, 0.5])
    np.testing.assert_array_equal(Position(0, 0, (Met(1, 5.0, 5.0), Met(3, 9.0, 1.0), Met())).weights(), [0, 0, 1])
    drawn = [position.chosen(0, step) for step in range(2000)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 2000, expected, atol=0.04)
    assert drawn == [position.chosen(0, step) for step in range(2000)]
    assert drawn != [position.chosen(1, step) for step in range(2000)]


def test_each_stage_is_met_twice_before_progress_chooses():
    program, went = staged("eval_return", None), []
    for step in range(6):
        went.append(program.stage)
        assert program.after(step, {}, 0) == program.stage  # nothing happens between evaluations
        following = program.after(step, {"eval_return": float(step)}, 0)
        program.position = program.position._replace(stage=following)
    assert went == [0, 1, 2, 0, 1, 2]
    assert [met.times for met in program.position.met] == [2, 2, 2]


def test_the_position_survives_a_checkpoint():
    stages = curriculum_of(options("N=2,3", "progress"))
    position = Position(1, 5, (Met(3, 0.1, 1 / 3), Met(2, -7.0, 0.0)))
    assert position_of(stages, json.loads(json.dumps(position.meta()))) == position
    assert position_of(stages) == Position(0, 0, (Met(), Met()))
    assert position_of(curriculum_of(options("N=2,3")), {"stage": 1}) == Position(1, 1)  # of an earlier version
    for meta in ({"moves": -1}, {"met": [[0, 0.0, 0.0]]}, {"met": [[0, 0.0, 0.0], [1, "x", 0.0]]}, {"met": 3}):
        with pytest.raises(UsageError, match="what cannot be"):
            position_of(stages, {"stage": 0, **meta})


def states(name, sizes, **settings):
    """A learner's state for each number of agents of simple_spread, and the specs."""
    found = []
    for n in sizes:
        spec = make(f"mpe/simple_spread:N={n}").spec
        algorithm = make_algorithm(name, spec, make_config(name, settings), envs=2, updates=3)
        found.append((jax.jit(algorithm.init)(jax.random.key(n)), spec))
    return found


def test_what_goes_on_in_the_next_stage():
    (old, theirs), (fresh, mine) = states("mappo", (2, 3), net="deep_set", hidden=(4,), entity_size=4)
    old = old._replace(updates=old.updates + 7, paid=old.paid._replace(mean=old.paid.mean + 5.0))
    after = carried(old, fresh, theirs, mine)
    jax.tree.map(np.testing.assert_array_equal, (after.params, after.optimiser), (old.params, old.optimiser))
    assert after.updates == 7
    np.testing.assert_array_equal(after.paid.mean, [5.0] * 3)
    small = {"buffer_size": 50, "learning_starts": 0}
    (old, theirs), (fresh, mine) = states("iql", (2, 3), net="deep_set", hidden=(4,), entity_size=4, **small)
    unit = old.learned.scales.reward._replace(most=np.full(2, 7.0, np.float32))
    old = old._replace(learned=old.learned._replace(scales=old.learned.scales._replace(reward=unit)))
    learned = carried(old, fresh, theirs, mine).learned
    jax.tree.map(np.testing.assert_array_equal, learned.params, old.learned.params)
    np.testing.assert_array_equal(learned.scales.reward.most, [7.0] * 3)  # what agents earn, they earn anew
    np.testing.assert_array_equal(learned.scales.reward.earned, np.zeros((2, 3)))
    (old, theirs), (fresh, mine) = states("ippo", (2, 3), hidden=(4,))
    with pytest.raises(UsageError, match="from 2 agents that see 12 numbers to 3 that see 18"):
        carried(old, fresh, theirs, mine)


def test_stages_that_do_not_fit_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UsageError, match="use --net entities"):
        flockrl.train("ippo", "mpe/simple_spread", curriculum="N=2,3", out=tmp_path / "run", **RUN)
    assert not (tmp_path / "run").exists()


def numbers(run):
    rows = run.metrics()
    return [{k: v for k, v in row.items() if k not in ("seconds", "steps_per_second")} for row in rows]


@pytest.mark.slow
def test_a_team_grows_and_a_killed_run_goes_on_where_it_was(tmp_path):
    grow = {"net": "deep_set", "entity_size": 8, "curriculum": "N=2,3,4", "curriculum_when": "steps:160", **RUN}
    whole = flockrl.train("mappo", "mpe/simple_spread", out=tmp_path / "whole", **grow)
    assert [row["stage"] for row in whole.metrics()[1:]] == [0, 0, 1, 1, 2, 2]
    assert [len(row["return_per_agent"] or ()) for row in whole.metrics()[2::2]] == [2, 3, 4]
    assert (whole.stage, whole.spec.num_agents) == (2, 4)
    assert len(flockrl.Run(whole.path).evaluate(4).per_agent) == 4
    with pytest.raises(Interrupted):
        flockrl.train("mappo", "mpe/simple_spread", out=tmp_path / "cut", callbacks=[StopAt(240)], **grow)
    cut = flockrl.Run(tmp_path / "cut")
    assert (cut.stage, cut.spec.num_agents) == (1, 3)
    again = flockrl.resume(tmp_path / "cut")
    assert numbers(again) == numbers(whole)
    jax.tree.map(np.testing.assert_array_equal, again.state(), whole.state())


@pytest.mark.slow
def test_settings_that_keep_shapes_need_no_new_program(tmp_path, monkeypatch):
    compiled = []
    plain = Staged.compile
    monkeypatch.setattr(Staged, "compile", lambda self, seed: compiled.append(seed) or plain(self, seed))
    run = flockrl.train(
        "ippo", "mean_field/ising:side=4,steps=10", curriculum="temperature=0.5,3.0", out=tmp_path / "run", **RUN
    )  # fmt: skip
    assert compiled == [0]
    onsager = [row["eval_onsager"] for row in run.metrics() if "eval_onsager" in row]
    assert onsager[2] > 0.99  # of the first stage
    assert onsager[-1] == 0
    assert run.env.temperature == 3.0


def count_compilations(monkeypatch):
    compiled, plain = [], Staged.compile
    monkeypatch.setattr(Staged, "compile", lambda self, seed: compiled.append(self.stage) or plain(self, seed))
    return compiled


@pytest.mark.slow
def test_progress_chooses_stages_each_compiled_once_and_a_killed_run_goes_on(tmp_path, monkeypatch):
    auto = {
        "net": "deep_set", "entity_size": 8, "curriculum": "N=2,3", "curriculum_when": "progress", **RUN, "steps": 800
    }  # fmt: skip
    compiled = count_compilations(monkeypatch)
    whole = flockrl.train("mappo", "mpe/simple_spread", out=tmp_path / "whole", **auto)
    went = [int(row["stage"]) for row in whole.metrics()[1:]]
    assert went[:4] == [0, 1, 0, 1]
    assert len(went) == 10
    assert compiled == [0, 1]  # and both stages came again
    assert [len(row["return_per_agent"] or ()) or None for row in whole.metrics()[1:]].count(2) > 0
    assert "learning_progress" in whole.metrics()[-1]
    with pytest.raises(Interrupted):
        flockrl.train("mappo", "mpe/simple_spread", out=tmp_path / "cut", callbacks=[StopAt(400)], **auto)
    assert flockrl.Run(tmp_path / "cut").position.moves >= 3
    again = flockrl.resume(tmp_path / "cut")
    assert numbers(again) == numbers(whole)
    jax.tree.map(np.testing.assert_array_equal, again.state(), whole.state())
    assert again.position == whole.position


@pytest.mark.slow
def test_progress_over_a_tunable_setting_is_one_program(tmp_path, monkeypatch):
    compiled = count_compilations(monkeypatch)
    run = flockrl.train(
        "ippo", "mean_field/ising:side=4,steps=10", curriculum="temperature=0.5..3.0:3", curriculum_when="progress",
        out=tmp_path / "run", **{**RUN, "steps": 720},
    )  # fmt: skip
    assert compiled == [0]
    stages = [int(row["stage"]) for row in run.metrics()[1:]]
    assert stages[:6] == [0, 1, 2, 0, 1, 2]
    onsager = [row["eval_onsager"] for row in run.metrics()[1:]]
    assert all((value > 0.99) == (stage == 0) for value, stage in zip(onsager, stages, strict=True))
    assert len(run.position.met) == 3


@pytest.mark.slow
def test_a_run_that_a_callback_stops_ends_in_the_stage_it_was_in(tmp_path):
    class Enough(flockrl.Callback):
        def on_evaluation(self, moment, result):
            if moment.step == 160:
                moment.stop("enough")

    run = flockrl.train(
        "ippo", "mean_field/ising:side=4,steps=10", curriculum="temperature=0.5,1.0,3.0",
        curriculum_when="eval_return:-1000", out=tmp_path / "run", callbacks=[Enough()], **RUN,
    )  # fmt: skip
    assert [int(row["stage"]) for row in run.metrics()[1:]] == [0, 1]
    assert run.stage == 1
    assert json.loads((run.path / "result.json").read_text())["best_eval_return"] is not None
