"""What every exchange is: one group's part in one round of messages, between its features and its head."""

from __future__ import annotations

from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from flockrl.comm.few import Who
from flockrl.core.types import Array
from flockrl.nets.torsos import ACTIVATIONS, Activation, Dense

Speaks = Literal["features", "obs", "intent"]


class Exchange(nn.Module):
    """How a group's agents make messages, and what they make of those that they hear.

    features: F numbers of an agent's own features; size: C numbers of a message, the same for all groups.
    ranked: whether agents say how much they want to speak. early: whether messages are heard before memory and said
    after it, instead of both after it.

    What is heard changes features by U (f(V h + b + W c) - f(V h + b)), where c is what `listen` returns: exactly
    nothing where c is zero, so that a team that hears nothing is the team without messages, and whatever a network of
    both can say where it is not.
    """

    features: int
    size: int
    heads: int = 1
    activation: Activation = "tanh"
    ranked: bool = False
    early: bool = False

    speaks: ClassVar[Speaks] = "features"
    """What messages are made of: the agent's features, its observation, or what it would do."""
    weighs: ClassVar[bool] = False
    """Whether listeners attend to some more than to others."""

    def setup(self) -> None:
        self.own = Dense(self.features, 1.0)
        self.heard = Dense(self.features, 1.0, plain=True)
        self.into = Dense(self.features, 1.0, plain=True)
        if self.ranked:
            self.rank = Dense(1, 1.0)
        self.build()

    def build(self) -> None:
        """Layers that only this kind of exchange has."""

    def speak(self, h: Array) -> Array:
        """Messages [..., n, C] of agents with features h [..., n, F], or with whatever `speaks` names."""
        raise NotImplementedError

    def listen(self, h: Array, said: Array, own: Array, there: Array, possible: Array, who: Who = None) -> Array:
        """What agents [..., n] with features h make of messages `said` [..., N, C] of the whole team.

        own: [..., n, C] what they say themselves. there, possible: [..., n, N] 1 where a message arrived, and where
        one could have, 0 elsewhere and from oneself. Returns all zeros where nothing arrived. With `who`, links are
        few, and there and possible are [..., n, D] (`comm.few`).
        """
        raise NotImplementedError

    def attends(self, h: Array, said: Array, own: Array, there: Array, who: Who = None) -> Array:
        """[..., H, n, N + 1] how much attention agents give each message and, at the end, themselves, where they
        weigh; [..., H, n, D + 1] where links are few."""
        raise NotImplementedError

    def gate(self, h: Array) -> Array | None:
        """[..., n] 1 for agents that speak, 0 for those that choose not to; None where all do."""
        return None

    def urge(self, h: Array) -> Array | None:
        """[..., n] how much agents want to speak; None where nobody asks."""
        return self.rank(h)[..., 0] if self.ranked else None

    def absorb(self, h: Array, c: Array) -> Array:
        """Features after hearing c."""
        f, before = ACTIVATIONS[self.activation], self.own(h)
        return h + self.into(f(before + self.heard(c)) - f(before))

    def hear(self, h: Array, said: Array, own: Array, there: Array, possible: Array, who: Who = None) -> Array:
        return self.absorb(h, self.listen(h, said, own, there, possible, who))


def straight_through(hard: Array, soft: Array) -> Array:
    """The value of `hard`, to the bit, with the gradient of `soft`."""
    return hard + (soft - jax.lax.stop_gradient(soft))


def padded(x: Array, size: int) -> Array:
    """The last axis filled up with zeros."""
    return jnp.pad(x.astype(jnp.float32), [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])])
