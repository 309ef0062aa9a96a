"""The server: who may come in, limits, backpressure, figures, and what survives a kill."""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from relay_kit import SMALL, SPEC, batch, episodes, ids_in, message, serving, until

from flockrl.commands.main import main
from flockrl.core.errors import UsageError
from flockrl.core.spec import spec_to_json
from flockrl.data.schema import decode, encode, make_schema
from flockrl.relay.client import Client, Denied, Refused, Unreachable, location
from flockrl.relay.front import start
from flockrl.relay.ingest import Limits
from flockrl.relay.log import Log
from flockrl.relay.server import Busy, Relay
from flockrl.relay.store import Store
from flockrl.relay.wire import pack


def test_acknowledged_is_on_disk_and_known_ids_count_once(tmp_path):
    with serving(tmp_path) as (relay, address):
        client = Client(address)
        said = {"version": -1, "identity": relay.store.identity}
        assert client.put(message(["a", "b"])) == {"new": 2, "known": 0, **said}
        assert client.put(message(["b", "c"])) == {"new": 1, "known": 1, **said}
        assert ids_in(relay.log) == ["a", "b", "c"]
        said = client.status()
        assert said["accepted"] == {"trajectories": 3, "rows": 18}
        assert (said["known"], said["health"]) == (1, "collecting")
    with serving(tmp_path) as (_, address):
        assert Client(address).put(message(["a", "d"]))["new"] == 1


def test_bad_messages_are_refused_with_a_reason_and_the_server_goes_on(tmp_path, caplog):
    with serving(tmp_path, Limits(message_bytes=100_000)) as (_, address):
        client = Client(address)
        for bad in (b"", b"junk", message(["a"])[:-50], pa.py_buffer(b"\x00" * 150_000), b"\xff" * 5000):
            with pytest.raises(Refused):
                client.put(bad)
        with pytest.raises(Refused, match=r"no action 'pot'.*'put'"):
            client.call("pot")
        with pytest.raises(Refused, match="newer_than"):
            client.call("model", b"[" * 900)
        assert client.put(message(["a"]))["new"] == 1
        refused = client.status()["refused"]
        assert refused["messages"] == 5
        assert refused["last"][-1]["from"] == "127.0.0.1"
        assert sum(refused["reasons"].values()) == 5
    assert "refused a message from 127.0.0.1" in caplog.text


def test_reasons_do_not_fill_the_memory(tmp_path):
    relay = Relay(tmp_path, SPEC, Limits())
    for i in range(500):
        relay.refuse(f"reason {i}", "x")
    assert len(relay.status()["refused"]["reasons"]) < 50
    relay.close()


def test_the_other_ways_into_flight_are_closed(tmp_path):
    with serving(tmp_path) as (relay, address):
        link = flight.connect(location(address))

        def put():
            writer, _ = link.do_put(flight.FlightDescriptor.for_path("x"), make_schema(SPEC))
            with writer:
                writer.write_batch(batch(["a"]))

        with pytest.raises((flight.FlightError, NotImplementedError, pa.ArrowException)):
            put()
        with pytest.raises((flight.FlightError, NotImplementedError, pa.ArrowException)):
            link.do_get(flight.Ticket(b"x")).read_all()
        assert {action.type for action in link.list_actions()} == {"put", "model", "status"}
        assert relay.log.trajectories == 0


def test_only_who_has_a_token_comes_in(tmp_path, caplog):
    with caplog.at_level(logging.DEBUG), serving(tmp_path, tokens=["open-sesame", "other-token"]) as (relay, address):
        for token in (None, "", "wrong", "open-sesam", "open-sesame2"):
            with pytest.raises(Denied, match="token"):
                Client(address, token).put(message(["a"]))
        assert relay.log.trajectories == 0
        assert relay.status()["refused"]["reasons"] == {"The token is missing or wrong.": 5}
        assert Client(address, "other-token").put(message(["a"]))["new"] == 1
    assert "sesame" not in caplog.text
    assert "open-sesam" not in caplog.text


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.168.1.1:8815", "example.org:80"])
def test_without_a_token_only_this_machine_may_come_in(tmp_path, listen):
    relay = Relay(tmp_path, SPEC, Limits())
    with pytest.raises(UsageError, match="Without a token"):
        start(relay, listen)
    relay.close()


def test_addresses_are_checked():
    for wrong in ("", "host", "host:", "host:99999", "http://host:80", "host:80/x", "a b:c"):
        with pytest.raises(UsageError, match="HOST:PORT"):
            location(wrong)
    assert location("tls://host:1") == "grpc+tls://host:1"
    assert location("[::1]:80") == "grpc+tcp://[::1]:80"


def test_tls_encrypts_and_is_checked(tmp_path):
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    try:
        subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    except OSError:
        pytest.skip("needs the openssl command")
    tls = (tmp_path / "cert.pem").read_bytes(), (tmp_path / "key.pem").read_bytes()
    with serving(tmp_path / "s", tokens=["open-sesame"], tls=tls) as (_, address):
        client = Client(address, "open-sesame", tls_root=tmp_path / "cert.pem")
        assert client.put(message(["a"]))["new"] == 1
        with pytest.raises(Unreachable):
            Client(address, "open-sesame", timeout=3.0).status()  # no authority signed it
        with pytest.raises(Unreachable):
            Client(address.replace("tls", "grpc"), "open-sesame", timeout=3.0).status()


def test_a_full_log_is_not_forgotten_but_waits(tmp_path):
    with serving(tmp_path, Limits(log_bytes=10_000)) as (relay, address):
        client, sent = Client(address), 0
        while relay.log.bytes <= 10_000:
            client.put(message([f"t{sent}"]))
            sent += 1
        with pytest.raises(Unreachable, match="full"):
            client.put(message(["more"]))
        assert relay.log.trajectories == sent > 1


def test_senders_above_their_rate_wait(tmp_path):
    relay = Relay(tmp_path, SPEC, Limits(rate=60.0))  # ten messages of six rows
    began = time.monotonic()
    for i in range(4):
        relay.put(message([str(i)]), "here")
    assert time.monotonic() - began > 0.25
    relay._allowance["here"] = (time.monotonic() + 100, 0.0)
    with pytest.raises(Busy, match="Slow down"):
        relay.put(message(["x"]), "here")
    relay.put(message(["y"]), "elsewhere")
    relay.close()


class Slow:
    """A learner that does not move until it is told to."""

    def __init__(self):
        self.room = threading.Event()

    def check(self, experience):
        pass

    def start(self):
        pass

    def wait_for_room(self, most, seconds):
        return self.room.wait(seconds)

    def stop(self):
        pass


def test_acknowledgements_wait_for_a_trainer_that_lags(tmp_path, monkeypatch):
    monkeypatch.setattr("flockrl.relay.server.PATIENCE", 0.2)
    with serving(tmp_path, learner=lambda relay: Slow()) as (relay, address):
        client = Client(address)
        with pytest.raises(Unreachable, match="Slow down"):
            client.put(message(["a"]))
        threading.Timer(0.1, relay.learner.room.set).start()
        assert client.put(message(["a"]))["new"] == 1
        relay.learner = None


def test_calls_are_limited(tmp_path, monkeypatch):
    with serving(tmp_path, Limits(clients=1)) as (relay, address):
        hold, entered = threading.Event(), threading.Event()
        monkeypatch.setattr(relay, "put", lambda *_: (entered.set(), hold.wait(5), {})[2])
        first = threading.Thread(target=lambda: Client(address).call("put", b"x"))
        first.start()
        entered.wait(5)
        with pytest.raises(Unreachable, match="Too many calls"):
            Client(address).status()
        hold.set()
        first.join()


def test_models_appear_whole_and_old_ones_go(tmp_path):
    store = Store(tmp_path, keep=2)

    def write(folder):
        folder.mkdir()
        (folder / "metadata.json").write_text("{}")

    def fail(folder):
        write(folder)
        raise OSError("disk")

    assert json.loads(store.fetch(-1)[0])["version"] == -1
    for version in (0, 1, 5):
        assert store.publish(version, write)
    assert not store.publish(4, write)
    with pytest.raises(OSError, match="disk"):
        store.publish(6, fail)
    assert store.versions == [1, 5]
    assert Store(tmp_path).newest == 5
    head, body = store.fetch(4)
    assert json.loads(head)["version"] == 5
    assert body == b"{}"
    assert len(store.fetch(5)) == 1


# Training


def learner(path, relay, **more):
    from flockrl.relay.learner import Learner, open_trainer

    trainer = open_trainer(path / "trainer", "ippo", SPEC, hyperparams=SMALL, envs=2, steps=400, max_version_lag=100)
    return Learner(trainer, relay.log, relay.store, log_bytes=1 << 30, **more)


def leaves(trainer):
    import jax

    return [np.asarray(x) for x in jax.tree.leaves(trainer._state)]


def test_a_server_that_stops_dead_goes_on_where_its_log_says(tmp_path):
    """Training is cut before, between and after checkpoints, and ends where an undisturbed one does."""
    messages = [message([f"t{i}"], steps=7, seed=i) for i in range(12)]
    whole = Relay(tmp_path / "whole", SPEC, Limits())
    for data in messages:
        whole.put(data)
    whole.learner = learner(tmp_path / "whole", whole)
    while whole.learner._step():
        pass
    for cut in (7, 12):
        relay = Relay(tmp_path / "cut", SPEC, Limits())
        relay.learner = learner(tmp_path / "cut", relay)
        for i, data in enumerate(messages[:cut]):
            relay.put(data)  # all of them again, as from actors that got no answer
            while relay.learner._step():
                pass
            if i == 4:
                relay.learner.save()
        assert relay.learner.trainer.stats["trajectories"] == cut
        relay.log.close()  # and not the learner: as if killed
    ended, wanted = relay.learner.trainer, whole.learner.trainer
    assert ended.version == wanted.version == 4
    assert ended.stats == wanted.stats
    assert all(np.array_equal(a, b) for a, b in zip(leaves(ended), leaves(wanted), strict=True))
    whole.log.close()


def test_a_server_trains_publishes_and_reports(tmp_path):
    with serving(tmp_path, learner=lambda relay: learner(tmp_path, relay, publish_every=0.0)) as (relay, address):
        client = Client(address)
        assert client.status()["published"] == 0
        assert client.model(tmp_path / "m0") == 0
        for i in range(10):
            client.put(message([f"t{i}"], steps=7))
        until(lambda: client.status()["trained"]["trajectories"] == 10)
        until(lambda: client.status()["published"] == 3)
        said = client.status()
        assert (said["health"], said["version"], said["backlog_bytes"]) == ("training", 3, 0)
        blind = episodes(["u"])._replace(logp=np.full((3, 2), np.nan, np.float32))
        with pytest.raises(Refused, match="logp"):
            client.put(pack(encode(blind, SPEC)))
        relay.learner.trainer.receive_trajectory = lambda data: 1 / 0
        client.put(message(["last"]))
        until(lambda: client.status()["health"].startswith("failed: ZeroDivisionError"))
        client.put(message(["kept all the same"]))
        relay.learner.trainer.save = None  # a learner that failed is not saved
    assert "kept all the same" in ids_in(Log(tmp_path / "log", make_schema(SPEC)))


# The commands


@pytest.fixture
def spec_file(tmp_path):
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(spec_to_json(SPEC)))
    return file


def launch(data, spec_file, *more):
    """A server in a process of its own."""
    words = [sys.executable, "-m", "flockrl", "serve", "--data", str(data), "--spec", str(spec_file)]
    (data / "address").unlink(missing_ok=True)
    process = subprocess.Popen([*words, "--listen", "127.0.0.1:0", *more], stdout=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or ((data / "address").exists() and (data / "address").read_text()))
    assert process.poll() is None
    return process, (data / "address").read_text().strip()


def test_a_killed_collector_has_all_that_it_acknowledged_once(tmp_path, spec_file):
    data, acknowledged, stop = tmp_path / "data", [], threading.Event()
    where = {}

    def send(k):
        number = 0
        while not stop.is_set():
            name = f"{k}-{number}"
            try:
                Client(where["now"], timeout=5.0).put(message([name]))
            except Unreachable:
                time.sleep(0.02)
                continue
            acknowledged.append(name)
            number += 1

    process, where["now"] = launch(data, spec_file, "--quiet")
    threads = [threading.Thread(target=send, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        had = len(acknowledged)
        until(lambda had=had: len(acknowledged) > had + 20)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process, where["now"] = launch(data, spec_file, "--quiet")
    stop.set()
    for thread in threads:
        thread.join()
    process.terminate()
    assert process.wait() == 0
    log = Log(data / "log", make_schema(SPEC))
    found = ids_in(log)
    assert len(set(found)) == len(found) == log.trajectories
    assert set(acknowledged) <= set(found)
    assert len(set(found) - set(acknowledged)) <= 3  # on disk when the kill came, and not yet acknowledged


def test_status_speaks(tmp_path, capsys):
    token = tmp_path / "token"
    token.write_text("open-sesame\n")
    with serving(tmp_path / "s", tokens=["open-sesame"]) as (_, address):
        Client(address, "open-sesame").put(message(["a"]))
        assert main(["status", address, "--token-file", str(token), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["accepted"]["trajectories"] == 1
        assert main(["status", address, "--token-file", str(token)]) == 0
        assert "1 trajectories, 6 rows" in capsys.readouterr().out
        assert main(["status", address]) == 2
        assert "token" in capsys.readouterr().err
    assert main(["status", "127.0.0.1:9"]) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--listen", "0.0.0.0:8815"], "Without a token"),
        (["--tls-cert", "x"], "both"),
        (["--token-file", "nowhere"], "cannot be read"),
        (["--spec", "nowhere"], "--env NAME or --spec"),
        (["--listen", "x"], "HOST:PORT"),
        (["--init-from", "runs/x"], "--algorithm"),
        (["--algorythm", "mappo"], "--algorithm"),
    ],
)
def test_serve_explains_wrong_input_in_a_sentence(tmp_path, spec_file, words, says, capsys):
    words = words if "--spec" in words else [*words, "--spec", str(spec_file)]
    assert main(["serve", "--data", str(tmp_path / "d"), *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error
    assert not (tmp_path / "d" / "log").exists()


def test_decoding_what_was_accepted_gives_what_was_sent(tmp_path):
    relay = Relay(tmp_path, SPEC, Limits())
    relay.put(message(["a", "b"], steps=5))
    got = decode(relay.log.read(relay.log.start)[0], SPEC)
    np.testing.assert_array_equal(got.obs, episodes(["a", "b"], steps=5).obs)
    relay.close()


def test_files_of_a_model_stay_in_their_directory(tmp_path, monkeypatch):
    with serving(tmp_path / "s") as (relay, address):
        for name in ("../escape", "/etc/x", ".hidden", "a/b", ""):
            about = {"version": 1, "files": [{"name": name, "sha256": hashlib.sha256(b"x").hexdigest()}]}
            monkeypatch.setattr(relay.store, "fetch", lambda n, about=about: [json.dumps(about).encode(), b"x"])
            with pytest.raises(Unreachable, match="misnamed"):
                Client(address).model(tmp_path / "m")
        assert not (tmp_path / "escape").exists()
        assert not os.path.exists("/etc/x")


def test_a_restart_says_which_settings_stay(tmp_path, recwarn):
    from flockrl.core.errors import Notice
    from flockrl.relay.learner import open_trainer

    settings = {"hyperparams": SMALL, "envs": 2, "steps": 400, "seed": 0, "buffer_size": None, "max_version_lag": None}
    open_trainer(tmp_path, "ippo", SPEC, **settings)
    open_trainer(tmp_path, "ippo", SPEC, **settings)
    assert not [warning for warning in recwarn if warning.category is Notice]
    with pytest.warns(Notice, match=r"lr 0\.002 \(not 0\.5\), envs 2 \(not 4\), seed 0 \(not 7\)\. To begin anew"):
        open_trainer(tmp_path, "ippo", SPEC, **{**settings, "hyperparams": {**SMALL, "lr": 0.5}, "envs": 4, "seed": 7})
