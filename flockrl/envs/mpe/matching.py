"""The cheapest one-to-one assignment of agents to targets."""

from __future__ import annotations

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array

ENUMERATED = 5
"""Up to this many agents, trying all assignments in one product is faster than the Hungarian algorithm."""


def matched(cost: Array) -> Array:
    """[N, N] cost of each target for each agent -> [N] the costs in the assignment with the smallest sum, in no
    particular order."""
    n = len(cost)
    if n > ENUMERATED:
        from optax.assignment import hungarian_algorithm

        rows, columns = hungarian_algorithm(cost)
        return cost[rows, columns]
    # [N!, N, N] 0/1 matrices, one per assignment: one product gives all sums.
    plans = np.eye(n)[np.array(list(permutations(range(n))))]
    sums = jnp.einsum("pij,ij->p", plans, cost, precision=jax.lax.Precision.HIGHEST)
    best = jax.nn.one_hot(jnp.argmin(sums), len(plans))
    plan = jnp.einsum("p,pij->ij", best, plans, precision=jax.lax.Precision.HIGHEST)
    return jnp.sum(plan * cost, axis=1)
