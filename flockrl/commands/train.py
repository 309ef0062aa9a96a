"""The commands train and resume."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from flockrl.commands.parsing import parse
from flockrl.training.compilation import cache_programs


@dataclass(frozen=True)
class TrainFlags:
    """What `flockrl train` takes besides the settings."""

    env: Annotated[str, Positional, tyro.conf.arg(metavar="ENV")]
    """Environment as SUITE/NAME[:setting=value,...], e.g. mpe/simple_spread:N=5. `flockrl list envs` shows all."""
    seeds: int = 1
    """Seeds to train side by side, each in a run directory of its own under --out."""
    out: Path | None = None
    """The run's directory; by default a fresh one under runs/."""
    config: Path | None = None
    """JSON or TOML file with settings, as saved by an earlier run; flags win over it."""
    record: Path | None = None
    """Write every episode of the training to this file (.arrow, .parquet or .csv)."""
    quiet: bool = False
    """Print nothing but errors."""


@dataclass(frozen=True)
class ResumeFlags:
    """What `flockrl resume` takes."""

    run: Annotated[Path, Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of a run, or of several seeds."""
    quiet: bool = False
    """Print nothing but errors."""


def train(words: list[str]) -> int:
    from flockrl.algos.presets import algorithms, make_config, preset
    from flockrl.core.settings import build
    from flockrl.training.config import TrainOptions, read_settings

    if not words or words[0].startswith("-"):
        print("usage: flockrl train ALGORITHM ENV [options]\n\n`flockrl train ALGORITHM --help` lists the options.\n")
        print("algorithms: " + ", ".join(algorithms()))
        return 0 if words[:1] in (["-h"], ["--help"]) else 2
    name, rest = words[0], _join_data(words[1:])
    make_config(name, {})  # an unknown algorithm is reported before anything else
    options, settings = _saved(rest, read_settings)
    config = make_config(name, settings)
    flags = dataclasses.make_dataclass(
        "Train",
        [
            ("run", TrainFlags),
            ("training", TrainOptions, dataclasses.field(default=build(TrainOptions, options, name))),
            (name, type(config), dataclasses.field(default=config)),
        ],
    )
    given = parse(flags, rest, f"flockrl train {name}", f"Train a team with {name}: {preset(name).summary}.")
    cache_programs()
    from flockrl.training.train import train

    run, values = given.run, {**vars(given.training), **vars(getattr(given, name))}
    train(name, run.env, seeds=run.seeds, out=run.out, quiet=run.quiet, record=run.record, **values)
    return 0


def _join_data(words: list[str]) -> list[str]:
    """Several words data/FILE in a row as one name of recorded trajectories."""
    joined: list[str] = []
    for word in words:
        if word.startswith("data/") and joined and joined[-1].startswith("data/"):
            joined[-1] += "," + word.removeprefix("data/")
        else:
            joined.append(word)
    return joined


def _saved(words: list[str], read: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings from the file that follows --config, if any."""
    for i, word in enumerate(words):
        if word == "--config" and i + 1 < len(words):
            return read(Path(words[i + 1]))
        if word.startswith("--config="):
            return read(Path(word.partition("=")[2]))
    return {}, {}


def resume(words: list[str]) -> int:
    given = parse(ResumeFlags, words, "flockrl resume", "Continue a run from its newest checkpoint, exactly.")
    cache_programs()
    from flockrl.core.rundir import RESULT, find_runs
    from flockrl.training.train import resume

    if all((path / RESULT).exists() for path in find_runs(given.run)):
        print(f"{given.run} is finished: nothing to resume.")
        return 0
    resume(given.run, quiet=given.quiet)
    return 0
