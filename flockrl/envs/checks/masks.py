"""Masks of legal actions that leave an agent nothing to do, for compiled environments and for those on the host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flockrl.core.types import EnvSpec, MultiDiscrete
from flockrl.data.choices import choices, is_real, without_option


def unusable(spec: EnvSpec, avail: np.ndarray, acts: np.ndarray) -> Iterator[tuple[list[int], str]]:
    """The first agent that has nothing to choose from, and the first one whose real actions are masked.

    avail: masks [..., N, A]; acts: [..., N] bool, agents that have to act. Yields the place [..., N] of the agent and
    what its mask has.
    """
    own = avail & spec.own_actions
    empty = without_option(spec, own) & acts
    if empty.any():
        *where, agent = np.argwhere(empty)[0].tolist()
        what = "no legal action"
        if isinstance(spec.actions[agent], MultiDiscrete):
            mine = [c for c in choices(spec.actions) if c.agent == agent]
            choice = next(c for c in mine if not own[(*where, agent)][c.start : c.stop].any())
            what = f"no legal option of choice {choice.entry}"
        yield [*where, agent], f"{what}, but expected at least one"
    masked = (own != spec.own_actions).any(-1) & is_real(spec.actions) & acts
    if masked.any():
        yield np.argwhere(masked)[0].tolist(), "a forbidden dimension of a real action, but only choices can be masked"
