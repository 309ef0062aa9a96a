"""Your own Gymnasium environment: keep a room warm through a changing day.

    pip install -e '.[gymnasium]'
    python examples/own_gymnasium.py --steps 100000

Every ten minutes of a day, one agent sets the heating to a number between 0 and 1. It pays for heating and for every
degree of difference from 20.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import flockrl

STEPS = 144


class Room(gymnasium.Env):
    """The agent observes the temperature inside and outside (divided by 10), and the time of day as sine and cosine."""

    observation_space = spaces.Box(-10.0, 10.0, (4,), np.float32)
    action_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    max_steps = STEPS  # flockrl truncates there

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time, self.inside = 0, self.np_random.uniform(14, 24)
        self.cold = self.np_random.uniform(-5, 10)
        return self._look(), {}

    def _outside(self) -> float:
        return self.cold + 5 * np.sin(2 * np.pi * (self.time / STEPS - 0.3))

    def _look(self) -> np.ndarray:
        angle = 2 * np.pi * self.time / STEPS
        return np.array([self.inside / 10, self._outside() / 10, np.sin(angle), np.cos(angle)], np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        heat = float(action[0])
        self.time += 1
        self.inside += 2.0 * heat - 0.05 * (self.inside - self._outside()) + self.np_random.normal(0, 0.05)
        reward = -abs(self.inside - 20) - 0.2 * heat
        return self._look(), reward, False, False, {}


def main(steps: int) -> None:
    run = flockrl.train("ppo", Room, steps=steps, quiet=False)
    per_step = run.evaluate(episodes=20).mean / STEPS
    print(f"{per_step:.2f} per step; heating that is always half on gets about -5")

    env, policy = Room(), run.policy()
    seen, _ = env.reset(seed=0)
    for _ in range(STEPS):
        action = policy.act(seen[None])[0]  # one agent
        seen, *_ = env.step(action)
    print(f"{env.inside:.1f} degrees at the end of the day")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps to train for")
    main(parser.parse_args().steps)
