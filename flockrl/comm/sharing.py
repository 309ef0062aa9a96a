"""Exchanges without learned messages: agents tell what they see, or what they would do."""

from __future__ import annotations

from typing import ClassVar

import jax

from flockrl.comm.exchange import Exchange, Speaks, padded
from flockrl.comm.few import Who, weighed
from flockrl.core.types import Array
from flockrl.nets.torsos import ACTIVATIONS, Dense


class ShareObs(Exchange):
    """Agents tell each other what they see. Listeners add up f(W o_j + b) over what arrives."""

    speaks: ClassVar[Speaks] = "obs"

    def build(self) -> None:
        self.read = Dense(self.features, 2.0**0.5)

    def speak(self, h: Array) -> Array:
        return padded(h, self.size)

    def listen(self, h: Array, said: Array, own: Array, there: Array, possible: Array, who: Who = None) -> Array:
        return weighed(there, ACTIVATIONS[self.activation](self.read(said)), who)


class ShareIntent(ShareObs):
    """Agents tell each other what they would do if they heard nothing more: their heads' outputs, as plain numbers
    that pass no gradient."""

    speaks: ClassVar[Speaks] = "intent"

    def speak(self, h: Array) -> Array:
        return jax.lax.stop_gradient(padded(h, self.size))
