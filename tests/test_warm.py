"""Warm starts: what a new run takes over from another one, what it does not, and what does not fit."""

import shutil

import jax
import numpy as np
import pytest

import flockrl
from flockrl.commands.main import main
from flockrl.core.rundir import read_json, write_json
from flockrl.envs import make
from flockrl.training.checkpoint import Checkpoints
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program
from flockrl.training.setup import configure
from flockrl.training.warm import begin

ENV, TAG = "mpe/simple_spread:N=2", "mpe/simple_tag"
RUN = {"steps": 200, "envs": 4, "eval_every": 200, "eval_episodes": 2, "checkpoint_every": 100}
"""Two iterations."""
PPO = {"rollout_steps": 25, "epochs": 1, "minibatches": 2, "hidden": (8,), "normalize_obs": True}
REPLAY = {
    "rollout_steps": 25, "hidden": (8,), "steps_per_update": 50, "batch_size": 8, "buffer_size": 2000,
    "learning_starts": 50,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("warm")


@pytest.fixture(scope="module")
def ippo(place):
    return flockrl.train("ippo", ENV, out=place / "ippo", **RUN, **PPO)


@pytest.fixture(scope="module")
def iddpg(place):
    return flockrl.train("iddpg", ENV, out=place / "iddpg", **RUN, **REPLAY)


@pytest.fixture(scope="module")
def sided(place):
    return flockrl.train({"adversary": "ippo", "agent": "random"}, TAG, out=place / "sided", **RUN, adversary=PPO)


def fresh(algorithm, init_from, env=ENV, **settings):
    """A run's config, and its first state before it takes over anything."""
    place = make(env)
    title, config = configure(algorithm, settings, place.spec)
    run = RunConfig(title, env, TrainOptions(**RUN, seed=7), config, str(init_from))
    return run, make_program(run, place).start_state(7).learner


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def differ(a, b):
    assert any(jax.tree.leaves(jax.tree.map(lambda x, y: bool((x != y).any()), a, b)))


class Watch(flockrl.Callback):
    """Keeps the learner's state as training begins."""

    def on_start(self, moment):
        self.learner = jax.tree.map(np.array, moment.state.learner)


def test_parameters_and_normalisers_are_taken_over_bit_for_bit(ippo, tmp_path):
    watch = Watch()
    run = flockrl.train(
        "ippo", ENV, out=tmp_path / "run", init_from=ippo, seed=7, callbacks=[watch], **RUN, **PPO
    )  # fmt: skip
    source, new = ippo.state().learner, watch.learner
    _, anew = fresh("ippo", "", **PPO)
    for name in ("params", "obs_moments", "value_moments"):
        equal(getattr(source, name), getattr(new, name))
        differ(getattr(source, name), getattr(anew, name))
    assert int(source.updates) == 2
    assert int(new.updates) == 0
    equal(new.optimiser, anew.optimiser)
    differ(new.optimiser, source.optimiser)
    differ(run.state().learner.params, source.params)
    assert int(run.state().learner.updates) == 2
    assert read_json(run.path / "config.json")["init_from"] == str(ippo.path)
    # The first evaluation is that of the run that it begins with.
    play = ippo.program.evaluate(ippo.state(), 7, 0)
    assert run.metrics()[0]["eval_return"] == pytest.approx(float(np.mean(play[0])), rel=1e-5)


def test_the_replay_and_its_counters_begin_anew(iddpg):
    source = iddpg.state().learner
    config, anew = fresh("iddpg", iddpg.path, **REPLAY)
    new, note = begin(config, anew, False)
    assert int(source.iterations) == 2
    assert int(source.learned.updates) == 4
    assert float(np.abs(source.replay.rows.obs).max()) > 0
    equal(new.learned.params, source.learned.params)
    equal(new.learned.targets, source.learned.targets)
    differ(anew.learned.params, source.learned.params)
    for name in ("replay", "iterations"):
        equal(getattr(new, name), getattr(anew, name))
    assert int(new.learned.updates) == 0
    equal(new.learned.optimiser, anew.learned.optimiser)
    assert note == f"{len(jax.tree.leaves(source.learned[:2]))} arrays from {iddpg.path}"


def test_values_in_other_units_are_refused(iddpg, tmp_path):
    plain = {**REPLAY, "normalize_reward": False}
    config, anew = fresh("iddpg", iddpg.path, **plain)
    for partly in (False, True):
        with pytest.raises(flockrl.UsageError, match=r"counts rewards otherwise .*: set --normalize-reward"):
            begin(config, anew, partly)
    other = flockrl.train("iddpg", ENV, out=tmp_path / "plain", **RUN, **plain)
    config, anew = fresh("iddpg", other.path, **REPLAY)
    with pytest.raises(flockrl.UsageError, match=r"counts rewards otherwise .*: set --no-normalize-reward"):
        begin(config, anew, True)


def test_the_replay_may_have_another_size(iddpg):
    config, anew = fresh("iddpg", iddpg.path, **{**REPLAY, "buffer_size": 500})
    new, _ = begin(config, anew, False)
    equal(new.learned.params, iddpg.state().learner.learned.params)
    assert new.replay.rows.obs.shape == anew.replay.rows.obs.shape
    assert new.replay.rows.obs.shape != iddpg.state().learner.replay.rows.obs.shape


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden": (9,)}, r"does not fit this run: .*\['kernel'\] \[\d+, 9\] is \[\d+, 8\] there; .*and \d+ more"),
        ({"normalize_obs": False}, r"does not fit this run: \.obs_moments\.\w+ \[.*\] is only there"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(ippo, tmp_path, changes, sentence):
    with pytest.raises(flockrl.UsageError, match=rf"{sentence}.*--init-partly"):
        flockrl.train("ippo", ENV, out=tmp_path / "run", init_from=ippo, **RUN, **{**PPO, **changes})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_with_normalisers_does_not_begin_without_them(place):
    path = place / "plain"
    flockrl.train("ippo", ENV, out=path, **RUN, **{**PPO, "normalize_obs": False})
    config, anew = fresh("ippo", path, **PPO)
    with pytest.raises(flockrl.UsageError, match=r"\.obs_moments\.\w+ \[.*\] is not there"):
        begin(config, anew, False)
    new, note = begin(config, anew, True)
    equal(new.params, flockrl.Run(path).state().learner.params)
    equal(new.obs_moments, anew.obs_moments)
    assert "did not fit: .obs_moments" in note


def test_partly_takes_what_fits_and_leaves_the_rest(ippo):
    config, anew = fresh("ippo", ippo.path, **{**PPO, "hidden": (8, 6)})
    new, note = begin(config, anew, True)
    first = new.params["actor"][0]["torso"]
    equal(first["dense_0"], ippo.state().learner.params["actor"][0]["torso"]["dense_0"])
    equal(first["dense_1"], anew.params["actor"][0]["torso"]["dense_1"])
    equal(new.params["actor"][0]["head"]["kernel"], anew.params["actor"][0]["head"]["kernel"])
    equal(new.obs_moments, ippo.state().learner.obs_moments)
    assert "did not fit: " in note


def test_nothing_at_all_is_refused_even_partly(iddpg):
    config, anew = fresh("ippo", iddpg.path, **PPO)
    with pytest.raises(flockrl.UsageError, match=r"Nothing of .* fits this run"):
        begin(config, anew, True)


def test_one_side_of_a_run_begins_one_side(sided):
    config, anew = fresh(
        {"adversary": "ippo", "agent": "ippo"}, f"{sided.path}:adversary", TAG, adversary=PPO, agent=PPO
    )  # fmt: skip
    new, _ = begin(config, anew, False)
    source = sided.state().learner["adversary"]
    equal(new["adversary"].params, source.params)
    equal(new["adversary"].obs_moments, source.obs_moments)
    differ(anew["adversary"].params, source.params)
    assert int(new["adversary"].updates) == 0
    equal(new["agent"], anew["agent"])


def test_sides_that_are_not_there_are_named(sided, ippo):
    settings = {"adversary": PPO, "agent": PPO}
    for name, sentence in (
        (f"{sided.path}:fox", "has no side 'fox' to begin with"),
        (f"{ippo.path}:adversary", "has no side 'adversary' to begin with"),
    ):
        config, anew = fresh({"adversary": "ippo", "agent": "ippo"}, name, TAG, **settings)
        with pytest.raises(flockrl.UsageError, match=sentence):
            begin(config, anew, False)


def test_the_command_line_begins_with_another_run(ippo, tmp_path, capsys):
    words = ["train", "ippo", ENV, "--init-from", str(ippo.path), "--out", str(tmp_path / "run"), "--hidden", "9"]
    assert main([*words, "--rollout-steps", "25", "--envs", "4", "--normalize-obs"]) == 2
    assert "Use --init-partly" in capsys.readouterr().err
    assert main(["train", "ippo", ENV, "--init-from", str(tmp_path / "none")]) == 2
    assert "is not a run" in capsys.readouterr().err


def test_a_warm_run_that_was_killed_before_its_first_checkpoint_is_refused(ippo, tmp_path):
    config, _ = fresh("ippo", ippo.path, **PPO)
    write_json(tmp_path / "config.json", config.to_json())
    with pytest.raises(flockrl.UsageError, match="stopped before it saved what it begins with"):
        flockrl.resume(tmp_path)


# Reading a part of a checkpoint


def asked_for(monkeypatch, run, call):
    """Names of the arrays that are read from the checkpoint."""
    paths = jax.tree_util.tree_leaves_with_path(run.program.shape())
    names = {f"{i:05d}": jax.tree_util.keystr(path) for i, (path, _) in enumerate(paths)}
    read, found = Checkpoints._read, []

    def spy(self, step, part, like, chosen):
        leaves = read(self, step, part, like, chosen)
        found.extend(names[key] for key in leaves)
        return leaves

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_read", spy)
        call()
    return found


def test_acting_reads_neither_replay_nor_critics(monkeypatch, iddpg):
    run = flockrl.Run(iddpg.path)
    whole = asked_for(monkeypatch, run, run.state)
    assert any(".replay" in name for name in whole)
    for call in (run.params, run.policy):
        names = asked_for(monkeypatch, run, call)
        assert any("['actor']" in name for name in names)
        assert not [name for name in names if ".replay" in name or "critic" in name or "optimiser" in name]
    equal(run.params(), run.algorithm.params(run.state().learner))


def test_warm_starts_do_not_read_the_replay(monkeypatch, iddpg):
    config, anew = fresh("iddpg", iddpg.path, **REPLAY)
    names = asked_for(monkeypatch, iddpg, lambda: begin(config, anew, False))
    assert any("critic" in name for name in names)
    assert not [name for name in names if ".replay" in name or "optimiser" in name]


def test_a_damaged_replay_does_not_keep_a_policy_from_acting(iddpg, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(iddpg.path, path)
    state = path / "checkpoints" / "200" / "state"
    largest = max((file for file in state.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    content, refused, spared = largest.read_bytes(), 0, 0
    run = flockrl.Run(path)
    for place in range(1, 12):
        damaged = bytearray(content)
        damaged[place * len(content) // 12] ^= 0xFF
        largest.write_bytes(damaged)
        try:
            run.state()
            continue  # the byte belongs to nothing
        except flockrl.UsageError as error:
            refused += "is damaged" in str(error)
        try:
            equal(run.params(), iddpg.params())
            spared += 1
        except flockrl.UsageError:
            pass
    assert refused >= 4
    assert spared >= refused / 2  # most of the bytes are the replay's
