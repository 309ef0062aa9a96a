"""Running means and variances, kept in an algorithm's state."""

from __future__ import annotations

from typing import NamedTuple

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


def observe(old: Moments, x: Array, weight: Array | None, pool: Array | np.ndarray, slowest: float) -> Moments:
    """Add a batch. x: [T, B, N, ...], weight: [T, B, N] or None, pool: [N, N] as made by `groups.pooling`.

    At first all batches have equal weight; later a new one has at least the weight `slowest`.
    """
    if weight is None:
        mean, square = x.mean((0, 1)), (x**2).mean((0, 1))
        share = jnp.asarray(pool)
    else:
        w = weight.reshape(weight.shape + (1,) * (x.ndim - 3))
        count = weight.sum((0, 1))
        total = jnp.maximum(w.sum((0, 1)), 1.0)
        mean, square = (x * w).sum((0, 1)) / total, (x**2 * w).sum((0, 1)) / total
        share = jnp.asarray(pool) * count
        share = share / jnp.maximum(share.sum(1, keepdims=True), EPSILON)
    mean, square = jnp.tensordot(share, mean, 1), jnp.tensordot(share, square, 1)
    var = jnp.maximum(square - mean**2, 0.0)
    rate = jnp.maximum(1.0 / (old.batches + 1.0), slowest)
    rate = jnp.where(share.sum(1) > 0.5, rate, 0.0).reshape((-1,) + (1,) * (mean.ndim - 1))
    step = mean - old.mean
    blend = (1 - rate) * old.var + rate * var + rate * (1 - rate) * step**2
    return Moments(old.mean + rate * step, blend, old.batches + 1)
