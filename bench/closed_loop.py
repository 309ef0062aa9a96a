"""Is learning through the relay as good as learning directly? IPPO on mpe/simple_spread, the same number of steps.

Two actor processes step the environment, act with the newest model they have and send their episodes to a server, which
trains with the settings of the direct run. Both policies then play the same greedy episodes. Prints one JSON line.

    python bench/closed_loop.py --steps 300000
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

import jax
import numpy as np

ENV, ALGORITHM, EPISODES, SEND = "mpe/simple_spread", "ippo", 1000, 32


def play(address: str, queue: str, seed: int) -> None:
    """An actor that plays endless episodes. After every `SEND` of them it waits until the server has them all."""
    from flockrl.envs import make
    from flockrl.relay.actor import Actor

    env: Any = make(ENV)
    reset = jax.jit(lambda number: env.reset(jax.random.key(number)))
    step = jax.jit(lambda number, state, action: env.step(jax.random.key(number), state, action))
    actor, count = Actor(server=address, queue=queue, seed=seed, send_every=0.05), 0
    while True:
        count += 1
        number = (seed << 24) + count
        state, seen = reset(number)
        reward: Any = None
        for _ in range(env.spec.max_steps):
            action = actor.request_action(np.asarray(seen.obs), reward=reward)
            state, seen, reward, _, _ = step(number, state, action)
            reward = np.asarray(reward)
        actor.flag_last_action(reward, truncated=True, obs=np.asarray(seen.obs))
        if count % SEND == 0:
            actor.flush(60.0)


def score(actor: Any, params: Any) -> float:
    from flockrl.envs import make
    from flockrl.evaluation.playing import make_player

    returns, *_ = make_player(actor, make(ENV), EPISODES)(params, jax.random.key(12345))
    return float(np.mean(returns))


def through_relay(home: Path, steps: int, seed: int) -> dict[str, Any]:
    import flockrl
    from flockrl.relay.client import Client

    words = [sys.executable, "-m", "flockrl", "serve", "--algorithm", ALGORITHM, "--env", ENV, "--quiet"]
    words += ["--data", str(home), "--listen", "127.0.0.1:0", "--steps", str(steps), "--seed", str(seed)]
    words += ["--set", "lr_schedule=linear", "--backlog-mb", "0.25", "--publish-every", "0"]
    processes = [subprocess.Popen(words)]
    try:
        while not (home / "address").exists():
            assert processes[0].poll() is None, "the server did not start"
            time.sleep(0.1)
        address = (home / "address").read_text().strip()
        for i in range(2):
            own = [sys.executable, __file__, "--play", address, str(home / f"queue{i}"), str(2 * seed + i + 1)]
            processes.append(subprocess.Popen(own))
        client = Client(address)
        while (status := client.status())["trained"]["steps"] < steps:
            assert not status["health"].startswith("failed"), status["health"]
            assert all(process.poll() is None for process in processes), "a process ended"
            time.sleep(0.1)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()
    trainer = flockrl.Trainer.load(home / "trainer")
    policy = trainer.acquire_model()
    assert policy is not None
    about = {"relay_steps": trainer.stats["steps"], "dropped_stale": trainer.stats["dropped_stale"]}
    return {"relay": score(policy.algorithm, policy.params), **about}


def main(steps: int, seed: int) -> None:
    import flockrl

    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        relay = through_relay(Path(folder) / "server", steps, seed)
        seconds = time.monotonic() - began
        run = flockrl.train(ALGORITHM, ENV, steps=steps, seed=seed, out=Path(folder) / "direct", eval_every=steps)
        direct = score(run.algorithm, run.params())
        fresh = flockrl.Trainer(ALGORITHM, run.env.spec, seed=seed).acquire_model()
        assert fresh is not None
        untrained = score(fresh.algorithm, fresh.params)
    gap = (direct - relay["relay"]) / abs(direct)
    rounded = {name: round(value, 3) for name, value in relay.items()}
    result = {"steps": steps, "untrained": round(untrained, 3), "direct": round(direct, 3), **rounded}
    print(json.dumps({**result, "relay_worse_by": round(gap, 4), "relay_seconds": round(seconds)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--play", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes it started are ended too
    if given.play:
        play(given.play[0], given.play[1], int(given.play[2]))
    else:
        main(given.steps, given.seed)
