"""Two agents, two steps: why a sum of values is not enough, and what a mixer adds.

In the first step agent_0 chooses the matrix of the second: one pays 7 for any actions, the other [[0, 1], [1, 8]].
A sum of the agents' own values cannot represent the second matrix, so VDN gets 7; QMIX finds the 8.

python examples/factorise.py --seeds 5
"""

from __future__ import annotations

import argparse

import flockrl


def main(steps: int, seeds: int) -> None:
    for algorithm in ("vdn", "qmix"):
        runs = flockrl.train(
            algorithm, "games/two_step", steps=steps, seeds=seeds, hidden=(32,), gamma=0.99, lr=3e-3,
            lr_schedule="constant", rollout_steps=4, steps_per_update=16, batch_size=64, buffer_size=6400,
            learning_starts=640, explore_end=1.0, eval_every=steps, eval_episodes=1,
        )  # fmt: skip
        runs = runs if isinstance(runs, list) else [runs]
        print(f"{algorithm:5} returns {[run.result['final_eval_return'] for run in runs]}, the best is 8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=51_200, help="environment steps of each run")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each algorithm")
    given = parser.parse_args()
    main(given.steps, given.seeds)
