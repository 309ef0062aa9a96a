"""Feature extractors: observations in, features out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from flockrl.types import Array

Activation = Literal["tanh", "relu", "gelu", "silu"]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}


def orthogonal(scale: float) -> jax.nn.initializers.Initializer:
    return nn.initializers.orthogonal(scale)


class MLP(nn.Module):
    """Dense layers with an activation after each. [..., n, F] -> [..., n, sizes[-1]].

    With `ids` > 0 the first layer has a bias of its own for each of the n agents: the same function
    as appending a one-hot agent id to the input, without making the input wider.
    """

    sizes: tuple[int, ...]
    activation: Activation = "tanh"
    ids: int = 0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        act = ACTIVATIONS[self.activation]
        gain = 2.0**0.5 if self.activation != "tanh" else 5 / 3
        for i, size in enumerate(self.sizes):
            x = nn.Dense(size, kernel_init=orthogonal(gain), name=f"dense_{i}")(x)
            if i == 0 and self.ids:
                x = x + self.param("agent_ids", orthogonal(1.0), (self.ids, size))
            x = act(x)
        return x
