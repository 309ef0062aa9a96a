"""A server, its learner and four players for a long time, with kills, stops, full disks and flipped bits.

Nothing that was acknowledged may be lost or doubled, unless its own bytes were flipped, which must be told.

    FLOCKRL_SOAK_MINUTES=20 pytest -m slow -s tests/relay/test_soak.py
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from test_faults import Troupe

from flockrl.data.frames import BATCH, frames
from flockrl.data.schema import BadData, make_schema
from flockrl.relay.log import Log
from flockrl.relay.segment import Damaged

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
PLAYERS = ("north", "south", "east", "west")
MINUTES = float(os.environ.get("FLOCKRL_SOAK_MINUTES", "2"))
DISK = 1536 << 20
START = 90
"""Seconds after its start in which a server's memory may grow."""


@pytest.fixture
def disk(tmp_path):
    """A directory on a disk of its own that can be filled; None where none can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", place], capture_output=True).returncode:
        yield place, False
        return
    yield place, True
    subprocess.run(["umount", "-l", place], check=True)


class Memory:
    """The server's resident megabytes over its present life, and the slopes of all lives that were long enough."""

    def __init__(self):
        self.seen, self.slopes = [], []

    def look(self, process):
        try:
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            self.seen.append((time.monotonic(), pages * os.sysconf("SC_PAGE_SIZE") / 1e6))
        except (OSError, IndexError):
            pass

    def end(self):
        """Note the slope of the life that ended, in MB per minute, after the time in which it compiles its programs."""
        lived = [(t, x) for t, x in self.seen if t > self.seen[0][0] + START] if self.seen else []
        if len(lived) > 20 and lived[-1][0] - lived[0][0] > 20:
            t, x = np.array(lived).T
            self.slopes.append((60 * np.polyfit(t, x, 1)[0], (t[-1] - t[0]) / 60, x.max()))
        self.seen = []


def flip(log, rng):
    """Flip a bit in a message of a log that is not among the newest. Returns the ids that the message holds."""
    files = sorted(log.glob("*.arrows"))
    if not files:
        return set()
    file = rng.choice(files)
    data = file.read_bytes()
    found, stop = [], 0
    with contextlib.suppress(BadData):  # the end is being written, or an earlier flip hit a length
        for frame in frames(pa.BufferReader(data), len(data), len(data)):
            start, stop = stop, stop + frame.data.size
            if frame.kind == BATCH:
                found.append((start, stop))
    if len(found) <= 20:
        return set()
    start, stop = rng.choice(found[:-20])
    schema = pa.ipc.open_stream(data).schema
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(data[start:stop]), schema)
        ids = set(rows.column("trajectory").unique().to_pylist())
    except Exception:  # flipped before
        return set()
    at = rng.randrange(start, stop)
    with open(file, "r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1 << rng.randrange(8)]))
    return ids


@pytest.mark.slow
def test_a_long_time_of_faults(disk):
    import relay_game

    home, fillable = disk
    rng, memory = random.Random(1), Memory()
    troupe = Troupe(home, relay_game.SPEC, PLAYERS)
    counted = dict.fromkeys(
        ["kills of the server", "kills of players", "stops", "failed starts", "full disks", "flips"], 0
    )
    flipped = set()

    def watch(seconds):
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            memory.look(troupe.running["server"])
            for name, process in list(troupe.running.items()):
                if process.poll() is not None:  # it met a full disk at its start
                    counted["failed starts"] += 1
                    troupe.start(name)
            time.sleep(0.5)

    for name in ("server", *PLAYERS):
        troupe.start(name)
    ends, next_kill = time.monotonic() + 60 * MINUTES, time.monotonic() + 45
    try:
        while time.monotonic() < ends:
            watch(rng.uniform(1, 5))
            what = rng.choice(["player", "player", "stop", "full", "flip"])
            if time.monotonic() > next_kill:
                memory.end()
                troupe.kill("server")
                counted["kills of the server"] += 1
                next_kill = time.monotonic() + rng.uniform(5, 300)
                troupe.start("server")
            elif what == "player":
                name = rng.choice(PLAYERS)
                troupe.kill(name)
                counted["kills of players"] += 1
                troupe.start(name)
            elif what == "stop":
                process = troupe.running[rng.choice(["server", *PLAYERS])]
                process.send_signal(signal.SIGSTOP)
                watch(rng.uniform(0.5, 6))
                process.send_signal(signal.SIGCONT)
                counted["stops"] += 1
            elif what == "full" and fillable:
                fill = home / "fill"
                subprocess.run(["dd", "if=/dev/zero", f"of={fill}", "bs=1M"], capture_output=True)
                watch(rng.uniform(0.5, 6))
                fill.unlink()
                counted["full disks"] += 1
            elif what == "flip":
                hit = flip(home / "server" / "log", rng)
                flipped |= hit
                counted["flips"] += bool(hit)
        memory.end()
        watch(5)
        for name in PLAYERS:
            troupe.kill(name)
        for name in PLAYERS:
            done = subprocess.run([*troupe.words[name], "drain"], capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr + (home / "server.out").read_text()[-3000:]
        troupe.wait(lambda said: said["backlog_bytes"] == 0)
        troupe.running["server"].terminate()
        assert troupe.running["server"].wait() == 0
    finally:
        for process in troupe.running.values():
            process.kill()
            process.wait()
    found, damaged = read_all(Log(home / "server" / "log", make_schema(relay_game.SPEC)))
    noted = {x for name in PLAYERS for x in (home / f"{name}.acknowledged").read_text().split()}
    lost = noted - set(found)
    print(f"{MINUTES:g} minutes: {counted}")
    print(f"{len(noted):,} trajectories acknowledged, {len(lost)} lost by {damaged} damaged messages")
    for slope, minutes, most in memory.slopes:
        print(f"memory of the server: {slope:+.2f} MB per minute over {minutes:.1f} minutes, at most {most:.0f} MB")
    assert len(found) == len(set(found))
    assert lost <= flipped
    assert not lost or damaged
    long = [slope for slope, minutes, _ in memory.slopes if minutes > 1]
    assert not long or np.median(long) < 5
    peaks = [most for _, _, most in memory.slopes]
    assert not peaks or max(peaks) < 1.2 * min(peaks)  # however long it lived


def read_all(log):
    """The ids in a log, and how many of its messages are damaged."""
    found, damaged, place = [], 0, log.start
    while True:
        try:
            entry = log.read(place)
            if entry is None:
                return found, damaged
            found += entry[0].column("trajectory").unique().to_pylist()
            place = entry[1]
        except Damaged as error:
            damaged, place = damaged + 1, error.after
