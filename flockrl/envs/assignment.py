"""Who goes where: the best one-to-one assignment, by the Hungarian algorithm or by an auction."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from flockrl.core.types import Array

SCALING = 5.0
"""By how much the smallest raise of an auction falls from one round of it to the next."""


def assign(cost: Array) -> tuple[Array, Array]:
    """The assignment of a cost [n, m], n <= m, with the smallest sum: rows in order, and the column of each."""
    from optax.assignment import hungarian_algorithm

    rows, columns = hungarian_algorithm(cost.astype(jnp.float32))
    order = jnp.argsort(rows)
    return rows[order], columns[order]


def auction(value: Array, exact: float = 1e-3) -> Array:
    """[n] the column of each row, for values [n, m], n <= m: bidders who raise the price of what they like best by as
    much as they like it better than the second (Bertsekas 1979, with scaling of the smallest raise).

    The sum of values is at most `exact` times their range below the highest one; where values are whole numbers, it is
    the highest for exact * range < 1.
    """
    n, m = value.shape
    value = jnp.concatenate([value.astype(jnp.float32), jnp.full((m - n, m), value.min())])  # whom nothing matters to
    spread = jnp.maximum(jnp.ptp(value), 1e-6)
    last = exact * spread / m

    def market(state: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        """Sell everything from these prices on, with raises of at least `step`."""
        prices, step = state
        start = prices, jnp.full(m, -1), jnp.full(m, -1)
        prices, _, has = jax.lax.while_loop(lambda s: (s[2] < 0).any(), lambda s: _bids(value, step, *s), start)
        return prices, step, has

    def again(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        return market((state[0], jnp.maximum(state[1] / SCALING, last)))

    first = market((jnp.zeros(m), jnp.maximum(spread / 2, last)))
    return jax.lax.while_loop(lambda s: s[1] > last, again, first)[2][:n]


def _bids(value: Array, step: Array, prices: Array, owner: Array, has: Array) -> tuple[Array, Array, Array]:
    """One round: everyone [m] who has nothing bids for one thing, and whoever is outbid has nothing again."""
    m = len(prices)
    profit = value - prices
    wants = profit.argmax(1)
    best = profit.max(1)
    second = jnp.where(jax.nn.one_hot(wants, m, dtype=bool), -jnp.inf, profit).max(1)
    raises = jnp.where(jnp.isfinite(second), best - second, 0.0) + step
    bids = jnp.where(
        (has < 0)[:, None] & jax.nn.one_hot(wants, m, dtype=bool), (prices[wants] + raises)[:, None], -jnp.inf
    )
    sold, winner = jnp.isfinite(bids.max(0)), bids.argmax(0)
    owner = jnp.where(sold, winner, owner)
    holds = jax.nn.one_hot(owner, m, dtype=bool)  # [things, bidders], no one for -1
    return jnp.where(sold, bids.max(0), prices), owner, jnp.where(holds.any(0), holds.argmax(0), -1)


def share_out(value: Array, how: str) -> Array:
    """[n] a column for each row of values [n, m] with a high sum, by "hungarian" or "auction". No column is given
    twice, or where there are fewer columns than rows, no more often than it must. What is not finite counts as 0: an
    auction of it would never end."""
    n, m = value.shape
    value = jnp.tile(jnp.where(jnp.isfinite(value), value, 0.0), (1, -(-n // m)))
    return (auction(value) if how == "auction" else assign(-value)[1]) % m
