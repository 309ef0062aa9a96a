"""More steps for a run than it was given before."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from flockrl.algos.assembly import Sides
from flockrl.algos.defaults import FOLLOW
from flockrl.algos.feudal_config import ROLE, FeudalConfig
from flockrl.core.errors import CannotWrite, UsageError, notice
from flockrl.core.rundir import CHECKPOINTS, CONFIG, RESULT, read_json, write_json
from flockrl.training.checkpoint import Checkpoints
from flockrl.training.config import RunConfig, check_settings
from flockrl.training.run import Run


def lengthen(runs: Sequence[Run], steps: int) -> bool:
    """Give the seeds of a run this many steps in all. Returns whether there is anything left to do. Nothing is written.

    The checkpoints of a run say which settings they were made with; the earlier numbers of steps stay in its
    configuration, so that they are known to belong to it.
    """
    for run in runs:
        before, finished = run.config.options.steps, (run.path / RESULT).exists()
        if steps < before:
            raise UsageError(f"{run.path} was given {before:,} steps: --steps is their number in all, and cannot fall.")
        if finished and run.config.record and steps > before:
            raise UsageError(
                f"{run.path} has finished its recording {run.config.record}, which cannot be continued: to train "
                'longer without recording, remove "record" from its config.json.'
            )
    left = any(steps > run.config.options.steps or "stopped" in _result(run) for run in runs)
    left = left or not all((run.path / RESULT).exists() for run in runs)
    _say(runs[0], steps)
    for run in runs:
        options = run.config.options
        if steps > options.steps:
            run.config = dataclasses.replace(
                run.config, options=dataclasses.replace(options, steps=steps),
                extended=(*run.config.extended, options.steps),
            )  # fmt: skip
    return left


def _result(run: Run) -> dict[str, Any]:
    return run.result if (run.path / RESULT).exists() else {}


def write_longer(runs: Sequence[Run]) -> None:
    """Write down new numbers of steps: the runs are no longer finished. Where one is refused, nothing is written."""
    for run in runs:
        with Checkpoints(run.path / CHECKPOINTS) as checkpoints:
            for step in checkpoints.steps()[-1:]:
                check_settings(run.path, run.config, checkpoints.meta(step))
    for run in runs:
        try:
            (run.path / RESULT).unlink(missing_ok=True)
        except OSError as error:
            raise CannotWrite(f"Cannot remove {run.path / RESULT}: {error.strerror}.") from error
        new = {"steps": run.config.options.steps, "extended": list(run.config.extended)}
        write_json(run.path / CONFIG, {**read_json(run.path / CONFIG), **new})


def _say(run: Run, steps: int) -> None:
    """Warn where something depends on the length of the run."""
    before = run.config.options.steps
    depends = schedules(run.config)
    kept = follows(run.config)
    if steps == before or not (depends or kept):
        return
    if kept:
        notice(f"{run.path} keeps {' and '.join(kept)} as they were.")
    if not depends:
        return
    every = [
        f"--{name}-every" for name in ("eval", "checkpoint") if getattr(run.config.options, f"{name}_every") is None
    ]
    also = f" {' and '.join(every)} follow from the new length, too." if every else ""
    notice(
        f"{run.path} was given {before:,} steps and now has {steps:,}: {', '.join(depends)} "
        f"run{'s' * (len(depends) == 1)} over the new length from now on, and so the run is not the one that would "
        f"have had {steps:,} steps from the start.{also}"
    )


def schedules(config: RunConfig) -> list[str]:
    """The settings whose effect depends on the length of the run."""
    if isinstance(config.config, Sides):
        sides = config.config.learners.items()
        return [f"{name}.{word}" for name, side in sides for word in _schedules(side.config)]
    return _schedules(config.config)


def follows(config: RunConfig) -> list[str]:
    """The settings that follow from the first length of the run and do not change with it."""
    own = [s.config for s in config.config.learners.values()] if isinstance(config.config, Sides) else [config.config]
    own = [learner for one in own for learner in _learners(one)]
    return [name for name in FOLLOW if any(getattr(one, name, 0) is None for one in own)]


def _learners(config: Any) -> list[Any]:
    """The settings of all learners below: those of tiers, or these."""
    if not isinstance(config, FeudalConfig):
        return [config]
    return [learner for name in config.tiers for learner in _learners(config.tier(name))]


def _bonus(config: Any) -> bool:
    return getattr(config, "bonus", "none") != "none"


def _schedules(config: Any) -> list[str]:
    if isinstance(config, FeudalConfig):
        tiers = [f"{name}.{word}" for name in config.tiers for word in _schedules(config.tier(name))]
        return [*tiers, "roles_after"] if config.goal == ROLE else tiers
    found = []
    for name in ("lr_schedule", "entropy_schedule", *(["bonus_schedule"] if _bonus(config) else [])):
        if getattr(config, name, "constant") != "constant":
            found.append(f"{name} ({getattr(config, name)})")
    if getattr(config, "self_play", "none") != "none" and config.pool_every is None:
        found.append("pool_every")
    if hasattr(config, "explore_part"):
        found.append("the level of exploration")
    if getattr(config, "prioritized", False):
        found.append("priority_beta")
    return found
