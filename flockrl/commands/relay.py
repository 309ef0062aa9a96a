"""The relay's commands: serve, status."""

from __future__ import annotations

import json
import logging
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from flockrl.commands.parsing import parse
from flockrl.core.errors import UsageError
from flockrl.core.rundir import write_json
from flockrl.core.spec import EnvSpec, spec_from_json, spec_to_json
from flockrl.core.text import printable
from flockrl.relay.client import Client
from flockrl.relay.files import place_file
from flockrl.relay.front import allowed, start
from flockrl.relay.ingest import Limits
from flockrl.relay.server import Relay
from flockrl.training.compilation import prepare

MB = 1 << 20


@dataclass(frozen=True)
class ServeFlags:
    """What `flockrl serve` takes."""

    data: Path
    """Directory for everything the server keeps: log, trainer, models. The same command goes on with what is there."""
    algorithm: str | None = None
    """What to train with, e.g. mappo, or SIDE=PLAYER,... as `flockrl train` takes it; left out, it only collects."""
    init_from: str | None = None
    """A run of the same algorithm whose parameters a new server begins with."""
    listen: str = "127.0.0.1:8815"
    """HOST:PORT to listen on; port 0 takes a free one, which DATA/address then says."""
    env: str | None = None
    """The environment that the trajectories are of, as `flockrl train` takes it."""
    spec: Path | None = None
    """Or a JSON file that describes the team, as flockrl.core.spec.spec_to_json makes it; kept in DATA/spec.json."""
    token_file: Path | None = None
    """File with a token per line; who sends one of them may come in. Without it, only this machine may."""
    tls_cert: Path | None = None
    """Certificate in PEM: then the connection is encrypted."""
    tls_key: Path | None = None
    """The certificate's key in PEM."""
    set: tuple[str, ...] = ()
    """Settings of the algorithm as name=value, e.g. --set lr=0.001 epochs=5; of a side as adversary.lr=0.001."""
    envs: int = 16
    """Columns of a rollout: an on-policy update takes envs x rollout_steps steps."""
    buffer_size: int | None = None
    """Transitions in a replay, or steps in an on-policy update."""
    max_version_lag: int | None = None
    """Updates by which a trajectory may be late; by default 5 for on-policy learners, and no limit for others."""
    steps: int = 2_000_000
    """Steps over which schedules run."""
    seed: int = 0
    """Seed of the trainer."""
    save_every: float = 30.0
    """Seconds between checkpoints. A server that is killed learns again what came after the last one, from its log."""
    publish_every: float = 0.5
    """Seconds between published models, at least."""
    backlog_mb: float = 64.0
    """Data that may wait for the trainer; beyond it, senders wait."""
    log_mb: float = 10240.0
    """Size of the log; the oldest trajectories that were trained on are deleted beyond it."""
    message_mb: float = 16.0
    """Size of one message."""
    rate: float = 0.0
    """Rows (steps of one agent) per second that one address may send; 0 for any number."""
    clients: int = 256
    """Calls under way at a time."""
    largest: float = 1e6
    """Absolute value of observations, states and actions that is accepted; bounds in the spec hold besides."""
    largest_reward: float = 1e6
    """Absolute value of rewards that is accepted."""
    largest_logp: float = 30.0
    """How far the log-probability of an action may lie from 0, for each number that the action has."""
    remember: int = 1_000_000
    """Trajectory ids that are remembered, so that none counts twice."""
    trust: bool = False
    """Import code that the trainer in DATA names: a kernel, a script of a side."""
    quiet: bool = False
    """Print nothing but warnings and errors."""


@dataclass(frozen=True)
class StatusFlags:
    """What `flockrl status` takes."""

    address: Annotated[str, Positional, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1:8815"
    """HOST:PORT, or tls://HOST:PORT."""
    token_file: Path | None = None
    """File whose first line is the token."""
    tls_root: Path | None = None
    """Certificate to trust, where no authority signed it."""
    json: bool = False
    """Print everything as JSON."""


def serve(words: list[str]) -> int:
    about = "Take trajectories from actors, train on them, and publish better policies while the actors play."
    given = parse(ServeFlags, words, "flockrl serve", about)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level="WARNING" if given.quiet else "INFO")
    logging.getLogger("absl").setLevel("WARNING")
    limits = Limits(
        message_bytes=int(given.message_mb * MB), rate=given.rate, clients=given.clients,
        backlog_bytes=int(given.backlog_mb * MB), log_bytes=int(given.log_mb * MB),
        largest=given.largest, reward=given.largest_reward, logp=given.largest_logp,
    )  # fmt: skip
    if given.init_from and given.algorithm is None:
        raise UsageError("A server that only collects has nothing to begin with: give --algorithm with --init-from.")
    tokens, tls, spec = _tokens(given.token_file), _tls(given), _spec(given)
    allowed(given.listen, tokens, tls)
    try:
        relay = Relay(given.data, spec, limits, given.remember)
        write_json(given.data / "spec.json", spec_to_json(spec))  # now that no other server can be using it
    except OSError as error:
        raise UsageError(f"{given.data} cannot be used: {error.strerror or error}.") from error
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    server = None
    try:
        if given.algorithm is not None:
            relay.learner = _learner(given, relay)
            relay.learner.start()
        server = start(relay, given.listen, tokens, tls)
        address = f"{'tls://' if tls else ''}{given.listen.rpartition('://')[2].rpartition(':')[0]}:{server.port}"
        place_file(given.data / "address", f"{address}\n".encode())
        if not given.quiet:
            what = f"training {given.algorithm} on" if given.algorithm else "collecting"
            print(f"{address}: {what} {spec.name}, data in {given.data}", flush=True)
        stopping.wait()
    finally:
        if server is not None:
            server.shutdown()
        relay.close()
    return 0


def _learner(given: Any, relay: Relay) -> Any:
    prepare()
    from flockrl.envs.registry import parse_settings
    from flockrl.relay.learner import Learner, open_trainer

    settings: dict[str, Any] = {}
    for name, value in (pair for word in given.set for pair in parse_settings(word).items()):
        side, dot, own = name.partition(".")
        if dot:
            settings.setdefault(side, {})[own] = value
        else:
            settings[name] = value
    trainer = open_trainer(
        given.data / "trainer", given.algorithm, relay.spec, given.init_from or "", hyperparams=settings,
        envs=given.envs, buffer_size=given.buffer_size, max_version_lag=given.max_version_lag, steps=given.steps,
        seed=given.seed,
    )  # fmt: skip
    return Learner(
        trainer, relay.log, relay.store, relay.limits.log_bytes, given.save_every, given.publish_every,
        blame=relay.senders.blame,
    )  # fmt: skip


def _spec(given: Any) -> EnvSpec:
    kept = given.data / "spec.json"
    if given.env is not None and given.spec is not None:
        raise UsageError("Give --env or --spec, not both.")
    if given.env is not None:
        from flockrl.envs import make

        env = make(given.env)
        spec = env.spec
        getattr(env, "close", lambda: None)()
    else:
        file = kept if given.spec is None else given.spec
        try:
            spec = spec_from_json(json.loads(file.read_text()))
        except OSError as error:
            raise UsageError("Say what team the trajectories are of: --env NAME or --spec FILE.") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{file} is not JSON: {error}.") from error
    return spec


def _tokens(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        tokens = file.read_text().split()
    except (OSError, ValueError) as error:
        raise UsageError(f"The token file cannot be read: {error}.") from error
    if not tokens or min(map(len, tokens)) < 8:
        raise UsageError(f"{file} must have a token of at least 8 characters on each line.")
    return tokens


def _tls(given: Any) -> tuple[bytes, bytes] | None:
    if (given.tls_cert is None) != (given.tls_key is None):
        raise UsageError("TLS needs both --tls-cert and --tls-key.")
    if given.tls_cert is None:
        return None
    try:
        return given.tls_cert.read_bytes(), given.tls_key.read_bytes()
    except OSError as error:
        raise UsageError(f"The certificate or its key cannot be read: {error}.") from error


def status(words: list[str]) -> int:
    given = parse(StatusFlags, words, "flockrl status", "How a server is and what it has done.")
    tokens = _tokens(given.token_file)
    said = Client(given.address, tokens[0] if tokens else None, given.tls_root, timeout=10.0).status()
    if given.json:
        print(json.dumps(said, indent=1))
        return 1 if str(said.get("health", "")).startswith("failed") else 0
    try:
        _show(given.address, said)
        return 1 if said["health"].startswith("failed") else 0
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"{given.address} does not answer like a server of flockrl.") from None


def _show(address: str, said: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(address), show_header=False)
    accepted, refused = said["accepted"], said["refused"]
    rows = [
        ("health", said["health"]), ("team", f"{said['environment']}: {', '.join(said['agents'])}"),
        ("up", f"{said['uptime']:.0f} s"),
        ("accepted", f"{accepted['trajectories']:,} trajectories, {accepted['rows']:,} rows"),
        ("rate", f"{said['rows_per_second']:,.0f} rows/s in the last 10 s"),
        ("sent again", f"{said['known']:,} trajectories"),
        ("log", f"{said['log_bytes'] / MB:,.1f} MB"),
    ]  # fmt: skip
    actors = said.get("actors")
    if actors:
        rows.append(("actors", f"{actors['seen']:,} seen, {actors['lately']:,} in the last minute"))
    if "version" in said:
        trained, metrics = said["trained"], said["metrics"]
        value = metrics.get("return")
        rows += [
            ("algorithm", said["algorithm"]), ("version", f"{said['version']}, published {said['published']}"),
            ("trained on", f"{trained['trajectories']:,} trajectories, {trained['steps']:,} steps"),
            ("too old", f"{trained['dropped_stale']:,} trajectories"),
            ("backlog", f"{said['backlog_bytes'] / MB:,.1f} MB"),
            ("return", "not known yet" if value is None else f"{value:.3f} (mean over agents and recent episodes)"),
        ]  # fmt: skip
    damaged = said.get("damaged", {})
    if any(damaged.values()):
        words = f"{damaged['messages']:,} messages ({damaged['bytes']:,} bytes)"
        rows.append(("damaged", f"{words}, {damaged['indexes']:,} indexes made again"))
    if said.get("trouble"):
        rows.append(("trouble", said["trouble"]))
    for message in said.get("set_aside", []):
        who = f", sent by {', '.join(message['senders'])}" if message["senders"] else ""
        rows.append(("set aside", f"{message['count']} trajectories ({message['trajectories'][0]}, ...){who}"))
    rows += [("refused sender", name) for name in said.get("refused_senders", [])]
    rows.append(("refused", f"{refused['messages']:,} messages"))
    rows += [("", f"{count} x {reason}") for reason, count in refused["reasons"].items()]
    for name, value in rows:
        table.add_row(name, Text(printable(value)))
    Console().print(table)
