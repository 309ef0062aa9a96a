"""A fleet of drones, the whole way from a simulator to processes that fly, talk and learn.

Trains drones that tell each other what they see, holds them against Lloyd's rule, writes a report with animations, and
exports each drone. Then every drone is a process of its own: they send each other messages over real sockets and fly in
wind, which training had not. Their flights go to a server, which learns from them and hands back better policies. At
last each drone in turn is killed in flight, and the others cover its area.

    pip install -e '.[relay,members,report]'
    python examples/fleet.py
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DRONES, LENGTH, WIND = 4, 50, 8
PLACE = f"fleet/coverage:drones={DRONES},hotspots=2,steps={LENGTH},sensing=350"
"""Drones see hotspots within 350 m, so that each knows a part, and steps last 2 s."""
CALM, WINDY = f"{PLACE},failures=0.3", f"{PLACE},wind={WIND}"
"""Where they train, with drones that fail now and then; and where they fly, m/s."""
BATCH = 16
"""Flights of each update of the server."""
TIMEOUT = 0.5
"""Seconds that a drone waits for a message."""


def be_drone() -> None:
    """One drone: takes lines of JSON, answers each with a line. Imports neither JAX nor the environment."""
    from flockrl.relay import Member

    first, address = json.loads(sys.stdin.readline()), "tcp://127.0.0.1:0"
    answer: Any
    member: Any = None
    for line in sys.stdin:
        told = json.loads(line)
        if "load" in told:
            if member is not None:
                member.close()
            member = Member(told["load"], listen=address, token=first["token"], timeout=TIMEOUT, seed=first["seed"])
            answer = address = member.address
        elif "peers" in told:
            member.join(told["peers"])
            answer = True
        elif "meet" in told:
            answer = member.meet(told["meet"])
        elif "begin" in told:
            member.begin(told["begin"])
            member.explore, answer = told["explore"], True
        else:
            member.act(told["obs"], step=told["step"], neighbours=told["near"])
            chosen = member.choice
            likely = 0.0 if chosen.logp is None else float(chosen.logp[0])
            answer = [chosen.action[0].tolist(), chosen.raw[0].tolist(), likely]
        print(json.dumps(answer), flush=True)


class Drone:
    """A drone's process, as the ground sees it."""

    def __init__(self, seed: int, token: str):
        words = [sys.executable, __file__, "--drone"]
        self.child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tell({"seed": seed, "token": token})

    def tell(self, words: dict[str, Any]) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(words) + "\n")
        self.child.stdin.flush()

    def answer(self) -> Any:
        assert self.child.stdout is not None
        return json.loads(self.child.stdout.readline())

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()


class Fleet:
    """The air, and the processes that fly in it."""

    def __init__(self, env: Any, model: Path):
        import jax

        self.env, self.token = env, secrets.token_urlsafe(24)
        self.reset, self.advance = jax.jit(env.reset), jax.jit(env.step)
        self.drones: list[Drone | None] = [Drone(i, self.token) for i in range(DRONES)]
        self.flights = 0
        self.load(model, 0)

    def load(self, model: Path, version: int) -> None:
        """Give every drone its model, and let them meet."""
        self.model, self.version = model, version
        where = self.ask([{"load": str(model / f"member_{i}")} for i in range(DRONES)])
        peers = dict(zip(self.env.spec.agents, where, strict=True))
        self.ask([{"peers": {name: at for name, at in peers.items() if at != mine}} for mine in where])
        self.ask([{"meet": 60}] * DRONES)

    def ask(self, words: list[Any]) -> list[Any]:
        """Tell each drone something, and then hear all answers; None of those that are down or not asked."""
        asked = [drone if told is not None else None for drone, told in zip(self.drones, words, strict=True)]
        for drone, told in zip(asked, words, strict=True):
            if drone is not None:
                drone.tell(told)
        return [None if drone is None else drone.answer() for drone in asked]

    def begin(self, explore: bool) -> Any:
        """The state and what is seen at the start of another flight."""
        import jax

        self.flights += 1
        self.ask([{"begin": self.flights, "explore": explore}] * DRONES)
        self.key, self.step = jax.random.key(self.flights), 0
        return self.reset(self.key)

    def choose(self, seen: Any) -> tuple[Any, Any, Any]:
        """What the drones do [N, 2], the same before it was brought within bounds, and log-probabilities [N]."""
        import numpy as np

        rows, near = np.asarray(seen.obs).tolist(), np.asarray(seen.neighbours).tolist()
        words = [{"obs": rows[i], "near": near[i], "step": self.step} for i in range(DRONES)]
        answers = [answer or [[0.0, 0.0], [0.0, 0.0], 0.0] for answer in self.ask(words)]
        return tuple(np.array(part, np.float32) for part in zip(*answers, strict=True))  # type: ignore[return-value]

    def move(self, state: Any, action: Any) -> tuple[Any, ...]:
        import jax

        self.step += 1
        return self.advance(jax.random.fold_in(self.key, self.step), state, action)

    def fly(self) -> tuple[Any, float]:
        """A flight as it is recorded for a server, and its mean return."""
        import numpy as np

        from flockrl.data.episode import Episode

        state, seen = self.begin(explore=True)
        chosen: Any = None
        episode = Episode(self.env.spec, lambda *_: chosen, self.version, number=self.flights)
        total = 0.0
        for _ in range(LENGTH):
            chosen = self.choose(seen)
            episode.act(np.asarray(seen.obs))
            state, seen, reward, *_ = self.move(state, chosen[0])
            episode.reward(np.asarray(reward))
            total += float(reward.mean())
        return episode.end(truncated=True, obs=np.asarray(seen.obs)), total

    def twice(self, policy: Any) -> tuple[float, float]:
        """Mean returns of a flight without exploring: by the processes, and again by the team in one program."""
        import numpy as np

        def alone(seen: Any) -> Any:
            return policy.act(np.asarray(seen.obs), alive=seen.alive, neighbours=seen.neighbours)

        state, seen = self.begin(explore=False)
        first, totals = (state, seen), []
        for choose in (lambda seen: self.choose(seen)[0], alone):
            (state, seen), self.step, total = first, 0, 0.0
            for _ in range(LENGTH):
                state, seen, reward, *_ = self.move(state, choose(seen))
                total += float(reward.mean())
            totals.append(total)
        return totals[0], totals[1]

    def lose(self, which: int) -> dict[str, float]:
        """Kill a drone's process in the middle of a flight. How far the nearest drone is from its area (m)."""
        import jax
        import jax.numpy as jnp

        state, seen = self.begin(explore=False)
        for _ in range(LENGTH // 2):
            state, seen, *_ = self.move(state, self.choose(seen)[0])
        area, drone = nearest(state) == which, self.drones[which]
        found = {"before": reach(state, area)}
        assert drone is not None
        drone.kill()
        self.drones[which] = None
        state = state._replace(air=state.air._replace(charge=state.air.charge.at[which].set(0.0)))
        found["when it is lost"] = reach(state, area)
        other, lloyd = state, jax.jit(self.env.policies["lloyd"])
        for step in range(LENGTH // 2):
            # A drone hears who is there: the one that is down is no neighbour of the others any more.
            seen = seen._replace(neighbours=seen.neighbours & jnp.asarray(state.air.alive))
            state, seen, *_ = self.move(state, self.choose(seen)[0])
            other, *_ = self.advance(jax.random.fold_in(self.key, step), other, lloyd(other, None, self.key))
        self.drones[which] = Drone(which, self.token)
        self.load(self.model, self.version)
        return {**found, f"{LENGTH} s later": reach(state, area), "by Lloyd's rule": reach(other, area)}

    def close(self) -> None:
        for drone in self.drones:
            if drone is not None:
                drone.kill()


def nearest(state: Any) -> Any:
    """[P] which of the drones that fly is nearest to each point."""
    return squared(state).argmin(1)


def reach(state: Any, area: Any) -> float:
    """Root mean square distance (m) from the points of an area [P] to the nearest drone, by their density."""
    import numpy as np

    weight = np.asarray(state.density) * area
    return float(np.sqrt((squared(state).min(1) * weight).sum() / max(weight.sum(), 1e-9)))


def squared(state: Any) -> Any:
    """[P, N] squared distances (m²) from points to drones, infinite to those that are down."""
    import numpy as np

    from flockrl.envs.fleet.coverage import POINTS

    far = ((POINTS[:, None] - np.asarray(state.air.pos)) ** 2).sum(-1)
    return np.where(np.asarray(state.air.alive), far, np.inf)


def serve(run: Any, home: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A server that begins with what the run learned, and where it listens."""
    words = [sys.executable, "-m", "flockrl", "serve", "--algorithm", "mappo", "--env", WINDY, "--data", str(home)]
    words += ["--listen", "127.0.0.1:0", "--init-from", str(run.path), "--envs", str(BATCH), "--save-every", "1"]
    words += ["--quiet", "--set", "comm=tarmac", f"rollout_steps={LENGTH}", "lr=0.001"]
    server = subprocess.Popen(words)
    while not (home / "address").exists():
        if server.poll() is not None:
            raise SystemExit("The server did not start.")
        time.sleep(0.1)
    return server, (home / "address").read_text().strip()


def improve(fleet: Fleet, address: str, home: Path, rounds: int, flights: int, queue: Path) -> list[float]:
    """Fly, send the flights, and take what the server learned from them, several times. Mean returns by round."""
    import flockrl
    from flockrl.relay import Client, Outbox

    outbox = Outbox(queue, fleet.env.spec, Client(address), ("", 0), 64 << 20, 0.2, 1e9)
    client, scores, sent = Client(address), list[float](), 0
    try:
        for number in range(rounds):
            total = 0.0
            for _ in range(flights):
                flight, score = fleet.fly()
                outbox.add(flight)
                total += score
            scores.append(total / flights)
            sent += flights
            if not outbox.flush(60):
                raise SystemExit("The server did not take the flights.")
            learned = wait_for(client, home, sent // BATCH)
            model = flockrl.export(learned, home.parent / f"model_{number + 1}", per_agent=True)
            fleet.load(model, learned.trainer.version)
            words = f"{flights} flights with a mean return of {scores[-1]:.1f}"
            print(f"{words}; version {learned.trainer.version} comes back", flush=True)
    finally:
        outbox.close(5)
        client.close()
    return scores


def wait_for(client: Any, home: Path, version: int) -> Any:
    """What the server has learned, once it has made so many updates and has saved them."""
    from flockrl.training.learned import LearnedRun

    while client.status()["version"] < version:
        time.sleep(0.2)
    while (learned := LearnedRun(home, WINDY)).trainer.version < version:
        time.sleep(1)
    return learned


def score(result: Any) -> str:
    mean, error = result.mean, result.returns.mean(1).std() / len(result.returns) ** 0.5
    return f"{mean:7.2f} ± {error:.2f}   {result.measures['distance'].mean():4.0f} m"


def gain(before: Any, after: Any) -> str:
    """How much better the second of two evaluations on the same episodes is, with an interval of 95 %."""
    difference = (after.returns - before.returns).mean(1)
    half = 1.96 * difference.std() / len(difference) ** 0.5
    return f"{difference.mean():7.2f}, interval {difference.mean() - half:.2f} to {difference.mean() + half:.2f}"


def compare(run: Any, episodes: int) -> tuple[dict[str, str], Any]:
    """Classical policies and the trained team, in the air of its training and in wind; and the last as a result."""
    from flockrl.training.scripted import Scripted

    rows, learned = {}, None
    for air, place in (("calm", PLACE), ("wind", WINDY)):
        for name, words in (("stay", "stay where they are"), ("lloyd", "Lloyd's rule, which sees everything")):
            rows[f"{air}: {words}"] = score(Scripted(name, place).evaluate(episodes))
        learned = run.evaluate(episodes, env=place)
        rows[f"{air}: trained in calm air"] = score(learned)
    rows["wind: the same, without messages"] = score(run.evaluate(episodes, env=WINDY, channel="bits=0"))
    return rows, learned


def main(steps: int, episodes: int, rounds: int, flights: int, out: Path) -> None:
    import flockrl
    from flockrl.evidence.report import write_report
    from flockrl.training.learned import LearnedRun

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        run = flockrl.train(
            "mappo", CALM, comm="tarmac", steps=steps, rollout_steps=LENGTH, envs=BATCH, seed=0, out=home / "run",
            quiet=True,
        )  # fmt: skip
        print(f"trained for {steps:,} steps", flush=True)
        rows, before = compare(run, episodes)
        write_report([run.path], out)
        fleet = Fleet(flockrl.make_env(WINDY), flockrl.export(run, home / "model", per_agent=True))
        server = None
        try:
            words = "one flight: by processes, and in one program"
            rows[words] = "{:7.3f} and {:.3f}".format(*fleet.twice(run.policy()))
            server, address = serve(run, home / "server")
            scores = improve(fleet, address, home / "server", rounds, flights, home / "queue")
            losses = [fleet.lose(i) for i in range(DRONES)]
        finally:
            fleet.close()
            if server is not None:
                server.terminate()
                server.wait()
        count = rounds * flights
        after = LearnedRun(home / "server", WINDY).evaluate(episodes)
    rows[f"wind: after {count} flights"] = score(after)
    rows["wind: what the flights gained"] = gain(before, after)
    rows["its first and last flights, exploring"] = f"{scores[0]:7.2f} to {scores[-1]:.2f}"
    print(f"\n{'':44} return            mean distance")
    for name, words in rows.items():
        print(f"{name:44} {words}")
    print("\nDistance from the area of a drone that is lost to the nearest drone, mean over each of them:")
    for name in losses[0]:
        print(f"{name:44} {sum(found[name] for found in losses) / len(losses):4.0f} m")
    print(f"\nThe report with animations is in {out}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50_000, help="of training in calm air")
    parser.add_argument("--episodes", type=int, default=400, help="of each evaluation")
    parser.add_argument("--rounds", type=int, default=4, help="times that a policy comes back from the server")
    parser.add_argument("--flights", type=int, default=2 * BATCH, help=f"of each round, a multiple of {BATCH}")
    parser.add_argument("--out", type=Path, default=Path("fleet.html"), help="where the report goes")
    parser.add_argument("--drone", action="store_true", help="run as one of the drones")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes it started are ended too
    if given.drone:
        be_drone()
    elif given.flights % BATCH or min(given.flights, given.rounds, given.episodes) < 1:
        parser.error(f"--flights must be a multiple of {BATCH}, and there must be at least one of everything.")
    else:
        main(given.steps, given.episodes, given.rounds, given.flights, given.out)
