"""The others as each agent of a team sees them: the next one first, in order."""

from __future__ import annotations

import jax.numpy as jnp

from flockrl.core.types import Array


def from_next(x: Array) -> Array:
    """[N, N - 1, ...] what row i of x [N, N, ...] holds for agents i + 1, i + 2, ..., i - 1, so that all see the team
    from their own place. By reshaping alone, which is faster than looking up."""
    n, rest = len(x), x.shape[2:]
    flat = jnp.concatenate([x, x], 1).reshape(2 * n * n, *rest)
    flat = jnp.concatenate([flat, jnp.zeros((n, *rest), x.dtype)])
    return flat.reshape(n, 2 * n + 1, *rest)[:, 1:n]
