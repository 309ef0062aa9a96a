"""Seeds that learn from each other: copies are copies, settings change, and everything else stays as it was."""

import json

import jax
import numpy as np
import pytest
from conftest import TINY
from stop_at import StopAt

import flockrl
from flockrl.algos.presets import make_config
from flockrl.core.errors import UsageError
from flockrl.envs import make
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.interrupt import Interrupted
from flockrl.training.population import HISTORY, PICTURE, plan_of, population_of, read_history, settings_of
from flockrl.training.programs import make_program

ENV = "mpe/simple"
TIMING = {"seconds", "steps_per_second"}
VARIED = ("lr=log:1e-4:1e-2", "entropy=0:0.1", "clip=0.1,0.2,0.3")


def leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def same(one, other):
    pairs = list(zip(leaves(one), leaves(other), strict=True))
    return all(np.array_equal(a, b) for a, b in pairs)


def rows(run):
    return [{k: v for k, v in row.items() if k not in TIMING and not k.startswith("setting_")} for row in run.metrics()]


def train(out, *pbt, **more):
    return flockrl.train("ippo", ENV, out=out, **{**TINY, "seeds": 2, "log": "none", **more}, pbt=pbt)


def test_a_population_that_never_ranks_is_the_plain_seeds_to_the_bit(tmp_path):
    plain, held = train(tmp_path / "plain"), train(tmp_path / "held", "every=1e9", *VARIED)
    for one, other in zip(plain, held, strict=True):
        assert same(one.state().learner, other.state().learner.learner)
        assert same(one.state().actors, other.state().actors)
        assert rows(one) == rows(other)
        assert {row["setting_clip"] for row in other.metrics() if "setting_clip" in row} == {np.float32(0.2)}
    assert same(plain[0].params(), held[0].params())
    assert plain[0].evaluate(4).mean == held[0].evaluate(4).mean


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    """A population of three with a program for it."""
    options = TrainOptions(**{k: TINY[k] for k in ("steps", "envs", "eval_episodes")}, pbt=("every=256", *VARIED))
    own = {k: TINY[k] for k in ("rollout_steps", "epochs", "minibatches", "hidden")}
    run = RunConfig("ippo", ENV, options, make_config("ippo", own))
    program = make_program(run, make(ENV))
    program.compile(0)
    base = tmp_path_factory.mktemp("population")
    runs = [RunConfig("ippo", ENV, TrainOptions(**{**vars(options), "seed": i}), run.config) for i in range(3)]
    return program, population_of(runs, base, apart=False)


def test_the_worst_goes_on_from_a_copy_of_the_best(population):
    program, members = population
    states = members.begin([program.start_state(seed) for seed in range(3)])
    states = [program.run(state, seed, 2)[0] for seed, state in enumerate(states)]
    before = [leaves(state) for state in states]
    after = members.evolve(256, [1.0, 3.0, 2.0], states)
    assert all(np.array_equal(a, b) for i in (1, 2) for a, b in zip(before[i], leaves(after[i]), strict=True))
    assert same(after[0].learner.learner, after[1].learner.learner)
    assert same(after[0].actors, after[1].actors)
    assert not same(after[0].learner.learner, after[2].learner.learner)
    event = read_history(members.path)[-1]
    assert event["copied"] == {"0": 1}
    assert event["scores"] == [1.0, 3.0, 2.0]
    assert event["settings"] == [settings_of(state) for state in after]
    old, new = settings_of(after[1]), settings_of(after[0])
    assert new["lr"] / old["lr"] == pytest.approx(1.2) or old["lr"] / new["lr"] == pytest.approx(1.2)
    assert min(abs(new["entropy"] - x) for x in (0.02, 0.0)) < 1e-6
    assert new["clip"] in (np.float32(0.1), np.float32(0.3))
    on, _, _ = program.run(after[1], 1, 1)  # what trains consumes its state, and the copy is another
    copy, _, _ = program.run(members._set(after[0], old), 1, 1)
    assert same(on, copy)


def test_settings_of_the_state_are_those_that_it_learns_with(population):
    program, members = population
    state = program.start_state(0)
    before = leaves(program.algorithm.params(state.learner))
    still = members._set(state, {"lr": 0.0, "entropy": 0.0, "clip": 0.2})
    still, _, metrics = program.run(still, 0, 1)
    assert float(metrics["lr"]) == 0.0
    assert all(
        np.array_equal(a, b) for a, b in zip(before, leaves(program.algorithm.params(still.learner)), strict=True)
    )
    ends = []
    for settings in ({"entropy": 0.0, "clip": 0.2}, {"entropy": 0.5, "clip": 0.2}, {"entropy": 0.0, "clip": 0.01}):
        state = members._set(program.start_state(0), {"lr": 0.01, **settings})
        ends.append(program.run(state, 0, 4)[0].learner.learner.params["actor"])
    assert not same(ends[0], ends[1])
    assert not same(ends[0], ends[2])


def test_equal_scores_copy_nothing(population):
    program, members = population
    states = members.begin([program.start_state(seed) for seed in range(3)])
    after = members.evolve(256, [1.0, 1.0, 1.0], states)
    assert all(a is b for a, b in zip(states, after, strict=True))


@pytest.mark.slow
def test_interrupted_and_resumed_it_is_the_same_population(tmp_path):
    how = {"seeds": 4, "callbacks": ()}
    words = ("every=256", "begin=drawn", *VARIED)
    whole = train(tmp_path / "whole", *words, **how)
    with pytest.raises(Interrupted):
        train(tmp_path / "cut", *words, **{**how, "callbacks": [StopAt(640)]})
    with (tmp_path / "cut" / HISTORY).open("a") as file:  # what a killed process may leave behind
        file.write('{"step": 768, "copied": {}}\n{"st')
    parts = flockrl.resume(tmp_path / "cut")
    for one, other in zip(whole, parts, strict=True):
        assert same(one.state(), other.state())
        assert rows(one) == rows(other)
    history = read_history(tmp_path / "whole" / HISTORY)
    assert history == read_history(tmp_path / "cut" / HISTORY)
    assert [event["step"] for event in history] == [0, 256, 512, 768]
    assert len({row["lr"] for row in history[0]["settings"]}) == 4
    assert any(event.get("copied") for event in history)
    assert (tmp_path / "whole" / PICTURE).stat().st_size > 10_000
    last = [run.metrics()[-1]["setting_lr"] for run in whole]
    assert last == pytest.approx([row["lr"] for row in history[-1]["settings"]])
    (tmp_path / "cut" / "seed_0" / "result.json").unlink()
    with pytest.raises(UsageError, match="at least two seeds: train with --seeds K, and resume all"):
        flockrl.resume(tmp_path / "cut" / "seed_0")
    with pytest.raises(UsageError, match="its length cannot change"):
        flockrl.resume(tmp_path / "whole", steps=4096)


def test_settings_move_within_their_ranges(population):
    _, members = population
    lr, entropy, clip = members.plan.space
    rng = np.random.default_rng(0)
    assert {members._moved(lr, 0.01, rng) for _ in range(20)} == {0.01, 0.01 / 1.2}
    assert {round(members._moved(entropy, 0.05, rng), 6) for _ in range(20)} == {0.04, 0.06}
    assert {members._moved(clip, float(np.float32(0.1)), rng) for _ in range(20)} == {0.1, 0.2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["every=100"], "Say what a population varies"),
        (["epochs=2,5"], "epochs of ippo cannot change while it learns: those that can are lr, entropy, clip"),
        (["lr=log:1e-4:1e-2", "every=soon"], "every of a population is a number, not 'soon'"),
        (["lr=log:1e-4:1e-2", "share=0.9"], "up to 0.5, not 0.9"),
        (["lr=log:1e-4:1e-2", "factor=1"], "more than 1 and up to 10"),
        (["lr=log:1e-4:1e-2", "begin=anywhere"], "begin=anywhere is neither"),
        (["lr=-1:1"], "lr must be above 0, not -1.0"),
        (["learning_rate=1:2"], "ippo has no setting 'learning_rate'"),
        (["clip=0.1,none"], "clip varies among numbers"),
    ],
)
def test_what_cannot_be(words, message):
    with pytest.raises(UsageError, match=message):
        plan_of("ippo", TrainOptions(pbt=tuple(words)), make_config("ippo", {}))


def test_who_cannot(tmp_path):
    with pytest.raises(UsageError, match="clip has no number to begin with: give one as --clip"):
        plan_of("ippo", TrainOptions(pbt=("clip=0.1:0.3",)), make_config("ippo", {"clip": None}))
    with pytest.raises(UsageError, match="lr of qmix cannot change while it learns: no setting of it can"):
        plan_of("qmix", TrainOptions(pbt=("lr=1e-4:1e-2",)), make_config("qmix", {}))
    with pytest.raises(UsageError, match="at least two seeds"):
        train(tmp_path / "a", "lr=log:1e-4:1e-2", seeds=1)
    with pytest.raises(UsageError, match="for agents that play together"):
        flockrl.train("ippo", "mpe/simple_tag", out=tmp_path / "a", seeds=2, pbt=("lr=log:1e-4:1e-2",), **TINY)
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_a_run_begins_with_the_parameters_of_a_population(tmp_path):
    held = train(tmp_path / "held", "every=512", *VARIED, steps=256)
    warm = flockrl.train("ippo", ENV, out=tmp_path / "warm", init_from=held[0], **{**TINY, "steps": 128, "lr": 1e-30})
    assert same(warm.params(), held[0].params())
    assert json.loads((tmp_path / "held" / "seed_0" / "config.json").read_text())["pbt"][0] == "every=512"
