"""A team that looks for a rare reward: Q-learning where one agent must hold a door open for the other, with and
without a bonus for what is new.

    python examples/explore.py

Prints, for both, the share of episodes in which both pass the door, and how many joint cells training has seen.
"""

import argparse
from typing import Any

import flockrl

BONUS: dict[str, Any] = {"bonus": "count", "bonus_on": "state", "bonus_cell": 0.2, "bonus_schedule": "linear"}
"""Count cells of the joint state, a fifth of the grid wide; in the end only the reward counts."""

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1_000_000)
steps = parser.parse_args().steps

for name, settings in {"with a bonus": BONUS, "without": BONUS | {"bonus_scale": 0.0}}.items():
    run = flockrl.train(
        "vdn", "explore/pass", steps=steps, envs=32, n_step=5, lr=1e-3, explore_part=0.05, steps_per_update=25,
        quiet=True, **settings,
    )  # fmt: skip
    coverage = [row["coverage"] for row in run.metrics() if "coverage" in row][-1]
    print(f"{name}: success {run.evaluate(20).measures['success'].mean():.0%}, {coverage:,.0f} joint cells seen")
