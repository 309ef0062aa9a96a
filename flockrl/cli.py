"""The command line: list, train, resume, eval, export."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from flockrl.errors import UsageError, nearest

OVERVIEW = """\
flockrl trains teams of agents.

  flockrl list [algorithms|envs]          what there is
  flockrl train ALGORITHM ENV [options]   train a team, e.g. flockrl train mappo mpe/simple_spread
  flockrl resume RUN                      continue an interrupted run, exactly
  flockrl eval RUN [options]              play whole episodes with a trained team
  flockrl export RUN --out DIR            write a trained team as ONNX or TorchScript
  flockrl bench SUITE                     algorithms x environments x seeds, with statistics
  flockrl data info FILES...              look into recorded trajectories; also: validate, convert
  flockrl recommend ENV                   which algorithms fit an environment, and why
  flockrl report RUNS... [--out FILE]     one self-contained page about finished runs
  flockrl serve --data DIR [options]      train on what actors send, while they play
  flockrl status ADDRESS                  how such a server is

`flockrl COMMAND --help` explains a command; `flockrl train mappo --help` lists MAPPO's settings.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0, 1 for failed training, 2 for wrong input, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(OVERVIEW)
        return 0 if words else 2
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"flockrl {version('flockrl')}")
        return 0
    try:
        if words[0] not in COMMANDS:
            raise UsageError(f"There is no command {words[0]!r}.{nearest(words[0], COMMANDS)}")
        return COMMANDS[words[0]](words[1:])
    except UsageError as error:
        print(f"flockrl: {error}", file=sys.stderr)
        return 1 if type(error).__name__ == "TrainingError" else 2
    except KeyboardInterrupt as error:
        print(f"\n{error}" if str(error) else "\nInterrupted.", file=sys.stderr)
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2


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
    env: str | None = None
    """Play in this environment instead, which must have the same agents and spaces."""
    record: Path | None = None
    """Write these episodes to this file (.arrow, .parquet or .csv)."""
    gif: Path | None = None
    """Write an animation of one episode to this file (.gif, or .mp4 where ffmpeg is installed)."""
    side_by_side: bool = False
    """Show the best, the median and the worst of 25 episodes side by side instead."""
    plot: Path | None = None
    """Write a still picture of the paths in one episode to this file (.png, .pdf or .svg); particle worlds only."""


@dataclass(frozen=True)
class ExportFlags:
    """What `flockrl export` takes."""

    run: Annotated[Path, Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of a run."""
    out: Path
    """Directory to write to; an earlier export there is replaced."""
    format: Literal["onnx", "torchscript"] = "onnx"
    """Kind of model."""
    per_group: bool = False
    """Write one model for each group of agents that share parameters, instead of one for the team."""


def parse(flags: Any, words: list[str], prog: str, description: str) -> Any:
    """The options as a dataclass; a flag that does not exist is an error that names the nearest one."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            result, unknown = tyro.cli(
                flags, args=words, prog=prog, description=description, return_unknown_args=True,
                config=(tyro.conf.OmitArgPrefixes,),
            )  # fmt: skip
    except SystemExit as stop:
        if stop.code:
            raise UsageError(f"{_sentence(complaint.getvalue())} `{prog} --help` explains.") from None
        raise
    if unknown:
        hint = nearest(unknown[0].partition("=")[0], _flags(flags)) if unknown[0].startswith("-") else ""
        raise UsageError(f"{prog} does not know what to do with {unknown[0]!r}.{hint}")
    return result


def _sentence(box: str) -> str:
    """The message inside tyro's framed error as one line of plain text."""
    inside = "\n".join(line for line in box.splitlines() if not line.startswith("╭"))
    plain = re.sub(r"\x1b\[[0-9;]*m|[^\x00-\x7f]", " ", inside)
    message = re.split(r"Argument helptext|For full helptext", plain)[0]
    return " ".join(message.split()).rstrip(".") + "."


def _flags(cls: Any) -> list[str]:
    """All flags below a config class."""
    found: list[str] = []
    for field in dataclasses.fields(cls):
        nested = isinstance(field.type, type) and dataclasses.is_dataclass(field.type)
        found += _flags(field.type) if nested else ["--" + field.name.replace("_", "-")]
    return found


def _list(words: list[str]) -> int:
    from flockrl.envs.adapt import ABOUT
    from flockrl.envs.adapt import SUITES as OUTSIDE
    from flockrl.envs.base import SUITES, environments
    from flockrl.presets import PRESETS

    what = words[0] if words else "both"
    if what in ("-h", "--help"):
        print("usage: flockrl list [algorithms|envs]\n\nNames that `flockrl train` takes.")
        return 0
    if what not in ("algorithms", "envs", "both"):
        raise UsageError(f"flockrl list shows algorithms or envs, not {what!r}.")
    if what != "envs":
        for name, preset in PRESETS.items():
            print(f"{name:24}{preset.summary}")
    if what == "both":
        print()
    if what != "algorithms":
        for suite in SUITES:
            for name, builder in environments(suite).items():
                print(f"{suite + '/' + name:32}{_settings(builder)}")
        for suite, form in OUTSIDE.items():
            print(f"{suite + '/' + form:32}{ABOUT[suite]}")
    return 0


def _settings(builder: Any) -> str:
    import inspect

    shown = [f"{p.name}={p.default}" for p in inspect.signature(builder).parameters.values()]
    return ", ".join(shown)


def _train(words: list[str]) -> int:
    from flockrl.config import TrainOptions, build, read_settings
    from flockrl.presets import PRESETS, make_config

    if not words or words[0].startswith("-"):
        print("usage: flockrl train ALGORITHM ENV [options]\n\n`flockrl train ALGORITHM --help` lists the options.\n")
        print("algorithms: " + ", ".join(PRESETS))
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
    given = parse(flags, rest, f"flockrl train {name}", f"Train a team with {name}: {PRESETS[name].summary}.")
    cache_programs()
    from flockrl.training import train

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


def _resume(words: list[str]) -> int:
    given = parse(ResumeFlags, words, "flockrl resume", "Continue a run from its newest checkpoint, exactly.")
    cache_programs()
    from flockrl.run import RESULT, find_runs
    from flockrl.training import resume

    if all((path / RESULT).exists() for path in find_runs(given.run)):
        print(f"{given.run} is finished: nothing to resume.")
        return 0
    resume(given.run, quiet=given.quiet)
    return 0


def _eval(words: list[str]) -> int:
    about = "Play whole episodes with a trained team and report their returns."
    given = parse(EvalFlags, words, "flockrl eval", about)
    cache_programs()
    from flockrl.animate import write_animation, write_paths
    from flockrl.run import Run, find_runs

    pictures = [(write_animation, given.gif), (write_paths, given.plot)]
    pictures = [(write, file) for write, file in pictures if file is not None]
    if pictures and given.env is not None:
        raise UsageError("A picture shows the run's own environment: leave out --env, or --gif and --plot.")
    if given.side_by_side and not pictures:
        raise UsageError("--side-by-side says what a picture shows: give its file with --gif or --plot.")
    runs = [Run(path) for path in find_runs(given.run)]
    if given.record is not None and len(runs) > 1:
        raise UsageError(f"{given.run} holds several seeds: name one of them to record, such as {runs[0].path}.")
    for run in runs:
        result = run.evaluate(given.episodes, given.seed, given.explore, given.env, given.record)
        agents = ", ".join(f"{n} {x:.3f}" for n, x in zip(run.env.spec.agents, result.per_agent, strict=True))
        how = "sampled" if given.explore else "greedy"
        print(f"{run.path}: return {result.mean:.3f} (mean over agents and {result.episodes} {how} episodes)")
        print(f"  std {result.std:.3f}, episode length {result.lengths.mean():.1f}, per agent: {agents}")
    if given.record is not None:
        print(f"wrote {given.record}")
    for write, file in pictures:
        write(runs[0], file, given.seed, given.side_by_side, given.explore)
        print(f"wrote {file}")
    return 0


def _export(words: list[str]) -> int:
    given = parse(ExportFlags, words, "flockrl export", "Write a trained team as a model that runs without flockrl.")
    from flockrl.portable.write import export

    print(f"wrote {export(given.run, given.out, given.format, given.per_group)}")
    return 0


def cache_programs() -> None:
    """Keep compiled programs between starts, so that only the first one waits for the compiler."""
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "flockrl" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _later(module: str, command: str) -> Callable[[list[str]], int]:
    """A command of another module, imported when it is called."""

    def call(words: list[str]) -> int:
        try:
            commands = importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UsageError(f"This command needs {error.name}: pip install 'flockrl[relay]'.") from error
        return getattr(commands, command)(words)

    return call


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "list": _list, "train": _train, "resume": _resume, "eval": _eval, "export": _export,
    "bench": _later("flockrl.evaluation.commands", "bench"),
    "report": _later("flockrl.evaluation.commands", "report"),
    "recommend": _later("flockrl.evaluation.commands", "recommend"),
    "data": _later("flockrl.data.commands", "data"),
    "serve": _later("flockrl.relay.commands", "serve"), "status": _later("flockrl.relay.commands", "status"),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
