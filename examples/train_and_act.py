"""Train a policy, evaluate it, and act with it in a loop of your own.

python examples/train_and_act.py --steps 500000
"""

from __future__ import annotations

import argparse

import jax
import numpy as np

import flockrl


class StopWhenGood(flockrl.Callback):
    """Ends training as soon as the greedy policy is good enough."""

    def on_evaluation(self, moment: flockrl.Moment, result: flockrl.EvalResult) -> None:
        if result.mean > -10:
            moment.stop("good enough")


def main(steps: int) -> None:
    run = flockrl.train("mappo", "mpe/simple_spread", steps=steps, quiet=False, callbacks=[StopWhenGood()])
    result = run.evaluate(episodes=200)
    print(f"return {result.mean:.2f} (std {result.std:.2f}); per agent {np.round(result.per_agent, 2)}")

    env, policy = run.env, run.policy()
    state, seen = env.reset(jax.random.key(0))
    total = np.zeros(env.spec.num_agents)
    for t in range(env.spec.max_steps):
        action = policy.act(np.asarray(seen.obs))
        state, seen, reward, _, _ = env.step(jax.random.key(t), state, action)
        total += np.asarray(reward)
    print(f"return of one episode: {np.round(total, 2)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500_000)
    main(parser.parse_args().steps)
