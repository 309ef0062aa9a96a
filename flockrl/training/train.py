"""Train and resume: from names and settings to a run on disk."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flockrl.algos.assembly import Sides
from flockrl.core.callbacks import Callback
from flockrl.core.code import trusting
from flockrl.core.errors import UsageError, install
from flockrl.core.lock import locked
from flockrl.core.rundir import CONFIG, RESULT, find_runs, new_directories, write_json
from flockrl.core.settings import build
from flockrl.envs.checks import check
from flockrl.envs.host.env import Host
from flockrl.training.compilation import check_platform
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.longer import lengthen, write_longer
from flockrl.training.loop import Loop
from flockrl.training.memory import check_shapes
from flockrl.training.programs import make_program, make_source
from flockrl.training.run import Run
from flockrl.training.setup import configure
from flockrl.training.warm import begin


def train(
    algorithm: str | Mapping[str, Any],
    env: Any,
    *,
    seeds: int = 1,
    out: str | Path | None = None,
    quiet: bool = True,
    callbacks: Sequence[Callback] = (),
    record: str | Path | None = None,
    init_from: str | Path | Run | None = None,
    init_partly: bool = False,
    trust: bool = False,
    **settings: Any,
) -> Any:
    """Train `algorithm` on `env` and return the `Run`, or a list of them when `seeds` > 1.

    algorithm: a name, or who plays for each side: {"adversary": "maddpg", "agent": flockrl.Run("runs/prey")}. A side is
    played by an algorithm that learns, by a `Run` whose policy is frozen, by a function, or by "random".

    env: a name, or an environment object, its class, or a function that builds one; see `flockrl.make_env`.

    settings: any field of `TrainOptions` (steps, envs, seed, eval_every, ...) and of the algorithm's
    config (lr, gamma, ...); those of a side as a dict under its name: adversary={"lr": 5e-4}.
    out: the run's directory, by default a fresh one under runs/.
    record: a file (.arrow, .parquet or .csv) to write every episode of the training to, see docs/data.md.
    init_from: a run, or RUN:SIDE, whose parameters this one begins with; with init_partly what does not fit is left.
    trust: whether code that files name (other runs, recorded trajectories) may be imported; names that you pass need
    no trust.
    """
    with trusting(trust):
        return _train(
            algorithm, env, seeds, out, quiet, callbacks, record, init_from, init_partly, settings
        )  # fmt: skip


def _train(
    algorithm: str | Mapping[str, Any], env: Any, seeds: int, out: str | Path | None, quiet: bool,
    callbacks: Sequence[Callback], record: str | Path | None, init_from: str | Path | Run | None, init_partly: bool,
    settings: dict[str, Any],
) -> Any:  # fmt: skip
    check_platform()
    own = {field.name for field in dataclasses.fields(TrainOptions)}
    options = build(TrainOptions, {k: v for k, v in settings.items() if k in own}, "train")
    environment = make_source(env, options.memory_limit)
    if not isinstance(env, str) or isinstance(environment, Host):
        check(environment)
    title, config = configure(algorithm, {k: v for k, v in settings.items() if k not in own}, environment.spec)
    if seeds < 1:
        raise UsageError(f"seeds must be at least 1, not {seeds}.")
    name = env if isinstance(env, str) else f"custom/{environment.spec.name}"
    source = "" if init_from is None else str(init_from.path if isinstance(init_from, Run) else init_from)
    file = "" if record is None else str(Path(record).absolute())
    runs = [
        RunConfig(title, name, dataclasses.replace(options, seed=options.seed + i), config, source, file)
        for i in range(seeds)
    ]
    program = make_program(runs[0], environment)
    check_shapes(program.setting, program.shape())
    warm = partial(begin, runs[0], partly=init_partly) if runs[0].begins_elsewhere else None
    if warm is not None:
        warm(program.shape().learner)  # what does not fit is refused before anything is written
    with contextlib.ExitStack() as stack:
        if record is not None:
            program.recording = stack.enter_context(contextlib.closing(_recording(runs, environment)))
        numbers = [run.options.seed for run in runs]
        paths = stack.enter_context(new_directories(out, _short(title, config, name), numbers))
        stack.enter_context(locked(paths))
        for path, run in zip(paths, runs, strict=True):
            write_json(path / CONFIG, run.to_json())
        return Loop(program, runs, paths, environment, callbacks, quiet, warm).run()


def _short(title: str, config: Any, env: str) -> str:
    """The name of a run's directory."""
    if isinstance(config, Sides):
        title = "-".join(side.algorithm or side.kind for side in config.players.values())
    return f"{title}-{env.partition(':')[0].replace('/', '-')}"


def _recording(runs: Sequence[RunConfig], env: Any, resumed: bool = False) -> Any:
    try:
        from flockrl.evaluation.recording import Recording
    except ImportError as error:
        raise UsageError(f"Recording needs pyarrow: {install('relay')}.") from error

    config = runs[0]
    if len(runs) > 1:
        raise UsageError("A recording holds one run: use --seeds 1 with --record.")
    if config.recorded:
        raise UsageError("Training from recorded trajectories makes no new ones: leave out --record.")
    about = {"algorithm": config.algorithm, "seed": config.options.seed, "explore": True}
    return Recording(Path(config.record), env.spec, config.env, config.options.envs, about, resumed)


def resume(
    path: str | Path,
    env: Any = None,
    *,
    steps: int | None = None,
    quiet: bool = True,
    callbacks: Sequence[Callback] = (),
    trust: bool = False,
) -> Any:
    """Continue a run, or all seeds of one, from the newest checkpoint to the steps it was given.

    The result is the one that an uninterrupted run would have had, bit for bit. trust: see `Run`.

    steps: train longer, to this many steps in all; finished runs go on, too. Where a schedule depends on the length of
    the run, a warning says so; without one, the result is that of a run which had these steps from the start.
    """
    check_platform()
    paths = find_runs(path)
    runs = [Run(p, env, trust) for p in paths]
    left = not all((p / RESULT).exists() for p in paths) if steps is None else lengthen(runs, steps)
    if not left:
        return runs[0] if len(runs) == 1 else runs
    for run in runs:
        if run.config.begins_elsewhere and not run.steps():
            raise UsageError(f"{run.path} was stopped before it saved what it begins with: train it again.")
    with locked(paths), contextlib.ExitStack() as stack:
        program, configs = runs[0].program, [run.config for run in runs]
        check_shapes(program.setting, program.shape())
        if configs[0].record:
            recording = _recording(configs, runs[0].source, resumed=True)
            program.recording = stack.enter_context(contextlib.closing(recording))
        if steps is not None:
            write_longer(runs)
        return Loop(program, configs, paths, runs[0].source, callbacks, quiet).run()
