"""Server and players are killed again and again while the team learns: nothing is lost or counted twice."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from relay_kit import messages_in

from flockrl.core.spec import spec_to_json
from flockrl.data.schema import decode, make_schema
from flockrl.relay.client import Client, Unreachable
from flockrl.relay.log import Log

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
PLAYER = str(Path(__file__).parent / "relay_player.py")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Troupe:
    """A server and players, each a process that can be killed and started again."""

    def __init__(self, home, spec, players=("north", "south")):
        self.home, self.address = home, f"127.0.0.1:{free_port()}"
        (home / "spec.json").write_text(json.dumps(spec_to_json(spec)))
        serve = [sys.executable, "-m", "flockrl", "serve", "--algorithm", "ippo", "--spec", str(home / "spec.json")]
        serve += ["--data", str(home / "server"), "--listen", self.address, "--quiet", "--save-every", "3"]
        self.words = {"server": [*serve, "--set", "lr=0.001", "--max-version-lag", "20"]}
        for name in players:
            self.words[name] = [sys.executable, PLAYER, self.address, str(home / name), str(home / name)]
        self.running = {}

    def start(self, name):
        env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        with open(self.home / f"{name}.out", "ab") as out:
            self.running[name] = subprocess.Popen(self.words[name], env=env, stdout=out, stderr=out)

    def kill(self, name):
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self, players):
        """Empty the queues of all players, wait until the server has learned from everything, and stop it. Returns its
        last status."""
        for name in players:
            self.kill(name)
        for name in players:
            done = subprocess.run([*self.words[name], "drain"], capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr + (self.home / "server.out").read_text()[-3000:]
        said = self.wait(lambda said: said["backlog_bytes"] == 0)
        self.running["server"].terminate()
        assert self.running["server"].wait() == 0
        return said

    def __enter__(self):
        for name in self.words:
            self.start(name)
        return self

    def __exit__(self, *_):
        for process in self.running.values():
            process.kill()
            process.wait()

    def status(self):
        try:
            return Client(self.address, timeout=5.0).status()
        except Unreachable:
            return None

    def wait(self, good, seconds=300.0):
        ends = time.monotonic() + seconds
        while (said := self.status()) is None or not good(said):
            assert time.monotonic() < ends, said
            for name, process in self.running.items():
                assert process.poll() is None, (self.home / f"{name}.out").read_text()[-3000:]
            time.sleep(0.2)
        return said


@pytest.mark.slow
def test_fifty_kills_lose_nothing_and_learning_goes_on(tmp_path):
    faults(tmp_path, kills=50)


def faults(home, kills, seed=0):
    import relay_game

    spec, rng = relay_game.SPEC, random.Random(seed)
    counted = {"server": 0, "north": 0, "south": 0}
    with Troupe(home, spec) as troupe:
        for _ in range(kills):
            if rng.random() < 0.6:  # let something happen; otherwise strike while it is still getting up
                before = (troupe.wait(lambda said: True))["trained"]["steps"]
                troupe.wait(lambda said, before=before: said["trained"]["steps"] > before + 2000)
            time.sleep(rng.uniform(0, 2))
            victim = rng.choice(["server", "server", "north", "south"])
            troupe.kill(victim)
            counted[victim] += 1
            troupe.start(victim)
        before = troupe.wait(lambda said: True)["trained"]["steps"]
        troupe.wait(lambda said: said["trained"]["steps"] > before + 30_000)
        said = troupe.end(("north", "south"))
    log = Log(home / "server" / "log", make_schema(spec))
    found, returns = [], []
    for rows in messages_in(log):
        data = decode(rows, spec)
        found += data.id.tolist()
        returns += np.add.reduceat(data.reward[:, 0], np.cumsum(data.length) - data.length).tolist()
    noted = {
        what: {x for name in ("north", "south") for x in (home / f"{name}.{what}").read_text().split()}
        for what in ("acknowledged", "recorded")
    }
    assert len(found) == len(set(found)) == log.trajectories
    assert noted["acknowledged"] <= set(found)
    assert noted["recorded"] <= set(found)  # not even what was not acknowledged yet, since the queue was emptied
    trained = said["trained"]
    assert trained["trajectories"] + trained["dropped_stale"] == len(found)
    begins, ends = np.mean(returns[:200]), np.mean(returns[-1000:])
    print(f"{counted} kills, {len(found)} trajectories, {trained}, berries {begins:.2f} -> {ends:.2f}")
    assert ends > begins + 0.8
    return counted
