"""Assignments of workers to jobs: the best one, and that of an auction."""

from __future__ import annotations

import jax.numpy as jnp

from flockrl.core.types import Array
from flockrl.envs import assignment

NOBODY = -1


def best(benefit: Array) -> Array:
    """[N] the job of each worker, or NOBODY, in the assignment with the largest sum of benefits, by the Hungarian
    method. benefit: [N, J], 0 or less where a worker should rather have no job."""
    return _real(benefit, assignment.assign(-_or_nothing(benefit))[1])


def auction(benefit: Array) -> Array:
    """The same by an auction, in which workers bid for jobs: its sum is at most a thousandth of the largest benefit
    below the largest sum."""
    return _real(benefit, assignment.auction(_or_nothing(benefit)))


def _or_nothing(benefit: Array) -> Array:
    """[N, J + N]: each worker may also do nothing, at no benefit."""
    workers = len(benefit)
    return jnp.concatenate([jnp.maximum(benefit, 0.0), jnp.zeros((workers, workers))], 1)


def _real(benefit: Array, chosen: Array) -> Array:
    """Places beyond the jobs, and jobs without benefit, are none."""
    jobs = benefit.shape[1]
    gain = jnp.take_along_axis(benefit, jnp.minimum(chosen, jobs - 1)[:, None], 1)[:, 0]
    return jnp.where((chosen < jobs) & (gain > 0), chosen, NOBODY).astype(jnp.int32)
