"""A team that learned with one number of agents, played with others, beside chance and the Hungarian oracle.

    flockrl train mappo mpe/simple_spread --net entities --steps 500000 --out runs/three
    python bench/transfer.py runs/three --sizes 2 3 4 5 6 7 8 --beside runs/two runs/five

Prints, for each number of agents, the mean return per agent of random play, of the run, of the oracle, and of the runs
that were trained at that number (`--beside`), where there are any; and how much of what the oracle, or such a team,
gains over random play the run gains.
"""

from __future__ import annotations

import argparse

import flockrl
from flockrl.training.scripted import Scripted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--setting", default="N", help="the environment's setting that is the number of agents")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(range(2, 9)))
    parser.add_argument("--beside", nargs="*", default=[], help="runs that were trained with other numbers")
    parser.add_argument("--oracle", default="hungarian", help="a policy that comes with the environment")
    parser.add_argument("--episodes", type=int, default=200)
    given = parser.parse_args()
    run = flockrl.Run(given.run)
    path = run.config.env.partition(":")[0]
    trained = {other.spec.num_agents: other for other in map(flockrl.Run, given.beside)}
    print(
        f"{'agents':>6} {'random':>9} {'run':>9} {given.oracle:>9} {'of oracle':>9} {'trained':>9} {'of trained':>10}"
    )
    for size in given.sizes:
        env = f"{path}:{given.setting}={size}"
        chance, best = (Scripted(who, env).evaluate(given.episodes).mean for who in ("random", given.oracle))
        mine = run.evaluate(given.episodes, env=env).mean
        there = trained.get(flockrl.make_env(env).spec.num_agents)
        other = None if there is None else there.evaluate(given.episodes).mean
        beside = "" if other is None else f"{other:9.2f} {(mine - chance) / (other - chance):10.0%}"
        print(
            f"{size:6} {chance:9.2f} {mine:9.2f} {best:9.2f} {(mine - chance) / (best - chance):9.0%} {beside}",
            flush=True,
        )


if __name__ == "__main__":
    main()
