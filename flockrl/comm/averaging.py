"""Exchanges that average what others say: CommNet and IC3Net."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from flockrl.comm.exchange import Exchange, straight_through
from flockrl.comm.few import Who, weighed
from flockrl.core.types import Array
from flockrl.nets.torsos import Dense


class CommNet(Exchange):
    """The mean of the others' messages (Sukhbaatar et al. 2016, arXiv 1605.07736).

        c_i = sum_{j != i, alive, linked} m_j / (number of such j),   m_j = E h_j

    A message that is lost or was not sent counts as zero in the mean, so that a listener can notice it. An agent
    alone hears zero.
    """

    def build(self) -> None:
        self.encode = Dense(self.size, 1.0, plain=True)

    def speak(self, h: Array) -> Array:
        return self.encode(h)

    def listen(self, h: Array, said: Array, own: Array, there: Array, possible: Array, who: Who = None) -> Array:
        return weighed(there, said, who) / jnp.maximum(possible.sum(-1, keepdims=True), 1.0)


class IC3Net(CommNet):
    """CommNet with a gate: every agent decides in every round whether it speaks (Singh et al. 2019, arXiv 1812.09755).

    The gate is 1 where its logit is above 0, with the gradient of the logit's sigmoid (straight through). The paper
    draws it as an action of its own and learns it by REINFORCE; a gate without chance needs no second action, works
    with learners of values too, and plays in evaluation as it did in training. It begins open.
    """

    def build(self) -> None:
        super().build()
        self.door = Dense(1, 0.1)

    def gate(self, h: Array) -> Array:
        logit = self.door(h)[..., 0] + 1.0
        return straight_through((logit > 0).astype(h.dtype), jax.nn.sigmoid(logit))
