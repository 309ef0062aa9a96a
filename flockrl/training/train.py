"""Train and resume: from names and settings to a run on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flockrl.algos.presets import make_config
from flockrl.core.callbacks import Callback
from flockrl.core.errors import UsageError
from flockrl.core.rundir import CONFIG, RESULT, find_runs, new_directories, write_json
from flockrl.core.settings import build
from flockrl.envs.checks import check
from flockrl.envs.host.env import Host
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.loop import Loop
from flockrl.training.programs import make_program, make_source
from flockrl.training.run import Run


def train(
    algorithm: str,
    env: Any,
    *,
    seeds: int = 1,
    out: str | Path | None = None,
    quiet: bool = True,
    callbacks: Sequence[Callback] = (),
    record: str | Path | None = None,
    **settings: Any,
) -> Any:
    """Train `algorithm` on `env` and return the `Run`, or a list of them when `seeds` > 1.

    env: a name, or an environment object, its class, or a function that builds one; see `flockrl.make_env`.

    settings: any field of `TrainOptions` (steps, envs, seed, eval_every, ...) and of the algorithm's
    config (lr, gamma, ...). `out` is the run's directory, by default a fresh one under runs/.
    record: a file (.arrow, .parquet or .csv) to write every episode of the training to, see docs/data.md.
    """
    environment = make_source(env)
    if not isinstance(env, str) or isinstance(environment, Host):
        check(environment)
    own = {field.name for field in dataclasses.fields(TrainOptions)}
    options = build(TrainOptions, {k: v for k, v in settings.items() if k in own}, "train")
    config = make_config(algorithm, {k: v for k, v in settings.items() if k not in own})
    if seeds < 1:
        raise UsageError(f"seeds must be at least 1, not {seeds}.")
    name = env if isinstance(env, str) else f"custom/{environment.spec.name}"
    runs = [
        RunConfig(algorithm, name, dataclasses.replace(options, seed=options.seed + i), config) for i in range(seeds)
    ]
    program = make_program(runs[0], environment)
    if record is not None:
        program.recording = _recording(Path(record), runs, environment)
    short = f"{algorithm}-{name.partition(':')[0].replace('/', '-')}"
    paths = new_directories(out, short, [run.options.seed for run in runs])
    for path, run in zip(paths, runs, strict=True):
        write_json(path / CONFIG, run.to_json())
    return Loop(program, runs, paths, environment, callbacks, quiet).run()


def _recording(path: Path, runs: Sequence[RunConfig], env: Any) -> Any:
    try:
        from flockrl.evaluation.record import Recording
    except ImportError as error:
        raise UsageError("Recording needs pyarrow: pip install 'flockrl[relay]'.") from error

    config = runs[0]
    if len(runs) > 1:
        raise UsageError("A recording holds one run: use --seeds 1 with --record.")
    if config.recorded:
        raise UsageError("Training from recorded trajectories makes no new ones: leave out --record.")
    about = {"algorithm": config.algorithm, "seed": config.options.seed, "explore": True}
    return Recording(path, env.spec, config.env, config.options.envs, about)


def resume(path: str | Path, env: Any = None, *, quiet: bool = True, callbacks: Sequence[Callback] = ()) -> Any:
    """Continue a run, or all seeds of one, from the newest checkpoint to the steps it was given.

    The result is the one that an uninterrupted run would have had, bit for bit.
    """
    paths = find_runs(path)
    runs = [Run(p, env) for p in paths]
    if all((p / RESULT).exists() for p in paths):
        return runs[0] if len(runs) == 1 else runs
    loop = Loop(runs[0].program, [run.config for run in runs], paths, runs[0].source, callbacks, quiet)
    return loop.run()
