"""Harm to files: bits flip, files end early, are gone, or hold something else. And logs that can be harmed."""

import copy
import json
import os

from relay_kit import SPEC, batch, ids, messages_in

from flockrl.data.schema import make_schema
from flockrl.relay.log import Log
from flockrl.relay.segment import entries

SCHEMA = make_schema(SPEC)
NAMES = [f"t{i}" for i in range(100)]
"""Names of the first trajectories of a log's messages."""
ODD = (None, True, -1, 2**31, 10**30, 1e308, "", "x", "../x", [], {}, [[]], ["batch", 2**30, 2**30], {"kind": "box"})
"""Values that JSON may have where others are expected."""


def make_log(path, count, **settings):
    """A log of `count` messages with one or two trajectories each."""
    log = Log(path, SCHEMA, **settings)
    for i in range(count):
        names = [f"t{i}", f"u{i}"][: 1 + i % 2]
        log.append(batch(names, steps=2 + i % 5, seed=i), names)
    log.close()


def survivors(log):
    """Ids in a log in order, one for each message, and the number of damaged messages."""
    messages = list(messages_in(log))
    whole = [ids(rows)[0] for rows in messages if rows is not None]
    return whole, len(messages) - len(whole)


def flip(file, *places):
    data = bytearray(file.read_bytes())
    for place in places:
        data[place] ^= 16
    file.write_bytes(data)


def extents(path, number=0):
    """Where each message of a segment begins and ends in its data."""
    index = (path / f"{number:08d}.index").read_bytes()
    start = int.from_bytes(index[4:8], "little")
    stops = [entry.stop for _, entry in entries(index)]
    return list(zip([start, *stops[:-1]], stops, strict=True))


def harm_file(file, rng):
    """Do something to a file. Returns the stretches [start, stop) of it that are no longer what they were."""
    size = file.stat().st_size
    kind = rng.choice(["flip", "flip", "cut", "delete", "noise", "ones", "zeros"])
    if kind == "delete" or not size:
        file.unlink()
        return [(0, size)]
    if kind == "flip":
        places = set(rng.integers(0, size, rng.integers(1, 4)).tolist())
        flip(file, *places)
        return [(place, place + 1) for place in places]
    begin = int(rng.integers(size))
    if kind == "cut":
        os.truncate(file, begin)
        return [(begin, size)]
    end = min(size, begin + int(rng.integers(1, 3000 if kind == "noise" else 40)))
    new = {"noise": rng.bytes(end - begin), "ones": b"\xff" * (end - begin), "zeros": bytes(end - begin)}[kind]
    data = file.read_bytes()
    file.write_bytes(data[:begin] + new + data[end:])
    return [(begin, end)]


def messages_of(path):
    """For each segment of a log, the name of each message and where it begins and ends."""
    names, found = iter(NAMES), {}
    for index in sorted(path.glob("*.index")):
        found[index.stem] = [(next(names), *extent) for extent in extents(path, int(index.stem))]
    return found


def harm_log(path, rng):
    """Harm one or two files of a log. Returns the names of the messages whose bytes were touched."""
    known, touched = messages_of(path), set()
    for _ in range(rng.integers(1, 3)):
        file = path / f"{rng.choice(list(known))}.{rng.choice(['arrows', 'arrows', 'index'])}"
        if file.exists():
            hit = harm_file(file, rng)
            if file.suffix == ".arrows":
                touched |= {
                    name for name, start, stop in known[file.stem] if any(a < stop and start < b for a, b in hit)
                }
    return touched


def harm_json(file, rng):
    """Put an odd value somewhere into a JSON file."""
    saved = json.loads(file.read_text())
    node = saved
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = keys[int(rng.integers(len(keys)))]
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.7:
            node = node[key]
            continue
        if rng.random() < 0.2:
            del node[key]
        else:
            node[key] = copy.deepcopy(ODD[int(rng.integers(len(ODD)))])
        break
    file.write_text(json.dumps(saved))
