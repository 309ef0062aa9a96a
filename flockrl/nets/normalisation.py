"""Running means and variances, kept in an algorithm's state."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array

EPSILON = 1e-4


class Moments(NamedTuple):
    """Mean and variance of a stream of batches. `batches` counts them; the first batch sets the values."""

    mean: Array
    var: Array
    batches: Array

    @property
    def std(self) -> Array:
        return jnp.sqrt(self.var + EPSILON)


def moments(shape: tuple[int, ...]) -> Moments:
    return Moments(jnp.zeros(shape), jnp.ones(shape), jnp.int32(0))


def observe(old: Moments, x: Array, weight: Array | None, pool: np.ndarray, slowest: float) -> Moments:
    """Add a batch. x: [T, B, N, ...], weight: [T, B, N] or None, pool: [N] numbers from 0 on: those with the same one
    have moments in common (`groups.pooling`).

    At first all batches have equal weight; later a new one has at least the weight `slowest`.
    """
    w = jnp.ones((1, 1, x.shape[2])) if weight is None else weight
    count = w.sum((0, 1)) * (x.shape[0] * x.shape[1] if weight is None else 1)
    w = w.reshape(w.shape + (1,) * (x.ndim - 3))

    def together(sums: Array) -> Array:
        return jax.ops.segment_sum(sums, pool, int(pool.max()) + 1)[pool]

    counts = together(count)
    total = jnp.maximum(counts, 1.0).reshape((-1,) + (1,) * (x.ndim - 3))
    mean, square = together((x * w).sum((0, 1))) / total, together((x**2 * w).sum((0, 1))) / total
    var = jnp.maximum(square - mean**2, 0.0)
    rate = jnp.maximum(1.0 / (old.batches + 1.0), slowest)
    rate = jnp.where(counts > 0, rate, 0.0).reshape((-1,) + (1,) * (mean.ndim - 1))
    step = mean - old.mean
    blend = (1 - rate) * old.var + rate * var + rate * (1 - rate) * step**2
    return Moments(old.mean + rate * step, blend, old.batches + 1)
