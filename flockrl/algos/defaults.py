"""Settings that the user left open: they follow from the environment, the length of the run and what was said.

Each rule comes from a principle and holds for all environments; what the user says is never changed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from flockrl.core.types import EnvSpec
from flockrl.replay.ring import make_replay, replay_bytes

Config = TypeVar("Config")


class Case(NamedTuple):
    """What a rule may look at. steps: environment steps of the whole run."""

    config: Any
    spec: EnvSpec
    envs: int
    steps: int


def _gamma(case: Case) -> float:
    """Look about as far ahead as an episode lasts: 0.95 for up to 20 steps, 0.96 for 25, 0.99 from 100 on. Learners
    with a replay lean on their own estimates at every step, whose errors add up: they look 0.4 of an episode ahead,
    0.9 for up to 25 steps, 0.95 for 50, 0.99 from 250 on. In a game that is won or lost, when that happens does not
    matter, and a discount would make other moves the best."""
    if case.spec.undiscounted:
        return 1.0
    part, shortest, longest = (0.4, 25, 250) if hasattr(case.config, "buffer_size") else (1.0, 20, 100)
    return 1 - 1 / (part * min(max(case.spec.max_steps, shortest), longest))


def _minibatches(case: Case) -> int:
    """Four, or the largest number below that divides the environments."""
    return next(n for n in (4, 3, 2, 1) if case.envs % n == 0)


def _sequence(case: Case) -> int | None:
    """Sequences of agents with memory cover their rollouts."""
    return max(STRETCH, case.config.rollout_steps) if case.config.recurrent else None


def _steps_per_update(case: Case) -> int:
    """About 40,000 gradient steps in a run, one per 2 to 25 environment steps; it divides those of an iteration."""
    wanted, own = min(max(case.steps // 40_000, 2), 25), case.envs * case.config.rollout_steps
    return max(n for n in range(1, wanted + 1) if own % n == 0)


def _learning_starts(case: Case) -> int:
    """5,000 random steps at first, at most a tenth of the run."""
    return min(5_000, case.steps // 10)


def _buffer_size(case: Case) -> int:
    """200,000 transitions, or as many as take 2 GB: with thousands of agents each is large."""
    each = replay_bytes(lambda: make_replay(case.spec, 1, 1, prioritized=False))
    return min(200_000, max(MOST_BYTES // each, 1))


def _batch_size(case: Case) -> int | None:
    """What agents of a team share is learned from all of them: no more than 65,536 of their transitions at once."""
    rows = MOST_ROWS // case.spec.num_agents
    return None if case.spec.num_agents <= MANY else max(rows, case.config.steps, _sequence(case) or 0)


MANY, MOST_ROWS, MOST_BYTES = 256, 65_536, 2 * 10**9
"""Agents above which a gradient step reads fewer transitions of the team, and what it reads of them then; the most
that a replay takes."""
STRETCH = 25
"""Length of replayed sequences where there is memory and the user says nothing."""
RULES: dict[str, Callable[[Case], Any]] = {
    "gamma": _gamma,
    "minibatches": _minibatches,
    "sequence": _sequence,
    "steps_per_update": _steps_per_update,
    "learning_starts": _learning_starts,
    "buffer_size": _buffer_size,
    "batch_size": _batch_size,
}
"""Setting -> its value where it is None."""
WORDS = {
    "gamma": "gamma {:g}",
    "minibatches": "minibatches {}",
    "steps_per_update": "a gradient step every {} steps",
    "learning_starts": "learning from step {:,} on",
}
"""What is said of it in the first line of a run."""


def settle(config: Config, spec: EnvSpec, envs: int, updates: int) -> tuple[Config, str]:
    """The config with all that was left open, and what to tell the user of it."""
    given: Any = config
    case = Case(given, spec, envs, updates * envs * given.rollout_steps)
    fields = {field.name for field in dataclasses.fields(given)}
    found = {name: rule(case) for name, rule in RULES.items() if name in fields and getattr(given, name) is None}
    words = [WORDS[name].format(value) for name, value in found.items() if name in WORDS]
    return dataclasses.replace(given, **found), ", ".join(words)


FOLLOW = ("steps_per_update", "learning_starts")
"""Settings that follow from the length of a run: one that is lengthened keeps what it began with."""


def as_begun(config: Config, spec: EnvSpec, envs: int, steps: int) -> Config:
    """The config with these settings as a run of `steps` environment steps has them."""
    given: Any = config
    left_open = [name for name in FOLLOW if getattr(given, name, 0) is None]
    if not left_open:
        return config
    first, _ = settle(given, spec, envs, math.ceil(steps / (envs * given.rollout_steps)))
    return dataclasses.replace(given, **{name: getattr(first, name) for name in left_open})
