"""The benchmark harness: a kill in the middle changes nothing, nothing is done twice, wrong input is one sentence."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings

import jax
import pytest

import flockrl
from flockrl.commands.main import main
from flockrl.core.errors import Notice, UsageError
from flockrl.core.lock import lock
from flockrl.evidence import harness, statistics
from flockrl.evidence.board import result_table
from flockrl.evidence.suite import make_suite, read_suite, shipped
from flockrl.evidence.summary import lines, summary_rows
from flockrl.training.run import Run

WORDS = [
    "bench", "--algorithms", "iql_tabular", "--environments", "games/two_step", "--seeds", "2", "--jobs", "1",
    "--set", "steps=60000", "envs=1", "eval_episodes=4", "eval_every=6000", "checkpoint_every=6000",
    "table_size=1024",
]  # fmt: skip


def start(out):
    command = [sys.executable, "-m", "flockrl", *WORDS, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(what, process, seconds=120):
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A benchmark of two cells that nothing disturbed."""
    out = tmp_path_factory.mktemp("bench") / "whole"
    text, errors = (process := start(out)).communicate()
    assert process.returncode == 0, errors
    return out, text


def test_tables(finished):
    out, text = finished
    assert "[2/2] iql_tabular-games-two_step/seed_1" in text
    assert "Caution: only 2 seeds" in " ".join(text.split())
    assert "mean of 4 greedy episodes" in " ".join(text.split())
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert [row["seed"] for row in rows] == ["0"] * 11 + ["1"] * 11
    assert rows[0]["algorithm"] == "iql_tabular"
    assert float(rows[10]["eval_efficiency"]) == float(rows[10]["eval_return"]) / 8
    cells = list(csv.DictReader((out / "cells.csv").open()))
    assert [int(cell["steps"]) for cell in cells] == [60000, 60000]
    assert all(float(cell["peak_memory_mb"]) > 50 and float(cell["steps_per_second"]) > 0 for cell in cells)
    (line,) = csv.DictReader((out / "summary.csv").open())
    assert float(line["mean"]) == pytest.approx(sum(float(cell["final_return"]) for cell in cells) / 2)
    assert "Sampled: as many episodes in which the trained policy explores" in " ".join(text.split())
    for cell in cells:
        run = Run(out / "cells" / "iql_tabular-games-two_step" / f"seed_{cell['seed']}")
        assert float(cell["sampled_return"]) == run.evaluate(4, int(cell["seed"]), explore=True).mean
    assert float(line["sampled_iqm"]) == pytest.approx(sum(float(cell["sampled_return"]) for cell in cells) / 2)


def test_a_cell_that_was_killed_before_it_was_sampled_is_only_sampled(finished, tmp_path):
    out = tmp_path / "cut"
    shutil.copytree(finished[0], out)
    cell = out / "cells" / "iql_tabular-games-two_step" / "seed_1"
    (cell / "cell.json").unlink()
    before = (cell / "result.json").stat().st_mtime_ns
    text, errors = (process := start(out)).communicate()
    assert process.returncode == 0, errors
    assert "[2/2]" in text
    assert (cell / "result.json").stat().st_mtime_ns == before
    assert (out / "summary.csv").read_bytes() == (finished[0] / "summary.csv").read_bytes()


def test_what_an_environment_measures_is_in_the_tables(tmp_path, monkeypatch):
    run = {"steps": 64, "envs": 4, "rollout_steps": 8, "eval_episodes": 2, "checkpoint_every": 64}
    path = tmp_path / "cells" / "ippo-tasks-allocation" / "seed_0"
    flockrl.train("ippo", "tasks/allocation", out=path, **run)
    monkeypatch.setattr(statistics, "REPS", 40)
    records = harness.write_tables(tmp_path)
    (line,) = lines(records)
    names = {f"eval_{name}" for name in flockrl.make_env("tasks/allocation").measures(_state("tasks/allocation"))}
    assert set(line.measured) == names
    assert summary_rows([line])[0][min(names)] == line.measured[min(names)].value == records[0].evals[-1][min(names)]
    assert names <= set((tmp_path / "results.csv").read_text().splitlines()[0].split(","))
    assert min(names).removeprefix("eval_") in [column.header for column in result_table(records).columns]


def _state(name):
    return flockrl.make_env(name).reset(jax.random.key(0))[0]


def test_killed_in_the_middle_it_ends_with_the_same_table(finished, tmp_path):
    out = tmp_path / "killed"
    process = start(out)
    second = out / "cells" / "iql_tabular-games-two_step" / "seed_1"
    wait_for(lambda: any((second / "checkpoints").glob("[0-9]*")), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (out / "results.csv").exists()
    first = out / "cells" / "iql_tabular-games-two_step" / "seed_0" / "result.json"
    before = first.stat().st_mtime_ns
    time.sleep(0.5)  # an orphan would go on writing
    assert not (second / "result.json").exists()
    text, errors = (process := start(out)).communicate()
    assert process.returncode == 0, errors
    assert first.stat().st_mtime_ns == before  # the finished cell was left alone
    assert "[2/2]" in text
    assert "[1/2]" not in text
    for name in ("results.csv", "summary.csv"):
        assert (out / name).read_bytes() == (finished[0] / name).read_bytes()


def test_a_finished_benchmark_runs_nothing(finished, monkeypatch, capsys):
    monkeypatch.setattr(harness, "_start", lambda *_: pytest.fail("nothing was left to do"))
    monkeypatch.setattr(statistics, "REPS", 40)
    assert main([*WORDS, "--out", str(finished[0])]) == 0
    assert "two_step" in capsys.readouterr().out


def test_other_settings_do_not_mix(finished, capsys):
    assert main([*WORDS, "lr=0.5", "--out", str(finished[0])]) == 2
    assert "was run with other settings (config)" in capsys.readouterr().err


def test_a_failing_cell_is_told_and_the_others_go_on(monkeypatch, tmp_path, capsys):
    def begin(work, cores, platform):
        code = "print('first');import sys;sys.exit('Training stopped: loss is nan.')"
        work.path.mkdir(parents=True)
        work.errors = (work.path / "errors.txt").open("w+")
        work.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=work.errors,
            text=True,
        )
        work.state = "running"

    monkeypatch.setattr(harness, "_start", begin)
    assert main([*WORDS, "--out", str(tmp_path / "b")]) == 1
    text = capsys.readouterr()
    assert text.out.count("failed: Training stopped: loss is nan.") == 2
    assert "(and 1 more)" in text.err


def test_cores_are_shared_out():
    assert harness.share_cores([0, 1, 2, 3], 2) == [[0, 2], [1, 3]]
    assert harness.share_cores([0, 1], 1) == [[0, 1]]
    assert harness.share_cores([4], 3) == [[4], [4], [4]]
    assert set(harness.own_cores()) <= set(range(os.cpu_count()))


def test_shipped_suites_are_right():
    assert set(shipped()) == {"smoke", "mpe", "classic", "games", "scaling", "tuning", "everywhere"}
    with warnings.catch_warnings(record=True):
        sizes = {name: len(read_suite(name).cells) for name in shipped()}
    # The held-out set has 278 cells where every package is installed.
    assert 195 <= sizes.pop("everywhere") <= 278
    assert sizes == {
        "smoke": 8,
        "mpe": 5 * (8 + 5 + 4 + 1 + 5),
        "classic": 30,
        "games": 180,
        "scaling": 36,
        "tuning": 180,
    }
    agents = [cell.env.rpartition("=")[2] for cell in read_suite("scaling", {"seeds": 1}).cells]
    assert agents == ["2", "4", "8", "16", "32", "64"] * 2


def test_an_optional_part_goes_without_environments_that_are_not_installed():
    part = {"algorithms": ["ippo"], "environments": ["mpe/simple", "pettingzoo/nobody.wrote_v0"], "seeds": 1}
    with pytest.raises(UsageError, match="no module"):
        make_suite("mine", {"part": [part]}, {})
    with pytest.warns(Notice, match=r"Suite mine goes without pettingzoo/nobody.wrote_v0: There is no module"):
        suite = make_suite("mine", {"part": [{**part, "optional": True}]}, {})
    assert [cell.env for cell in suite.cells] == ["mpe/simple"]


def test_settings_of_a_part_an_environment_and_an_algorithm():
    content = {
        "question": "?",
        "settings": {"steps": 1000, "envs": 4},
        "part": [
            {
                "algorithms": ["mappo", "ippo"], "environments": ["mpe/simple", "games/climbing"], "seeds": 1,
                "settings": {"envs": 8}, "per_algorithm": {"ippo": {"lr": 0.5}},
                "per_environment": {"games/climbing": {"steps": 500}},
            }
        ],
    }  # fmt: skip
    cells = {(c.algorithm, c.env): c.run for c in make_suite("x", content, {}).cells}
    assert [run.options.steps for run in cells.values()] == [1000, 500, 1000, 500]
    assert {run.options.envs for run in cells.values()} == {8}
    assert [run.config.lr == 0.5 for run in cells.values()] == [False, False, True, True]
    changed = make_suite("x", content, {"seeds": 2, "settings": {"steps": 7}}).cells
    assert len(changed) == 8
    assert {cell.run.options.steps for cell in changed} == {7}


def test_a_piece_of_a_suite(tmp_path):
    part = {"algorithms": ["ippo", "mappo"], "environments": ["mpe/simple_spread", "mpe/simple", "games/climbing"]}
    content = {"seeds": 1, "part": [part, {"algorithms": ["iql"], "environments": ["games/penalty", "nowhere/at_all"]}]}

    def piece(*words):
        return [(cell.algorithm, cell.env) for cell in make_suite("x", content, {"only": words}).cells]

    assert piece("mappo", "mpe/") == [("mappo", "mpe/simple_spread"), ("mappo", "mpe/simple")]
    assert piece("games/") == [("ippo", "games/climbing"), ("mappo", "games/climbing"), ("iql", "games/penalty")]
    assert piece("ippo", "games") == [("ippo", "games/climbing")]
    for wrong in ("qmix", "mpe/tag"):
        with pytest.raises(UsageError, match=f"Suite x runs no '{wrong}'"):
            piece(wrong)
    with pytest.raises(UsageError, match=r"Suite x does not run iql on mpe/ or games/climbing\."):
        piece("iql", "mpe/", "games/climbing")


def test_long_names_fit_a_directory():
    envs = [f"foraging/field:penalty=0.{'0' * 300}{digit}" for digit in (1, 2)]
    suite = make_suite("x", {"algorithms": ["mappo"], "environments": envs, "seeds": 1}, {})
    folders = {cell.folder.split("/")[0] for cell in suite.cells}
    assert len(folders) == 2
    assert max(map(len, folders)) < 200


HARM = [
    ("suite.json", {"cells": None}, "suite.json is damaged: cells must be a list of names"),
    ("suite.json", {"cells": [[1]], "labels": {}}, "suite.json is damaged: cells must be a list of names"),
    ("suite.json", {"cells": [], "labels": [3]}, "and labels an object"),
    ("cell.json", {"sampled": [1]}, "cell.json is damaged: remove that file"),
    ("cell.json", {"sampled": {"eval_return": "x"}}, "cell.json is damaged: remove that file"),
    ("cell.json", {"peak_memory_mb": [3]}, "cell.json is damaged: remove that file"),
]


@pytest.mark.parametrize(("name", "content", "sentence"), HARM)
def test_damaged_notes_of_a_benchmark_get_one_sentence(finished, tmp_path, capsys, name, content, sentence):
    out = tmp_path / "damaged"
    shutil.copytree(finished[0], out)
    file = out / name if name == "suite.json" else out / "cells" / "iql_tabular-games-two_step" / "seed_1" / name
    file.write_text(json.dumps(content))
    assert main([*WORDS, "--out", str(out)]) == 2
    assert sentence in capsys.readouterr().err
    assert json.loads(file.read_text()) == content


@pytest.mark.parametrize("name", ["results.csv", "results.parquet", "cells.csv", "summary.csv"])
def test_a_table_that_cannot_be_written_gets_one_sentence(finished, tmp_path, capsys, monkeypatch, name):
    monkeypatch.setattr(statistics, "REPS", 40)
    out = tmp_path / "full"
    shutil.copytree(finished[0], out)
    (out / name).unlink()
    (out / name / "in the way").mkdir(parents=True)
    assert main([*WORDS, "--out", str(out)]) == 1
    assert f"Cannot write {out / name}" in capsys.readouterr().err


def test_pieces_that_are_run_at_once_take_turns(finished, tmp_path):
    out = tmp_path / "shared"
    shutil.copytree(finished[0], out)
    with lock(out):
        process = start(out)
        time.sleep(3)
        assert process.poll() is None
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


def test_pieces_of_a_suite_add_to_each_other(tmp_path):
    for part in (0, 1):
        content = named()
        content["part"] = [content["part"][part]]
        suite = make_suite("own", content, {})
        harness._check_directory(suite, [harness.Work(c, tmp_path / "cells" / c.folder) for c in suite.cells], tmp_path)
    about = json.loads((tmp_path / "suite.json").read_text())
    assert about["cells"] == ["ippo-at-0.1-probe-action/seed_0", "ippo-at-0.001-probe-action/seed_0"]
    assert list(about["labels"].values()) == ["ippo at 0.1", "ippo at 0.001"]


GOOD = {"algorithms": ["mappo"], "environments": ["mpe/simple"]}
BAD = [
    ({**GOOD, "algorithm": []}, "has no entry 'algorithm'. Did you mean 'algorithms'?"),
    ({"algorithms": ["mappo"]}, "environments must be a list"),
    ({**GOOD, "seeds": 0}, "seeds must be a whole number from 1 to 10,000, not 0"),
    ({**GOOD, "seeds": 10**12}, "seeds must be a whole number from 1 to 10,000, not 1000000000000"),
    ({**GOOD, "first_seed": 2**32}, "first_seed must be a whole number from 0"),
    ({**GOOD, "optional": "yes"}, "optional must be true or false, not 'yes'"),
    ({**GOOD, "algorithms": ["mapo"]}, "Did you mean 'mappo'?"),
    ({**GOOD, "environments": ["mpe/simpel"]}, "Did you mean 'simple'?"),
    ({**GOOD, "algorithms": ["maddpg"], "environments": ["games/climbing"], "settings": {"gama": 1}}, "'gamma'"),
    ({**GOOD, "settings": {"seed": 3}}, "leave seed out"),
    ({**GOOD, "per_algorithm": {"ippo": {}}}, "which the part does not run"),
    ({**GOOD, "algorithms": ["ppo"], "environments": ["mpe/simple_spread"]}, "ppo trains one agent"),
    ({**GOOD, "part": {}}, "[[part]]"),
    ({"part": [GOOD, {**GOOD, "settings": {"lr": 0.1}}]}, "with unlike settings"),
]


@pytest.mark.parametrize(("content", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_wrong_suites(content, sentence):
    with pytest.raises(UsageError) as caught:
        make_suite("x", content, {})
    assert sentence in str(caught.value)


WRONG = [
    (("bench",), "Name a suite"),
    (("bench", "smok"), "Did you mean 'smoke'?"),
    (("bench", "nowhere.toml"), "Cannot read the suite"),
    (("bench", "smoke", "--algorithms", "mappo"), "leave out the suite or the flags"),
    (("bench", "smoke", "--jobs", "0"), "jobs must be at least 1"),
    (("bench", "smoke", "--jobs", "1e12"), "jobs must be at most 1,000"),
    (("bench", "smoke", "--seeds", "0"), "seeds must be"),
    (("bench", "smoke", "--steps", "0"), "steps must be at least 1"),
    (("bench", "smoke", "--set", "lr"), "name=value"),
    (("bench", "smoke", "--out", "."), "holds something else than a benchmark"),
    (("bench", "broken.toml"), "not valid TOML"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_wrong_input_gets_one_sentence(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_text("a = ")
    assert main(list(words)) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["broken.toml"]


def test_the_suite_is_kept_with_the_benchmark(finished):
    about = json.loads((finished[0] / "suite.json").read_text())
    assert about["name"] == "own"
    assert len(about["cells"]) == 2


def named():
    return {
        "algorithms": ["ippo"], "environments": ["probe/action"], "seeds": 1,
        "settings": {"steps": 64, "envs": 4, "rollout_steps": 8, "eval_episodes": 2},
        "part": [{"name": f"ippo at {lr}", "settings": {"lr": lr}} for lr in (0.1, 0.001)],
    }  # fmt: skip


def test_parts_with_names_compare_settings_of_one_algorithm():
    suite = make_suite("own", named(), {})
    folders = [cell.folder for cell in suite.cells]
    assert folders == ["ippo-at-0.1-probe-action/seed_0", "ippo-at-0.001-probe-action/seed_0"]
    content = named()
    for part in content["part"]:
        del part["name"]
    with pytest.raises(UsageError, match="give each part a name"):
        make_suite("own", content, {})


@pytest.mark.slow
def test_tables_use_the_names_of_parts(tmp_path):
    harness.run_suite(make_suite("own", named(), {}), tmp_path / "out", 1)
    assert [record.label for record in harness.write_tables(tmp_path / "out")] == ["ippo at 0.001", "ippo at 0.1"]
    assert "ippo at 0.1" in (tmp_path / "out" / "cells.csv").read_text()
