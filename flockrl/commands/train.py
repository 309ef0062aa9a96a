"""The commands train and resume."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from flockrl.commands.parsing import parse
from flockrl.core.code import require_trust, trust_files
from flockrl.core.errors import UsageError
from flockrl.core.settings import build
from flockrl.training.compilation import Platform, prepare


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
    init_from: str | None = None
    """Begin with the parameters of another run, as RUN or RUN:SIDE."""
    init_partly: bool = False
    """With --init-from, take over what fits and leave the rest, instead of refusing what does not fit."""
    record: Path | None = None
    """Write every episode of the training to this file (.arrow, .parquet or .csv)."""
    platform: Platform | None = None
    """Where to compute, cpu, gpu or tpu; by default where JAX finds the fastest."""
    trust: bool = False
    """Import code that files name (other runs, recorded trajectories, --config). What you type here needs no trust."""
    quiet: bool = False
    """Print nothing but errors."""


@dataclass(frozen=True)
class ResumeFlags:
    """What `flockrl resume` takes."""

    run: Annotated[Path, Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of a run, or of several seeds."""
    steps: int | None = None
    """Train longer: environment steps in all, more than the run was given. Finished runs go on, too."""
    platform: Platform | None = None
    """Where to compute, cpu, gpu or tpu; by default where JAX finds the fastest."""
    trust: bool = False
    """Import code that the run's files name: an environment of your own, a kernel, a script. Only for runs that you
    know: such code can do whatever you can."""
    quiet: bool = False
    """Print nothing but errors."""


def train(words: list[str]) -> int:
    from flockrl.algos.presets import algorithms

    if not words or words[0].startswith("-"):
        print("usage: flockrl train ALGORITHM ENV [options]\n       flockrl train SIDE=PLAYER,... ENV [options]\n")
        print("`flockrl train ALGORITHM --help` lists the options. A side is played by an algorithm that learns, a run")
        print("whose policy is frozen, random, or a script (package.module:function).\n")
        print("algorithms: " + ", ".join(algorithms()))
        return 0 if words[:1] in (["-h"], ["--help"]) else 2
    name, rest = words[0], _join_data(words[1:])
    given, settings = _parse(name, rest)
    prepare(given.run.platform)
    from flockrl.training.train import train

    run = given.run
    train(
        name, run.env, seeds=run.seeds, out=run.out, quiet=run.quiet, record=run.record, init_from=run.init_from,
        init_partly=run.init_partly, **vars(given.training), **settings,
    )  # fmt: skip
    return 0


def _parse(name: str, words: list[str]) -> tuple[Any, dict[str, Any]]:
    """The flags, and the settings of the algorithm, or of each side under its name."""
    from flockrl.algos.presets import algorithms, make_config, preset
    from flockrl.training.config import TrainOptions, read_settings
    from flockrl.training.players import split_sides

    sides = {side: player for side, player in split_sides(name).items() if player in algorithms()}
    players = sides or ({} if "=" in name else {name: name})
    for player in players.values():
        make_config(player, {})  # an unknown algorithm is reported before anything else
    options, saved = _saved(words, read_settings)
    configs = {key: make_config(player, _own(saved, key) if sides else saved) for key, player in players.items()}
    omit: Any = tyro.conf.OmitArgPrefixes
    fields: list[Any] = [
        ("run", omit[TrainFlags]),
        ("training", omit[TrainOptions], dataclasses.field(default=build(TrainOptions, options, name))),
    ]
    for key, config in configs.items():
        kind = type(config) if sides else omit[type(config)]
        fields.append((key, kind, dataclasses.field(default=config)))
    flags = dataclasses.make_dataclass("Train", fields)
    about = f"Train a team with {name}: {preset(name).summary}." if "=" not in name else f"Train {name}."
    given = parse(flags, words, f"flockrl train {name}", about, prefixes=True)
    if given.run.trust:
        trust_files()
    require_trust(given.run.config, _kernels(saved))
    chosen = {key: vars(getattr(given, key)) for key in configs}
    return given, {**saved, **chosen} if "=" in name else chosen[name]


def _kernels(saved: dict[str, Any]) -> list[str]:
    """The networks of users that settings name, those of sides included."""
    found = [part.get("kernel") for part in (saved, *saved.values()) if isinstance(part, dict)]
    return [name for name in found if isinstance(name, str) and name]


def _own(saved: dict[str, Any], side: str) -> dict[str, Any]:
    """Settings of one side from a file that has them under its name."""
    own = saved.get(side, {})
    if not isinstance(own, dict):
        raise UsageError(f"Settings of the side {side} must be given by name, not as {own!r}.")
    return own


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
    prepare(given.platform)
    from flockrl.core.rundir import RESULT, find_runs
    from flockrl.training.train import resume

    if given.steps is None and all((path / RESULT).exists() for path in find_runs(given.run)):
        print(f"{given.run} is finished: nothing to resume. To train longer, add --steps with more than it had.")
        return 0
    resume(given.run, steps=given.steps, quiet=given.quiet)
    return 0
