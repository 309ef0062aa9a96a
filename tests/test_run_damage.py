"""Run directories that are damaged or foreign: opened, or refused in a sentence, quickly and in little memory."""

import json
import random
import resource
import shutil
import time
import warnings

import numpy as np
import pytest
from test_resume import copy_of

import flockrl
from flockrl.commands.main import main
from flockrl.core.errors import UsageError
from flockrl.core.rundir import find_runs, read_json
from flockrl.evidence.records import collect, tidy
from flockrl.training.checkpoint import Checkpoints
from flockrl.training.loop import Loop
from flockrl.view.plots import draw_curve

FOREIGN = [
    "{}", "[]", "null", "3", '"text"', "", "{", '{"algorithm": 3}', "[" * 100_000, '{"a":' * 100_000, "\0" * 64,
    '{"algorithm": "mappo", "env": "mpe/simple_spread", "config": []}',
    '{"algorithm": "mappo", "env": "mpe/simple_spread", "config": {"hidden": {"a": 1}}}',
    '{"algorithm": "mappo", "env": "mpe/simple_spread", "envs": 1' + "0" * 400 + "}",
    '{"algorithm": "mappo", "env": "mpe/simple_spread", "envs": "many"}',
    '{"algorithm": "mappo", "env": "mpe/simple_spread", "record": []}',
    '{"algorithm": "mappo", "env": "mpe/simple_spread", "sides": 3}',
    '{"algorithm": "nothing", "env": "mpe/simple_spread"}', '{"algorithm": "mappo", "env": "nowhere/at_all"}',
]  # fmt: skip


@pytest.mark.parametrize("text", FOREIGN, ids=range(len(FOREIGN)))
def test_a_foreign_configuration_gets_a_sentence(tmp_path, text, capsys):
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "result.json").write_text("{}")
    for command in (["eval"], ["report"]):
        assert main([*command, str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("flockrl: ")
        assert "Traceback" not in said


def test_a_huge_configuration_is_not_read(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(200 << 20)
    began, before = time.perf_counter(), peak()
    with pytest.raises(UsageError, match="larger than"):
        flockrl.Run(tmp_path)
    assert time.perf_counter() - began < 1
    assert peak() - before < 50_000


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"steps": 10', '{"steps": "x"}', "", '{"steps": 1024}'])
def test_a_foreign_result_gets_a_sentence(tmp_path, tiny_run, text, capsys):
    path = copy_of(tiny_run, tmp_path)
    (path / "result.json").write_text(text)
    assert main(["report", str(path), "--out", str(tmp_path / "x.html"), "--no-animations"]) == 2
    assert "result.json" in capsys.readouterr().err


def test_a_directory_that_is_no_seed_is_not_one(tmp_path, tiny_run):
    for name in ("seed_1", "seed_x", "seed_0", "seed_²", "seed_"):
        shutil.copytree(tiny_run.path, tmp_path / name)
    assert [path.name for path in find_runs(tmp_path)] == ["seed_0", "seed_1"]
    shutil.rmtree(tmp_path / "seed_0")
    shutil.rmtree(tmp_path / "seed_1")
    with pytest.raises(UsageError, match="is not a run"):
        find_runs(tmp_path)


@pytest.mark.parametrize("text", [*FOREIGN[:8], '{"algorithm": "ippo", "envs": 2, "steps": 10, "seed": 0}'])
def test_a_foreign_trainer_gets_a_sentence(tmp_path, text):
    (tmp_path / "trainer.json").write_text(text)
    with pytest.raises(UsageError):
        flockrl.Trainer.load(tmp_path)


# Any damage


def open_all(path):
    """What stands behind eval, export, resume and report, up to where they would begin to work."""
    run = flockrl.Run(path)
    if run.config == KNOWN.get("config"):  # what follows from the configuration alone is made once
        run.program, run._arrays = KNOWN["program"], lambda reader: KNOWN["acting"]
    run.params()
    loop = Loop(run.program, [run.config], [path], run.source, (), quiet=True)
    loop.checkpoints = [Checkpoints(path / "checkpoints")]
    loop.logs = []
    try:
        step = loop._restore()
    finally:
        for log in loop.logs:
            log.close()
    return step


def open_report(path):
    records, _ = collect([path])
    tidy(records)


def open_curve(path):
    draw_curve([path], path / "curve.png")


def openings(file):
    """What reads a file."""
    if file.name == "metrics.jsonl":
        return open_all, open_report, open_curve
    return {"config.json": (open_all, open_report), "result.json": (open_report,)}.get(file.name, (open_all,))


KNOWN = {}
"""The configuration of the undamaged run, its program, and the arrays that acting needs."""


def damage(path, rng):
    """Flip a bit, cut, empty, or replace one of the files by foreign JSON. Returns the file and what was done."""
    files = [p for p in (path / "checkpoints" / "1024").rglob("*") if p.is_file()]
    named = [path / name for name in ("config.json", "metrics.jsonl", "result.json")]
    file = rng.choice(named if rng.random() < 0.5 else files)
    content = bytearray(file.read_bytes())
    how = rng.choice(["flip", "flip", "flip", "cut", "empty", "foreign"])
    if how == "flip" and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        content = content[: rng.randrange(len(content) + 1)]
    elif how == "empty":
        content = bytearray()
    elif how == "foreign":
        content = bytearray(rng.choice(FOREIGN).encode())
    file.write_bytes(content)
    return file, how


def survive(tiny_run, tmp_path, cases, seed):
    """Every case is opened as it was, or refused, within bounds of time and memory."""
    rng, expected = random.Random(seed), tiny_run.steps()[-1]
    program, shape = tiny_run.program, tiny_run.program.shape()
    KNOWN.update(config=tiny_run.config, program=program, acting=tiny_run._arrays(tiny_run.algorithm.params))
    program.shape = lambda: shape
    open_all(copy_of(tiny_run, tmp_path))
    open_report(tmp_path / "copy")
    open_curve(tmp_path / "copy")
    refused = 0
    for _ in range(cases):
        shutil.rmtree(tmp_path / "copy")
        path = copy_of(tiny_run, tmp_path)
        file, how = damage(path, rng)
        began, before = time.process_time(), peak()  # the machine may be busy with something else
        for opening in openings(file):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    opened = opening(path)
                    assert opened is None or opened * 128 == expected
                except UsageError:
                    refused += 1
        assert time.process_time() - began < 6, (file, how)
        assert peak() - before < 300_000, (file, how)
    assert refused > cases // 5


def peak():
    """The most memory this process had so far, in kilobytes. What one case adds is bounded; programs that were
    compiled for other settings stay in JAX's cache."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_damaged_runs_are_opened_or_refused(tiny_run, tmp_path):
    survive(tiny_run, tmp_path, 100, seed=0)


@pytest.mark.slow
def test_many_damaged_runs_are_opened_or_refused(tiny_run, tmp_path):
    survive(tiny_run, tmp_path, 3000, seed=1)


def test_flipped_bits_in_settings_and_meta_data_never_change_a_resumed_run(tiny_run, tmp_path):
    """Flips that pass leave every setting that matters, and everything in the meta data, as it was."""
    path = copy_of(tiny_run, tmp_path)
    rng, decisive = np.random.default_rng(0), tiny_run.config.decisive()
    meta = next((path / "checkpoints" / "1024" / "meta").rglob("metadata"))
    checkpoints = Checkpoints(path / "checkpoints")
    told, noticed = checkpoints.meta(1024), 0
    for file in (path / "config.json", meta):
        content = file.read_bytes()
        for _ in range(100):
            flipped = bytearray(content)
            flipped[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
            file.write_bytes(flipped)
            try:
                now, settings = checkpoints.meta(1024), flockrl.Run(path).config
                if settings.changes(now["settings"]):
                    noticed += 1
                    continue
                assert settings.decisive() == decisive
                names = told.keys() - {"meta_digest"}
                assert {name: now[name] for name in names} == {name: told[name] for name in names}
            except UsageError:
                noticed += 1
        file.write_bytes(content)
    assert noticed > 120
    assert read_json(path / "config.json")
    assert json.loads(content)
