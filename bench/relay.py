"""Three figures of the relay, as one JSON line each.

collect: agent-steps per second that a server writes to disk and acknowledges, from 8 client processes that replay
recorded trajectories of mpe/simple_spread. train: agent-steps per second on which the server trains IPPO meanwhile.
act: microseconds of `Actor.request_action` with a policy of 64 x 64, including recording.

    python bench/relay.py
    python bench/relay.py --only collect --seconds 20
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS, AGENTS = 8, 3
ENV = "mpe/simple_spread"


def record(file: Path, envs: int = 64, rounds: int = 4) -> None:
    """Record episodes of an untrained IPPO policy: a message of `envs` episodes for each round."""
    import jax
    import pyarrow as pa

    from flockrl.algos.assembly import make_algorithm
    from flockrl.algos.presets import make_config
    from flockrl.data.schema import encode, make_schema
    from flockrl.envs import make
    from flockrl.evaluation.record import Cutter, Joiner
    from flockrl.rollouts.compiled import scan_rollout, start

    env: Any = make(ENV)
    config = make_config("ippo", {"rollout_steps": env.spec.max_steps, "hidden": (64, 64)})
    algorithm = make_algorithm("ippo", env.spec, config, envs=envs, updates=1)
    params = algorithm.params(jax.jit(algorithm.init)(jax.random.key(0)))
    play = jax.jit(lambda actors, key: scan_rollout(algorithm, params, env, actors, key))
    actors, cutter, joiner = start(algorithm, env, jax.random.key(1), envs), Cutter(ENV, envs), Joiner()
    schema, sent = make_schema(env.spec), 0
    with pa.ipc.new_stream(str(file), schema) as writer:
        for i in range(rounds + 1):
            actors, rollout, _ = play(actors, jax.random.key(i))
            for episodes in joiner.add(cutter.cut(jax.device_get(rollout), 0)):
                writer.write_batch(encode(episodes._replace(aux={}), env.spec, schema))
                sent += episodes.trajectories
    assert sent == envs * rounds, sent


def replay(address: str, file: str, name: str, seconds: float) -> None:
    """One client: sends recorded trajectories with new ids, each message after the last one is acknowledged."""
    import pyarrow as pa

    from flockrl.relay.client import Client, Unreachable
    from flockrl.relay.wire import pack

    with pa.ipc.open_stream(file) as reader:
        batches = list(reader)
    parts = [(batch, batch.column(0).dictionary_encode()) for batch in batches]
    client, rows, count = Client(address), 0, 0
    print("ready", flush=True)
    sys.stdin.readline()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        batch, ids = parts[count % len(parts)]
        fresh = pa.array([f"{name}-{count}-{k}" for k in range(len(ids.dictionary))]).take(ids.indices)
        message = pack(batch.set_column(0, batch.schema.field(0), fresh))
        try:
            answer = client.put(message)
        except Unreachable:  # slow down
            continue
        assert answer["new"] == len(ids.dictionary)
        count += 1
        rows += len(batch) if time.monotonic() < ends else 0
    print(rows, flush=True)


def stream(file: Path, seconds: float, algorithm: str | None, warm: float) -> dict[str, Any]:
    """Agent-steps per second from all clients to a server in a process of its own."""
    from flockrl.relay.client import Client

    with tempfile.TemporaryDirectory() as folder:
        words = [
            sys.executable,
            "-m",
            "flockrl",
            "serve",
            "--data",
            folder,
            "--listen",
            "127.0.0.1:0",
            "--env",
            ENV,
        ]
        words += ["--quiet"]
        if algorithm is not None:
            words += ["--algorithm", algorithm, "--max-version-lag", "1000000"]
        server = subprocess.Popen(words)
        try:
            address = _address(Path(folder), server)
            own = [sys.executable, __file__, "--client", address, str(file)]
            clients = [
                subprocess.Popen(
                    [*own, f"c{i}", "--seconds", str(seconds + warm)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
                for i in range(CLIENTS)
            ]
            for client in clients:
                assert client.stdout is not None
                assert client.stdin is not None
                client.stdout.readline()
            for client in clients:
                client.stdin.write(b"go\n")  # type: ignore[union-attr]
                client.stdin.flush()  # type: ignore[union-attr]
            link = Client(address)
            time.sleep(warm)
            began, before = time.monotonic(), link.status()
            time.sleep(seconds)
            span, after = time.monotonic() - began, link.status()
            sent = sum(int(client.communicate()[0]) for client in clients)
            final = link.status()
        finally:
            server.terminate()
            server.wait()
    assert final["refused"]["messages"] == 0, final["refused"]
    rate = (after["accepted"]["rows"] - before["accepted"]["rows"]) / span
    result = {"figure": "collect", "acknowledged": round(rate), "all_clients": round(sent / (seconds + warm))}
    if algorithm is not None:
        steps = after["trained"]["steps"] - before["trained"]["steps"]
        result |= {"figure": "train", "trained": round(AGENTS * steps / span), "version": after["version"]}
    return result


def _address(folder: Path, server: subprocess.Popen[bytes]) -> str:
    while not (folder / "address").exists():
        if server.poll() is not None:
            raise SystemExit("the server did not start")
        time.sleep(0.05)
    return (folder / "address").read_text().strip()


def latency(count: int = 20_000) -> dict[str, Any]:
    """Measure the microseconds from observations to actions."""
    import flockrl
    from flockrl.envs import make
    from flockrl.relay.actor import Actor

    with tempfile.TemporaryDirectory() as folder:
        trainer = flockrl.Trainer("ippo", make(ENV).spec, hyperparams={"hidden": (64, 64)})
        policy = trainer.acquire_model()
        assert policy is not None
        flockrl.export(policy, Path(folder) / "model")
        actor = Actor(Path(folder) / "model", queue=Path(folder) / "queue", seed=0)
        obs = np.random.default_rng(0).normal(size=(count, AGENTS, actor.spec.obs_size)).astype(np.float32)
        taken = np.zeros(count)
        for i in range(count):
            began = time.perf_counter()
            actor.request_action(obs[i], reward=0.5)
            taken[i] = time.perf_counter() - began
            if i % 25 == 24:
                actor.flag_last_action(0.5, truncated=True, obs=obs[i])
        actor.close()
    taken = taken[count // 10 :] * 1e6
    return {
        "figure": "act",
        "median_us": round(float(np.median(taken)), 1),
        "p99_us": round(float(np.quantile(taken, 0.99)), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["collect", "train", "act"])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes it started are ended too
    if given.client:
        address, recorded, name = given.client
        replay(address, recorded, name, given.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recorded.arrows"
        if given.only != "act":
            record(file)
        if given.only in (None, "collect"):
            print(json.dumps(stream(file, given.seconds, None, 2.0)), flush=True)
        if given.only in (None, "train"):
            print(json.dumps(stream(file, given.seconds, "ippo", 20.0)), flush=True)
        if given.only in (None, "act"):
            print(json.dumps(latency()), flush=True)


if __name__ == "__main__":
    main()
