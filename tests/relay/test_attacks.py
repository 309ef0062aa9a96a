"""A server under attack: who may take memory and time, what may break training, what is shown of strangers' words."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from relay_kit import SMALL, SPEC, batch, episodes, message, serving, until

from flockrl.commands.main import main
from flockrl.core.errors import UsageError
from flockrl.core.spec import Box, spec_to_json
from flockrl.core.text import printable
from flockrl.data.schema import KEY, BadData, encode, make_schema
from flockrl.relay.client import Client, Refused, Unreachable
from flockrl.relay.front import SERVICE, read_action, result
from flockrl.relay.ingest import Limits, admit
from flockrl.relay.learner import Learner, open_trainer
from flockrl.relay.senders import ACTORS, OFFENCES, TOLD, Senders
from flockrl.relay.wire import pack

MB = 1 << 20
OPEN = Limits(largest=1e38, reward=1e38, logp=1e30)
"""Limits that let everything in, to see what training does with it."""


def learner(path, relay, **more):
    trainer = open_trainer(path / "trainer", "ippo", SPEC, hyperparams=SMALL, envs=2, steps=400, max_version_lag=100)
    return Learner(trainer, relay.log, relay.store, log_bytes=1 << 30, blame=relay.senders.blame, **more)


# Memory and time


def peak_mb(process):
    """The largest resident size of a process so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of another process from /proc")
def test_large_calls_take_no_memory(tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps(spec_to_json(SPEC)))
    (tmp_path / "token").write_text("a-long-token\n")
    words = ["serve", "--data", "home", "--spec", "spec.json", "--token-file", "token", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([sys.executable, "-m", "flockrl", *words, "--message-mb", "1", "--quiet"], cwd=tmp_path)
    try:
        until((tmp_path / "home" / "address").exists)
        address = (tmp_path / "home" / "address").read_text().strip()
        Client(address, "a-long-token").put(message(["warm"]))
        before, large = peak_mb(process), pa.py_buffer(bytes(128 * MB))

        def call(**more):
            options = flight.FlightCallOptions(timeout=20, **more)
            with pytest.raises(pa.ArrowException):
                list(flight.connect(f"grpc+tcp://{address}").do_action(flight.Action("put", large), options))

        callers = [threading.Thread(target=call) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        call(headers=[(b"authorization", b"Bearer a-long-token")])  # refused by its size
        with grpc.insecure_channel(
            address, options=[("grpc.max_send_message_length", -1)], compression=grpc.Compression.Gzip
        ) as channel:
            packed = channel.unary_stream(SERVICE + "DoAction")
            with pytest.raises(grpc.RpcError):  # 64 MB of zeros in 64 KB
                list(packed(bytes(64 * MB), metadata=[("authorization", "Bearer a-long-token")], timeout=20))
        assert peak_mb(process) - before < 40
        assert Client(address, "a-long-token").put(message(["after"]))["new"] == 1
    finally:
        process.terminate()
        process.wait()


def test_requests_that_are_no_actions():
    assert read_action(b"\x0a\x03put\x12\x02ab") == ("put", memoryview(b"ab"))
    assert result(b"x" * 300) == b"\x0a\xac\x02" + b"x" * 300
    for bad in (b"\x0a\x09put", b"\x0a", b"\xff" * 30, b"\x08\x01", b"\x0a" + b"\xff" * 9 + b"\x01"):
        with pytest.raises(UsageError, match="not an action"):
            read_action(bad)


def test_answers_that_nobody_reads_are_bounded(tmp_path):
    with serving(tmp_path, Limits(answer_bytes=10 * MB)) as (relay, address):
        relay.store.publish(0, lambda folder: (folder.mkdir(), (folder / "model").write_bytes(bytes(8 * MB))))
        ask = b"\x0a\x05model\x12\x12" + b'{"newer_than": -1}'
        with grpc.insecure_channel(address.partition("://")[2]) as channel:
            call = channel.unary_stream(SERVICE + "DoAction")
            unread = [call(ask, timeout=20) for _ in range(8)]
            until(lambda: sum(c.done() and c.code() == grpc.StatusCode.UNAVAILABLE for c in unread) >= 6)
            assert Client(address).status()["published"] == 0
            for one in unread:
                one.cancel()
        until(lambda: relay_free(address))
        assert Client(address).model(tmp_path / "copy") == 0


def relay_free(address):
    """Whether the server sends models again."""
    try:
        return bool(Client(address).call("model", b'{"newer_than": -1}'))
    except Unreachable:
        return False


def test_long_names_do_not_hold_the_server_up():
    schema = make_schema(SPEC)
    said = json.loads(schema.metadata[KEY])
    said["spec"]["agents"] = ["a1" * 12_000, "b1" * 12_000]
    rows = batch(["x"]).replace_schema_metadata({KEY: json.dumps(said).encode()})
    began = time.perf_counter()
    with pytest.raises(BadData):
        admit(pack(rows), SPEC, Limits())
    assert time.perf_counter() - began < 1


# Poison


@pytest.mark.parametrize(("name", "value"), [("logp", -95.0), ("logp", 95.0), ("reward", 1e9), ("obs", -1e7)])
def test_numbers_that_would_overflow_are_refused(name, value):
    data = episodes(["a"])
    getattr(data, name)[1, 0] = value
    with pytest.raises(BadData, match=f"{name} has numbers beyond"):
        admit(pack(encode(data, SPEC)), SPEC, Limits())
    assert admit(pack(encode(data, SPEC)), SPEC, OPEN)


def test_observations_outside_of_their_space_are_refused():
    spec = replace(SPEC, observations=(Box((3,), -5.0, 5.0), Box((2,), (-5.0, -1e9), (5.0, 1e9))))
    data = episodes(["a"])
    admit(pack(encode(data, spec)), spec, Limits())
    data.obs[1, 1, 1] = 1e5
    admit(pack(encode(data, spec)), spec, Limits())
    data.obs[1, 1, 0] = 5.1
    with pytest.raises(BadData, match="dog lie outside"):
        admit(pack(encode(data, spec)), spec, Limits())


def poison(name):
    data = episodes([name], steps=20)
    data.logp[7, 0] = -95.0
    return pack(encode(data, SPEC)).to_pybytes()


def test_an_update_that_is_not_finite_is_undone(tmp_path):
    with serving(tmp_path, OPEN, learner=lambda relay: learner(tmp_path, relay)) as (relay, address):
        client = Client(address)
        for i in range(3):
            client.put(message([f"good-{i}"], steps=20, seed=i))
        until(lambda: relay.learner.trainer.version >= 2)
        client.put(poison("evil-0"))
        client.put(message(["good-3", "good-4"], steps=20, seed=3))
        until(lambda: relay.learner.trainer.stats["trajectories"] == 5 and relay.learner.backlog == 0)
        said = client.status()
        assert said["health"] == "training"
        assert said["unusable"] == 1
        assert said["set_aside"][0]["trajectories"] == ["evil-0"]
        assert said["set_aside"][0]["senders"] == ["evil@127.0.0.1"]
        assert len(list((tmp_path / "aside").glob("*.arrows"))) == 1
        params = relay.learner.trainer._params(relay.learner.trainer._state)
        assert all(np.isfinite(x).all() for x in _leaves(params))
        for i in range(1, OFFENCES):
            client.put(poison(f"evil-{i}"))
            client.put(message([f"more-{i}"], steps=20, seed=i))
        until(lambda: relay.learner.unusable == OFFENCES and relay.learner.backlog == 0)
        with pytest.raises(Refused, match="broke training repeatedly"):
            client.put(poison("evil-9"))
        assert client.put(message(["good-9"]))["new"] == 1
    with serving(tmp_path, OPEN, learner=lambda relay: learner(tmp_path, relay)) as (
        relay,
        address,
    ):  # does not die again
        before = relay.learner.trainer.version
        for i in range(2):
            Client(address).put(message([f"later-{i}"], steps=20, seed=i))
        until(lambda: relay.learner.trainer.version > before)
        assert Client(address).status()["health"] == "training"


def _leaves(tree):
    import jax

    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def test_senders_are_told_apart():
    senders = Senders()
    senders.remember(["a-1", "a-2", "b-1"], [3, 4, -1], "host")
    for _ in range(OFFENCES):
        senders.check(["a-3"], "host")
        assert senders.blame(["a-1", "unknown"]) == ["a@host"]
    with pytest.raises(BadData):
        senders.check(["b-2", "a-4"], "host")
    senders.check(["a-4"], "elsewhere")
    senders.check(["b-4"], "host")


def test_a_status_tells_which_actors_were_seen():
    senders = Senders()
    senders.remember(["a-1", "a-2", "b\x1b[31m-1"], [3, 4, -1], "host")
    senders.remember(["a-2", "a-3"], [4, 5], "host")  # one of them sent again
    told = senders.told()
    assert (told["seen"], told["lately"]) == (2, 2)
    first, second = told["last"]
    assert (first["name"], first["trajectories"], first["version"]) == ("a@host", 3, 5)
    assert (second["trajectories"], second["version"]) == (1, -1)
    assert "\x1b" not in second["name"]
    senders.remember([f"n{i}-0" for i in range(ACTORS + 5)], [0] * (ACTORS + 5), "host")
    told = senders.told()
    assert (told["seen"], len(told["last"])) == (ACTORS, TOLD)


# Words of strangers


def test_words_of_strangers_are_shown_as_they_are(tmp_path, caplog, capsys):
    rows = batch(["a"])
    agents = pa.array(["[/red] [bold]\nWARNING all is well\x1b[2J"] * len(rows))
    rows = rows.set_column(rows.schema.get_field_index("agent"), rows.schema.field("agent"), agents)
    with serving(tmp_path) as (_, address):
        with pytest.raises(Refused):
            Client(address).put(pack(rows))
        assert all("\n" not in record.getMessage() for record in caplog.records)
        assert main(["status", address]) == 0
        said = capsys.readouterr().out
        assert "[/red] [bold]" in said
        assert "\x1b[2J" not in said
    assert printable("a\nb\x1b") == "a\\nb\\x1b"
    assert printable("x" * 500, 10) == "x" * 10 + "..."


# Disks and starts


def test_a_full_disk_does_not_end_training(tmp_path, monkeypatch):
    with serving(tmp_path, learner=lambda relay: learner(tmp_path, relay, save_every=0.0)) as (relay, address):
        client, save = Client(address), relay.learner.trainer.save
        full = threading.Event()
        full.set()

        def write(*args, **more):
            if full.is_set():
                raise OSError(errno.ENOSPC, "No space left on device")
            save(*args, **more)

        monkeypatch.setattr(relay.learner.trainer, "save", write)
        client.put(message(["a", "b"], steps=20))
        until(lambda: "No space left" in client.status()["trouble"])
        assert client.status()["health"] == "training"
        full.clear()
        until(lambda: not client.status()["trouble"])
        client.put(message(["c"], steps=20))
        until(lambda: relay.learner.trainer.stats["trajectories"] == 3)


def test_a_server_killed_during_its_first_checkpoint_starts_again(tmp_path):
    unfinished = tmp_path / "trainer" / "checkpoints" / "1.orbax-checkpoint-tmp-0"
    unfinished.mkdir(parents=True)
    (tmp_path / "trainer" / "trainer.json").write_text("{}")
    assert open_trainer(tmp_path / "trainer", "ippo", SPEC, hyperparams=SMALL, envs=2, steps=400).version == 0


@pytest.mark.parametrize(("words", "said"), [
    (["--clients", "-1"], "clients must be at least 1"),
    (["--message-mb", "0"], "message_bytes must be at least 1"),
    (["--token-file", "binary"], "token file cannot be read"),
    (["--data", "binary"], "binary"),
    (["--spec", "deep"], "not JSON"),
])  # fmt: skip
def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    Path("binary").write_bytes(bytes(range(256)))
    Path("deep").write_text("[" * 100_000)
    Path("spec").write_text(json.dumps(spec_to_json(SPEC)))
    given = {"--data": "home", "--spec": "spec", "--listen": "127.0.0.1:0", **dict([words])}
    assert main(["serve", *(word for pair in given.items() for word in pair)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_second_server_changes_nothing(tmp_path, capsys):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(spec_to_json(replace(SPEC, name="other"))))
    with serving(tmp_path / "home"):
        (tmp_path / "home" / "spec.json").write_text("first")
        assert main(["serve", "--data", str(tmp_path / "home"), "--spec", str(other), "--listen", "127.0.0.1:0"]) == 2
        assert "in use" in capsys.readouterr().err
        assert (tmp_path / "home" / "spec.json").read_text() == "first"
        assert not os.path.exists(tmp_path / "home" / "spec.tmp")
