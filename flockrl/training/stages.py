"""What a user says about a curriculum: which setting of the environment takes which values, and when."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from flockrl.core.errors import UsageError
from flockrl.core.settings import parse_settings
from flockrl.training.config import TrainOptions

STEPS = "steps"
MOST = 1000
"""Stages that a curriculum may have."""


class Curriculum(NamedTuple):
    """values: of a setting, one for each stage. metric, level: the next stage begins once an evaluation reaches that
    level; metric "steps": after that many steps in each."""

    setting: str
    values: tuple[Any, ...]
    metric: str
    level: float

    def env(self, name: str, stage: int) -> str:
        """The name of an environment in a stage."""
        path, _, text = name.partition(":")
        kept = [part for part in text.split(",") if part and part.partition("=")[0].strip() != self.setting]
        value = self.values[stage]
        word = str(value).lower() if isinstance(value, bool) else str(value)
        return f"{path}:{','.join([*kept, f'{self.setting}={word}'])}"


def curriculum_of(options: TrainOptions) -> Curriculum | None:
    """What the options say: `N=2,3,5` or `N=2..5`, and when stages end (`eval_return:-12`, `steps:100000`)."""
    if options.curriculum is None:
        if options.curriculum_when is not None:
            raise UsageError("curriculum_when needs a curriculum: give its stages as --curriculum SETTING=VALUE,VALUE.")
        return None
    setting, equals, text = options.curriculum.partition("=")
    values = tuple(_values(text))
    if not equals or not setting.strip() or not 2 <= len(values) <= MOST:
        raise UsageError(
            f"Write a curriculum as SETTING=VALUE,VALUE,... or SETTING=FIRST..LAST, with 2 to {MOST} stages, not "
            f"{options.curriculum!r}."
        )
    when = options.curriculum_when or f"{STEPS}:{math.ceil(options.steps / len(values))}"
    metric, _, word = when.partition(":")
    try:
        level = float(word)
    except ValueError:
        level = math.nan
    if not math.isfinite(level) or not metric or (metric == STEPS and level < 1):
        raise UsageError(
            f"Write when a stage ends as METRIC:LEVEL, such as eval_return:-12 or steps:100000, not {when!r}."
        )
    return Curriculum(setting.strip(), values, metric, level)


def _values(text: str) -> list[Any]:
    span = re.fullmatch(r"\s*(-?\d{1,9})\.\.(-?\d{1,9})\s*", text)
    if span is None:
        return [parse_settings(f"x={part}")["x"] for part in text.split(",") if part.strip()]
    first, last = map(int, span.groups())
    if abs(last - first) >= MOST:
        return []
    return list(range(first, last + 1)) if last >= first else list(range(first, last - 1, -1))


def stage_of(curriculum: Curriculum, meta: Mapping[str, Any]) -> int:
    """The stage of a checkpoint, from what it says about itself."""
    stage = meta.get("stage", 0)
    if type(stage) is not int or not 0 <= stage < len(curriculum.values):
        raise UsageError(f"A checkpoint is in stage {stage!r} of a curriculum of {len(curriculum.values)} stages.")
    return stage
