"""Exchanges in which listeners choose what to attend to: TarMAC and graph attention (DGN).

Softmax runs over the agent itself and all messages that arrived. The agent's own part of the sum stays at home, since
its features are there already: an agent that hears nobody hears zero, and not itself.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from flockrl.comm.exchange import Exchange
from flockrl.comm.few import Who, gathered
from flockrl.core.types import Array
from flockrl.nets.torsos import Dense

KEY = 16
"""Numbers of a query and of a key (TarMAC)."""
UNHEARD = -1e9
"""Score of a message that did not arrive; its weight is exactly 0."""


def weigh(query: Array, key: Array, own_key: Array, there: Array, who: Who = None) -> Array:
    """[..., H, n, N + 1] softmax(query key / sqrt(D)) over what is there [..., n, N] and, at the end, the agent itself.
    query, own_key: [..., n, H, D]; key: [..., N, H, D]. who: see `comm.few`."""
    heads, size = query.shape[-2:]
    query = query * size**-0.5
    if who is None:
        scores = jnp.einsum("...ihd,...jhd->...hij", query, key)
    else:
        keys = gathered(key.reshape(*key.shape[:-2], -1), who).reshape(*there.shape, heads, size)
        scores = jnp.moveaxis((query[..., None, :, :] * keys).sum(-1), -1, -3)
    scores = jnp.where(there[..., None, :, :] > 0, scores, UNHEARD)
    mine = jnp.swapaxes((query * own_key).sum(-1), -1, -2)[..., None]
    return jax.nn.softmax(jnp.concatenate([scores, mine], -1))


def attend(query: Array, key: Array, value: Array, own_key: Array, there: Array, who: Who = None) -> Array:
    """[..., n, H E] values [..., N, H E] weighed as `weigh` does, without the agent's own part."""
    heads = query.shape[-2]
    weights = weigh(query, key, own_key, there, who)[..., :-1] * there[..., None, :, :]
    if who is None:
        split = value.reshape(*value.shape[:-1], heads, -1)
        heard = jnp.einsum("...hij,...jhe->...ihe", weights, split)
    else:
        split = gathered(value, who).reshape(*there.shape, heads, -1)
        heard = (jnp.moveaxis(weights, -3, -1)[..., None] * split).sum(-3)
    return heard.reshape(*heard.shape[:-2], -1)


class Attention(Exchange):
    """Listeners weigh what they hear."""

    weighs: ClassVar = True

    def parts(self, h: Array, said: Array, own: Array) -> tuple[Array, Array, Array, Array]:
        """Queries [..., n, H, D], keys [..., N, H, D], values [..., N, H E] and own keys [..., n, H, D]."""
        raise NotImplementedError

    def listen(self, h: Array, said: Array, own: Array, there: Array, possible: Array, who: Who = None) -> Array:
        return attend(*self.parts(h, said, own), there, who)

    def attends(self, h: Array, said: Array, own: Array, there: Array, who: Who = None) -> Array:
        query, key, _, own_key = self.parts(h, said, own)
        return weigh(query, key, own_key, there, who)


class TarMAC(Attention):
    """Signed attention (Das et al. 2019, arXiv 1810.11187): senders say what they say and to whom.

        m_j = (k_j, v_j) = (K h_j, V h_j),   c_i = sum_{j != i} a_ij v_j,   a_i = softmax_j(q_i k_j / sqrt(16))

    With several heads, each has a key of 16 numbers and a share of the values.
    """

    def build(self) -> None:
        self.sign = Dense(self.heads * KEY, 1.0, plain=True)
        self.value = Dense(self.size - self.heads * KEY, 1.0, plain=True)
        self.query = Dense(self.heads * KEY, 1.0, plain=True)

    def speak(self, h: Array) -> Array:
        return jnp.concatenate([self.sign(h), self.value(h)], -1)

    def parts(self, h: Array, said: Array, own: Array) -> tuple[Array, Array, Array, Array]:
        cut = self.heads * KEY
        query, key, own_key = (
            x.reshape(*x.shape[:-1], self.heads, KEY) for x in (self.query(h), said[..., :cut], own[..., :cut])
        )
        return query, key, said[..., cut:], own_key


class GraphAttention(Attention):
    """Multi-head dot-product attention over neighbours (Jiang et al. 2020, DGN, arXiv 1810.09202).

    Messages are the senders' features (m_j = E h_j); every listener makes keys and values of them itself. Several
    rounds are hops: what a neighbour's neighbour knows arrives with the second.
    """

    def build(self) -> None:
        self.encode = Dense(self.size, 1.0, plain=True)
        self.query, self.key, self.value = (Dense(self.size, 1.0, plain=True) for _ in range(3))

    def speak(self, h: Array) -> Array:
        return self.encode(h)

    def parts(self, h: Array, said: Array, own: Array) -> tuple[Array, Array, Array, Array]:
        query, key, own_key = (
            x.reshape(*x.shape[:-1], self.heads, -1) for x in (self.query(h), self.key(said), self.key(own))
        )
        return query, key, self.value(said), own_key
