"""Who goes where: the cheapest one-to-one assignment, by the Hungarian algorithm."""

from __future__ import annotations

import jax.numpy as jnp

from flockrl.core.types import Array


def assign(cost: Array) -> tuple[Array, Array]:
    """The assignment of a cost [n, n] with the smallest sum: rows in order, and the column of each."""
    from optax.assignment import hungarian_algorithm

    rows, columns = hungarian_algorithm(cost.astype(jnp.float32))
    order = jnp.argsort(rows)
    return rows[order], columns[order]
