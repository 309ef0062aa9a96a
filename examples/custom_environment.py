"""An environment of your own, in one file: two agents that have to meet in a small building.

    python examples/custom_environment.py --steps 200000

Each agent sees its own position and the other's, and walks one cell per step; moves into walls are
masked. Meeting pays 1 to both and ends the episode; every step before costs 0.02.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import flockrl
from flockrl import Box, Discrete, EnvSpec, Observation

Array = jax.Array
PLAN = (
    ".......",
    ".#####.",
    "...#...",
    ".###.#.",
    ".....#.",
)
FREE = np.array([[cell == "." for cell in row] for row in PLAN])
CELLS = np.argwhere(FREE).astype(np.int32)
"""[C, 2] the cells without walls, as (row, column)."""
MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)
"""Stay, up, down, left, right."""
OPEN = np.stack([np.roll(np.pad(FREE, 1), -move, axis=(0, 1))[1:-1, 1:-1] for move in MOVES], axis=-1)
"""[rows, columns, 5] bool: whether a move from this cell leads to a free cell."""


class Building(NamedTuple):
    """pos: [2, 2] row and column of each agent; t: steps since the reset."""

    pos: Array
    t: Array


class MeetUp:
    """All that an environment needs: a spec, a reset and a step. Neither method changes anything on `self`."""

    def __init__(self, max_steps: int = 30):
        self.spec = EnvSpec(
            name="meet_up",
            agents=("agent_0", "agent_1"),
            observations=(Box((4,), 0.0, 1.0),) * 2,
            actions=(Discrete(5),) * 2,
            max_steps=max_steps,
        )

    def reset(self, key: Array) -> tuple[Building, Observation]:
        """Draw two different cells."""
        start = jax.random.choice(key, len(CELLS), (2,), replace=False)
        state = Building(jnp.asarray(CELLS)[start], jnp.int32(0))
        return state, self.observe(state)

    def step(self, key: Array, state: Building, action: Array) -> tuple[Building, Observation, Array, Array, Array]:
        legal = jnp.take_along_axis(self.legal(state), action[:, None], axis=1)
        pos = state.pos + jnp.where(legal, jnp.asarray(MOVES)[action], 0)
        state = Building(pos, state.t + 1)
        met = (pos[0] == pos[1]).all()
        reward = jnp.broadcast_to(jnp.where(met, 1.0, -0.02), (2,))
        # A meeting terminates the episode; the time limit only truncates it.
        return state, self.observe(state), reward, met, ~met & (state.t >= self.spec.max_steps)

    def legal(self, state: Building) -> Array:
        """[2, 5] bool"""
        return jnp.asarray(OPEN)[state.pos[:, 0], state.pos[:, 1]]

    def observe(self, state: Building) -> Observation:
        """Own position, then the other's, scaled to 0..1."""
        place = state.pos / (np.array(FREE.shape, np.float32) - 1)
        return Observation(jnp.concatenate([place, place[::-1]], axis=1), avail=self.legal(state))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps to train for")
    parser.add_argument("--out", default=None, help="directory of the run (default: one under runs/)")
    args = parser.parse_args()

    env = MeetUp()
    flockrl.check_env(env)
    run = flockrl.train("ippo", env, steps=args.steps, out=args.out)
    print(f"mean return over 100 episodes: {run.evaluate(episodes=100).mean:.2f}")


if __name__ == "__main__":
    main()
