"""The log keeps what it confirmed, each trajectory once, and survives being cut anywhere."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from relay_kit import SPEC, batch, episodes, ids_in

from flockrl.core.errors import UsageError
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.data.experience import Experience
from flockrl.data.schema import decode, make_schema
from flockrl.relay.ids import Seen
from flockrl.relay.log import Log

SCHEMA = make_schema(SPEC)


def filled(path, count=5, **settings):
    log = Log(path, SCHEMA, **settings)
    for i in range(count):
        log.append(batch([f"t{i}"]), [f"t{i}"])
    log.sync()
    return log


def test_what_is_appended_comes_back_in_order_and_to_the_bit(tmp_path):
    log = filled(tmp_path)
    assert ids_in(log) == [f"t{i}" for i in range(5)]
    got = decode(log.read(log.start)[0], SPEC)
    wanted = episodes(["t0"])
    for name in Experience._fields:
        if name != "aux" and getattr(wanted, name) is not None:
            np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))
    log.close()
    again = Log(tmp_path, SCHEMA)
    assert ids_in(again) == [f"t{i}" for i in range(5)]
    assert (again.trajectories, again.rows) == (5, 30)


def test_any_arrow_reader_opens_a_segment(tmp_path):
    filled(tmp_path).close()
    table = pa.ipc.open_stream(tmp_path / "00000000.arrows").read_all()
    assert table.column("trajectory").unique().to_pylist() == [f"t{i}" for i in range(5)]


def test_what_is_not_synced_is_not_read(tmp_path):
    log = Log(tmp_path, SCHEMA)
    log.append(batch(["a"]), ["a"])
    assert log.read(log.start) is None
    log.sync()
    assert ids_in(log) == ["a"]


def test_known_trajectories_are_left_out_also_in_part_and_after_reopening(tmp_path):
    log = filled(tmp_path, 2)
    assert log.append(batch(["t1", "new", "t0"]), ["t1", "new", "t0"])[0] == 1
    log.close()
    log = Log(tmp_path, SCHEMA)
    assert log.append(batch(["new", "t1"]), ["new", "t1"])[0] == 0
    log.sync()
    assert ids_in(log) == ["t0", "t1", "new"]


def test_segments_follow_each_other_and_old_ones_go_while_their_ids_stay(tmp_path):
    log = filled(tmp_path, 12, segment_bytes=6000)
    segments = sorted(tmp_path.glob("*.arrows"))
    assert len(segments) > 3
    assert ids_in(log) == [f"t{i}" for i in range(12)]
    log.trim(log.end, keep=0)
    assert len(list(tmp_path.glob("*.arrows"))) == 1
    assert log.append(batch(["t0"]), ["t0"])[0] == 0
    log.close()
    log = Log(tmp_path, SCHEMA, segment_bytes=6000)
    assert log.trajectories == 12
    assert log.append(batch(["t0"]), ["t0"])[0] == 0


def test_a_reader_waits_at_the_end_of_a_segment_without_spinning(tmp_path):
    log = filled(tmp_path, 1)
    _, place = log.read(log.start)
    with log._changed:
        log._rotate()
    assert not log.wait(place, 0.01)
    log.append(batch(["x"]), ["x"])
    log.sync()
    assert log.wait(place, 0.01)
    assert log.read(place)[0].column("trajectory")[0].as_py() == "x"


def test_ids_are_forgotten_only_beyond_the_limit():
    seen = Seen(100)
    for i in range(1000):
        seen.add(np.array([i], np.uint64))
    fresh = seen.fresh(np.arange(1000, dtype=np.uint64))
    assert not fresh[-100:].any()
    assert fresh[:700].all()


@pytest.mark.parametrize("file", ["00000000.arrows", "00000000.index"])
def test_a_log_that_was_cut_anywhere_opens_with_what_is_whole(tmp_path, file):
    filled(tmp_path / "whole", 4).close()
    size = (tmp_path / "whole" / file).stat().st_size
    for cut in set(np.random.default_rng(0).integers(0, size, 25).tolist()):
        place = tmp_path / str(cut)
        os.system(f"cp -r {tmp_path / 'whole'} {place}")
        os.truncate(place / file, cut)
        log = Log(place, SCHEMA)
        kept = ids_in(log)
        assert kept == [f"t{i}" for i in range(len(kept))]
        assert len(kept) < 4 or file.endswith("index")  # which is made again from the data
        log.append(batch(["more"]), ["more"])
        log.close()
        assert ids_in(Log(place, SCHEMA)) == [*kept, "more"]


def test_a_directory_has_one_writer_and_one_environment(tmp_path):
    log = filled(tmp_path, 1)
    with pytest.raises(UsageError, match="in use"):
        Log(tmp_path, SCHEMA)
    log.close()
    other = EnvSpec("meadow", ("sheep",), (Box((3,)),), (Discrete(4),), 20)
    with pytest.raises(UsageError, match="another environment"):
        Log(tmp_path, make_schema(other))


def test_many_threads_commit_together(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "fsync", lambda fd, real=os.fsync: (calls.append(fd), real(fd)))
    log = Log(tmp_path, SCHEMA)

    def write(k):
        for i in range(10):
            name = f"{k}-{i}"
            _, ticket = log.append(batch([name]), [name])
            log.sync(ticket)
            assert log.committed.data > 0

    threads = [threading.Thread(target=write, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids_in(log)) == sorted(f"{k}-{i}" for k in range(6) for i in range(10))
    assert len(calls) < 2 * 60


def test_a_full_disk_leaves_the_log_whole(tmp_path, monkeypatch):
    log, real = filled(tmp_path, 2), os.pwrite

    def half(fd, data, at):
        real(fd, data[: len(data) // 2], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    for truncate in (os.ftruncate, fail):  # what was written may even stay: the next message takes its place
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", half)
            patched.setattr(os, "ftruncate", truncate)
            with pytest.raises(OSError, match="No space"):
                log.append(batch(["lost"], steps=9), ["lost"])
        log.append(batch([f"kept {truncate is fail}"]), [f"kept {truncate is fail}"])
    log.close()
    log = Log(tmp_path, SCHEMA)
    assert ids_in(log) == ["t0", "t1", "kept False", "kept True"]


def test_a_segment_that_cannot_begin_leaves_the_log_as_it_was(tmp_path, monkeypatch):
    log, real = filled(tmp_path, 3, segment_bytes=6000), os.fsync
    log.append(batch(["last"]), ["last"])
    place, files = log.end, sorted(tmp_path.iterdir())
    for failing in range(1, 6):  # the old files, the new ones, the directory
        calls = []

        def fsync(fd, failing=failing, calls=calls):
            calls.append(fd)
            if len(calls) == failing:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(fd)

        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="No space"):
            log.append(batch(["x"], steps=20), ["x"])
        assert log.end == place
        assert sorted(tmp_path.iterdir()) == files
    monkeypatch.setattr(os, "fsync", real)
    assert log.append(batch(["x"], steps=20), ["x"])[0] == 1
    assert log.end.segment == place.segment + 1
    log.close()
    assert ids_in(Log(tmp_path, SCHEMA)) == ["t0", "t1", "t2", "last", "x"]


def test_what_the_disk_did_not_confirm_is_written_again(tmp_path, monkeypatch):
    log, real, written = filled(tmp_path, 1), os.pwrite, []
    log.append(batch(["a"]), ["a"])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda fd: os.close(-1))
        with pytest.raises(OSError, match="Bad file"):
            log.sync()
    assert ids_in(log) == ["t0"]
    begin, end = log.committed, log.end
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: written.append((at, len(data))) or real(fd, data, at))
    log.sync()
    assert written == [(begin.data, end.data - begin.data), (begin.records, end.records - begin.records)]
    assert ids_in(log) == ["t0", "a"]


LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from relay_kit import SPEC, batch, ids_in
from flockrl.data.schema import make_schema
from flockrl.relay.log import Log
log = Log(sys.argv[2], make_schema(SPEC), segment_bytes=20_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, resource.RLIM_INFINITY))
kept, failed = [], 0
for i in range(30):
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000 if failed > 3 else 12_000, resource.RLIM_INFINITY))
    try:
        log.append(batch([f"t{i}"]), [f"t{i}"])
        kept.append(f"t{i}")
    except OSError:
        failed += 1
log.close()
assert 3 < failed < 10, failed
assert ids_in(Log(sys.argv[2], make_schema(SPEC))) == kept
"""


def test_files_that_may_not_grow_fail_one_message_at_a_time(tmp_path):
    words = [sys.executable, "-c", LIMITED, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
