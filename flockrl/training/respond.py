"""How much opponents could gain against what a run learned, where its game cannot be enumerated: a lower bound.

A learner is trained in the place of one side against the run's policy, which stays as it is. What it gains there, on
fresh episodes, is at most what a best response would gain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flockrl.algos.assembly import Sides
from flockrl.algos.presets import algorithms
from flockrl.core.errors import UsageError, nearest
from flockrl.core.types import EvalResult
from flockrl.training.players import match
from flockrl.training.run import Run
from flockrl.training.train import train

STEPS = 200_000
NORMAL = 1.96
"""Half the width of a 95% interval, in deviations of a mean."""


class Response(NamedTuple):
    """What a trained response of one side gains.

    value: what the side gets as the run plays it; gain: how much more the response gets, both as the mean return of the
    side's agents; low, high: its 95% interval over pairs of episodes that begin alike; all_gains: of every seed; curve:
    (step, gain) of the best seed's evaluations while it learned, by greedy play; runs: the seeds' runs.
    """

    side: str
    value: float
    gain: float
    low: float
    high: float
    all_gains: list[float]
    curve: list[tuple[int, float]]
    runs: list[Path]


def respond(
    run: Run,
    side: str,
    algorithm: str = "ippo",
    *,
    steps: int = STEPS,
    seeds: int = 1,
    episodes: int = 400,
    sampled: bool = True,
    warm: bool = False,
    out: str | Path | None = None,
    quiet: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> Response:
    """Train `algorithm` for a side of the run's game against the run, and compare on episodes that it did not see.

    Of several seeds, the one whose evaluations ended best is taken, so that the choice does not depend on the episodes
    that the gain is measured in. sampled: whether policies draw their actions there, or take the most likely ones.
    warm: begin with the run's own policy of that side, with its settings, instead of from nothing.
    """
    rivals = check(run, side)
    if algorithm not in algorithms():
        raise UsageError(f"There is no algorithm {algorithm!r}.{nearest(algorithm, algorithms())}")
    for name, number in {"steps": steps, "seeds": seeds, "episodes": episodes}.items():
        if number < 1:
            raise UsageError(f"{name} must be at least 1, not {number}.")
    named = not run.config.env.startswith(("custom/", "data/"))
    begins = f"{run.path}:{side}" if warm else None
    learning: dict[str, Any] = {side: {**(_own_settings(run, side, algorithm) if warm else {}), **(settings or {})}}
    place = run.config.env if named else run.env
    found = train(
        {side: algorithm, **dict.fromkeys(rivals, run)}, place, seeds=seeds, steps=steps, out=out, quiet=quiet,
        envs=run.config.options.envs, init_from=begins, **learning,
    )  # fmt: skip
    trained = found if isinstance(found, list) else [found]
    agents = list(run.spec.parties[side])
    seed = 1_000_003 + run.config.options.seed  # other episodes than those of any training

    def play(player: Run) -> np.ndarray:
        """[episodes] mean return of the side's agents."""
        seats = dict.fromkeys(run.spec.parties, run) | {side: player}
        result: EvalResult = match(seats, run.env, episodes=episodes, seed=seed, explore=sampled)
        return result.returns[:, agents].mean(1)

    before = play(run)
    after = [play(player) for player in trained]
    best = int(np.argmax([player.result[f"final_eval_return_{side}"] for player in trained]))
    gains = [float((x - before).mean()) for x in after]
    more = after[best] - before  # of episodes that begin alike, so that luck at their start cancels out
    half = half_interval(more)
    value, name = float(before.mean()), f"eval_return_{side}"
    curve = [(row["step"], row[name] - value) for row in trained[best].metrics() if name in row]
    low, high = gains[best] - half, gains[best] + half
    return Response(side, value, gains[best], low, high, gains, curve, [player.path for player in trained])


def check(run: Run, side: str) -> list[str]:
    """The other sides of a run's game; refuses a game without opponents and runs that others played in."""
    parties = run.spec.parties
    if len(set(run.spec.sides)) < 2:
        raise UsageError(f"All agents of {run.spec.name} are on one side: there is nobody to exploit them.")
    if side not in parties:
        raise UsageError(f"{run.spec.name} has no side {side!r}: its sides are {', '.join(parties)}.")
    return [name for name in parties if name != side]


def _own_settings(run: Run, side: str, algorithm: str) -> dict[str, Any]:
    """The settings with which a side of the run learned, if it had a learner of its own that is the response's."""
    sides = run.config.config
    player = sides.players[side] if isinstance(sides, Sides) else None
    if player is None or player.kind != "learner" or player.algorithm != algorithm:
        raise UsageError(
            f"A response begins with the policy of {side} only where {algorithm} learned it for that side alone: train "
            f"the run as `flockrl train {','.join(f'{name}={algorithm}' for name in run.spec.parties)} ...`, or leave "
            "out --warm."
        )
    return dataclasses.asdict(player.config)


def half_interval(values: np.ndarray) -> float:
    """Half of the 95% interval of a mean over episodes [E]; inf where there is one alone."""
    return NORMAL * float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.inf
