"""Teams that learned with one number of agents, played with others, beside chance and the Hungarian oracle.

    flockrl train mappo mpe/simple_spread --net entities --steps 500000 --seeds 3 --out runs/three
    python bench/transfer.py runs/three/seed_* --sizes 2 3 4 5 6 7 8 --beside runs/two runs/five/seed_*

Prints, for each number of agents, the mean return per agent of random play, of the runs (mean over them, and the lowest
and the highest), of the oracle, and of the runs that were trained at that number (`--beside`), where there are any; and
how much of what the oracle, or such teams, gain over random play the runs gain, with intervals of 95 % over seeds.
"""

from __future__ import annotations

import argparse

import numpy as np
from bought import ratio

import flockrl
from flockrl.training.scripted import Scripted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="runs with one number of agents, each a seed")
    parser.add_argument("--setting", default="N", help="the environment's setting that is the number of agents")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(range(2, 9)))
    parser.add_argument("--beside", nargs="*", default=[], help="runs that were trained with other numbers")
    parser.add_argument("--oracle", default="hungarian", help="a policy that comes with the environment")
    parser.add_argument("--episodes", type=int, default=200)
    given = parser.parse_args()
    runs, others = [flockrl.Run(path) for path in given.runs], [flockrl.Run(path) for path in given.beside]
    path = runs[0].config.env.partition(":")[0]
    print(
        f"{'agents':>6} {'random':>8} {'runs':>8} {'lowest':>8} {'highest':>8} {given.oracle:>9} {'of oracle':>17} "
        f"{'trained':>8} {'of trained':>17}"
    )
    for size in given.sizes:
        env = f"{path}:{given.setting}={size}"
        chance, best = (Scripted(who, env).evaluate(given.episodes).mean for who in ("random", given.oracle))
        mine = np.array([run.evaluate(given.episodes, env=env).mean for run in runs])
        number = flockrl.make_env(env).spec.num_agents
        there = [run.evaluate(given.episodes).mean for run in others if run.spec.num_agents == number]
        beside = f"{np.mean(there):8.2f} {_share(mine - chance, np.array(there) - chance)}" if there else ""
        print(
            f"{size:6} {chance:8.2f} {mine.mean():8.2f} {mine.min():8.2f} {mine.max():8.2f} {best:9.2f} "
            f"{_share(mine - chance, np.array([best - chance]))} {beside}",
            flush=True,
        )


def _share(gains: np.ndarray, theirs: np.ndarray) -> str:
    """How much of their gains over random play [runs] the runs gain, and its interval, over seeds."""
    value, low, high = ratio(gains, theirs)
    return f"{f'{value:.0%} [{low:.0%}, {high:.0%}]':>17}"


if __name__ == "__main__":
    main()
