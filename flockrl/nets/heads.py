"""Action distributions as plain functions of a network's output.

They are written here because each is four formulas, and importing a library of distributions takes longer than
compiling a training run.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.actions import action_bounds
from flockrl.core.groups import Group
from flockrl.core.random import Source, Tape, gumbel, normal, split, uniform
from flockrl.core.types import Array, EnvSpec

ILLEGAL = -1e9
"""Logit of an illegal action: its probability underflows to exactly zero, and gradients stay finite."""
WRITTEN_OUT = 32
"""Up to this number of actions, sums and maxima over actions are unrolled; beyond it a program would grow too large."""


class Head(NamedTuple):
    """The action distribution of a policy's output. `out` is [..., n, width]; actions are [..., n], [..., n, k] for k
    choices at once, or [..., n, A] real numbers.

    sample(key, out, avail) -> (action, logp [..., n])
    mode(out, avail) -> action
    evaluate(out, avail, action) -> (logp [..., n], entropy [..., n])
    kl(old_out, new_out, avail) -> [..., n], the divergence KL(old || new)
    """

    width: int
    log_std: bool
    sample: Callable[[Source, Array, Array | None], tuple[Array, Array]]
    mode: Callable[[Array, Array | None], Array]
    evaluate: Callable[[Array, Array | None, Array], tuple[Array, Array]]
    kl: Callable[[Array, Array, Array | None], Array]


def make_head(spec: EnvSpec, group: Group, squashed: bool = False) -> Head:
    """squashed: let tanh keep real actions within their bounds, as long as these are finite."""
    if group.continuous:
        return _gaussian(spec, group, squashed)
    return _categorical(group) if len(group.factors) == 1 else _factorised(group)


def _factorised(group: Group) -> Head:
    """Several independent choices: probabilities multiply, so log-probabilities, entropies and divergences add up.

    Choices of equally many options are one array, so that a program does not grow with the number of choices.
    """
    sizes = np.asarray(group.factors)
    starts = np.cumsum(sizes) - sizes
    unlike = np.unique(sizes).tolist()
    kinds = [np.flatnonzero(sizes == n) for n in unlike]
    order = np.argsort(np.concatenate(kinds))
    heads = [
        _categorical(group._replace(action_size=n, factors=(n,), legal=np.ones((group.size, n), bool))) for n in unlike
    ]

    def part(x: Array, kind: Any) -> Array:
        """The options [..., n, c, size] of c choices of one size, of x [..., n, A]."""
        size, first = int(sizes[kind[0]]), int(starts[kind[0]])
        if np.array_equal(kind, np.arange(kind[0], kind[0] + len(kind))):  # side by side
            return x[..., first : first + size * len(kind)].reshape(*x.shape[:-1], len(kind), size)
        return jnp.stack([x[..., start : start + size] for start in starts[kind].tolist()], -2)

    def each(*arrays: Array | None) -> list[tuple[Any, list[Any]]]:
        """The head of each size, and its part of the arrays [..., n, A]."""
        return [
            (head, [None if x is None else part(x, kind) for x in arrays])
            for head, kind in zip(heads, kinds, strict=True)
        ]

    def joined(actions: list[Array]) -> Array:
        """[..., n, k]: the choices in their order, of actions [..., n, c] by size."""
        if len(kinds) == 1:
            return actions[0]
        found = jnp.concatenate(actions, -1)
        return jnp.stack([found[..., i] for i in order.tolist()], -1)

    def sample(key: Source, out: Array, avail: Array | None) -> tuple[Array, Array]:
        keys = split(key, len(heads))
        drawn = [head.sample(k, *own) for k, (head, own) in zip(keys, each(out, avail), strict=True)]
        return joined([action for action, _ in drawn]), _add([logp for _, logp in drawn])

    def mode(out: Array, avail: Array | None) -> Array:
        return joined([head.mode(*own) for head, own in each(out, avail)])

    def evaluate(out: Array, avail: Array | None, action: Array) -> tuple[Array, Array]:
        owns = zip(each(out, avail), kinds, strict=True)
        found = [head.evaluate(*own, action[..., kind]) for (head, own), kind in owns]
        return _add([logp for logp, _ in found]), _add([entropy for _, entropy in found])

    def kl(old: Array, new: Array, avail: Array | None) -> Array:
        return _add([head.kl(*own) for head, own in each(old, new, avail)])

    return Head(group.action_size, False, sample, mode, evaluate, kl)


def _add(arrays: list[Array]) -> Array:
    """[...]: the sum of arrays [..., c] over all their choices."""
    return functools.reduce(jnp.add, [x.sum(-1) for x in arrays])


def _categorical(group: Group) -> Head:
    everything = bool(group.legal.all())

    def masked(out: Array, avail: Array | None) -> Array:
        legal = None if everything else jnp.asarray(group.legal)
        if avail is not None:
            legal = avail if legal is None else avail & legal
        return out if legal is None else jnp.where(legal, out, ILLEGAL)

    def sample(key: Source, out: Array, avail: Array | None) -> tuple[Array, Array]:
        if isinstance(key, Tape):
            return _sample_at_once(uniform(key, out.shape[:-1], group.agents), masked(out, avail))
        if group.action_size > WRITTEN_OUT:
            logits = masked(out, avail)
            action = (logits + gumbel(key, logits.shape, group.agents)).argmax(-1).astype(jnp.int32)
            return action, pick(jax.nn.log_softmax(logits), action)
        # Comparing one uniform number per agent with cumulative weights is six times cheaper than Gumbel noise per
        # action. The number is below the last cumulative weight, so an action of weight zero is never chosen.
        rows, weight, norm = _weights(masked(out, avail).reshape(-1, group.action_size))
        upto = list(itertools.accumulate(weight))
        threshold = uniform(key, norm.shape, group.agents) * upto[-1]
        action = functools.reduce(jnp.add, [(partial <= threshold).astype(jnp.int32) for partial in upto])
        shape = out.shape[:-1]
        return jnp.reshape(action, shape), (_chosen(rows, action) - norm).reshape(shape)

    def mode(out: Array, avail: Array | None) -> Array:
        return masked(out, avail).argmax(-1).astype(jnp.int32)

    def evaluate(out: Array, avail: Array | None, action: Array) -> tuple[Array, Array]:
        logits = masked(out, avail).reshape(-1, group.action_size)
        logp, entropy = categorical(logits, action.reshape(-1))
        return logp.reshape(action.shape), entropy.reshape(action.shape)

    def kl(old: Array, new: Array, avail: Array | None) -> Array:
        return categorical_kl(masked(old, avail), masked(new, avail))

    return Head(group.action_size, False, sample, mode, evaluate, kl)


def _sample_at_once(number: Array, logits: Array) -> tuple[Array, Array]:
    """The action [...] that a uniform number [...] in [0, 1) selects, and its log-probability, for logits [..., A].

    The same as `sample`, but with few and wide operations, for runtimes in which every operation has a fixed cost.
    """
    top = logits.max(-1, keepdims=True)
    upto = jnp.cumsum(jnp.exp(logits - top), -1)
    total = upto[..., -1:]
    action = (upto <= number[..., None] * total).sum(-1).astype(jnp.int32)
    logp = logits - (top + jnp.log(total))
    return action, jnp.where(action[..., None] == jnp.arange(logits.shape[-1]), logp, 0.0).sum(-1)


def _weights(logits: Array) -> tuple[list[Array], list[Array], Array]:
    """Logits and unnormalised probabilities of each action as rows [R], and the log of the normaliser [R].

    The sums over actions are unrolled: the compiler turns long rows into vector code, but not reductions over
    a short axis.
    """
    rows = list(logits.T)
    top = functools.reduce(jnp.maximum, rows)
    weight = [jnp.exp(row - top) for row in rows]
    return rows, weight, top + jnp.log(functools.reduce(jnp.add, weight))


def _chosen(rows: list[Array], action: Array) -> Array:
    return functools.reduce(jnp.add, [jnp.where(action == i, row, 0.0) for i, row in enumerate(rows)])


def pick(values: Array, action: Array) -> Array:
    """[...]: the entry of values [..., A] at `action` [...]."""
    if values.shape[-1] > WRITTEN_OUT:
        return jnp.take_along_axis(values, action[..., None], -1)[..., 0]
    return _chosen([values[..., i] for i in range(values.shape[-1])], action)


def best_action(values: Array, legal: Array) -> tuple[Array, Array]:
    """The highest of the values [..., A] of legal actions, and the first action that has it: each [...]."""
    masked = jnp.where(legal, values, ILLEGAL)
    if values.shape[-1] > WRITTEN_OUT:
        return masked.max(-1), masked.argmax(-1).astype(jnp.int32)
    top = masked[..., 0]
    action = jnp.zeros(top.shape, jnp.int32)
    for i in range(1, values.shape[-1]):
        action = jnp.where(masked[..., i] > top, i, action)
        top = jnp.maximum(top, masked[..., i])
    return top, action


@jax.custom_vjp
def categorical(logits: Array, action: Array) -> tuple[Array, Array]:
    """Log-probability of `action` [R] and entropy [R] for logits [R, A]."""
    return _categorical_forward(logits, action)[0]


def _categorical_forward(logits: Array, action: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    if logits.shape[1] > WRITTEN_OUT:
        log_p = jax.nn.log_softmax(logits)
        entropy = -(jnp.exp(log_p) * log_p).sum(-1)
        norm = jax.scipy.special.logsumexp(logits, -1)
        return (pick(log_p, action), entropy), (logits, action, norm, entropy)
    rows, weight, norm = _weights(logits)
    mean = functools.reduce(jnp.add, [w * row for w, row in zip(weight, rows, strict=True)])
    entropy = norm - mean / functools.reduce(jnp.add, weight)
    return (_chosen(rows, action) - norm, entropy), (logits, action, norm, entropy)


def _categorical_backward(residuals: tuple[Array, ...], upstream: tuple[Array, Array]) -> tuple[Array, None]:
    """d logp / d l_i = 1[i = a] - p_i,  d H / d l_i = -p_i (log p_i + H). Takes a third of the time of autodiff."""
    logits, action, norm, entropy = residuals
    d_logp, d_entropy = (x[:, None] for x in upstream)
    log_p = logits - norm[:, None]
    p = jnp.exp(log_p)
    taken = action[:, None] == np.arange(logits.shape[1])
    return d_logp * (taken - p) - d_entropy * p * (log_p + entropy[:, None]), None


categorical.defvjp(_categorical_forward, _categorical_backward)


def categorical_kl(old: Array, new: Array) -> Array:
    """[...] KL(old || new) of logits [..., A]; illegal actions, at `ILLEGAL` in both, add nothing."""
    log_p, log_q = jax.nn.log_softmax(old), jax.nn.log_softmax(new)
    return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)


def gaussian_kl(old: tuple[Array, Array], new: tuple[Array, Array], own: Any) -> Array:
    """[...] KL(old || new) of (means, log standard deviations), each [..., A]; only `own` [..., A] dimensions count."""
    (mean, log_std), (new_mean, new_log_std) = old, new
    apart = jnp.exp(2 * (log_std - new_log_std)) + ((mean - new_mean) * jnp.exp(-new_log_std)) ** 2
    return ((new_log_std - log_std + 0.5 * apart - 0.5) * own).sum(-1)


def log_slope(z: Array) -> Array:
    """log (1 - tanh(z)^2), by which squashing changes a density: as 2 (ln 2 - z - softplus(-2 z)), which does not lose
    its digits where tanh saturates."""
    return 2 * (np.log(2.0) - z - jax.nn.softplus(-2 * z))


def _gaussian(spec: EnvSpec, group: Group, squashed: bool = False) -> Head:
    """A normal distribution in units of the action's range: action = middle + half range * u.

    `out` holds the mean of u, then its log standard deviation. Densities are those of u, so that the size of
    the bounds does not matter; actions outside the bounds are clipped before the environment's step. Where they are
    squashed, tanh(u) stands for u where there are bounds, in densities too; entropies are those of u.
    """
    size = group.action_size
    low, high = (bound[list(group.agents), :size] for bound in action_bounds(spec))
    bounded = np.isfinite(low) & np.isfinite(high) & group.legal
    low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    middle: Any = ((low + high) / 2).astype(np.float32)
    half: Any = ((high - low) / 2).astype(np.float32)
    own: Any = group.legal.astype(np.float32)
    bent: Any = bounded & squashed

    def act(u: Array) -> Array:
        return middle + half * own * (jnp.where(bent, jnp.tanh(u), u) if squashed else u)

    def mode(out: Array, avail: Array | None) -> Array:
        return act(out[..., :size])

    def logp_of(out: Array, u: Array) -> Array:
        mean, log_std = out[..., :size], out[..., size:]
        z = (u - mean) * jnp.exp(-log_std)
        density = -0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)
        if squashed:
            density = density - jnp.where(bent, log_slope(u), 0.0)
        return (density * own).sum(-1)

    def sample(key: Source, out: Array, avail: Array | None) -> tuple[Array, Array]:
        mean, log_std = out[..., :size], out[..., size:]
        u = mean + jnp.exp(log_std) * normal(key, mean.shape, group.agents)
        action = act(u)
        return action, logp_of(out, u if squashed else (action - middle) / half)

    def evaluate(out: Array, avail: Array | None, action: Array) -> tuple[Array, Array]:
        entropy = ((out[..., size:] + 0.5 * np.log(2 * np.pi * np.e)) * own).sum(-1)
        u = (action - middle) / half
        if squashed:
            u = jnp.where(bent, jnp.arctanh(jnp.clip(u, -1 + 1e-6, 1 - 1e-6)), u)
        return logp_of(out, u), entropy

    def kl(old: Array, new: Array, avail: Array | None) -> Array:
        return gaussian_kl((old[..., :size], old[..., size:]), (new[..., :size], new[..., size:]), own)

    return Head(size, True, sample, mode, evaluate, kl)
