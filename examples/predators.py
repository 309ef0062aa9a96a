"""Train hunters with central critics and with critics of single agents, and compare how much they catch.

Each algorithm trains all agents of simple_tag (hunters are the adversaries). Then the hunters of every run, and hunters
that act at random, play against the prey of every run. The score is the hunters' return, mean over hunters.

python examples/predators.py --steps 250000 --seeds 5
python examples/predators.py --env mpe/simple_adversary
python examples/predators.py --learners maddpg iddpg maddpg,gamma=0.96 --out runs/tag  # and keep the runs
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

import flockrl
from flockrl.evaluation.matches import Side, make_match, random_actor


def main(learners: list[str], env: str, steps: int, seeds: int, episodes: int, out: Path) -> None:
    world = flockrl.make_env(env)
    hunters = tuple(name for name in world.spec.agents if name.startswith("adversary"))
    prey = tuple(name for name in world.spec.agents if name not in hunters)
    if not hunters:
        raise SystemExit(f"{env} has no agents called adversary.")
    hunting = [world.spec.agents.index(name) for name in hunters]
    trained = {name: [run_of(name, env, steps, seed, out) for seed in range(seeds)] for name in learners}
    params: dict[str, list[Any]] = {name: [run.params() for run in runs] for name, runs in trained.items()}
    policies: dict[str, Any] = {name: runs[0].algorithm for name, runs in trained.items()}
    params["random"], policies["random"] = [()] * seeds, random_actor(world.spec)

    scores = {}
    for hunter in params:
        rows = []
        for opponent in trained:
            match = make_match(world, [Side(policies[hunter], hunters), Side(policies[opponent], prey)], episodes)
            results = [[match((h, p), 1) for p in params[opponent]] for h in params[hunter]]
            rows.append([[r.per_agent[hunting].mean() for r in row] for row in results])
        scores[hunter] = np.concatenate(rows, axis=1).mean(axis=1)  # [seeds], mean over all prey
        print(f"{hunter:8} hunters: {interval(scores[hunter])}", flush=True)
    for other in [*learners[1:], "random"]:
        print(f"{learners[0]} minus {other}: {interval(scores[learners[0]] - scores[other])}")


def run_of(learner: str, env: str, steps: int, seed: int, out: Path) -> flockrl.Run:
    """The run of "algorithm,setting=number,..." in `out`; it is trained where there is none yet."""
    path = out / f"{learner}-{seed}"
    if (path / "result.json").exists():
        return flockrl.Run(path)
    algorithm, *settings = learner.split(",")
    own: dict[str, Any] = {name: float(value) for name, value in (setting.split("=") for setting in settings)}
    return flockrl.train(algorithm, env, steps=steps, seed=seed, out=path, **own)


def interval(x: np.ndarray) -> str:
    """Mean and 95% interval over seeds (Student's t)."""
    if len(x) < 2:
        return f"{x.mean():.2f}"
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / len(x) ** 0.5
    return f"{x.mean():.2f} [{x.mean() - half:.2f}, {x.mean() + half:.2f}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", nargs="+", default=["maddpg", "iddpg"], help="algorithm,setting=number,...")
    parser.add_argument("--env", default="mpe/simple_tag")
    parser.add_argument("--steps", type=int, default=250_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--out", type=Path, help="where runs are kept; by default nowhere")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as nowhere:
        main(given.learners, given.env, given.steps, given.seeds, given.episodes, given.out or Path(nowhere))
