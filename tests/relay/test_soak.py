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
from relay_kit import ids, messages_in
from test_faults import Troupe

from flockrl.data.frames import BATCH, frames
from flockrl.data.schema import BadData, make_schema
from flockrl.relay.log import Log

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
        held = set(ids(rows))
    except Exception:  # flipped before
        return set()
    at = rng.randrange(start, stop)
    with open(file, "r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1 << rng.randrange(8)]))
    return held


class Faults:
    """Faults of a troupe, drawn at random. counted: how often each happened; flipped: ids whose bytes were hit."""

    def __init__(self, troupe, fillable, rng):
        self.troupe, self.fillable, self.rng, self.memory = troupe, fillable, rng, Memory()
        names = ["kills of the server", "kills of players", "stops", "failed starts", "full disks", "flips"]
        self.counted, self.flipped = dict.fromkeys(names, 0), set()
        self._next_kill = time.monotonic() + 45

    def watch(self, seconds):
        """Let the troupe go on, and start again what could not start."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.memory.look(self.troupe.running["server"])
            for name, process in list(self.troupe.running.items()):
                if process.poll() is not None:  # it met a full disk at its start
                    self.counted["failed starts"] += 1
                    self.troupe.start(name)
            time.sleep(0.5)

    def strike(self):
        what = self.rng.choice([self.kill_player, self.kill_player, self.stop, self.fill, self.flip])
        (self.kill_server if time.monotonic() > self._next_kill else what)()

    def kill_server(self):
        self.memory.end()
        self.troupe.kill("server")
        self.counted["kills of the server"] += 1
        self._next_kill = time.monotonic() + self.rng.uniform(5, 300)
        self.troupe.start("server")

    def kill_player(self):
        name = self.rng.choice(PLAYERS)
        self.troupe.kill(name)
        self.counted["kills of players"] += 1
        self.troupe.start(name)

    def stop(self):
        process = self.troupe.running[self.rng.choice(["server", *PLAYERS])]
        process.send_signal(signal.SIGSTOP)
        self.watch(self.rng.uniform(0.5, 6))
        process.send_signal(signal.SIGCONT)
        self.counted["stops"] += 1

    def fill(self):
        if self.fillable:
            file = self.troupe.home / "fill"
            subprocess.run(["dd", "if=/dev/zero", f"of={file}", "bs=1M"], capture_output=True)
            self.watch(self.rng.uniform(0.5, 6))
            file.unlink()
            self.counted["full disks"] += 1

    def flip(self):
        hit = flip(self.troupe.home / "server" / "log", self.rng)
        self.flipped |= hit
        self.counted["flips"] += bool(hit)


@pytest.mark.slow
def test_a_long_time_of_faults(disk):
    import relay_game

    home, fillable = disk
    with Troupe(home, relay_game.SPEC, PLAYERS) as troupe:
        faults, ends = Faults(troupe, fillable, random.Random(1)), time.monotonic() + 60 * MINUTES
        while time.monotonic() < ends:
            faults.watch(faults.rng.uniform(1, 5))
            faults.strike()
        faults.memory.end()
        faults.watch(5)
        troupe.end(PLAYERS)
    messages = list(messages_in(Log(home / "server" / "log", make_schema(relay_game.SPEC))))
    found = [name for rows in messages if rows is not None for name in ids(rows)]
    damaged = sum(rows is None for rows in messages)
    noted = {x for name in PLAYERS for x in (home / f"{name}.acknowledged").read_text().split()}
    lost, slopes = noted - set(found), faults.memory.slopes
    print(f"{MINUTES:g} minutes: {faults.counted}")
    print(f"{len(noted):,} trajectories acknowledged, {len(lost)} lost by {damaged} damaged messages")
    for slope, minutes, most in slopes:
        print(f"memory of the server: {slope:+.2f} MB per minute over {minutes:.1f} minutes, at most {most:.0f} MB")
    assert len(found) == len(set(found))
    assert lost <= faults.flipped
    assert not lost or damaged
    long = [slope for slope, minutes, _ in slopes if minutes > 1]
    assert not long or np.median(long) < 5
    peaks = [most for _, _, most in slopes]
    assert not peaks or max(peaks) < 1.2 * min(peaks)  # however long it lived
