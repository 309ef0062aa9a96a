"""Settings that are part of a learner's state: numbers that may change while it learns, without compiling anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flockrl.algos.family import Family
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Array, Metrics, PyTree, Trajectory

LOGGED = "setting_"
"""What the names of held settings begin with among the metrics."""


class HeldState(NamedTuple):
    """A learner's state and the settings that it learns with: name -> float32 scalar."""

    learner: PyTree
    settings: dict[str, Array]


def held(make: Callable[[Any], Algorithm], config: Any, names: tuple[str, ...]) -> Algorithm:
    """The learner that `make(config)` gives, whose state holds these settings; they begin as the config has them.

    Each update is that of a learner which is made, as the program is traced, with the state's numbers in the place of
    the config's. So every part of it that reads such a setting reads the same number.
    """
    plain = make(config)
    inner = plain if plain.practice is None else plain.practice

    def init(key: Array) -> HeldState:
        return HeldState(plain.init(key), {name: jnp.float32(getattr(config, name)) for name in names})

    def update(state: HeldState, trajectory: Trajectory, key: Array) -> tuple[HeldState, Metrics]:
        learner, metrics = make(_with(config, state.settings)).update(state.learner, trajectory, key)
        told = {f"{LOGGED}{name}": value for name, value in state.settings.items()}
        return HeldState(learner, state.settings), {**metrics, **told}

    choices = plain.choices
    practice = None if plain.practice is None else inner._replace(params=lambda state: inner.params(state.learner))
    return plain._replace(
        init=init,
        update=update,
        params=lambda state: plain.params(state.learner),
        choices=None if choices is None else lambda state, trajectory: choices(state.learner, trajectory),
        critic=plain.critic and plain.critic.within(lambda state: state.learner),
        practice=practice,
    )


def check_held(name: str, about: Family, config: Any, settings: tuple[str, ...]) -> None:
    """Refuse settings that cannot change while a program runs, or have no number to begin with."""
    for setting in settings:
        if setting not in about.live:
            can = f"those that can are {', '.join(about.live)}" if about.live else "no setting of it can"
            raise UsageError(f"{setting} of {name} cannot change while it learns: {can}.")
        if getattr(config, setting) is None:
            raise UsageError(f"{setting} has no number to begin with: give one as --{setting.replace('_', '-')}.")


def _with(config: Any, numbers: Mapping[str, jax.Array]) -> Any:
    """The config with arrays for some of its numbers. It was checked before; arrays have no value to check yet."""
    unchecked = type(type(config).__name__, (type(config),), {"__post_init__": lambda self: None})
    return unchecked(**{**vars(config), **numbers})
