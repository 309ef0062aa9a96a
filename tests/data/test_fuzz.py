"""Files with bytes changed, cut or repeated: read, or refused with a sentence, in bounded time and memory."""

import resource
import struct
import time

import numpy as np
import pytest
from made import MIXED, SPREAD, UNLIKE, make_experience
from relayrl_made import relayrl_arrow, relayrl_csv

from flockrl.core.errors import UsageError
from flockrl.data.files import Files, Writer
from flockrl.data.schema import encode, make_schema

INTEGERS = (-1, 0, 1, 2**31 - 1, -(2**31), 2**30, 2**16)
LONGS = (-1, 2**63 - 1, -(2**63), 2**40, 2**33)
FLOATS = (np.nan, np.inf, -np.inf, 3e38, 1e-45)
WORDS = (
    b"[",
    b"]",
    b'"',
    b",",
    b"\n",
    b"\0",
    b"\xff",
    b"1e999",
    b"-5",
    b"null",
    b"{}",
    b"true",
    b"9" * 400,
    b"[" * 2000,
)


def _ours(suffix, spec):
    def make(folder):
        with Writer(folder / f"good{suffix}", spec) as writer:
            for seed in range(2):
                writer.add(make_experience(spec, [4, 1, 3], seed=seed))
        return folder / f"good{suffix}"

    return make


def _stream(folder):
    with (folder / "good.arrows").open("wb") as file:
        file.write(make_schema(SPREAD).serialize())
        for seed in range(2):
            file.write(encode(make_experience(SPREAD, [4, 1], seed=seed), SPREAD).serialize())
    return folder / "good.arrows"


GOOD = {
    "arrow": _ours(".arrow", UNLIKE),
    "parquet": _ours(".parquet", MIXED),
    "csv": _ours(".csv", UNLIKE),
    "stream": _stream,
    "relayrl arrow": lambda folder: relayrl_arrow(folder / "good.arrow"),
    "relayrl csv": lambda folder: relayrl_csv(folder / "good.csv"),
}


def mutate(data, rng, text):
    """The bytes with one to four changes."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        at, kind = int(rng.integers(len(data) + 1)), int(rng.integers(8))
        length = int(rng.integers(1, 64))
        if kind == 0 and at < len(data):
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[at : at + 4] = rng.bytes(4)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length]
        elif kind == 4 and rng.random() < 0.2:
            del data[at:]
        elif text:
            data[at : at + int(rng.integers(2))] = WORDS[rng.integers(len(WORDS))]
        elif kind == 5:
            data[at - at % 4 : at - at % 4 + 4] = struct.pack("<i", INTEGERS[rng.integers(len(INTEGERS))])
        elif kind == 6:
            data[at - at % 4 : at - at % 4 + 4] = struct.pack("<f", FLOATS[rng.integers(len(FLOATS))])
        else:
            data[at - at % 8 : at - at % 8 + 8] = struct.pack("<q", LONGS[rng.integers(len(LONGS))])
    return bytes(data)


def outcome(path):
    """Why a file is refused, or nothing."""
    try:
        for piece in Files([path], 64 << 20):
            assert np.isfinite(piece.obs).all()
            assert np.isfinite(piece.reward).all()
            assert piece.length.sum() == piece.steps > 0
    except UsageError as error:
        return str(error)
    return ""


def fuzz(folder, name, count):
    """Read `count` mutations of a good file. Returns how many were refused."""
    good = GOOD[name](folder)
    data, path = good.read_bytes(), folder / f"bad{good.suffix}"
    assert sum(piece.steps for piece in Files([good]))
    before, refused = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for seed in range(count):
        rng = np.random.default_rng([seed, *name.encode()])
        path.write_bytes(mutate(data, rng, good.suffix == ".csv"))
        began = time.process_time()  # another program may hold the processor
        reason = outcome(path)
        assert "\n" not in reason, seed
        assert len(reason) < 1000, seed
        refused += bool(reason)
        assert time.process_time() - began < 2, seed
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10, seed
    return refused


@pytest.mark.parametrize("name", GOOD)
def test_mutated_files_do_no_harm(tmp_path, name):
    assert fuzz(tmp_path, name, 150) > 30


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_thousands_of_mutated_files_do_no_harm(tmp_path, name):
    print(name, fuzz(tmp_path, name, 5000))
