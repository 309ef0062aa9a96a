"""Moments of a replayed batch at which networks are evaluated: those it holds, and those that followed."""

from __future__ import annotations

from typing import NamedTuple

from flockrl.core.types import Array, Observation, Trajectory
from flockrl.replay.ring import Batch


class View(NamedTuple):
    """Moments at which networks are evaluated, [b], or [T, b] along stretches, written [...] below.

    seen: what the team saw, with `alive` as weights 0 and 1. stretch: with memory, the stretch [W, b] that leads there,
    burn-in included; follows: whether the moments are those that followed its steps; whole: whether they are all of its
    steps, without burn-in.
    """

    seen: Observation
    stretch: Trajectory | None = None
    follows: bool = False
    whole: bool = False

    @property
    def alive(self) -> Array:
        """[..., N] 1 for agents that live, 0 for others."""
        assert self.seen.alive is not None
        return self.seen.alive


def both_views(batch: Batch) -> tuple[View, View]:
    """The moments of a batch, and those that followed."""
    now = Observation(batch.obs, batch.avail, batch.state, batch.alive, batch.neighbours, batch.seeds)
    following = Observation(
        batch.next_obs, batch.next_avail, batch.next_state, batch.next_alive, batch.next_neighbours,
        batch.next_seeds,
    )  # fmt: skip
    return View(now, batch.stretch), View(following, batch.stretch, True)
