"""Torsos that read observations as sets of entities: as many weights for three entities as for thirty.

Attention lets entities look at each other, then the agent at all of them, as in REFIL (Iqbal et al. 2021) and UPDeT (Hu
et al. 2021); a deep set (Zaheer et al. 2017) takes the mean of what the agent makes of each. The order of entities
changes nothing. Where actions are entities, each is scored by what the agent made of it, as in UPDeT.
"""

from __future__ import annotations

import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from flockrl.core.entities import Entities, Kind
from flockrl.core.types import Array
from flockrl.nets.torsos import ACTIVATIONS, MLP, Activation, Dense

AWAY = -1e9
"""Score of an entity that is not there; its weight is exactly 0."""


class EntityTorso(nn.Module):
    """[..., n, O] observations -> [..., n, sizes[-1]] features. Numbers after those that `entities` describe and
    before `team`'s are read as further ones about the agent itself.

    size: numbers of an entity's features; heads: of attention, 0 for a deep set. team: whether agents also read the
    mean over the agents of what each perceives; the last number of a row is then the weight of its agent in it.
    points: whether the features of each entity that may be chosen, K size numbers, follow those of the agent.
    """

    entities: Entities
    described: int
    size: int
    heads: int
    sizes: tuple[int, ...]
    activation: Activation = "tanh"
    team: bool = False
    points: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        weight = None
        if self.team:
            x, weight = x[..., :-1], x[..., -1:]
        own = [x[..., start : start + width] for start, width in self.entities.own] + [x[..., self.described :]]
        mine = jnp.concatenate(own, -1)
        seen, each = self._attend(x, mine) if self.heads else self._pool(x, mine)
        y = jnp.concatenate([mine, seen], -1)
        if weight is None:
            y = MLP(self.sizes, self.activation, name="mlp")(y)
            if self.points:
                y = jnp.concatenate([y, each[self.entities.chosen].reshape(*y.shape[:-1], -1)], -1)
            return y
        y = MLP(self.sizes[:1], self.activation, name="each")(y)
        mean = (y * weight).sum(-2, keepdims=True) / jnp.maximum(weight.sum(-2, keepdims=True), 1.0)
        y = jnp.concatenate([y, jnp.broadcast_to(mean, y.shape)], -1)
        return MLP(self.sizes[1:] or self.sizes, self.activation, name="mlp")(y)

    def _dense(self, name: str, x: Array, plain: bool = False) -> Array:
        return Dense(self.size, 1.0, plain=plain, name=name)(x)

    def _pool(self, x: Array, mine: Array) -> tuple[Array, dict[str, Array]]:
        """[..., n, kinds size] the mean over each kind's entities of what the agent makes of them, and what it makes of
        each, by kind [..., n, count, size]."""
        act, pooled, found = ACTIVATIONS[self.activation], [], {}
        for kind in self.entities.kinds:
            each, there = _read(kind, x)
            beside = jnp.broadcast_to(mine[..., None, :], (*each.shape[:-1], mine.shape[-1]))
            seen = act(self._dense(f"kind_{kind.name}_0", jnp.concatenate([beside, each], -1)))
            seen = act(self._dense(f"kind_{kind.name}_1", seen))
            weight = jnp.ones((*each.shape[:-1], 1)) if there is None else there[..., None] * 1.0
            pooled.append((seen * weight).sum(-2) / jnp.maximum(weight.sum(-2), 1.0))
            found[kind.name] = seen
        return jnp.concatenate(pooled, -1), found

    def _attend(self, x: Array, mine: Array) -> tuple[Array, dict[str, Array]]:
        """[..., n, size] what the agent makes of all entities, after these looked at each other and at it, and what
        they are then, by kind [..., n, count, size]."""
        act = ACTIVATIONS[self.activation]
        rows, there, known = [act(self._dense("own", mine))[..., None, :]], [jnp.ones((*x.shape[:-1], 1), bool)], True
        for kind in self.entities.kinds:
            each, present = _read(kind, x)
            rows.append(act(self._dense(f"kind_{kind.name}", each)))
            known &= present is None
            there.append(jnp.ones(each.shape[:-1], bool) if present is None else present)
        tokens, mask = jnp.concatenate(rows, -2), None if known else jnp.concatenate(there, -1)
        for layer in range(2):
            asks = tokens if layer == 0 else tokens[..., :1, :]
            query = self._dense(f"query_{layer}", asks, plain=True)
            key, value = (self._dense(f"{name}_{layer}", tokens, plain=True) for name in ("key", "value"))
            heard = attention(query, key, value, self.heads, mask)
            tokens = act(self._dense(f"keep_{layer}", asks) + self._dense(f"hear_{layer}", heard, plain=True))
            if layer == 0:
                ends = list(itertools.accumulate([1, *(kind.count for kind in self.entities.kinds)]))
                spans = zip(self.entities.kinds, ends, ends[1:], strict=False)
                found = {kind.name: tokens[..., start:end, :] for kind, start, end in spans}
        return tokens[..., 0, :], found


class Points(nn.Module):
    """[..., n, F + K size] features of agents and of the K entities that they choose from -> (features [..., n, F],
    scores [..., n, K]): as many weights for three entities as for thirty."""

    choices: int
    size: int
    scale: float
    activation: Activation = "tanh"

    def split(self, x: Array) -> tuple[Array, Array]:
        """[..., n, F] of the agents, [..., n, K, size] of the entities."""
        wide = self.choices * self.size
        return x[..., :-wide], x[..., -wide:].reshape(*x.shape[:-1], self.choices, self.size)

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        mine, each = self.split(x)
        asks = Dense(self.size, 1.0, plain=True, name="mine")(mine)[..., None, :]
        both = ACTIVATIONS[self.activation](Dense(self.size, 1.0, name="each")(each) + asks)
        return mine, Dense(1, self.scale, name="score")(both)[..., 0]


def attention(query: Array, key: Array, value: Array, heads: int, mask: Array | None) -> Array:
    """[..., Q, size]: softmax(query key / sqrt(D)) value over the keys [..., E, size] that the mask [..., E] leaves,
    each head with a share D of the numbers."""
    ask, key, value = (jnp.swapaxes(x.reshape(*x.shape[:-1], heads, -1), -2, -3) for x in (query, key, value))
    there = None if mask is None else mask[..., None, None, :]
    heard = _heard(ask * ask.shape[-1] ** -0.5, key, value, there)
    return jnp.swapaxes(heard, -2, -3).reshape(query.shape)


@jax.custom_vjp
def _heard(ask: Array, key: Array, value: Array, there: Array | None) -> Array:
    """[..., H, Q, D] from [..., H, Q, D], [..., H, E, D] twice and [..., 1, 1, E]. The gradient is written out, because
    products of many small matrices are slow on a CPU where they sum over the first axis of both."""
    return _heard_forward(ask, key, value, there)[0]


def _heard_forward(ask: Array, key: Array, value: Array, there: Array | None) -> tuple[Array, tuple[Array, ...]]:
    scores = ask @ key.swapaxes(-1, -2)
    weights = jax.nn.softmax(scores if there is None else jnp.where(there, scores, AWAY))
    heard = weights @ value
    return heard, (ask, key, value, weights, heard)


def _heard_backward(residuals: tuple[Array, ...], upstream: Array) -> tuple[Array | None, ...]:
    ask, key, value, weights, heard = residuals
    scores = weights * (upstream @ value.swapaxes(-1, -2) - (upstream * heard).sum(-1, keepdims=True))
    # The barrier keeps the compiler from folding the transposes into the products again.
    turned, given = jax.lax.optimization_barrier((scores.swapaxes(-1, -2), weights.swapaxes(-1, -2)))
    return scores @ key, turned @ ask, given @ upstream, None


_heard.defvjp(_heard_forward, _heard_backward)


def _read(kind: Kind, x: Array) -> tuple[Array, Any]:
    """[..., count, width] what is known of each entity, and [..., count] whether it is there (None: all are)."""
    parts = [
        x[..., start : start + kind.count * width].reshape(*x.shape[:-1], kind.count, width)
        for start, width in kind.fields
    ]
    there = None if kind.there is None else x[..., kind.there : kind.there + kind.count] > 0.5
    return jnp.concatenate(parts, -1), there
