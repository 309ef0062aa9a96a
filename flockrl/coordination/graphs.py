"""Who can talk to whom, as a matrix."""

from __future__ import annotations

import numpy as np

from flockrl.comm.channel import MOST_AGENTS, parse_channel
from flockrl.core.errors import UsageError


def links(topology: str, agents: int) -> np.ndarray:
    """[n, n] bool, symmetric: all, ring, star, or rows of 0 and 1 (or a file of such), as a channel has them."""
    if not 2 <= agents <= MOST_AGENTS:
        raise UsageError(f"Agents that coordinate are from 2 to {MOST_AGENTS}, not {agents}.")
    if topology == "neighbours":
        raise UsageError("There is no environment here that says who perceives whom: use all, ring, star or a file.")
    found = parse_channel(f"topology={topology}").links(agents)
    if (found != found.T).any():
        raise UsageError("Agents that coordinate hear each other both ways: the topology must be symmetric.")
    if not connected(found):
        raise UsageError("The topology falls apart: some agents cannot reach others.")
    return found


def connected(found: np.ndarray) -> bool:
    """Whether everyone can reach everyone over links [n, n]."""
    reached = np.zeros(len(found), bool)
    reached[:1] = True
    while True:
        more = reached | found[reached].any(0)
        if (more == reached).all():
            return bool(reached.all())
        reached = more


def links_up(found: np.ndarray, loss: float, rng: np.random.Generator) -> np.ndarray:
    """[n, n] the links that work in this step: each fails with chance `loss`, for both directions at once."""
    if not loss:
        return found
    up = np.triu(rng.random(found.shape) >= loss, 1)
    return found & (up | up.T)
