"""Train a team of three that reads its observations as sets, and let it play with two, four and six.

python examples/teams_that_grow.py --steps 500000
"""

from __future__ import annotations

import argparse

import flockrl
from flockrl.training.scripted import Scripted


def main(steps: int) -> None:
    run = flockrl.train("mappo", "mpe/simple_spread:N=3", net="deep_set", steps=steps, eval_every=steps)
    print(run)
    for agents in (2, 3, 4, 6):
        env = f"mpe/simple_spread:N={agents}"
        chance, oracle = (Scripted(who, env).evaluate(50).mean for who in ("random", "hungarian"))
        print(f"{agents} agents: {run.evaluate(50, env=env).mean:.2f} (random {chance:.2f}, Hungarian {oracle:.2f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=500_000)
    main(parser.parse_args().steps)
