"""Leader election: agents with unlike numbers agree on the one with the largest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flockrl.coordination.graphs import links_up
from flockrl.core.errors import UsageError


class Election(NamedTuple):
    """leader: [n] the number that each agent takes for the leader's. agreed: [T + 1] the part of agents that know the
    right one after each round. messages: how many were sent."""

    leader: np.ndarray
    agreed: np.ndarray
    messages: int


def flood(
    links: np.ndarray, numbers: Sequence[int], rounds: int, loss: float = 0.0, rng: np.random.Generator | None = None
) -> Election:
    """Everyone tells its neighbours the largest number that it knows, in rounds (FloodMax, Lynch 1996).

    Without loss all agree after as many rounds as the graph is wide; with it, later, since everyone goes on telling.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    known = np.array(_unlike(numbers))
    agreed = [float((known == known.max()).mean())]
    for _ in range(rounds):
        up = links_up(links, loss, rng)
        known = np.maximum(known, np.where(up, known, known.min()).max(1))
        agreed.append(float((known == known.max()).mean()))
    return Election(known, np.array(agreed), rounds * int(links.sum()))


def ring(numbers: Sequence[int]) -> Election:
    """Everyone sends its number around a ring of one direction; only larger ones than one's own are passed on (Chang
    and Roberts 1979). The leader's comes back, and it tells all: n H_n messages on average, and n more for the news."""
    own = np.array(_unlike(numbers))
    n = len(own)
    messages, passing, agreed = 0, own.copy(), [0.0]
    alive = np.ones(n, bool)  # whether the number that began at each agent is still on its way
    place = np.arange(n)
    for _ in range(n):
        messages += int(alive.sum())
        place = (place + 1) % n
        alive &= passing >= own[place]
        agreed.append(0.0)
    agreed += [(i + 1) / n for i in range(n)]
    return Election(np.full(n, own.max()), np.array(agreed), messages + n)


def _unlike(numbers: Sequence[int]) -> list[int]:
    found = [int(x) for x in numbers]
    if len(set(found)) < len(found):
        raise UsageError("Agents that elect a leader need unlike numbers.")
    return found
