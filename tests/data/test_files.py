"""Trajectory files: three formats, one content; read piece by piece; damage and foreign files."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made import REAL, SPREAD, UNLIKE, make_experience, same
from relayrl_made import relayrl_arrow, relayrl_csv

from flockrl.commands.main import main
from flockrl.core.errors import UsageError
from flockrl.data import files, pages, reading
from flockrl.data.experience import join
from flockrl.data.files import Files, Writer
from flockrl.data.schema import BadData, encode, make_schema


def _write(path, spec, *parts, **about):
    with Writer(path, spec, about) as writer:
        for part in parts:
            writer.add(part)
    return path


@pytest.mark.parametrize("suffix", files.SUFFIXES)
@pytest.mark.parametrize("spec", [UNLIKE, REAL], ids=lambda spec: spec.name)
def test_every_format_keeps_everything(tmp_path, suffix, spec, monkeypatch):
    monkeypatch.setattr(reading, "ROWS", 16)  # trajectories reach over several batches
    parts = [make_experience(spec, [4, 1, 9], seed=i) for i in range(3)]
    found = Files([_write(tmp_path / f"x{suffix}", spec, *parts, algorithm="ippo")])
    assert found.spec == spec
    assert found.about["algorithm"] == "ippo"
    pieces = list(found)
    assert len(pieces) > 1
    assert same(join(parts), join(pieces)) == ""


def test_a_stream_that_is_still_written_is_read(tmp_path):
    parts, path = [make_experience(SPREAD, [4, 1], seed=i) for i in range(3)], tmp_path / "0.arrows"
    with path.open("wb") as file:  # without the end marker
        file.write(make_schema(SPREAD).serialize())
        for part in parts:
            file.write(encode(part, SPREAD).serialize())
    assert same(join(parts), join(list(Files([tmp_path])))) == ""


@pytest.mark.parametrize("codec", ["lz4", "snappy", "gzip", "brotli", "none"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_parquet_files_of_others_are_read(tmp_path, codec, version):
    data = make_experience(UNLIKE, [4, 1, 9])
    table = pa.Table.from_batches([encode(data, UNLIKE, make_schema(UNLIKE))])
    pq.write_table(table, tmp_path / "x.parquet", compression=codec, data_page_version=version, row_group_size=20)
    assert same(data, join(list(Files([tmp_path / "x.parquet"])))) == ""


def test_what_is_read_of_a_parquet_footer_is_what_arrow_reads(tmp_path):
    path = _write(tmp_path / "x.parquet", UNLIKE, *(make_experience(UNLIKE, [4, 1, 9], seed=i) for i in range(3)))
    metadata = pq.ParquetFile(path).metadata
    with path.open("rb") as file:
        groups = list(pages.row_groups(file))
    assert len(groups) == metadata.num_row_groups == 3
    for i, (rows, columns) in enumerate(groups):
        group = metadata.row_group(i)
        theirs = [group.column(j) for j in range(group.num_columns)]
        assert rows == group.num_rows
        assert [column.size for column in columns] == [column.total_compressed_size for column in theirs]
        assert [column.start for column in columns] == [
            column.dictionary_page_offset or column.data_page_offset for column in theirs
        ]


def test_arrow_files_may_leave_room_before_their_stream(tmp_path):
    """As those that Rust's Arrow writes."""
    path = relayrl_arrow(tmp_path / "relay.arrow")
    content = path.read_bytes()
    path.write_bytes(content[:8] + bytes(56) + content[8:])
    assert sum(piece.steps for piece in Files([path])) == 5


def test_a_file_appears_when_it_is_complete_and_replaces_nothing(tmp_path):
    path = tmp_path / "x.arrow"
    with pytest.raises(ZeroDivisionError), Writer(path, SPREAD) as writer:
        writer.add(make_experience(SPREAD, [4 // writer.rows]))
    assert list(tmp_path.iterdir()) == []
    _write(path, SPREAD, make_experience(SPREAD, [4]))
    with pytest.raises(UsageError, match="exists already"):
        Writer(path, SPREAD)
    with pytest.raises(UsageError, match="ends in"):
        Writer(tmp_path / "x.txt", SPREAD)


def test_several_files_are_one_stream_if_they_agree(tmp_path):
    for i in range(2):
        _write(tmp_path / f"{i}.arrow", SPREAD, make_experience(SPREAD, [4, 3], seed=i))
    assert sum(data.trajectories for data in Files([tmp_path])) == 4
    assert len(Files([f"{tmp_path}/*.arrow"]).paths) == 2
    _write(tmp_path / "z.csv", REAL, make_experience(REAL, [4]))
    with pytest.raises(UsageError, match="other agents"):
        Files([tmp_path])
    with pytest.raises(UsageError, match="no trajectory file"):
        Files([tmp_path / "missing.arrow"])


@pytest.mark.parametrize("suffix", files.SUFFIXES)
def test_damage_is_said_in_a_sentence(tmp_path, suffix):
    path = _write(tmp_path / f"x{suffix}", SPREAD, make_experience(SPREAD, [9] * 9))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(BadData):
        list(Files([path]))
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(BadData):
        Files([path])


def test_relayrl_arrow_files_are_read(tmp_path):
    path = relayrl_arrow(tmp_path / "relay.arrow")
    found = Files([path])
    assert found.spec.actions[0].n == 3
    whole = join(list(found))
    assert whole.length.tolist() == [3, 2]
    assert whole.action[:, 0].tolist() == [0, 1, 2, 0, 1]
    assert whole.obs[2, 0].tolist() == [2.0, -2.0]
    assert whole.terminated[:, 0].tolist() == [False, False, True, False, False]
    assert whole.blind.tolist() == [False] * 4 + [True]
    assert main(["data", "convert", str(path), "--out", str(tmp_path / "ours.csv")]) == 0
    assert same(whole, join(list(Files([tmp_path / "ours.csv"])))) == ""


def test_relayrl_csv_files_are_read(tmp_path):
    data = join(list(Files([relayrl_csv(tmp_path / "relay.csv")])))
    assert data.action[0, 0].tolist() == [0.25, -0.5]
    assert data.logp[:, 0].tolist() == [-0.5] * 4
    assert data.reward[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert data.terminated[-1, 0]


def test_the_commands(tmp_path, capsys):
    path = _write(tmp_path / "x.arrow", SPREAD, make_experience(SPREAD, [4, 3, 5], rich=False), env="made/spread")
    assert main(["data", "info", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["trajectories"], facts["steps"], facts["terminated"], facts["unfinished"]) == (3, 12, 1, 1)
    assert main(["data", "info", str(path)]) == 0
    assert "agent steps       36" in capsys.readouterr().out
    assert main(["data", "validate", str(path)]) == 0
    twice = _write(tmp_path / "y.arrow", SPREAD, *(make_experience(SPREAD, [4], seed=i) for i in (0, 1, 0)))
    assert main(["data", "validate", str(path), str(twice)]) == 2
    assert "1 trajectories come twice" in capsys.readouterr().out
    for wrong in (["data", "inof"], ["data", "info"], ["data", "convert", str(path), "--out", str(path)]):
        assert main(wrong) == 2
        assert "flockrl: " in capsys.readouterr().err
