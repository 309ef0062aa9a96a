"""Learned policies of Littman's soccer beside Shapley's exact solution.

    flockrl train mmd games/soccer --gamma .9 --out runs/soccer
    python bench/soccer.py runs/soccer ...

Each row is a pair of policies: what the first player gets from the start, discounted by 0.9, and what best responses to
the policies would gain, exactly, by policy iteration. Without runs, only the exact solution and uniform play are shown.
"""

import argparse

import numpy as np

from flockrl.envs import make
from flockrl.games.markov import from_rules
from flockrl.games.query import Examiner
from flockrl.games.stochastic import minimax
from flockrl.training.run import Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*")
    given = parser.parse_args()
    env = make("games/soccer")
    game = from_rules(env.rules)
    exact = minimax(game)
    uniform = game.uniform()
    rows = [("Shapley's value iteration", game.gap(exact.policies)[0]), ("uniform play", game.gap(uniform)[0])]
    examiner = Examiner(env)
    for path in given.runs:
        run = Run(path)
        gap = examiner.gap(run.algorithm, run.params())
        rows.append((f"{run.config.algorithm}, {run.result['steps']:,} steps, seed {run.config.options.seed}", gap))
    print("| policies | value of the first | gains of best responses | exploitability |\n|---|---|---|---|")
    for name, gap in rows:
        gains = " and ".join(f"{gain:.4f}" for gain in np.maximum(gap.gains, 0.0))
        print(f"| {name} | {gap.values[0]:.4f} | {gains} | {gap.exploitability:.4f} |")


if __name__ == "__main__":
    main()
