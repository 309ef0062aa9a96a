"""Train and resume: from names and settings to a run on disk."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from flockrl.algos.assembly import Sides
from flockrl.core.callbacks import Callback
from flockrl.core.cluster import outside
from flockrl.core.code import require_trust, trusting
from flockrl.core.errors import UsageError, install
from flockrl.core.lock import locked
from flockrl.core.rundir import CONFIG, RESULT, find_runs, new_directories, noting_failure, write_json
from flockrl.core.settings import build, check_count
from flockrl.envs.checks import check
from flockrl.envs.host.env import Host
from flockrl.training.channels import around
from flockrl.training.compilation import check_platform
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.curriculum import Staged
from flockrl.training.longer import lengthen, write_longer
from flockrl.training.loop import Loop
from flockrl.training.memory import check_shapes
from flockrl.training.programs import make_program, make_source
from flockrl.training.run import Run
from flockrl.training.setup import configure
from flockrl.training.stages import Position, curriculum_of
from flockrl.training.warm import begin

MOST_SEEDS = 1_000
"""Seeds of one run: their programs run one after the other, and their states stand side by side."""


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
    init_map: str = "",
    reinit: str = "",
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
    init_map: what entities and actions of that run are called here: "landmark=goal,action:1=4". reinit: layers that are
    not taken over, by name: "head".
    trust: whether code that files name (other runs, recorded trajectories) may be imported; names that you pass need
    no trust.
    """
    with trusting(trust):
        return _train(
            algorithm, env, seeds, out, quiet, callbacks, record, init_from, init_partly, settings,
            {"init_map": init_map, "reinit": reinit},
        )  # fmt: skip


def _train(
    algorithm: str | Mapping[str, Any], env: Any, seeds: int, out: str | Path | None, quiet: bool,
    callbacks: Sequence[Callback], record: str | Path | None, init_from: str | Path | Run | None, init_partly: bool,
    settings: dict[str, Any], changes: dict[str, Any],
) -> Any:  # fmt: skip
    check_platform()
    own = {field.name for field in dataclasses.fields(TrainOptions)}
    options = build(TrainOptions, {k: v for k, v in settings.items() if k in own}, "train")
    curriculum = curriculum_of(options)
    if curriculum is not None and (not isinstance(env, str) or env.startswith("data/") or record is not None):
        raise UsageError("A curriculum needs a compiled environment by its name, and is not recorded.")
    environment = make_source(env if curriculum is None else curriculum.env(env, 0), options.memory_limit)
    if not isinstance(env, str) or isinstance(environment, Host):
        check(environment)
    title, config = configure(algorithm, {k: v for k, v in settings.items() if k not in own}, environment.spec)
    check_count("seeds", seeds, MOST_SEEDS)
    environment = environment if str(env).startswith("data/") else around(config, environment)
    name = env if isinstance(env, str) else f"custom/{environment.spec.name}"
    source = "" if init_from is None else str(init_from.path if isinstance(init_from, Run) else init_from)
    file = "" if record is None else str(Path(record).absolute())
    changes_said = {**changes, "init_partly": init_partly}
    if not source and (said := [word for word, value in changes_said.items() if value]):
        raise UsageError(f"{said[0]} changes what init_from takes over: name a run to begin with.")
    runs = [
        RunConfig(title, name, dataclasses.replace(options, seed=options.seed + i), config, source, file, **changes)
        for i in range(seeds)
    ]
    program = _program(runs[0], environment)
    check_shapes(program.setting, program.shape())
    warm = partial(begin, runs[0], partly=init_partly, spec=environment.spec) if runs[0].begins_elsewhere else None
    if warm is not None:
        warm(program.shape().learner)  # what does not fit is refused before anything is written
    with contextlib.ExitStack() as stack:
        if record is not None:
            program.recording = stack.enter_context(contextlib.closing(_recording(runs, environment)))
        numbers = [run.options.seed for run in runs]
        paths = stack.enter_context(new_directories(out, _short(title, config, name), numbers))
        stack.enter_context(locked(paths))
        stack.enter_context(noting_failure(paths))
        for path, run in zip(paths, runs, strict=True):
            write_json(path / CONFIG, run.to_json())
        if curriculum is not None:  # each seed climbs at its own pace
            each: list[Run] = []
            for run, path in zip(runs, paths, strict=True):
                stages = _program(run, environment) if each else program
                each.append(Loop(stages, [run], [path], environment, callbacks, quiet, warm).run())
            return each[0] if len(each) == 1 else each
        return Loop(program, runs, paths, environment, callbacks, quiet, warm).run()


def _program(config: RunConfig, source: Any, position: Position | None = None) -> Any:
    """The program of a run, or of a seed with a curriculum."""
    curriculum = curriculum_of(config.options)
    if curriculum is None:
        return make_program(config, source)
    staged = Staged(config, curriculum, position)
    staged.check()
    return staged


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
    devices: int | Literal["all"] | None = None,
    quiet: bool = True,
    callbacks: Sequence[Callback] = (),
    trust: bool = False,
) -> Any:
    """Continue a run, or all seeds of one, from the newest checkpoint to the steps it was given.

    The result is the one that an uninterrupted run would have had, bit for bit. trust: see `Run`.

    steps: train longer, to this many steps in all; finished runs go on, too. Where a schedule depends on the length of
    the run, a warning says so; without one, the result is that of a run which had these steps from the start.
    devices: train on so many from here on; by default as many as before.
    """
    check_platform()
    paths = find_runs(path)
    runs = [Run(p, env, trust) for p in paths]
    if steps is not None and runs[0].config.options.curriculum is not None:
        raise UsageError("A curriculum belongs to the length that its run was given: train a new one with --init-from.")
    if steps is not None and runs[0].config.options.pbt:
        raise UsageError("A population does not rank at its last step: its length cannot change. Train a new one.")
    if devices is not None:
        for run in runs:
            options = build(TrainOptions, {**vars(run.config.options), "devices": devices}, "resume")
            run.config = dataclasses.replace(run.config, options=options)
    left = not all((p / RESULT).exists() for p in paths) if steps is None else lengthen(runs, steps)
    if not left:
        return runs[0] if len(runs) == 1 else runs
    for run in runs:
        with trusting(trust):
            require_trust(run.path / CONFIG, outside(run.config.options.ray))
        if run.config.begins_elsewhere and not run.steps():
            raise UsageError(f"{run.path} was stopped before it saved what it begins with: train it again.")
    with locked(paths), noting_failure(paths), contextlib.ExitStack() as stack:
        if runs[0].config.options.curriculum is not None:
            for run in runs:
                if not (run.path / RESULT).exists():
                    program = _program(run.config, run.source, run.position)
                    Loop(program, [run.config], [run.path], run.source, callbacks, quiet).run()
            again = [Run(p, None, trust) for p in paths]
            return again[0] if len(again) == 1 else again
        program, configs = runs[0].program, [run.config for run in runs]
        check_shapes(program.setting, program.shape())
        if configs[0].record:
            recording = _recording(configs, runs[0].source, resumed=True)
            program.recording = stack.enter_context(contextlib.closing(recording))
        if steps is not None:
            write_longer(runs)
        return Loop(program, configs, paths, runs[0].source, callbacks, quiet).run()
