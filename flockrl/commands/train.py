"""The commands train and resume."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from flockrl.commands.parsing import parse
from flockrl.core.cluster import outside
from flockrl.core.code import SETTINGS, require_trust, trust_files
from flockrl.core.errors import UsageError
from flockrl.core.settings import build
from flockrl.training.compilation import Platform, prepare
from flockrl.training.processes import Processes


@dataclass(frozen=True, kw_only=True)
class TrainFlags(Processes):
    """What `flockrl train` takes besides the settings."""

    env: Annotated[str, Positional, tyro.conf.arg(metavar="ENV")]
    """Environment as SUITE/NAME[:setting=value,...], e.g. mpe/simple_spread:N=5. `flockrl list envs` shows all."""
    seeds: int = 1
    """Seeds to train, each in a run directory of its own under --out: in turn, or with --devices at the same time."""
    out: Path | None = None
    """The run's directory; by default a fresh one under runs/."""
    config: Path | None = None
    """JSON or TOML file with settings, as saved by an earlier run; flags win over it."""
    init_from: str | None = None
    """Begin with the parameters of another run, as RUN or RUN:SIDE."""
    init_partly: bool = False
    """With --init-from, take over what fits and leave the rest, instead of refusing what does not fit."""
    init_map: str = ""
    """With --init-from, what entities and actions of that run are called here: landmark=goal,action:1=4."""
    reinit: str = ""
    """With --init-from, layers that begin anew nevertheless, by name: head, torso.dense_0,value_moments."""
    record: Path | None = None
    """Write every episode of the training to this file (.arrow, .parquet or .csv)."""
    platform: Platform | None = None
    """Where to compute, cpu, gpu or tpu; by default where JAX finds the fastest."""
    trust: bool = False
    """Import code that files name (other runs, recorded trajectories, --config). What you type here needs no trust."""
    quiet: bool = False
    """Print nothing but errors."""


@dataclass(frozen=True, kw_only=True)
class ResumeFlags(Processes):
    """What `flockrl resume` takes."""

    run: Annotated[Path, Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of a run, of several seeds, or of pools of learned responses (psro)."""
    steps: int | None = None
    """Train longer: environment steps in all, more than the run was given. Finished runs go on, too."""
    devices: int | Literal["all"] | None = None
    """Devices to train on from here on, whatever it was before; by default as many as before."""
    platform: Platform | None = None
    """Where to compute, cpu, gpu or tpu; by default where JAX finds the fastest."""
    trust: bool = False
    """Import code that the run's files name: an environment of your own, a kernel, a script. Only for runs that you
    know: such code can do whatever you can."""
    quiet: bool = False
    """Print nothing but errors."""


POOL_METHODS = {
    "psro": "policy-space response oracles: pools of best responses, exact or learned",
    "fictitious": "fictitious play: best responses to the mean of those before",
}
"""What solves games by pools of best responses, and is no algorithm of networks, with a summary."""


def train(words: list[str]) -> int:
    from flockrl.algos.presets import algorithms

    if not words or words[0].startswith("-"):
        print(
            "usage: flockrl train ALGORITHM ENV [options]\n       flockrl train SIDE=PLAYER,... ENV [options]\n"
            "       flockrl train manager=ALGORITHM,worker=ALGORITHM ENV [options]\n"
            "       flockrl train psro|fictitious GAME [options]\n"
        )
        print("`flockrl train ALGORITHM --help` lists the options. A side is played by an algorithm that learns, a run")
        print("whose policy is frozen, random, or a script (package.module:function). A manager sets workers' goals.\n")
        print("algorithms: " + ", ".join(algorithms()))
        print("pools of best responses, exact in games that can be enumerated, or learned: " + ", ".join(POOL_METHODS))
        return 0 if words[:1] in (["-h"], ["--help"]) else 2
    if words[0] in POOL_METHODS:
        from flockrl.commands.oracles import train_psro

        return train_psro(words[0], words[1:])
    rest = _bare(_join_data(words[1:]))
    name = _fitting(words[0], rest)
    given, settings = parse_training(name, rest, TrainFlags)
    run = given.run
    run.join()
    prepare(run.platform, given.training.devices)
    from flockrl.training.train import train

    with run.place(run.out) as out:
        train(
            name, run.env, seeds=run.seeds, out=out, quiet=run.quiet or not run.first, record=run.record,
            init_from=run.init_from, init_partly=run.init_partly,
            init_map=run.init_map, reinit=run.reinit, **vars(given.training), **settings,
        )  # fmt: skip
    return 0


def parse_training(name: str, words: list[str], flags: Any, command: str = "train") -> tuple[Any, dict[str, Any]]:
    """The flags of a command that trains, and the settings of the algorithm, or of each side under its name."""
    from flockrl.algos.feudal_config import TIERS
    from flockrl.algos.presets import algorithms, make_config, preset
    from flockrl.commands.tiers import chosen as chosen_tiers
    from flockrl.commands.tiers import flags_of, settings_of, tiers_named
    from flockrl.training.config import TrainOptions, read_settings
    from flockrl.training.players import split_sides

    tiers, words = tiers_named(name, split_sides(name), words)
    sides = {} if tiers else {side: player for side, player in split_sides(name).items() if player in algorithms()}
    players = sides or ({} if "=" in name or tiers is not None else {name: name})
    for player in players.values():
        make_config(player, {})  # an unknown algorithm is reported before anything else
    options, saved = _saved(words, read_settings)
    configs = {key: make_config(player, _own(saved, key) if sides else saved) for key, player in players.items()}
    if tiers is not None:
        saved = settings_of(name, tiers, saved)
        configs = flags_of(saved)
    omit: Any = tyro.conf.OmitArgPrefixes
    fields: list[Any] = [
        ("run", omit[flags]),
        ("training", omit[TrainOptions], dataclasses.field(default=build(TrainOptions, options, name))),
    ]
    for key, config in configs.items():
        kind = type(config) if sides or key in TIERS else omit[type(config)]
        fields.append((key, kind, dataclasses.field(default=config)))
    verb = command.capitalize()
    about = f"{verb} a team with {name}: {preset(name).summary}." if "=" not in name else f"{verb} {name}."
    given = parse(dataclasses.make_dataclass(verb, fields), words, f"flockrl {command} {name}", about, prefixes=True)
    if given.run.trust:
        trust_files()
    require_trust(given.run.config, [*_kernels(saved), *outside(options.get("ray"))])
    if tiers is not None:
        return given, chosen_tiers({key: getattr(given, key) for key in configs}, saved)
    chosen = {key: vars(getattr(given, key)) for key in configs}
    return given, {**saved, **chosen} if "=" in name else chosen[name]


def _fitting(name: str, words: list[str]) -> str:
    """The algorithm that a name stands for with the recorded trajectories among the words."""
    from flockrl.algos.presets import fitting, preset

    if "=" in name or not preset(name).real:
        return name
    try:
        from flockrl.data.files import Files
    except ImportError:  # what is missing is said where files are read
        return name
    for word in words:
        with contextlib.suppress(UsageError):  # the same
            if word.startswith("data/"):
                return fitting(name, Files(word.removeprefix("data/").split(",")).spec)
    return name


def _kernels(saved: dict[str, Any]) -> list[str]:
    """The networks and potentials of users that settings name, those of sides included."""
    parts = [part for part in (saved, *saved.values()) if isinstance(part, dict)]
    found = [part.get(name) for part in parts for name in SETTINGS]
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


BARE = {"self-play": "uniform", "model-opponents": "0.5"}
"""Flags that may stand alone, and what they mean then."""


def _bare(words: list[str]) -> list[str]:
    """The words, with the value of each flag that stands alone."""
    found: list[str] = []
    for word, following in zip(words, [*words[1:], "--"], strict=False):
        name = word.removeprefix("--").rpartition(".")[2] if word.startswith("--") else ""
        found += [word, BARE[name]] if name in BARE and following.startswith("--") else [word]
    return found


def _saved(words: list[str], read: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings from the file that follows --config, if any."""
    named = [following for word, following in itertools.pairwise(words) if word == "--config"]
    named += [word.partition("=")[2] for word in words if word.startswith("--config=")]
    if len(named) > 1:
        raise UsageError(f"--config names one file, not {len(named)}: put their settings together.")
    return read(Path(named[0])) if named else ({}, {})


def resume(words: list[str]) -> int:
    given = parse(ResumeFlags, words, "flockrl resume", "Continue a run from its newest checkpoint, exactly.")
    from flockrl.core.rundir import POOLS, RESULT, find_runs

    if (given.run / POOLS).is_file():
        return _resume_pools(given)
    given.join()
    prepare(given.platform, given.devices)
    from flockrl.training.train import resume

    if given.steps is None and all((path / RESULT).exists() for path in find_runs(given.run)):
        print(f"{given.run} is finished: nothing to resume. To train longer, add --steps with more than it had.")
        return 0
    with given.place(given.run, resumed=True) as path:
        resume(path, steps=given.steps, devices=given.devices, quiet=given.quiet or not given.first)
    return 0


def _resume_pools(given: ResumeFlags) -> int:
    from flockrl.commands.oracles import resume_psro

    plain = ResumeFlags(run=given.run)
    for name in ("steps", "devices", "coordinator", "processes", "process"):
        if getattr(given, name) != getattr(plain, name):
            raise UsageError(f"--{name} is for runs, and {given.run} holds pools of responses: leave it out.")
    prepare(given.platform, None)
    return resume_psro(given.run, given.quiet, given.trust)
