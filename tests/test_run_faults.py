"""What can happen to a run's files while it trains: full disks, second processes, lost logs, interrupted recordings."""

import json
import resource
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY
from test_resume import StopAt, copy_of, final_arrays, rows

import flockrl
from flockrl.commands.main import main
from flockrl.core.errors import CannotWrite, Notice, UsageError
from flockrl.core.lock import lock
from flockrl.core.rundir import new_directories, read_metrics
from flockrl.training import figures, loop
from flockrl.training.checkpoint import Checkpoints
from flockrl.training.interrupt import Interrupted
from flockrl.training.log import Board, Log

ENV = "mpe/simple_spread"


class FullAt(flockrl.Callback):
    """From a step on, no file may become larger than so many bytes, as on a full disk."""

    def __init__(self, size, step=0):
        self.size, self.step = size, step
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_start(self, moment):
        self.on_iteration(moment)

    def on_iteration(self, moment):
        if moment.step >= self.step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.mark.parametrize(("size", "what"), [(3000, "metrics.jsonl"), (5000, "a checkpoint")])
def test_a_full_disk_ends_training_with_a_sentence_and_resume_goes_on(tmp_path, tiny_run, size, what):
    """Log points do not fit into 2,500 bytes; with them out of the way, checkpoints do not fit into 3,000."""
    path, step = tmp_path / "run", 640
    small = {} if what == "metrics.jsonl" else {"eval_every": 100_000}
    first = f"({what}|a checkpoint)"  # which is written in the background, and may fail before the log does
    with FullAt(size, step) as full, pytest.raises(CannotWrite, match=f"Cannot write .*{first}.*flockrl resume"):
        flockrl.train("mappo", ENV, out=path, callbacks=[full], **{**TINY, **small})
    assert Checkpoints(path / "checkpoints").steps()
    assert not list((path / "checkpoints").glob("*tmp*"))
    assert not (path / "result.json").exists()
    flockrl.resume(path)
    if not small:
        assert rows(path) == rows(tiny_run.path)
    jax.tree.map(np.testing.assert_array_equal, final_arrays(path), final_arrays(tiny_run.path))


def test_a_full_disk_is_status_1_for_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("flockrl.training.train.write_json", lambda *_: (_ for _ in ()).throw(CannotWrite("No room.")))
    assert main(["train", "ippo", ENV, "--envs", "8", "--out", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err == "flockrl: No room.\n"


def full(*_, **__):
    raise OSError(28, "No space left on device")


def test_events_and_curves_that_cannot_be_written_stop_nothing(tmp_path, tiny_run, monkeypatch):
    monkeypatch.setattr("tensorboardX.event_file_writer.EventsWriter.write_event", full)
    monkeypatch.setattr(figures, "draw_curve", full)
    with pytest.warns(Notice) as said:
        run = flockrl.train("mappo", ENV, out=tmp_path / "run", **TINY)
    assert rows(run.path) == rows(tiny_run.path)
    told = [str(w.message) for w in said if w.category is Notice]
    assert [text.partition(" ")[0] for text in told] == ["TensorBoard", "Cannot"]
    assert all("No space left on device" in text for text in told)


def test_events_are_what_tensorboard_reads(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    board = Board(tmp_path, resume_at=7)
    board.write({"step": 8, "loss": 0.5, "per_agent": [1.0]})
    board.close()
    data, events = next(tmp_path.glob("events.*")).read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    assert events[2].session_log.status == 1
    assert events[2].step == 8  # it hides what was written after step 7
    assert events[3].step == 8
    assert [(v.tag, v.simple_value) for v in events[3].summary.value] == [("loss", 0.5)]


# Two processes, read-only directories


def test_two_processes_cannot_train_one_run(tmp_path, tiny_run):
    path = copy_of(tiny_run, tmp_path)
    (path / "result.json").unlink()
    before = (path / "metrics.jsonl").read_bytes()
    with lock(path), pytest.raises(flockrl.UsageError, match="is in use by another process"):
        flockrl.resume(path)
    assert (path / "metrics.jsonl").read_bytes() == before


def test_a_read_only_run_can_be_opened_and_is_not_resumed(tmp_path, tiny_run, monkeypatch):
    """Whatever is written below the run's directory fails, as it does when the directory is read-only."""
    path = copy_of(tiny_run, tmp_path)
    (path / "result.json").unlink()
    really, made = open, Path.mkdir

    def opened(name, mode="r", *args, **kwargs):
        inside = isinstance(name, str | Path) and str(name).startswith(str(path))
        if inside and any(x in mode for x in "wax+"):
            raise PermissionError(13, "Permission denied", str(name))
        return really(name, mode, *args, **kwargs)

    def mkdir(place, *args, **kwargs):
        if str(place).startswith(str(path)):
            raise PermissionError(13, "Permission denied", str(place))
        return made(place, *args, **kwargs)

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr("io.open", opened)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(flockrl.UsageError, match=r"Cannot write to .*: Permission denied"):
        flockrl.resume(path)
    assert flockrl.Run(path).evaluate(4).mean == tiny_run.evaluate(4).mean


# Metrics


@pytest.mark.parametrize("damage", ["short", "gone", "middle"])
def test_lost_metrics_are_told_and_never_filled(tmp_path, tiny_run, damage):
    path = copy_of(tiny_run, tmp_path)
    (path / "result.json").unlink()
    file = path / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    kept = {"short": lines[:2], "gone": [], "middle": [*lines[:2], lines[2][:40]]}[damage]
    file.write_bytes(b"".join(kept)) if kept else file.unlink()
    with pytest.warns(Notice, match="log points are lost"):
        flockrl.resume(path)
    assert file.read_bytes() == b"".join(lines[: min(2, len(kept))])


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"null", b"\0" * 50, b'{"step": "x"}', b'{"step": 1, "eval_return": 2.0}', b'{"step": 1e400}',
     b'{"step": 1' + b"0" * 400 + b"}", b"[" * 100_000, b'{"step": 1, "loss": {"a": 1}}', b"\xff\xfe"],
)  # fmt: skip
def test_bad_lines_in_metrics_are_skipped_with_a_word(tmp_path, tiny_run, line):
    path = copy_of(tiny_run, tmp_path)
    file = path / "metrics.jsonl"
    good = read_metrics(path)
    file.write_bytes(line + b"\n" + file.read_bytes() + line)
    with pytest.warns(Notice, match="2 of .* lines are no log points"):
        assert read_metrics(path) == good


def test_a_log_is_cut_to_whole_lines(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2}\n')
    log = Log(tmp_path, 15)
    assert log.offset == 12
    log.close()


# Recordings


def recorded(file):
    """The trajectories of a file, without what differs between two runs: the name of the recording, and times."""
    from flockrl.data.experience import join
    from flockrl.data.files import Files

    data = join(list(Files([file])))
    plain = data._replace(id=[name.partition("-")[2] for name in data.id], time=0, aux={})
    return {**plain._asdict(), **data.aux}


def equal(one, other):
    a, b = recorded(one), recorded(other)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    where = tmp_path_factory.mktemp("whole")
    flockrl.train("mappo", ENV, out=where / "run", record=where / "all.arrow", **TINY)
    return where / "all.arrow"


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_an_interrupted_recording_continues_exactly(tmp_path, whole, suffix):
    """Interrupted in the middle of episodes; then killed between checkpoints, so that some of it is made again."""
    path, file = tmp_path / "run", tmp_path / f"all.{suffix}"
    with pytest.raises(Interrupted):
        flockrl.train("mappo", ENV, out=path, record=file, callbacks=[StopAt(384)], **TINY)
    assert not file.exists()
    assert not list(tmp_path.glob("*.partial"))
    with (path / "recording.arrows").open("ab") as stream:
        stream.write(b"what a killed process wrote after its last checkpoint")
    with pytest.raises(Interrupted):
        flockrl.resume(path, callbacks=[StopAt(640)])
    flockrl.resume(path)
    equal(file, whole)
    assert not (path / "recording.arrows").exists()


def test_a_run_that_was_killed_after_writing_its_recording_writes_it_again(tmp_path, whole, monkeypatch):
    path, file = tmp_path / "run", tmp_path / "all.arrow"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "write_json", full)
        with pytest.raises(OSError, match="No space"):
            flockrl.train("mappo", ENV, out=path, record=file, **TINY)
    equal(file, whole)
    flockrl.resume(path)
    equal(file, whole)


def test_a_recording_that_lost_its_pieces_is_refused(tmp_path):
    path, file = tmp_path / "run", tmp_path / "all.arrow"
    with pytest.raises(Interrupted):
        flockrl.train("mappo", ENV, out=path, record=file, callbacks=[StopAt(384)], **TINY)
    (path / "recording.arrows").unlink()
    with pytest.raises(flockrl.UsageError, match='remove "record" from'):
        flockrl.resume(path)
    config = json.loads((path / "config.json").read_text())
    del config["record"]
    (path / "config.json").write_text(json.dumps(config))
    assert flockrl.resume(path).result["steps"] == 1024


# Settings


def test_other_settings_than_those_of_the_checkpoint_are_refused(tmp_path, tiny_run):
    path = copy_of(tiny_run, tmp_path)
    (path / "result.json").unlink()
    config = json.loads((path / "config.json").read_text())
    changed = {**config, "seed": 5, "config": {**config["config"], "lr": 0.5}}
    (path / "config.json").write_text(json.dumps(changed))
    lr = config["config"]["lr"]
    with pytest.raises(flockrl.UsageError, match=rf"seed 0 -> 5; config\.lr {lr} -> 0\.5"):
        flockrl.resume(path)
    (path / "config.json").write_text(json.dumps({**config, "versions": {}}))
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        flockrl.resume(path)


def test_a_clock_that_jumps_changes_nothing_in_the_order_of_checkpoints(tmp_path, monkeypatch):
    import time

    now, really = [time.time()], time.time
    monkeypatch.setattr(time, "time", lambda: now[0])
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step, jump in ((1, 0), (2, -9e8), (3, 9e8), (4, -5e8), (5, 0)):
        now[0] = really() + jump
        checkpoints.save(step, {"x": np.full(3, step)}, {"at": step})
        now[0] -= jump / 2
    checkpoints.wait()
    assert checkpoints.steps() == [3, 4, 5]
    assert checkpoints.restore({"x": np.zeros(3, np.int64)}, 5)[1]["at"] == 5
    checkpoints.close()


def test_foreign_files_among_checkpoints_are_left_alone(tmp_path, tiny_run):
    path = copy_of(tiny_run, tmp_path)
    folder = path / "checkpoints"
    for name in ("9" * 200, "007", "-1", "notes", "١٢٣٤٥"):
        (folder / name).mkdir()
    (folder / "5000").write_text("a file")
    assert Checkpoints(folder).steps()[-1] == 1024
    assert flockrl.Run(path).evaluate(4).mean == tiny_run.evaluate(4).mean


def test_what_a_checkpoint_says_is_what_was_true_when_it_was_taken(tmp_path):
    """It is written in the background, while training goes on and changes its figures."""
    figures = {"eval_return": 1.0}
    with Checkpoints(tmp_path) as checkpoints:
        for step in range(5):
            figures["eval_return"] = float(step)
            checkpoints.save(step, {"x": jnp.zeros(3)}, {"best": figures})
            figures["eval_return"] = -1.0
            checkpoints.wait()
            assert checkpoints.meta(step)["best"] == {"eval_return": float(step)}


def test_directories_that_were_made_go_when_a_later_one_cannot_be_made(tmp_path, monkeypatch):
    make = Path.mkdir

    def refuse(path, *args, **kwargs):
        if path.name == "seed_1":
            raise OSError(28, "No space left on device")
        return make(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with (
        pytest.raises(UsageError, match="seed_1: No space left"),
        new_directories(tmp_path / "a" / "b", "x", [0, 1, 2]),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
