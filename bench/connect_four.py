"""How strong a run plays connect four: games against the search that comes with it, for both colours.

    python bench/connect_four.py RUN --depths 1 2 3 --openings 0 4 --games 200 [--sampled] [--trust]

A game is told apart from others by its last board, so that what repeats itself is seen.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax.numpy as jnp
import numpy as np

import flockrl
from flockrl.core.code import trust_files
from flockrl.envs import make

PART = 14
"""Cells of a board that one number holds, by powers of three."""


def board_numbers(place: Any) -> dict[str, Any]:
    """The board of a place [6, 7] as three numbers."""
    parts = place.state.board.reshape(-1, PART) * 3 ** jnp.arange(PART)
    return {f"board_{i}": part.sum() for i, part in enumerate(parts)}


def played(run: str, depth: int, opening: int, seat: int, games: int, sampled: bool, seed: int) -> tuple[Any, int]:
    """What the run got [games] in that seat, and how many different games there were."""
    env = make(f"games/connect_four:depth={depth},opening={opening}")
    env.measures = board_numbers
    players = {f"agent_{seat}": run, f"agent_{1 - seat}": "search"}
    result = flockrl.match(players, env, episodes=games, seed=seed, explore=sampled)
    boards = np.stack([result.measures[name] for name in sorted(result.measures)], 1)
    return result.returns[:, seat], len(np.unique(boards, axis=0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--openings", type=int, nargs="+", default=[0, 4])
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--sampled", action="store_true")
    parser.add_argument("--trust", action="store_true")
    given = parser.parse_args()
    if given.trust:
        trust_files()
    print("depth opening  as first W/D/L (different)   as second W/D/L (different)   score")
    for depth in given.depths:
        for opening in given.openings:
            told, everything = [], []
            for seat in (0, 1):
                got, different = played(given.run, depth, opening, seat, given.games, given.sampled, given.seed)
                everything.append(got)
                told.append(f"{(got > 0).sum()}/{(got == 0).sum()}/{(got < 0).sum()} ({different})")
            score = (1 + np.concatenate(everything)) / 2
            half = 1.96 * score.std(ddof=1) / len(score) ** 0.5
            print(f"{depth:5} {opening:7}  {told[0]:>26}  {told[1]:>27}   {score.mean():.3f} ± {half:.3f}", flush=True)


if __name__ == "__main__":
    main()
