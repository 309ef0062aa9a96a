"""A rollout as somebody sees it who decides only now and then: steps between two decisions as one.

A decision holds until the next one or the end of its episode. What is paid meanwhile is added up, and what followed is
what was seen at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from flockrl.core.types import Array, Trajectory


def decided(first: Array, clock: Array, every: int) -> Array:
    """[T, B] whether a decision is made, every `every` steps of an episode. clock: [B] steps since the last one that
    the team remembers as the rollout begins."""

    def step(clock: Array, begins: Array) -> tuple[Array, Array]:
        clock = jnp.where(begins, 0, clock)
        return (clock + 1) % every, clock == 0

    return jax.lax.scan(step, clock, first)[1]


def segments(
    trajectory: Trajectory, decides: Array, every: int, action: Array, extras: Mapping[str, Array], memory: Any
) -> Trajectory:
    """A rollout [T, B] as one of decisions [K, B], K = T / every: the first of each environment, where it has more.

    decides: [T, B]; action, extras: what was decided, [T, B, N, ...], read where `decides`. Where an environment has
    fewer decisions, what is left counts as steps in which nobody lived. Steps before the first decision of a rollout
    belong to one that is over, and are left out. With `every` 1 it is the rollout as it is.
    """
    steps, rows = len(decides), len(decides) // every
    number = jnp.cumsum(decides, 0) - 1  # of the decision that holds, -1 before the first
    each = jnp.arange(rows)[:, None]
    within = number == each[..., None]  # [K, T, B]
    starts, ends = (within & decides).argmax(1), steps - 1 - within[:, ::-1].argmax(1)
    real, last = each <= number[-1], each == jnp.minimum(number[-1], rows - 1)

    def at(x: Any, places: Array) -> Any:
        return None if x is None else x[places, jnp.arange(places.shape[1])]

    def ever(flags: Array) -> Array:
        """[K, B, N] whether it was so in any step of a decision."""
        return jnp.einsum("ktb,tbn->kbn", within * 1.0, flags * 1.0) > 0

    paid = jnp.einsum("ktb,tbn->kbn", within * 1.0, trajectory.reward, precision=jax.lax.Precision.HIGHEST)
    ended, cut = ever(trajectory.terminated), ever(trajectory.truncated)
    # What followed the last decision is not the next row, if it was not over yet or its row is not the last one.
    short = (ends - starts + 1 < every) | (number[-1] + 1 != rows)
    stopped = (last & short & ~at(_over(trajectory), ends)) | ~real
    alive, left = at(trajectory.alive, starts), at(trajectory.next_alive, ends)
    if every > 1:
        alive = real[..., None] & (True if alive is None else alive)
        alive, left = jnp.broadcast_to(alive, ended.shape), jnp.ones_like(ended) if left is None else left
    return Trajectory(
        obs=at(trajectory.obs, starts), action=at(action, starts), reward=paid, terminated=ended & real[..., None],
        truncated=cut | (stopped[..., None] & ~ended), next_obs=at(trajectory.next_obs, ends),
        first=at(trajectory.first, starts) | ~real, avail=at(trajectory.avail, starts),
        state=at(trajectory.state, starts), alive=alive,
        next_avail=at(trajectory.next_avail, ends), next_state=at(trajectory.next_state, ends),
        neighbours=at(trajectory.neighbours, starts), next_neighbours=at(trajectory.next_neighbours, ends),
        next_alive=left, memory=memory, extras={name: at(x, starts) for name, x in extras.items()},
    )  # fmt: skip


def _over(trajectory: Trajectory) -> Array:
    """[T, B] whether a step was the last of its episode."""
    over = trajectory.terminated | trajectory.truncated
    if trajectory.alive is not None:
        over = over | ~trajectory.alive
    return jnp.concatenate([trajectory.first[1:], over[-1:].all(-1)])
