"""After how many steps a team solves explore/*, whose rewards chance does not find, for a bonus and without one.

    python bench/exploring.py explore/pass --seed 5 --seeds 5
    python bench/exploring.py explore/pass --seed 5 --scale 0 --steps 1000000

VDN with counts of coarse cells of the joint state. Each seed is trained until its greedy team succeeded in five
evaluations in a row, 25,000 steps apart, or to its last step. Episodes all begin alike and chance has no part in them,
so that one of them tells. Prints a line of JSON per seed: from which step on every evaluation was a success.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from typing import Any

import flockrl
from flockrl.core.callbacks import Callback, Moment
from flockrl.core.types import EvalResult
from flockrl.training.compilation import cache_programs

SETTINGS: dict[str, Any] = {
    "bonus": "count", "bonus_on": "state", "bonus_schedule": "linear", "n_step": 5, "lr": 1e-3, "explore_part": 0.05,
    "steps_per_update": 25, "envs": 32, "eval_every": 25_000, "eval_episodes": 1, "checkpoint_every": 10**9,
    "log": "none", "quiet": True,
}  # fmt: skip
ENOUGH = 5


class Solved(Callback):
    """Stops a run once its newest evaluations are all successes. since: the step of the first of them."""

    def __init__(self) -> None:
        self.row, self.step, self.coverage = 0, 0, 0
        self.since: int | None = None

    def on_evaluation(self, moment: Moment, result: EvalResult) -> None:
        good = result.mean == 1
        self.row = self.row + 1 if good else 0
        self.since = (self.since or moment.step) if good else None
        self.step, self.coverage = moment.step, round(moment.metrics.get("coverage", 0))
        if self.row == ENOUGH:
            moment.stop("solved")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", help="the environment, such as explore/pass")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--steps", type=int, default=3_000_000, help="steps of a run, over which its schedules go")
    parser.add_argument("--scale", type=float, default=0.1, help="how much the bonus counts; 0 for none")
    parser.add_argument("--cell", type=float, default=0.2, help="width of the cells that are counted")
    given = parser.parse_args()
    cache_programs()
    own = {"steps": given.steps, "bonus_scale": given.scale, "bonus_cell": given.cell}
    for seed in range(given.seed, given.seed + given.seeds):
        solved = Solved()
        with tempfile.TemporaryDirectory() as out:
            flockrl.train("vdn", given.env, seed=seed, out=f"{out}/run", callbacks=[solved], **own, **SETTINGS)
        told = {"env": given.env, "seed": seed, **own, "solved_from": solved.since, "stopped_at": solved.step}
        print(json.dumps({**told, "coverage": solved.coverage}), flush=True)


if __name__ == "__main__":
    main()
