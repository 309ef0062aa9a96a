"""What a user says about a curriculum: which setting of the environment takes which values, and when; and where a run
is in it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.settings import parse_settings

if TYPE_CHECKING:  # whose runs ask for their stages
    from flockrl.training.config import TrainOptions

STEPS, PROGRESS = "steps", "progress"
MOST = 1000
"""Stages that a curriculum may have."""
FEWEST = 2
"""Evaluations of a stage before its progress is known."""
CHANCE = 0.2
"""Share of the choices by progress that are any stage, so that none is forgotten."""


class Curriculum(NamedTuple):
    """values: of a setting, one for each stage. metric, level: the next stage begins once an evaluation reaches that
    level; metric "steps": after that many steps in each; level None: each evaluation chooses a stage, by how fast the
    metric changes there."""

    setting: str
    values: tuple[Any, ...]
    metric: str
    level: float | None

    def env(self, name: str, stage: int) -> str:
        """The name of an environment in a stage."""
        path, _, text = name.partition(":")
        kept = [part for part in text.split(",") if part and part.partition("=")[0].strip() != self.setting]
        value = self.values[stage]
        word = str(value).lower() if isinstance(value, bool) else str(value)
        return f"{path}:{','.join([*kept, f'{self.setting}={word}'])}"


class Met(NamedTuple):
    """What evaluations in one stage gave: how many there were, and a fast and a slow mean of the metric."""

    times: int = 0
    fast: float = 0.0
    slow: float = 0.0

    def after(self, value: float) -> Met:
        """With one more evaluation: the fast mean moves half way to it, the slow mean half way to the fast one."""
        if not self.times:
            return Met(1, value, value)
        fast = (self.fast + value) / 2
        return Met(self.times + 1, fast, (self.slow + fast) / 2)

    @property
    def progress(self) -> float:
        """How fast the metric changes. What is being forgotten counts like what is being learned."""
        return abs(self.fast - self.slow)


class Position(NamedTuple):
    """Where a run is in its curriculum. moves: how often the stage changed; met: by stage, where progress chooses."""

    stage: int = 0
    moves: int = 0
    met: tuple[Met, ...] = ()

    def weights(self) -> np.ndarray:
        """[stages] with which probability each is chosen next. Stages whose progress is not known come first, one after
        the other; then each by its share of the progress, and all alike where there is none."""
        missing = [i for i, met in enumerate(self.met) if met.times < FEWEST]
        if missing:
            return np.eye(len(self.met))[min(missing, key=lambda i: (self.met[i].times, i))]
        progress = np.array([met.progress for met in self.met])
        share = progress / progress.sum() if progress.sum() > 0 else np.full(len(progress), 1 / len(progress))
        return (1 - CHANCE) * share + CHANCE / len(progress)

    def chosen(self, seed: int, step: int) -> int:
        """The stage that comes next, drawn by a random number of the seed and the step."""
        luck = np.random.default_rng([seed, step, 0x57A6E]).random()
        return min(int(np.searchsorted(np.cumsum(self.weights()), luck, side="right")), len(self.met) - 1)

    def meta(self) -> dict[str, Any]:
        """What a checkpoint says of it."""
        met = {"met": [list(met) for met in self.met]} if self.met else {}
        return {"stage": self.stage, "moves": self.moves, **met}


def curriculum_of(options: TrainOptions) -> Curriculum | None:
    """What the options say: `N=2,3,5`, `N=2..5` or `rate=0.1..0.4:4`, and when stages end (`eval_return:-12`,
    `steps:100000`) or how they are chosen (`progress`, `progress:eval_success`)."""
    if options.curriculum is None:
        if options.curriculum_when is not None:
            raise UsageError("curriculum_when needs a curriculum: give its stages as --curriculum SETTING=VALUE,VALUE.")
        return None
    setting, equals, text = options.curriculum.partition("=")
    values = tuple(_values(text))
    if not equals or not setting.strip() or not 2 <= len(values) <= MOST:
        raise UsageError(
            f"Write a curriculum as SETTING=VALUE,VALUE,..., SETTING=FIRST..LAST (whole numbers) or "
            f"SETTING=FIRST..LAST:STAGES, with 2 to {MOST} stages, not {options.curriculum!r}."
        )
    when = options.curriculum_when or f"{STEPS}:{math.ceil(options.steps / len(values))}"
    metric, _, word = when.partition(":")
    if metric == PROGRESS and not (word and word.partition("_")[0] != "eval"):
        return Curriculum(setting.strip(), values, word or "eval_return", None)
    try:
        level = float(word)
    except ValueError:
        level = math.nan
    if not math.isfinite(level) or not metric or (metric == STEPS and level < 1):
        raise UsageError(
            f"Write when a stage ends as METRIC:LEVEL, such as eval_return:-12 or steps:100000, or progress, which "
            f"chooses stages by the change of eval_return, or progress:METRIC of an evaluation, not {when!r}."
        )
    return Curriculum(setting.strip(), values, metric, level)


NUMBER = r"(-?\d{1,9}(?:\.\d{1,9})?)"


def _values(text: str) -> list[Any]:
    span = re.fullmatch(rf"\s*{NUMBER}\.\.{NUMBER}(?::(\d{{1,4}}))?\s*", text)
    if span is None:
        return [parse_settings(f"x={part}")["x"] for part in text.split(",") if part.strip()]
    whole = not any("." in word for word in span.groups()[:2])
    first, last = map(int if whole else float, span.groups()[:2])
    if span[3] is None:
        if not whole or abs(last - first) >= MOST:
            return []
        return list(range(int(first), int(last) + 1)) if last >= first else list(range(int(first), int(last) - 1, -1))
    if not 2 <= int(span[3]) <= MOST:
        return []
    found = np.linspace(first, last, int(span[3])).round(9).tolist()
    return [int(x) for x in found] if whole and all(x == int(x) for x in found) else found


def position_of(curriculum: Curriculum, meta: Mapping[str, Any] | None = None) -> Position:
    """Where a checkpoint is, from what it says about itself; without one, the beginning."""
    meta = meta or {}
    stages = len(curriculum.values)
    stage = meta.get("stage", 0)
    if type(stage) is not int or not 0 <= stage < stages:
        raise UsageError(f"A checkpoint is in stage {stage!r} of a curriculum of {stages} stages.")
    moves, met = meta.get("moves", stage), meta.get("met", [[0, 0.0, 0.0]] * stages)
    if type(moves) is not int or moves < 0 or not isinstance(met, list) or len(met) != stages or not all(map(_is, met)):
        raise UsageError(f"A checkpoint says of its curriculum what cannot be: moves {moves!r}, met {met!r}.")
    return Position(stage, moves, tuple(Met(*x) for x in met) if curriculum.level is None else ())


def _is(met: Any) -> bool:
    """Whether that tells of evaluations in a stage."""
    if not isinstance(met, list) or len(met) != len(Met._fields) or type(met[0]) is not int or met[0] < 0:
        return False
    return all(isinstance(x, float) and math.isfinite(x) for x in met[1:])
