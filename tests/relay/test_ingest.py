"""What comes in is refused with a reason, or is experience that keeps every promise."""

import json
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from relay_kit import SPEC, batch, episodes, ids_in, message

from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.data.experience import Experience
from flockrl.data.frames import BATCH, SCHEMA, frames
from flockrl.data.schema import BadData, decode, encode, make_schema
from flockrl.relay.ingest import Limits, admit
from flockrl.relay.server import Relay
from flockrl.relay.wire import pack, unpack


def changed(name, values, names=("a", "b")):
    """A message with another column."""
    rows = batch(names)
    place = rows.schema.get_field_index(name)
    return pack(rows.set_column(place, rows.schema.field(name), pa.array(values, rows.schema.field(name).type)))


def compressed(rows, codec="zstd"):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(rows)
    return sink.getvalue()


def frames_of(data):
    return list(frames(pa.BufferReader(data), len(memoryview(data)), 1 << 20))


def refused(data, limits=None):
    with pytest.raises(BadData) as caught:
        admit(data, SPEC, limits or Limits())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_good_message_is_admitted_as_it_is():
    rows, experience = admit(message(["a", "b"]), SPEC, Limits())
    assert rows.equals(batch(["a", "b"]))
    assert experience.id.tolist() == ["a", "b"]


def test_frames_are_those_that_arrow_wrote():
    data = message(["a"])
    found = frames_of(data)
    assert [frame.kind for frame in found] == [SCHEMA, BATCH]
    assert pa.ipc.read_record_batch(found[1].data, make_schema(SPEC)).num_rows == found[1].rows == 6
    packed = frames_of(compressed(batch(["a"])))
    assert [frame.compressed for frame in packed] == [False, True]
    # What a frame says before it is unpacked is what it has afterwards, but for the padding of its buffers.
    assert found[1].unpacked() - 8 * len(found[1].buffers) < packed[1].unpacked() <= found[1].unpacked()


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compression_is_refused_before_arrow_unpacks_it(codec):
    assert "Compressed" in refused(compressed(batch(["a"]), codec))


def _entry(data, table, field):
    """Where the vtable of a flatbuffer's table says where its field is."""
    return table - struct.unpack_from("<i", data, table)[0] + 4 + 2 * field


def _batch_table(data):
    """The tables `Message` and `RecordBatch` of a message's second frame."""
    at = 8 + struct.unpack_from("<i", data, 4)[0] + 8
    message = at + struct.unpack_from("<I", data, at)[0]
    header = message + struct.unpack_from("<H", data, _entry(data, message, 2))[0]
    return message, header + struct.unpack_from("<I", data, header)[0]


def _secretly_compressed(rows, version, codec="zstd"):
    """A message as Arrow 0.17 wrote it: compressed, which only the batch's own metadata say."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(metadata_version=version, compression=codec)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_batch(rows, custom_metadata={"ARROW:experimental_compression": codec})
    data = bytearray(sink.getvalue().to_pybytes())
    struct.pack_into("<H", data, _entry(data, _batch_table(data)[1], 3), 0)
    return bytes(data)


def test_compression_that_only_metadata_mention_is_refused():
    old = _secretly_compressed(batch(["a"]), pa.ipc.MetadataVersion.V4)
    with pa.ipc.open_stream(old) as reader:
        assert reader.read_next_batch().equals(batch(["a"]))  # Arrow unpacks it
    assert "another version" in refused(old)
    assert "metadata of its own" in refused(_secretly_compressed(batch(["a"]), pa.ipc.MetadataVersion.V5))


def test_what_a_frame_claims_is_counted_before_arrow_reads_it():
    good = message(["a"])
    table = _batch_table(good)[1]
    rows = table + struct.unpack_from("<H", good, _entry(good, table, 0))[0]
    vectors = [table + struct.unpack_from("<H", good, _entry(good, table, field))[0] for field in (1, 2)]
    nodes, buffers = (at + struct.unpack_from("<I", good, at)[0] + 4 for at in vectors)
    offsets = buffers + 16  # of the first column: its validity has no bytes
    claims = {
        rows: "more rows", nodes: "more rows", nodes + 16: "more rows", offsets: "outside", offsets + 8: "outside",
    }  # fmt: skip
    for at, says in claims.items():
        for lie in (1 << 40, -8):
            data = bytearray(good)
            struct.pack_into("<q", data, at, lie)
            assert says in refused(bytes(data))
    data = bytearray(good)
    count = struct.unpack_from("<I", good, buffers - 4)[0]
    for i in range(count):  # all of them the whole body
        struct.pack_into("<qq", data, buffers + 16 * i, 0, frames_of(good)[1].data.size - frames_of(good)[1].body)
    assert "overlap" in refused(bytes(data))


def test_dictionaries_and_several_batches_are_refused():
    sink = pa.BufferOutputStream()
    table = pa.table({"x": pa.array(["a", "b"]).dictionary_encode()})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert "one schema and one record batch" in refused(sink.getvalue())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, make_schema(SPEC)) as writer:
        writer.write_batch(batch(["a"]))
        writer.write_batch(batch(["b"]))
    assert "one schema and one record batch" in refused(sink.getvalue())


def test_foreign_schemas_are_refused():
    foreign = pa.record_batch({"x": [1, 2]})
    assert "schema" in refused(pack(foreign))
    other = EnvSpec("meadow", ("sheep", "dog"), (Box((3,)), Box((2,))), (Discrete(4), Discrete(4)), 20)
    assert "as the sender knows it" in refused(pack(encode(episodes(["a"]), other)))
    stripped = pa.record_batch({"x": [1, 2]}).replace_schema_metadata(make_schema(SPEC).metadata)
    assert "columns" in refused(pack(stripped))
    assert "cannot be read" in refused(message(["a"]).replace(b"reward\x00", b"rew\xc0rd\x00"))
    claims = json.loads(make_schema(SPEC).metadata[b"flockrl"])
    claims["spec"]["agents"] = ["sheep"] * 3
    lying = batch(["a"]).replace_schema_metadata({b"flockrl": json.dumps(claims).encode()})
    assert refused(pack(lying))


def test_holes_in_a_trajectory_are_refused():
    rows = batch(["a"])  # three steps of two agents
    for without, says in ((slice(2, 4), "from step 0 to step 2"), (slice(3, 4), "no row in the next step")):
        keep = np.ones(len(rows), bool)
        keep[without] = False
        assert says in refused(pack(rows.filter(pa.array(keep))))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_numbers_that_poison_are_refused(value):
    rows = batch(["a", "b"])
    obs = rows.column("obs").to_pylist()
    obs[4][0] = value
    assert refused(changed("obs", obs))
    reward = rows.column("reward").to_pylist()
    reward[2] = value
    assert refused(changed("reward", reward))


def test_sizes_are_limited():
    assert "bytes" in refused(message(["a"]), Limits(message_bytes=1000))
    assert "memory" in refused(message(["a"]), Limits(decoded_bytes=200))
    assert "characters" in refused(message(["x" * 300]))
    assert "empty" in refused(message([""]))


def test_small_messages_that_grow_are_refused():
    """One row names 16 values of 256 numbers each; as arrays every row would have them."""
    long = [(f"n{i}", [1.0] * 256) for i in range(16)]
    rows = batch([str(i) for i in range(2000)], steps=1)
    place = rows.schema.get_field_index("aux")
    aux = pa.array([long] + [None] * (len(rows) - 1), rows.schema.field("aux").type)
    assert "memory" in refused(
        pack(rows.set_column(place, rows.schema.field("aux"), aux)), Limits(decoded_bytes=32 << 20)
    )


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 100, 1000, -9, -200])
def test_cut_messages_are_refused(cut):
    assert refused(message(["a"])[:cut])


def test_offsets_that_lie_are_refused():
    """A list that claims to reach beyond its values."""
    data = bytearray(message(["a"]))
    head, rows = frames_of(bytes(data))
    body = head.data.size + rows.body
    offsets = np.frombuffer(data, "<i4", (rows.data.size - rows.body) // 4, body)
    place = body + 4 * int(np.flatnonzero(offsets == 6)[0])
    data[place : place + 4] = struct.pack("<i", 2**30)
    assert refused(bytes(data))


@st.composite
def mutations(draw):
    """A good message with bytes changed, cut, repeated or exchanged."""
    data = bytearray(message(["a", "b", "c"], seed=draw(st.integers(0, 3)), steps=draw(st.integers(1, 4))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.integers(0, 6))
        if kind == 0 and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == 1:
            data[at : at + 4] = draw(st.binary(min_size=4, max_size=4))
        elif kind == 2:
            del data[at : at + draw(st.integers(1, 64))]
        elif kind == 3:
            data[at:at] = data[at : at + draw(st.integers(1, 64))]
        elif kind == 4:
            value = draw(st.sampled_from([-1, 0, 1, 2**31 - 1, -(2**31), 2**30]))
            data[at - at % 4 : at - at % 4 + 4] = struct.pack("<i", value)
        elif kind == 5:
            value = draw(st.sampled_from([np.nan, np.inf, -np.inf, 3e38, 1e-45]))
            data[at - at % 4 : at - at % 4 + 4] = struct.pack("<f", value)
        else:
            value = draw(st.sampled_from([-1, 2**63 - 1, -(2**63), 2**40]))
            data[at - at % 8 : at - at % 8 + 8] = struct.pack("<q", value)
    return bytes(data)


def same(a, b):
    for name in Experience._fields:
        x, y = getattr(a, name), getattr(b, name)
        if name == "aux":
            assert sorted(x) == sorted(y)
        elif x is None or y is None:
            assert x is y
        else:
            np.testing.assert_array_equal(x, y)


def no_garbage(relay, data):
    """Either a reason, or experience that keeps its promises and comes back from the log the same."""
    before = relay.log.end
    try:
        relay.put(data, "fuzz")
    except BadData:
        assert relay.log.end == before
        return False
    _, experience = admit(data, SPEC, Limits())
    for name in ("obs", "next_obs", "reward"):
        assert np.isfinite(getattr(experience, name)).all()
    assert (experience.length > 0).all()
    assert experience.length.sum() == experience.steps
    assert ((experience.action >= 0) & (experience.action < [4, 3])).all()
    assert not experience.obs[~experience.alive].any()
    assert experience.alive.any(1).all()
    same(decode(encode(experience, SPEC), SPEC), experience)
    return True


def fuzz(tmp_path, count):
    relay = Relay(tmp_path, SPEC, Limits(), remember=0)
    taken = {True: 0, False: 0}

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(mutations())
    def one(data):
        taken[no_garbage(relay, data)] += 1

    one()
    good = 0
    place = relay.log.start
    while (found := relay.log.read(place)) is not None:
        rows, place = found
        decode(rows, SPEC)
        good += 1
    assert good == taken[True]
    assert taken[False] > count // 4  # mutations do harm
    assert relay.status()["refused"]["messages"] == taken[False]
    relay.put(message(["after", "all"]))
    assert ids_in(relay.log)[-2:] == ["after", "all"]
    relay.close()
    return taken


def test_mutated_messages_do_no_harm(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda fd: None)
    fuzz(tmp_path, 300)


@pytest.mark.slow
def test_ten_thousand_mutated_messages_do_no_harm(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda fd: None)
    print(fuzz(tmp_path, 10_000))


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    with pytest.raises(BadData):
        unpack(data)
