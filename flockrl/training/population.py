"""Population-based training (Jaderberg et al. 2017, arXiv 1711.09846): seeds that copy better ones and vary settings.

    --pbt every=100_000 lr=log:1e-4:1e-2 entropy=0:0.05

Every so many steps all seeds are evaluated and ranked. Each of the worst goes on from the whole state of one of the
best (exploit), with settings a step away from those of that one (explore). Settings are part of the state, so that
nothing is compiled anew. Chance follows from the first seed and the step alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.assembly import Sides
from flockrl.algos.presets import family
from flockrl.algos.wrappers.held import check_held
from flockrl.core.errors import CannotWrite, UsageError, notice, reason
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.program import TrainState
from flockrl.training.space import Dimension, check_space, read_space

HISTORY, PICTURE = "population.jsonl", "population.png"
OWN = ("every", "share", "factor", "begin")
"""Words of --pbt that are not settings of the learner."""


class Plan(NamedTuple):
    """every: steps between two rankings; share: part of the seeds that is replaced, and part that is copied from;
    factor: how far settings go at a time; drawn: whether they begin anywhere in their ranges; space: what varies."""

    every: int
    share: float
    factor: float
    drawn: bool
    space: tuple[Dimension, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dimension.name for dimension in self.space)


def plan_of(algorithm: str, options: TrainOptions, config: Any) -> Plan | None:
    """What --pbt says, checked; None where it says nothing."""
    if not options.pbt:
        return None
    if isinstance(config, Sides) or options.curriculum is not None:
        raise UsageError("A population learns with one algorithm on one task: leave out --pbt, sides or --curriculum.")
    own = {name: text for name, _, text in (word.partition("=") for word in options.pbt) if name in OWN}
    rest = [word for word in options.pbt if word.partition("=")[0] not in OWN]
    if not rest:
        raise UsageError("Say what a population varies: --pbt every=100_000 lr=log:1e-4:1e-2.")
    fixed = {**vars(config), **{name: x for name, x in vars(options).items() if name != "pbt"}}
    space = check_space(read_space(rest, algorithm), algorithm, fixed)
    names = tuple(dimension.name for dimension in space)
    check_held(algorithm, family(algorithm), config, names)
    for dimension in space:
        if any(not isinstance(x, int | float) for _, x in dimension.choices):
            raise UsageError(f"{dimension.name} varies among numbers: write them as {dimension.name}=A,B,C.")
    begin = own.get("begin", "given")
    if begin not in ("given", "drawn"):
        raise UsageError(f"A population begins with settings as given, or drawn: begin={begin} is neither.")
    share, factor = _number(own, "share", 0.25), _number(own, "factor", 1.2)
    if not 0 < share <= 0.5:
        raise UsageError(f"share is the part of a population that is replaced, up to 0.5, not {share:g}.")
    if not 1 < factor <= 10:
        raise UsageError(f"factor is how far settings go at a time, more than 1 and up to 10, not {factor:g}.")
    every = _number(own, "every", max(1, options.steps // 10))
    if every < 1:
        raise UsageError(f"every must be at least 1 step, not {every:g}.")
    return Plan(math.ceil(every), share, factor, begin == "drawn", space)


def _number(own: dict[str, str], name: str, usual: float) -> float:
    try:
        value = float(own.get(name, usual))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{name} of a population is a number, not {own[name]!r}.")
    return value


class Population:
    """The seeds of one run that learn from each other."""

    def __init__(self, plan: Plan, base: Path, seeds: Sequence[int], apart: bool):
        """apart: whether agents oppose each other, so that there is no one score."""
        if len(seeds) < 2:
            raise UsageError("A population has at least two seeds: train with --seeds K, and resume all of them.")
        if apart:
            raise UsageError("What is best for one side is not for another: --pbt is for agents that play together.")
        self.plan, self.seeds, self.path = plan, list(seeds), base / HISTORY

    def begin(self, states: list[TrainState]) -> list[TrainState]:
        """The states before the first step, with settings as given or drawn."""
        self.resume(-1)
        if self.plan.drawn:
            states = [self._set(state, self._drawn(seed)) for state, seed in zip(states, self.seeds, strict=True)]
        self._write({"step": 0, "settings": [settings_of(state) for state in states]})
        return states

    def resume(self, step: int) -> None:
        """Forget what happened after this step."""
        kept = [event for event in read_history(self.path) if event["step"] <= step]
        try:
            self.path.write_text("".join(json.dumps(event) + "\n" for event in kept))
        except OSError as error:
            raise CannotWrite(f"Cannot write {self.path}: {error.strerror}.") from error

    def evolve(self, step: int, scores: Sequence[float], states: list[TrainState]) -> list[TrainState]:
        """The states to go on from: each of the worst is a copy of one of the best, with other settings."""
        rng = np.random.default_rng([self.seeds[0], step])
        count = max(1, int(self.plan.share * len(states)))
        order = sorted(range(len(states)), key=lambda i: (-scores[i], i))
        best, worst = order[:count], order[-count:]
        after, copied = list(states), {}
        for i in worst:
            source = best[int(rng.integers(len(best)))]
            if scores[source] > scores[i]:
                new = {d.name: self._moved(d, settings_of(states[source])[d.name], rng) for d in self.plan.space}
                after[i] = self._set(_copied(states[source], states[i]), new)
                copied[str(self.seeds[i])] = self.seeds[source]
        settings = [settings_of(state) for state in after]
        self._write({"step": step, "scores": list(scores), "copied": copied, "settings": settings})
        return after

    def _drawn(self, seed: int) -> dict[str, float]:
        rng, found = np.random.default_rng([seed, 0]), {}
        for d in self.plan.space:
            if d.choices:
                found[d.name] = d.choices[int(rng.integers(len(d.choices)))][1]
            else:
                ends = np.log([d.low, d.high]) if d.log else np.array([d.low, d.high])
                x = rng.uniform(*ends)
                found[d.name] = float(np.exp(x)) if d.log else float(x)
        return found

    def _moved(self, dimension: Dimension, value: float, rng: np.random.Generator) -> float:
        """A value one step up or down, within its range: times or divided by the factor where the range is logarithmic,
        (factor - 1) / 2 of the range's width where it is not, and the next one of choices."""
        up = 1 if rng.random() < 0.5 else -1
        if dimension.choices:
            known = sorted(x for _, x in dimension.choices)
            nearest = min(range(len(known)), key=lambda i: abs(known[i] - value))
            return known[min(max(nearest + up, 0), len(known) - 1)]
        width = (self.plan.factor - 1) / 2 * (dimension.high - dimension.low)
        moved = value * self.plan.factor**up if dimension.log else value + up * width
        return float(min(max(moved, dimension.low), dimension.high))

    @staticmethod
    def _set(state: TrainState, settings: dict[str, float]) -> TrainState:
        old = state.learner.settings
        new = {name: jax.device_put(jnp.float32(settings[name]), old[name].sharding) for name in old}
        return state._replace(learner=state.learner._replace(settings=new))

    def _write(self, event: dict[str, Any]) -> None:
        try:
            with self.path.open("a") as file:
                file.write(json.dumps({**event, "seeds": self.seeds}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CannotWrite(f"Cannot write {self.path}: {error.strerror}.") from error

    def draw(self, paths: Sequence[Path]) -> None:
        """Scores, who copied whom, and settings over time. A run does not depend on the picture."""
        from flockrl.view.population import draw_population

        try:
            scales = {d.name: d.log for d in self.plan.space}
            draw_population(read_history(self.path), paths, scales, self.path.with_name(PICTURE))
        except Exception as error:
            notice(f"Cannot draw {PICTURE}: {reason(error)}.")


def population_of(runs: Sequence[RunConfig], base: Path, apart: bool) -> Population | None:
    """The population of a run with these seeds, if it is one."""
    plan = plan_of(runs[0].algorithm, runs[0].options, runs[0].config)
    return None if plan is None else Population(plan, base, [run.options.seed for run in runs], apart)


def settings_of(state: TrainState) -> dict[str, float]:
    """The settings that a state holds."""
    return {name: float(value) for name, value in state.learner.settings.items()}


def read_history(path: Path) -> list[dict[str, Any]]:
    """Who copied whom and the settings after it, by step. A line that was torn by a crash does not count."""
    found = []
    try:
        for line in path.read_bytes().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError, RecursionError):
                found.append(json.loads(line))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
    return [event for event in found if isinstance(event, dict) and type(event.get("step")) is int]


def _copied(state: TrainState, place: TrainState) -> TrainState:
    """A state of its own, where `place` is: what trains consumes its state."""
    return jax.tree.map(lambda x, y: jax.device_put(jnp.copy(x), y.sharding), state, place)
