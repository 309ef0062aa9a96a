"""The commands eval and export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from tyro.conf import Positional

from flockrl.commands.parsing import parse
from flockrl.core.errors import UsageError
from flockrl.training.compilation import Platform, prepare


@dataclass(frozen=True)
class EvalFlags:
    """What `flockrl eval` takes."""

    run: Annotated[Path, Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of a run, or of several seeds."""
    episodes: int = 100
    """Episodes to play."""
    seed: int = 0
    """Seed of the episodes."""
    explore: bool = False
    """Sample actions instead of taking the most likely ones."""
    best: bool = False
    """Take the policy whose evaluation during training was the best, instead of the newest."""
    env: str | None = None
    """Play in this environment instead, which must have the same agents and spaces."""
    against: str | None = None
    """Who plays the other sides instead, as SIDE=PLAYER,...: a run (of several seeds, each), random, or a script."""
    record: Path | None = None
    """Write these episodes to this file (.arrow, .parquet or .csv)."""
    gif: Path | None = None
    """Write an animation of one episode to this file (.gif, or .mp4 where ffmpeg is installed)."""
    side_by_side: bool = False
    """Show the best, the median and the worst of 25 episodes side by side instead."""
    platform: Platform | None = None
    """Where to compute, cpu, gpu or tpu; by default where JAX finds the fastest."""
    plot: Path | None = None
    """Write a still picture of the paths in one episode to this file (.png, .pdf or .svg); particle worlds only."""
    trust: bool = False
    """Import code that the run's files name: an environment of your own, a kernel, a script. Only for runs that you
    know: such code can do whatever you can."""


@dataclass(frozen=True)
class ExportFlags:
    """What `flockrl export` takes."""

    run: Annotated[Path, Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of a run."""
    out: Path
    """Directory to write to; an earlier export there is replaced."""
    format: Literal["onnx", "torchscript"] = "onnx"
    """Kind of model."""
    side: str | None = None
    """Write the policy of this side alone, of a run with a learner for each side."""
    best: bool = False
    """Write the policy whose evaluation during training was the best, instead of the newest."""
    per_group: bool = False
    """Write one model for each group of agents that share parameters, instead of one for the team."""
    trust: bool = False
    """Import code that the run's files name: an environment of your own, a kernel, a script. Only for runs that you
    know: such code can do whatever you can."""


def evaluate(words: list[str]) -> int:
    about = "Play whole episodes with a trained team and report their returns."
    given = parse(EvalFlags, words, "flockrl eval", about)
    prepare(given.platform)
    from flockrl.training.figures import parties
    from flockrl.training.learned import open_runs
    from flockrl.view.animation import write_animation, write_paths

    pictures = [(write_animation, given.gif), (write_paths, given.plot)]
    pictures = [(write, file) for write, file in pictures if file is not None]
    if pictures and given.env is not None:
        raise UsageError("A picture shows the run's own environment: leave out --env, or --gif and --plot.")
    if given.side_by_side and not pictures:
        raise UsageError("--side-by-side says what a picture shows: give its file with --gif or --plot.")
    runs = open_runs(given.run)
    if given.record is not None and len(runs) > 1:
        raise UsageError(f"{given.run} holds several seeds: name one of them to record, such as {runs[0].path}.")
    if given.against is not None:
        if pictures or given.record is not None or given.env is not None or given.best:
            raise UsageError("--against plays in the run's own environment and only counts: leave out other options.")
        return _against(runs, given)
    for run in runs:
        result = run.evaluate(given.episodes, given.seed, given.explore, given.env, given.record, given.best)
        agents = ", ".join(f"{n} {x:.3f}" for n, x in zip(run.spec.agents, result.per_agent, strict=True))
        how = "sampled" if given.explore else "greedy"
        print(f"{run.path}: return {result.mean:.3f} (mean over agents and {result.episodes} {how} episodes)")
        for name, own in parties(run.spec, run.config.config).items():
            print(f"  {name}: return {result.per_agent[list(own)].mean():.3f}")
        print(f"  std {result.std:.3f}, episode length {result.lengths.mean():.1f}, per agent: {agents}")
    if given.record is not None:
        print(f"wrote {given.record}")
    for write, file in pictures:
        write(runs[0], file, given.seed, given.side_by_side, given.explore, given.best)
        print(f"wrote {file}")
    return 0


def _against(runs: Sequence[Any], given: Any) -> int:
    """Every run against every opponent: a line for each pair, then the mean over pairs of each side."""
    from flockrl.training.players import match, opponents

    spec, scores = runs[0].env.spec, []
    for run in runs:
        for other in opponents(given.against):
            players = {side: other.get(side, run) for side in {**spec.parties, **other}}
            result = match(players, run.env, episodes=given.episodes, seed=given.seed, explore=given.explore)
            scores.append([float(result.per_agent[list(own)].mean()) for own in spec.parties.values()])
            told = ", ".join(f"{side} {x:.3f}" for side, x in zip(spec.parties, scores[-1], strict=True))
            print(f"{run.path} against {', '.join(f'{s}={p}' for s, p in other.items())}: {told}")
    if len(scores) > 1:
        means = np.mean(scores, axis=0)
        told = ", ".join(f"{side} {x:.3f}" for side, x in zip(spec.parties, means, strict=True))
        print(f"mean over {len(scores)} pairs: {told} (return, mean over agents and {given.episodes} episodes each)")
    return 0


def export(words: list[str]) -> int:
    given = parse(ExportFlags, words, "flockrl export", "Write a trained team as a model that runs without flockrl.")
    from flockrl.portable.write import export

    print(f"wrote {export(given.run, given.out, given.format, given.per_group, given.side, given.best)}")
    return 0
