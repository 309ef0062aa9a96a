"""A disk that fails here and there: whatever was not touched is still read, exactly once, and the rest is told."""

import shutil

import numpy as np
import pytest
from harm_kit import NAMES, SCHEMA, extents, flip, make_log, survivors
from relay_kit import SPEC, batch

from flockrl.core.errors import UsageError
from flockrl.core.spec import EnvSpec
from flockrl.data.schema import make_schema
from flockrl.relay.log import Log
from flockrl.relay.segment import HEAD_SIZE


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A log of one segment with 100 messages."""
    path = tmp_path_factory.mktemp("whole") / "log"
    make_log(path, 100)
    return path


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "log")


def test_one_flipped_bit_costs_one_message(copy, caplog):
    start, _ = extents(copy)[10]
    flip(copy / "00000000.arrows", start + 300)
    log = Log(copy, SCHEMA)
    assert "is damaged" in caplog.text
    assert survivors(log) == (NAMES[:10] + NAMES[11:], 1)
    assert log.damaged == {"messages": 1, "bytes": extents(copy)[10][1] - start, "indexes": 0}
    assert len(list((copy / "damaged").iterdir())) == 1
    assert log.append(batch(["t10"]), ["t10"])[0] == 1  # what was lost may be sent again
    assert log.append(batch(["t11"]), ["t11"])[0] == 0
    log.close()
    assert survivors(Log(copy, SCHEMA))[0] == [*NAMES[:10], *NAMES[11:], "t10"]


def test_a_damaged_length_hides_no_message(copy):
    """Without an index, messages are found again at their marks."""
    places = extents(copy)
    flip(copy / "00000000.arrows", places[5][0] + 6, places[50][0] + 4, places[99][0] + 1)
    (copy / "00000000.index").unlink()
    log = Log(copy, SCHEMA)
    lost = {"t5", "t50", "t99"}
    end = log.end
    assert survivors(log) == ([name for name in NAMES if name not in lost], 3)
    assert (end.segment, end.data) == (0, places[99][1])  # a trainer may have learned from the last one
    assert log.damaged["messages"] == 3
    assert log.damaged["indexes"] == 1


def test_who_has_read_everything_has_it_read_after_a_repair(copy):
    log = Log(copy, SCHEMA)
    place = log.end
    log.close()
    places = extents(copy)
    flip(copy / "00000000.arrows", places[5][0] + 6, places[6][0] + 6)  # both become one stretch
    (copy / "00000000.index").unlink()
    log = Log(copy, SCHEMA)
    assert log.end.records < place.records
    assert log.end[:2] == place[:2]
    assert log.read(place) is None
    assert not log.wait(place, 0.01)
    log.append(batch(["more"]), ["more"])
    log.sync()
    assert log.read(place)[0].column("trajectory")[0].as_py() == "more"


@pytest.mark.parametrize("harm", ["records", "head", "missing", "empty", "noise", "last"])
def test_an_index_is_made_again_from_the_data(copy, harm, caplog):
    file = copy / "00000000.index"
    before = file.read_bytes()
    if harm == "missing":
        file.unlink()
    elif harm == "empty":
        file.write_bytes(b"")
    elif harm == "noise":
        file.write_bytes(np.random.default_rng(0).bytes(5000))
    else:
        flip(file, *{"records": (HEAD_SIZE + 13, 700, 701, 1500), "head": (6,), "last": (len(before) - 20,)}[harm])
    log = Log(copy, SCHEMA)
    assert survivors(log) == (NAMES, 0)
    assert log.damaged == {"messages": 0, "bytes": 0, "indexes": 1}
    assert "made again" in caplog.text
    assert file.read_bytes() == before
    assert log.append(batch(["t3"]), ["t3"])[0] == 0
    assert log.trajectories == 150
    log.close()
    caplog.clear()
    assert survivors(Log(copy, SCHEMA)) == (NAMES, 0)
    assert not caplog.text


def test_a_damaged_record_does_not_hide_that_a_message_is_damaged(copy):
    stop = extents(copy)[20][1]
    flip(copy / "00000000.arrows", stop - 30)  # a number in a column, which any reader would believe
    flip(copy / "00000000.index", HEAD_SIZE + sum(24 + 8 * (1 + i % 2) for i in range(19)) + 3)
    log = Log(copy, SCHEMA)
    assert survivors(log) == (NAMES[:20] + NAMES[21:], 1)


def test_damage_of_older_segments_neither_refuses_the_start_nor_hides_others(tmp_path, caplog):
    make_log(tmp_path, 40, segment_bytes=12_000)
    assert len(list(tmp_path.glob("*.arrows"))) > 6
    (tmp_path / "00000001.index").unlink()
    flip(tmp_path / "00000002.index", HEAD_SIZE + 3, 4)
    flip(tmp_path / "00000003.arrows", extents(tmp_path, 3)[1][0] + 200)
    log = Log(tmp_path, SCHEMA)
    assert log.damaged["indexes"] == 2
    assert log.trajectories == 60
    found, lost = survivors(log)
    assert (len(found), lost) == (39, 1)
    assert log.damaged["messages"] == 1  # found when it was read
    log.trim(log.end)
    log.close()
    flip(tmp_path / "00000000.index", HEAD_SIZE + 3)  # whose data is gone: only its other ids are known
    log = Log(tmp_path, SCHEMA)
    assert log.append(batch(["t0"]), ["t0"])[0] == 1
    assert log.append(batch(["t1"]), ["t1"])[0] == 0


def test_a_schema_is_repaired_and_another_one_is_not(copy, caplog):
    import pyarrow as pa

    place = (copy / "00000000.arrows").read_bytes().index(b"meadow")
    flip(copy / "00000000.arrows", place)
    log = Log(copy, SCHEMA)
    assert survivors(log) == (NAMES, 0)
    log.close()
    assert pa.ipc.open_stream(copy / "00000000.arrows").schema.equals(SCHEMA, check_metadata=True)
    other = EnvSpec("neadow", SPEC.agents, SPEC.observations, SPEC.actions, SPEC.max_steps)
    (copy / "00000000.index").unlink()
    with pytest.raises(UsageError, match="another environment"):
        Log(copy, make_schema(other))
    assert survivors(Log(copy, SCHEMA)) == (NAMES, 0)


def test_an_index_that_is_damaged_while_the_log_is_read_is_made_again(tmp_path):
    make_log(tmp_path, 10)
    log = Log(tmp_path, SCHEMA)
    _, place = log.read(log.start)
    flip(tmp_path / "00000000.index", HEAD_SIZE + 40, HEAD_SIZE + 90)
    found = []
    while (entry := log.read(place)) is not None:
        rows, place = entry
        found.append(rows.column("trajectory")[0].as_py())
        log.append(batch([f"more {len(found)}"]), [f"more {len(found)}"]) if len(found) < 3 else log.sync()
    assert found == [f"t{i}" for i in range(1, 10)] + ["more 1", "more 2"]
    log.close()


def test_a_position_leads_to_the_nearest_message_before_it(copy):
    log, places = Log(copy, SCHEMA), extents(copy)
    place = log.start
    for _ in range(7):
        _, place = log.read(place)
    assert log.place(place) == place
    assert log.place(place._replace(records=3)) == place
    assert log.place(place._replace(data=places[7][1] - 1)) == place
    assert log.place(log.end) == log.end
    for wrong in (place._replace(segment=10**30), place._replace(segment=-1), place._replace(data=10**30)):
        assert log.place(wrong) == log.start
    assert log.read(place._replace(records=3))[0].column("trajectory")[0].as_py() == "t7"
    log.close()


def test_files_that_are_not_ours_do_no_harm(copy):
    (copy / "notes.index").write_text("mine")
    (copy / "\u00b2.arrows").write_text("mine")
    assert survivors(Log(copy, SCHEMA))[0] == NAMES


def test_copies_of_damage_are_bounded(copy, monkeypatch):
    monkeypatch.setattr("flockrl.relay.recovery.ASIDE", 5000)
    flip(copy / "00000000.arrows", *(start + 200 for start, _ in extents(copy)))
    log = Log(copy, SCHEMA)
    assert survivors(log) == ([], 100)
    assert 0 < sum(file.stat().st_size for file in (copy / "damaged").iterdir()) <= 5000
