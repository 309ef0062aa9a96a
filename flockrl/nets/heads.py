"""Action distributions as plain functions of a network's output.

Written by hand because they are four formulas each and the libraries that have them take longer to
import than a training run takes to compile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.envs.base import action_bounds
from flockrl.sharing import Group
from flockrl.types import Array, EnvSpec

ILLEGAL = -1e9
"""Logit of an illegal action: its probability underflows to exactly zero, and gradients stay finite."""


class Head(NamedTuple):
    """What a policy's output means. `out` is [..., n, width], actions are [..., n] or [..., n, A].

    sample(key, out, avail) -> (action, logp [..., n])
    mode(out, avail) -> action
    evaluate(out, avail, action) -> (logp [..., n], entropy [..., n])
    """

    width: int
    log_std: bool
    sample: Callable[[Array, Array, Array | None], tuple[Array, Array]]
    mode: Callable[[Array, Array | None], Array]
    evaluate: Callable[[Array, Array | None, Array], tuple[Array, Array]]


def make_head(spec: EnvSpec, group: Group) -> Head:
    return _categorical(group) if spec.discrete else _gaussian(spec, group)


def _categorical(group: Group) -> Head:
    everything = bool(group.legal.all())

    def masked(out: Array, avail: Array | None) -> Array:
        legal = None if everything else jnp.asarray(group.legal)
        if avail is not None:
            legal = avail if legal is None else avail & legal
        return out if legal is None else jnp.where(legal, out, ILLEGAL)

    def weights(out: Array, avail: Array | None) -> tuple[Array, Array, Array, Array]:
        """Logits and weights [A, R], the weights' sums [R], the log of the normaliser [R].

        Actions first, everything else in one long row: that is what the compiler turns into vector code.
        """
        logits = masked(out, avail).reshape(-1, group.action_size).T
        top = logits.max(0)
        weight = jnp.exp(logits - top)
        total = weight.sum(0)
        return logits, weight, total, top + jnp.log(total)

    def chosen(logits: Array, norm: Array, action: Array) -> Array:
        # A comparison, not a gather: its gradient is a product instead of a scatter.
        return jnp.where(action == np.arange(group.action_size)[:, None], logits, 0.0).sum(0) - norm

    def sample(key: Array, out: Array, avail: Array | None) -> tuple[Array, Array]:
        # One uniform number per agent against cumulative weights is six times cheaper than Gumbel noise per
        # action. It lies below the last cumulative weight, so an action of weight zero is never reached.
        logits, weight, _, norm = weights(out, avail)
        upto = list(itertools.accumulate(weight))
        threshold = jax.random.uniform(key, norm.shape) * upto[-1]
        action = sum((partial <= threshold).astype(jnp.int32) for partial in upto)
        shape = out.shape[:-1]
        return jnp.reshape(action, shape), chosen(logits, norm, action).reshape(shape)

    def mode(out: Array, avail: Array | None) -> Array:
        return masked(out, avail).argmax(-1).astype(jnp.int32)

    def evaluate(out: Array, avail: Array | None, action: Array) -> tuple[Array, Array]:
        logits, weight, total, norm = weights(out, avail)
        logp = chosen(logits, norm, action.reshape(-1))
        entropy = norm - (weight * logits).sum(0) / total
        return logp.reshape(action.shape), entropy.reshape(action.shape)

    return Head(group.action_size, False, sample, mode, evaluate)


def _gaussian(spec: EnvSpec, group: Group) -> Head:
    """A normal distribution in units of the action's range: action = middle + half range * u.

    `out` holds the mean of u and its log standard deviation side by side. Densities are those of u, so
    bounds of any size behave alike; actions outside the bounds are clipped where they meet the environment.
    """
    size = group.action_size
    low, high = (bound[list(group.agents), :size] for bound in action_bounds(spec))
    bounded = np.isfinite(low) & np.isfinite(high) & group.legal
    middle: Any = np.where(bounded, (low + high) / 2, 0.0).astype(np.float32)
    half: Any = np.where(bounded, (high - low) / 2, 1.0).astype(np.float32)
    own: Any = group.legal.astype(np.float32)

    def mode(out: Array, avail: Array | None) -> Array:
        return middle + half * own * out[..., :size]

    def logp_of(out: Array, action: Array) -> Array:
        mean, log_std = out[..., :size], out[..., size:]
        z = ((action - middle) / half - mean) * jnp.exp(-log_std)
        return ((-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)) * own).sum(-1)

    def sample(key: Array, out: Array, avail: Array | None) -> tuple[Array, Array]:
        mean, log_std = out[..., :size], out[..., size:]
        u = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        action = middle + half * own * u
        return action, logp_of(out, action)

    def evaluate(out: Array, avail: Array | None, action: Array) -> tuple[Array, Array]:
        entropy = ((out[..., size:] + 0.5 * np.log(2 * np.pi * np.e)) * own).sum(-1)
        return logp_of(out, action), entropy

    return Head(size, True, sample, mode, evaluate)
