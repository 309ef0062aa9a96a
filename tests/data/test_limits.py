"""Small files that would become large: refused with a sentence, before memory is taken."""

import json
import resource
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made import SPREAD, make_experience
from relayrl_made import relayrl_csv

from flockrl.commands.main import main
from flockrl.core.errors import UsageError
from flockrl.core.memory import parse_size
from flockrl.core.spec import EnvSpec, spec_from_json, spec_to_json, stem
from flockrl.data.files import Files, Writer
from flockrl.data.schema import BadData, encode, make_schema

MB = 1 << 20


def rows(count, **columns):
    """A batch of one-step trajectories of SPREAD with these columns in place of its own."""
    one = encode(make_experience(SPREAD, [1], rich=False), SPREAD).slice(0, 1)
    whole = one.take(pa.array(np.zeros(count, int)))
    for name, values in {"trajectory": [f"t{i}" for i in range(count)], **columns}.items():
        place = whole.schema.get_field_index(name)
        whole = whole.set_column(place, whole.schema.field(name), pa.array(values, whole.schema.field(name).type))
    return whole


def write_arrow(path, batch, codec="zstd"):
    with pa.ipc.new_file(str(path), batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as file:
        file.write_batch(batch)
    return path


def write_parquet(path, batch, **how):
    pq.write_table(pa.Table.from_batches([batch]), path, compression="zstd", **how)
    return path


def wide(width):
    """One row whose aux value has many zeros."""
    return rows(1, aux=[[("v", np.zeros(width, np.float32))]])


def said(path, memory="64MB"):
    """What is said about a file, and by how many MB the memory of a process that reads it grew."""
    code = (
        "import resource, sys; from flockrl.data import files; from flockrl.core.memory import parse_size\n"
        "from flockrl.core.errors import UsageError\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = peak()\n"
        "try:\n    list(files.Files([sys.argv[1]], parse_size(sys.argv[2]))); text = 'read'\n"
        "except UsageError as error:\n    text = str(error)\n"
        "print(peak() - before); print(text)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path), memory], capture_output=True, text=True, check=True)
    grown, text = done.stdout.strip().split("\n")
    return text, int(grown)


BOMBS = {
    "arrow, zstd": lambda p: write_arrow(p / "x.arrow", wide(50 * MB)),
    "arrow, lz4": lambda p: write_arrow(p / "x.arrow", wide(50 * MB), "lz4"),
    "parquet, pages": lambda p: write_parquet(p / "x.parquet", wide(15 * MB), use_dictionary=False),
    "parquet, repeated numbers": lambda p: write_parquet(p / "x.parquet", wide(15 * MB)),
    "parquet, repeated text": lambda p: write_parquet(p / "x.parquet", rows(4000, env=["e" * 100_000] * 4000)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_small_files_that_become_large_are_refused(tmp_path, name):
    path = BOMBS[name](tmp_path)
    assert path.stat().st_size < 2 * MB
    text, grown = said(path)
    assert "raise --memory-limit" in text
    assert grown < 100


def test_a_footer_that_lies_does_not_help(tmp_path):
    """The sizes in the footer are halved until they look harmless; the pages' own headers count."""
    path = write_parquet(tmp_path / "x.parquet", wide(20 * MB), use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(0).column(19)
    assert column.total_uncompressed_size > 60 * MB
    data = path.read_bytes()

    def varint(n):
        n, out = n << 1, b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])

    true = varint(column.total_uncompressed_size)
    false = true[:-1] + b"\x00"  # the same length, without the highest bits
    at = data.rindex(true)
    path.write_bytes(data[:at] + false + data[at + len(true) :])
    with pytest.raises(BadData, match="raise --memory-limit"):
        list(Files([path], 64 * MB))


def test_damaged_statistics_do_not_end_the_process(tmp_path):
    """pyarrow aborts where it is asked about a column with a histogram of the wrong length."""
    path = write_parquet(tmp_path / "x.parquet", rows(3))
    data = bytearray(path.read_bytes())
    at = data.index(b"\x29\x26", len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    data[at + 1] = 0x16  # a list of one number instead of two, the first of which goes on in the second
    data[at + 2] |= 0x80
    path.write_bytes(data)
    assert "histogram" in said(path)[0]


def test_long_trajectories_and_many_agents_are_counted(tmp_path):
    with Writer(tmp_path / "x.arrow", SPREAD) as writer:
        writer.add(make_experience(SPREAD, [60_000], rich=False))
    with pytest.raises(BadData, match=r"The trajectory 't-0-0' needs .* raise --memory-limit"):
        list(Files([tmp_path / "x.arrow"], 64 * MB))
    assert sum(data.steps for data in Files([tmp_path / "x.arrow"])) == 60_000
    crowd = EnvSpec("crowd", tuple(f"a{i}" for i in range(5000)), SPREAD.observations[:1] * 5000,
                    SPREAD.actions[:1] * 5000, max_steps=9)  # fmt: skip
    few = rows(200, agent=["a0"] * 200).replace_schema_metadata(make_schema(crowd).metadata)
    text, grown = said(write_arrow(tmp_path / "crowd.arrow", few), "16MB")
    assert text == "read"  # 200 trajectories of one step, one after the other
    assert grown < 100
    one = rows(200, agent=["a0"] * 200, trajectory=["t"] * 200, step=range(200))
    write_arrow(tmp_path / "one.arrow", one.replace_schema_metadata(make_schema(crowd).metadata))
    with pytest.raises(BadData, match=r"needs 1\d\d MB"):
        list(Files([tmp_path / "one.arrow"], 16 * MB))


@pytest.mark.parametrize("cell", ["1000000000", "[[[[1]]]]", "[1e400]", '"text"', "{}", "[" * 100_000, "[1, 999]"])
def test_foreign_cells_take_no_memory(tmp_path, cell):
    """A number where a list of bytes should be was once taken for a number of bytes."""
    path = relayrl_csv(tmp_path / "x.csv", act_binary=cell, act_f32="", act_dtype="U8")
    text, grown = said(path)
    assert "line 2 cannot be used" in text
    assert grown < 50


def test_foreign_actions_beyond_all_measure_are_refused(tmp_path):
    path = relayrl_csv(tmp_path / "x.csv", 1, act_f32="[1000000000]", act_dtype="I64")
    with pytest.raises(BadData, match="the action 1000000000, and at most 65536"):
        Files([path])


def test_lines_without_end_are_refused(tmp_path):
    with Writer(tmp_path / "x.csv", SPREAD) as writer:
        writer.add(make_experience(SPREAD, [3]))
    with (tmp_path / "x.csv").open("a") as file:
        file.write("x" * (64 * MB))
    text, grown = said(tmp_path / "x.csv")
    assert "line 12: a line has more than" in text
    assert grown < 64
    (tmp_path / "y.csv").write_text("#flockrl " + "x" * (40 * MB))
    text, grown = said(tmp_path / "y.csv")
    assert "more than 16777216 bytes" in text
    assert grown < 150


def test_agents_names_take_linear_time():
    assert [stem(name) for name in ("adversary_2", "a 10", "a2", "agent", "7", "_7", "a_2_", "a__3")] == [
        "adversary", "a", "a", "agent", "", "", "a_2_", "a_",
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    stem("1" * 1_000_000 + "x")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 0.5


LARGE = {
    "name": ({"agents": ["a" * 300, "b", "c"]}, "more than 200 characters"),
    "crowd": ({"agents": ["a"] * 10_001}, "10001 entries, and at most 10000"),
    "twice": ({"agents": ["a", "b", "a"]}, "an agent twice"),
    "axes": ({"observations": [{"kind": "box", "shape": [1] * 9, "dtype": "float32"}] * 3}, "at most 8"),
    "box": ({"observations": [{"kind": "box", "shape": [4096] * 3, "dtype": "float32"}] * 3}, "up to 16777216"),
    "options": ({"actions": [{"kind": "discrete", "n": 2**30}] * 3}, "up to 16777216"),
    "choices": ({"actions": [{"kind": "multidiscrete", "choices": [2**23] * 3}] * 3}, "up to 16777216"),
    "state": ({"state_size": 2**30}, "up to 16777216"),
}


@pytest.mark.parametrize("name", LARGE)
def test_specs_that_are_too_large_are_refused(tmp_path, name):
    change, says = LARGE[name]
    saved = {**spec_to_json(SPREAD), **change}
    with pytest.raises(UsageError, match=says):
        spec_from_json(saved)
    metadata = {b"flockrl": json.dumps({"format": 1, "spec": saved}).encode()}
    path = write_arrow(tmp_path / "x.arrow", rows(1).replace_schema_metadata(metadata))
    with pytest.raises(BadData, match=says):
        Files([path])


def test_deep_metadata_are_refused(tmp_path):
    deep = b'{"format": 1, "spec": ' + b"[" * 100_000
    path = write_arrow(tmp_path / "x.arrow", rows(1).replace_schema_metadata({b"flockrl": deep}))
    with pytest.raises(BadData, match="metadata"):
        Files([path])


@pytest.mark.parametrize(
    ("text", "size"), [("512MB", 512 * MB), ("1.5 gb", 1536 * MB), ("1GiB", 1024 * MB), ("2097152", 2 * MB)]
)
def test_sizes_of_memory(text, size):
    assert parse_size(text) == size
    for wrong in ("lots", "-1GB", "12", "1PB", "9" * 30):
        with pytest.raises(UsageError, match="memory"):
            parse_size(wrong)


def test_the_limit_is_a_flag(tmp_path, capsys):
    path = tmp_path / "x.arrow"
    with Writer(path, SPREAD) as writer:
        writer.add(make_experience(SPREAD, [20_000], rich=False))
    out = tmp_path / "y.arrow"
    for command in (["info", str(path)], ["validate", str(path)], ["convert", str(path), "--out", str(out)]):
        assert main(["data", *command, "--memory-limit", "8MB"]) == 2
        captured = capsys.readouterr()
        assert "raise --memory-limit" in captured.out + captured.err
        assert not out.exists()
    assert main(["data", "validate", str(path), "--memory-limit", "1GB"]) == 0
    assert main(["train", "bc", f"data/{path}", "--memory-limit", "8MB", "--out", str(tmp_path / "run")]) == 2
    assert "raise --memory-limit" in capsys.readouterr().err
    assert main(["train", "bc", "mpe/simple_spread", "--memory-limit", "8MB"]) == 2
    assert "not for environments" in capsys.readouterr().err


def test_an_old_form_of_compression_is_refused_in_files(tmp_path):
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    batch = rows(3)
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), batch.schema, options=options) as file:
        file.write_batch(batch)
    with pytest.raises(BadData, match="version"):
        Files([tmp_path / "x.arrow"])
