"""Assignments of workers to jobs: the best one, and that of an auction."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from flockrl.core.types import Array
from flockrl.envs.assignment import assign

EPSILON = 0.01
"""By how much bids rise at least: an auction misses the best sum of benefits by at most so much per worker."""
NOBODY = -1


def best(benefit: Array) -> Array:
    """[N] the job of each worker, or NOBODY, in the assignment with the largest sum of benefits, by the Hungarian
    method. benefit: [N, J], 0 or less where a worker should rather have no job."""
    workers = len(benefit)
    cost = -jnp.concatenate([jnp.maximum(benefit, 0.0), jnp.zeros((workers, workers))], 1)
    return _real(benefit, assign(cost)[1].astype(jnp.int32))


def auction(benefit: Array) -> Array:
    """[N] the job of each worker, or NOBODY, by Bertsekas' auction: workers without a job all bid for the job with the
    most benefit after its price, by as much as it is better than the next, and each job goes to the highest bid."""
    workers, jobs = benefit.shape
    # Each worker may also do nothing, at a place of its own that nobody else wants.
    own = jnp.where(jnp.eye(workers, dtype=bool), 0.0, -1e6)
    worth = jnp.concatenate([jnp.where(benefit > 0, benefit, -1e6), own], 1)

    def unsettled(carry: tuple[Array, Array]) -> Array:
        return (carry[1] == NOBODY).any()

    def bid(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        price, chosen = carry
        value = worth - price
        (first, second), (place, _) = (x.T for x in jax.lax.top_k(value, 2))
        offer = jnp.take(price, place) + first - second + EPSILON
        wants = (chosen == NOBODY)[:, None] & (place[:, None] == jnp.arange(jobs + workers))
        bids = jnp.where(wants, offer[:, None], -jnp.inf)
        taken, winner = bids.max(0) > -jnp.inf, bids.argmax(0)
        held = (chosen != NOBODY) & jnp.take(taken, jnp.maximum(chosen, 0))
        chosen = jnp.where(held, NOBODY, chosen)
        won = taken & (winner == jnp.arange(workers)[:, None])
        chosen = jnp.where(won.any(1), won.argmax(1), chosen)
        return jnp.where(taken, bids.max(0), price), chosen

    start = jnp.zeros(jobs + workers), jnp.full(workers, NOBODY)
    return _real(benefit, jax.lax.while_loop(unsettled, bid, start)[1])


def _real(benefit: Array, chosen: Array) -> Array:
    """Places beyond the jobs, and jobs without benefit, are none."""
    jobs = benefit.shape[1]
    gain = jnp.take_along_axis(benefit, jnp.minimum(chosen, jobs - 1)[:, None], 1)[:, 0]
    return jnp.where((chosen < jobs) & (gain > 0), chosen, NOBODY)
