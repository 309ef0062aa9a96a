"""A game that is not a gym environment, two processes that play it, and one server that trains their policy.

Two foragers on a small meadow gather berries; both are needed to lift one. Every player process acts with the newest
policy it has, records its episodes and sends them; the server trains IPPO and publishes new policies. No process waits
for another.

    pip install -e '.[relay]'
    python examples/relay_game.py
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flockrl import Box, Discrete, EnvSpec
from flockrl.core.spec import spec_to_json
from flockrl.relay import Actor, Client

SIZE, BERRIES, LENGTH = 6, 3, 40
MOVES = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)]
SPEC = EnvSpec("meadow", ("ann", "bob"), (Box((4 + 3 * BERRIES,)),) * 2, (Discrete(5),) * 2, max_steps=LENGTH)


class Meadow:
    """The game, in plain Python."""

    def __init__(self) -> None:
        cells = [(x, y) for x in range(SIZE) for y in range(SIZE)]
        self.ann, self.bob, *self.berries = random.sample(cells, 2 + BERRIES)
        self.gathered: set[int] = set()

    def move(self, ann: int, bob: int) -> int:
        """Both move. Returns how many berries they lifted: those that both stand on or next to."""
        self.ann, self.bob = self._walk(self.ann, ann), self._walk(self.bob, bob)
        lifted = {
            i for i, berry in enumerate(self.berries)
            if i not in self.gathered and max(distance(self.ann, berry), distance(self.bob, berry)) <= 1
        }  # fmt: skip
        self.gathered |= lifted
        return len(lifted)

    def _walk(self, where: tuple[int, int], move: int) -> tuple[int, int]:
        dx, dy = MOVES[move]
        return min(max(where[0] + dx, 0), SIZE - 1), min(max(where[1] + dy, 0), SIZE - 1)

    def view(self, me: tuple[int, int], other: tuple[int, int]) -> list[float]:
        """What one forager sees: itself, the other, and each berry that is left."""
        seen = [me[0] / SIZE, me[1] / SIZE, (other[0] - me[0]) / SIZE, (other[1] - me[1]) / SIZE]
        for i, (x, y) in enumerate(self.berries):
            there = i not in self.gathered
            seen += [1.0, (x - me[0]) / SIZE, (y - me[1]) / SIZE] if there else [0.0, 0.0, 0.0]
        return seen

    def views(self) -> dict[str, list[float]]:
        return {"ann": self.view(self.ann, self.bob), "bob": self.view(self.bob, self.ann)}


def distance(a: tuple[int, int], b: tuple[int, int]) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def play(server: str, queue: str) -> None:
    """The game's own loop: it requests actions, reports their reward, and reports when an episode is over."""
    actor = Actor(server=server, queue=queue, timeout=300)
    while True:
        game, reward = Meadow(), 0
        for _ in range(LENGTH):
            action = actor.request_action(game.views(), reward=reward)
            reward = game.move(action["ann"], action["bob"])
            if len(game.gathered) == BERRIES:
                actor.flag_last_action(reward)
                break
        else:
            actor.flag_last_action(reward, truncated=True, obs=game.views())


def main(steps: int, out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "spec.json").write_text(json.dumps(spec_to_json(SPEC)))
        words = [sys.executable, "-m", "flockrl", "serve", "--algorithm", "ippo", "--spec", str(home / "spec.json")]
        words += ["--data", str(home / "server"), "--listen", "127.0.0.1:0", "--quiet", "--set", "lr=0.001"]
        processes = [subprocess.Popen(words)]
        try:
            while not (home / "server" / "address").exists():
                if processes[0].poll() is not None:
                    raise SystemExit("The server did not start.")
                time.sleep(0.1)
            address = (home / "server" / "address").read_text().strip()
            for name in ("north", "south"):
                own = [sys.executable, __file__, "--play", address, str(home / name)]
                processes.append(subprocess.Popen(own))
            watch(Client(address), steps)
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()
        rows = [json.loads(line) for line in (home / "server" / "trainer" / "metrics.jsonl").read_text().splitlines()]
    plot([row for row in rows if row["return"] is not None], out)


def watch(client: Client, steps: int) -> None:
    """Print the progress until the server has trained on that many steps."""
    said = 0
    while True:
        status = client.status()
        done, latest = status["trained"]["steps"], status["metrics"].get("return")
        if done >= min(said, steps):
            berries = "not known yet" if latest is None else f"{latest:.2f} of {BERRIES} berries"
            print(f"{done:8} steps, version {status['version']:4}: {berries}", flush=True)
            said = done + steps // 10
        if done >= steps:
            return
        time.sleep(0.2)


def plot(rows: list[dict[str, float]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    axes.plot([row["step"] for row in rows], [row["return"] for row in rows])
    axes.set(
        xlabel="steps played",
        ylabel=f"berries of {BERRIES}",
        title="Two player processes, one server",
        ylim=(0, BERRIES),
    )
    figure.savefig(out, dpi=120)
    print(f"from {rows[0]['return']:.2f} to {rows[-1]['return']:.2f} berries of {BERRIES}; wrote {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--out", type=Path, default=Path("relay_game.png"))
    parser.add_argument("--play", nargs=2, metavar=("SERVER", "QUEUE"), help="run as one of the players")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes it started are ended too
    if given.play:
        play(*given.play)
    else:
        main(given.steps, given.out)
