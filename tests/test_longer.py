"""Runs that train longer than they were meant to, and the best policy of a run."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from conftest import TINY
from test_resume import StopAt, copy_of, final_arrays, rows

import flockrl
from flockrl.algos.defaults import as_begun
from flockrl.algos.feudal_config import FeudalConfig
from flockrl.algos.presets import make_config
from flockrl.commands.main import main
from flockrl.core.errors import Notice
from flockrl.training import programs
from flockrl.training.checkpoint import Checkpoints
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.interrupt import Interrupted
from flockrl.training.longer import follows
from flockrl.training.programs import make_program

STEADY = {**TINY, "lr_schedule": "constant"}


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    """A finished run of 1,024 steps whose learning rate stays constant."""
    return flockrl.train("mappo", "mpe/simple_spread", out=tmp_path_factory.mktemp("steady") / "run", **STEADY)


def test_a_run_that_trains_longer_equals_one_that_was_given_the_steps_at_once(tmp_path, steady, recwarn):
    path = tmp_path / "run"
    flockrl.train("mappo", "mpe/simple_spread", out=path, **{**STEADY, "steps": 512})
    longer = flockrl.resume(path, steps=1024)
    assert rows(path) == rows(steady.path)
    jax.tree.map(np.testing.assert_array_equal, final_arrays(path), final_arrays(steady.path))
    assert {k: x for k, x in longer.result.items() if "seconds" not in k and k != "steps_per_second"} == {
        k: x for k, x in steady.result.items() if "seconds" not in k and k != "steps_per_second"
    }
    config = json.loads((path / "config.json").read_text())
    assert (config["steps"], config["extended"]) == (1024, [512])
    assert not recwarn.list
    flockrl.resume(path)  # it is finished


def test_a_longer_run_that_is_killed_goes_on_to_the_new_steps(tmp_path, steady):
    path = tmp_path / "run"
    flockrl.train("mappo", "mpe/simple_spread", out=path, **{**STEADY, "steps": 512})
    with pytest.raises(Interrupted):
        flockrl.resume(path, steps=1024, callbacks=[StopAt(640)])
    assert not (path / "result.json").exists()
    flockrl.resume(path)
    assert rows(path) == rows(steady.path)


def test_what_depends_on_the_length_is_said(tmp_path, tiny_run):
    path = copy_of(tiny_run, tmp_path)
    with pytest.warns(Notice, match=r"1,024 steps and now has 1,280: lr_schedule \(linear\) runs over the new length"):
        run = flockrl.resume(path, steps=1280)
    assert run.result["steps"] == 1280
    assert rows(path)[:8] == rows(tiny_run.path)[:8]


def test_a_longer_run_learns_at_the_pace_it_began_with():
    options = TrainOptions(steps=2_000, envs=4)
    begun = RunConfig("isac", "mpe/simple_spread:continuous_actions=true", options, make_config("isac", {}))
    longer = dataclasses.replace(begun, options=dataclasses.replace(options, steps=200_000), extended=(2_000,))
    env = flockrl.make_env(begun.env)
    anew = dataclasses.replace(longer, extended=())
    first, after, other = (make_program(config, env).setting.algorithm.note for config in (begun, longer, anew))
    assert "a gradient step every 2 steps, learning from step 200 on" in first
    assert "learning" not in after  # it is left open no more
    kept = as_begun(begun.config, env.spec, 4, 2_000)
    assert (kept.steps_per_update, kept.learning_starts) == (2, 200)
    assert "learning from step 5,000 on" in other
    assert follows(longer) == ["steps_per_update", "learning_starts"]


def test_tiers_of_a_longer_run_learn_at_the_pace_they_began_with():
    given = FeudalConfig(manager="vdn", worker="ippo", manager_settings={"learning_starts": 7})
    options = TrainOptions(steps=200_000, envs=4)
    longer = RunConfig("feudal", "hierarchy/rooms", options, given, extended=(2_000,))
    assert follows(longer) == ["steps_per_update"]
    kept = programs._as_begun(longer, flockrl.make_env("hierarchy/rooms").spec).config
    assert kept.manager_settings == {"learning_starts": 7, "steps_per_update": 2}  # as short runs have it
    assert kept.worker_settings == {}
    anew = programs._begun(given, flockrl.make_env("hierarchy/rooms").spec, 4, 2_000_000)
    assert anew.manager_settings["steps_per_update"] == 10  # 400,000 steps of managers, who decide in every fifth


def test_steps_that_fall_or_are_edited_are_refused(tmp_path, tiny_run):
    path = copy_of(tiny_run, tmp_path)
    before = (path / "config.json").read_bytes(), (path / "result.json").read_bytes()
    with pytest.raises(flockrl.UsageError, match="was given 1,024 steps"):
        flockrl.resume(path, steps=512)
    assert before == ((path / "config.json").read_bytes(), (path / "result.json").read_bytes())
    (path / "config.json").write_text(before[0].decode().replace('"steps": 1024', '"steps": 2048'))
    (path / "result.json").unlink()
    with pytest.raises(flockrl.UsageError, match=r"resume .* --steps N"):
        flockrl.resume(path)


def test_a_stopped_run_goes_on_when_it_is_given_its_steps_again(tmp_path, steady):
    class Enough(flockrl.Callback):
        def on_iteration(self, moment):
            if moment.step == 512:
                moment.stop("enough")

    path = tmp_path / "run"
    flockrl.train("mappo", "mpe/simple_spread", out=path, callbacks=[Enough()], **STEADY)
    flockrl.resume(path, steps=1024)
    assert rows(path) == rows(steady.path)


# The best policy


def test_the_best_policy_is_kept_beside_the_newest(tmp_path, tiny_run):
    """And a run that was interrupted keeps the same one."""
    evals = {row["step"]: row["eval_return"] for row in tiny_run.metrics() if "eval_return" in row}
    best = max(evals, key=lambda step: evals[step])
    result = tiny_run.result
    assert (result["best_step"], result["best_eval_return"]) == (best, evals[best])
    seen = {}

    class Remember(flockrl.Callback):
        def on_evaluation(self, moment, found):
            params = tiny_run.algorithm.params(moment.state.learner)
            seen[moment.step] = jax.tree.map(np.array, params)

    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        flockrl.train("mappo", "mpe/simple_spread", out=path, callbacks=[Remember(), StopAt(896)], **TINY)
    run = flockrl.resume(path)
    assert run.result["best_step"] == best
    for found in (run, tiny_run):
        jax.tree.map(np.testing.assert_array_equal, found.params(best=True), seen.get(best, found.params()))
        assert found.policy(best=True).version == best // 128


def test_evaluation_and_export_take_the_best(tmp_path, tiny_run, capsys):
    path = copy_of(tiny_run, tmp_path)
    run = flockrl.Run(path)
    best = jax.tree.map(lambda x: np.zeros_like(x), run.params())
    with Checkpoints(path / "checkpoints") as checkpoints:
        state, meta = checkpoints.restore(run.program.shape(), 1024)
        checkpoints.save(1024, state, {k: x for k, x in meta.items() if "digest" not in k}, best)
        checkpoints.wait()
    jax.tree.map(np.testing.assert_array_equal, run.params(best=True), best)
    assert run.evaluate(4, best=True).mean != run.evaluate(4).mean
    assert main(["eval", str(path), "--episodes", "4", "--best"]) == 0
    assert f"return {run.evaluate(4, best=True).mean:.3f}" in capsys.readouterr().out
    flockrl.export(run, tmp_path / "best", best=True)
    flockrl.export(run, tmp_path / "newest")
    models = [next((tmp_path / name).glob("*.onnx")).read_bytes() for name in ("best", "newest")]
    assert models[0] != models[1]


def test_opponents_have_no_best_policy(tmp_path):
    run = flockrl.train("ippo", "games/matching_pennies", out=tmp_path / "run", **{**TINY, "steps": 128})
    assert run.result["best_step"] is None
    with pytest.raises(flockrl.UsageError, match="several sides"):
        run.evaluate(4, best=True)


def test_a_damaged_best_policy_is_noticed(tmp_path, tiny_run):
    path = copy_of(tiny_run, tmp_path)
    for file in (path / "checkpoints" / "1024" / "best").rglob("*"):
        if file.is_file() and file.stat().st_size > 100:
            file.write_bytes(b"x")
    with pytest.raises(flockrl.UsageError, match="is damaged"):
        flockrl.Run(path).params(best=True)
    assert flockrl.Run(path).evaluate(4).mean == tiny_run.evaluate(4).mean


def test_a_longer_run_that_is_refused_is_left_as_it_was(tmp_path, tiny_run):
    path = copy_of(tiny_run, tmp_path)
    edited = (path / "config.json").read_text().replace('"lr_schedule": "linear"', '"lr_schedule": "cosine"')
    (path / "config.json").write_text(edited)
    with pytest.raises(flockrl.UsageError, match="not what the run was begun with"):
        flockrl.resume(path, steps=2048)
    assert (path / "config.json").read_text() == edited
    assert (path / "result.json").exists()
