"""Your own PettingZoo environment: walkers leave a corridor one after the other.

    pip install -e '.[pettingzoo]'
    python examples/own_pettingzoo.py --steps 100000

Three walkers have to leave a corridor at its right end. No two may stand in one cell, so moves into an occupied cell
are masked. A walker that leaves earns 1; every step inside costs 0.05. flockrl trains on the class as it is. The
trained policy then acts in the environment, with dicts in and dicts out.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

import flockrl

LENGTH, STAY, LEFT, RIGHT = 8, 0, 1, 2


class Corridor(ParallelEnv):
    """As in every PettingZoo environment, a walker that has left is no longer in `agents`."""

    metadata = {"name": "corridor"}  # noqa: RUF012
    max_cycles = 30

    def __init__(self) -> None:
        self.possible_agents = ["walker_0", "walker_1", "walker_2"]

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Dict({"cell": spaces.Discrete(LENGTH), "others": spaces.MultiBinary(LENGTH)})

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        rng = np.random.default_rng(seed)
        self.agents, self.time = list(self.possible_agents), 0
        cells = rng.permutation(LENGTH - 2)[: len(self.agents)]
        self.cell = dict(zip(self.agents, map(int, cells), strict=True))
        return self._observations(), self._infos()

    def _observations(self) -> dict:
        taken = np.zeros(LENGTH, np.int8)
        taken[[self.cell[agent] for agent in self.agents]] = 1
        seen = {}
        for agent in self.agents:
            others = taken.copy()
            others[self.cell[agent]] = 0
            seen[agent] = {"cell": self.cell[agent], "others": others}
        return seen

    def _infos(self) -> dict:
        taken = {self.cell[agent] for agent in self.agents}
        infos = {}
        for agent in self.agents:
            left, right = self.cell[agent] - 1, self.cell[agent] + 1
            infos[agent] = {"action_mask": np.array([1, left >= 0 and left not in taken, right not in taken], np.int8)}
        return infos

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        present = list(self.agents)
        self.time += 1
        for agent in present:  # one after the other, so that two never enter the same cell
            target = self.cell[agent] + {STAY: 0, LEFT: -1, RIGHT: 1}[int(actions[agent])]
            if target not in {self.cell[other] for other in self.agents if other != agent}:
                self.cell[agent] = target
        out = {agent: self.cell[agent] >= LENGTH - 1 for agent in present}
        late = dict.fromkeys(present, self.time >= self.max_cycles)
        rewards = {agent: 1.0 if out[agent] else -0.05 for agent in present}
        seen = self._observations()
        self.agents = [agent for agent in present if not out[agent] and not late[agent]]
        return seen, rewards, out, late, {agent: {} for agent in present} | self._infos()


def main(steps: int) -> None:
    run = flockrl.train("mappo", Corridor, steps=steps, quiet=False)
    print(f"return {run.evaluate(episodes=50).mean:.2f}, mean over walkers; the best is about 0.8")

    env, policy = Corridor(), run.policy()
    seen, infos = env.reset(seed=1)
    while env.agents:
        actions = policy.act(seen, infos)
        seen, _, _, _, infos = env.step({agent: actions[agent] for agent in env.agents})
        seen = {agent: seen[agent] for agent in env.agents}
    print(f"all have left after {env.time} steps" if env.time < env.max_cycles else "not all walkers have left")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps to train for")
    main(parser.parse_args().steps)
