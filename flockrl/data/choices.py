"""The choices in a team's actions: where the number of each choice stands, and where its options stand in a mask.

NumPy alone, so that an actor without JAX can use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flockrl.core.spec import Box, Discrete, EnvSpec, Space


class Choice(NamedTuple):
    """One choice of one agent. Its number is action[agent, entry] in rows [N, W] of numbers, or action[agent] where all
    agents are Discrete; its options are mask[agent, start:stop] in a mask [N, A]."""

    agent: int
    entry: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """The number of options."""
        return self.stop - self.start


def options(space: Space) -> tuple[int, ...]:
    """How many options each choice in an action has. Discrete is one choice, MultiDiscrete several, Box none."""
    if isinstance(space, Box):
        return ()
    return (space.n,) if isinstance(space, Discrete) else space.choices


def choices(spaces: Sequence[Space]) -> list[Choice]:
    """All choices of agents with these action spaces, agent by agent."""
    found = []
    for agent, space in enumerate(spaces):
        start = 0
        for entry, size in enumerate(options(space)):
            found.append(Choice(agent, entry, start, start + size))
            start += size
    return found


def option_table(spaces: Sequence[Space]) -> tuple[np.ndarray, np.ndarray]:
    """For each entry of the rows of numbers [N, W]: how many options its choice has, 0 where it is no choice; and where
    these options begin in a mask."""
    counts, starts = np.zeros((2, len(spaces), max(space.width for space in spaces)), int)
    for choice in choices(spaces):
        counts[choice.agent, choice.entry], starts[choice.agent, choice.entry] = choice.size, choice.start
    return counts, starts


def is_real(spaces: Sequence[Space]) -> np.ndarray:
    """[N] bool: the agents whose actions are real numbers."""
    return np.array([isinstance(space, Box) for space in spaces])


def without_option(spec: EnvSpec, legal: np.ndarray) -> np.ndarray:
    """[..., N] bool: agents that have a choice without any legal option. legal: a mask [..., N, A], padding False."""
    if spec.discrete:
        return np.logical_not(legal.any(-1))
    found = np.zeros(legal.shape[:-1], bool)
    for choice in choices(spec.actions):
        found[..., choice.agent] |= ~legal[..., choice.agent, choice.start : choice.stop].any(-1)
    return found


def own_action(space: Space, action: np.ndarray) -> int | np.ndarray:
    """One agent's action without padding: a number for Discrete, whole numbers [k] for MultiDiscrete, real ones else.

    action: the agent's entry of the team's actions, a number or a row [W].
    """
    if isinstance(space, Discrete):
        return int(action if np.ndim(action) == 0 else action[0])
    row = action[: space.width]
    return row if isinstance(space, Box) else row.astype(np.int32)
