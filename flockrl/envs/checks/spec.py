"""Checks of an environment's spec, for compiled environments and for those on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flockrl.core.types import Box, Discrete, EnvSpec, MultiDiscrete


def wrong_spec(spec: EnvSpec) -> Iterator[str]:
    """What is wrong with a spec, one sentence each."""
    if len(set(spec.agents)) != spec.num_agents:
        yield f"agents must have names of their own, not {', '.join(spec.agents)}."
    if not _whole(spec.max_steps, 1):
        yield f"spec.max_steps must be a whole number of at least 1, not {spec.max_steps!r}."
    if not _whole(spec.state_size, 0):
        yield f"spec.state_size must be a whole number of at least 0, not {spec.state_size!r}."
    kinds: dict[int, int] = {}
    for i, (agent, seen, acts) in enumerate(zip(spec.agents, spec.observations, spec.actions, strict=True)):
        if not isinstance(seen, Box):
            yield f"agent {agent!r}: its entry in spec.observations must be a Box, not {type(seen).__name__}."
        elif text := _box(seen):
            yield f"agent {agent!r}: its observation space {text}."
        if text := _action(acts):
            yield f"agent {agent!r}: {text}."
        first = kinds.setdefault(spec.groups[i], i)
        if (seen, acts) != (spec.observations[first], spec.actions[first]):
            yield (
                f"agents {spec.agents[first]!r} and {agent!r} are both in group {spec.groups[i]}, "
                "but agents of one group must have equal spaces."
            )


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def _action(space: Any) -> str:
    """What is wrong with an action space, or nothing."""
    if isinstance(space, Discrete):
        good = _whole(space.n, 1)
        return "" if good else f"Discrete needs a whole number of at least 1 action, not {space.n!r}"
    if isinstance(space, MultiDiscrete):
        good = isinstance(space.choices, tuple) and len(space.choices) > 0
        good = good and all(_whole(n, 1) for n in space.choices)
        return "" if good else f"MultiDiscrete needs a tuple of whole numbers of at least 1, not {space.choices!r}"
    if isinstance(space, Box):
        text = _box(space)
        return f"its action space {text}" if text else ""
    return f"its entry in spec.actions must be Discrete, MultiDiscrete or Box, not {type(space).__name__}"


def _box(space: Box) -> str:
    """What is wrong with a Box, or nothing."""
    if not isinstance(space.shape, tuple) or not all(_whole(size, 1) for size in space.shape):
        return f"must have a tuple of positive sizes as its shape, not {space.shape!r}"
    low, high = np.asarray(space.low, float), np.asarray(space.high, float)
    for word, bound in (("low", low), ("high", high)):
        if bound.shape not in ((), (space.size,)):
            return f"must have one number or {space.size} as {word}, not {bound.size}"
    return "" if (low <= high).all() else f"must have low <= high, not {space.low} and {space.high}"
