"""Hunters trained against a frozen prey, beside hunters that were trained together with it, on simple_tag.

python bench/hunters.py --steps 300000 --seeds 5 --out /tmp/hunters

Continuous actions. First maddpg hunters and iddpg prey are trained together, for each seed; then new maddpg hunters
against each of those prey, frozen. The table gives the hunters' return (undiscounted, mean over hunters and greedy
episodes): its mean over seeds and a 95% interval (Student's t), against the prey of the same seed and of the others.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

import flockrl

ENV = "mpe/simple_tag:continuous_actions=true"
HUNTERS, PREY = "adversary", "agent"


def main(steps: int, seeds: int, episodes: int, out: Path) -> None:
    together = [_run(out / f"together-{s}", "iddpg", s, steps) for s in range(seeds)]
    alone = [_run(out / f"alone-{s}", together[s], s, steps) for s in range(seeds)]
    hunters = {"trained against that prey, frozen": alone, "trained together with it": together, "random": None}
    print("| hunters | against the prey of their seed | against the prey of other seeds |\n|---|---|---|")
    for name, runs in hunters.items():
        scores = np.array([[_score(runs, h, together[p], episodes) for p in range(seeds)] for h in range(seeds)])
        own = np.diag(scores)
        others = (scores.sum(1) - own) / max(seeds - 1, 1)
        print(f"| {name} | {interval(own)} | {interval(others)} |", flush=True)
        if runs is alone:
            first = own, others
        else:
            print(f"| - the first row minus this one | {interval(first[0] - own)} | {interval(first[1] - others)} |")


def _run(path: Path, prey: Any, seed: int, steps: int) -> flockrl.Run:
    """The run at `path`; it is trained where there is none yet."""
    if (path / "result.json").exists():
        return flockrl.Run(path)
    return flockrl.train(
        {HUNTERS: "maddpg", PREY: prey}, ENV, seed=seed, steps=steps, out=path, eval_episodes=20, eval_every=steps // 4
    )


def _score(runs: list[flockrl.Run] | None, i: int, prey: flockrl.Run, episodes: int) -> float:
    players: dict[str, Any] = {HUNTERS: "random" if runs is None else runs[i], PREY: prey}
    result = flockrl.match(players, ENV, episodes=episodes, seed=100 + i)
    return float(result.per_agent[list(prey.spec.parties[HUNTERS])].mean())


def interval(x: np.ndarray) -> str:
    """Mean and 95% interval over seeds (Student's t)."""
    if len(x) < 2:
        return f"{x.mean():.2f}"
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / len(x) ** 0.5
    return f"{x.mean():.1f} [{x.mean() - half:.1f}, {x.mean() + half:.1f}]"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("runs/hunters"))
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    main(given.steps, given.seeds, given.episodes, given.out)
