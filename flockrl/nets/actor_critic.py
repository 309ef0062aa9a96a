"""A policy network and a value network: torso, optional memory, linear output."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from flockrl.nets.memory import GRU
from flockrl.nets.torsos import CNN, MLP, Activation, Dense, own_torso
from flockrl.types import Array


class Network(nn.Module):
    """MLP (or the user's own `kernel`), then a GRU when `memory` > 0, then a linear layer.

    x: [..., n, F] with leading axes [T, B] when there is memory; memory: [B, n, H]; first: [T, B].
    Returns ([..., n, outputs], memory after each step [T, B, n, H] or ()).
    With `picture`, inputs that are such pictures go through a CNN first (a global state beside them does not).
    beside: [..., n, A] more inputs that the torso reads after these, of which there may be one for all n then.
    With `log_std`, a learned standard deviation, the same for all inputs, follows the outputs.
    """

    sizes: tuple[int, ...]
    outputs: int
    activation: Activation = "tanh"
    ids: int = 0
    memory: int = 0
    log_std: bool = False
    out_scale: float = 1.0
    picture: tuple[int, ...] = ()
    kernel: str | None = None

    @nn.compact
    def __call__(
        self, x: Array, memory: Any = (), first: Array | None = None, beside: Array | None = None
    ) -> tuple[Array, Any]:
        if self.picture and x.shape[-1] % math.prod(self.picture) == 0:
            x = CNN(self.picture, name="cnn")(x)
        if beside is not None:
            x = jnp.concatenate([jnp.broadcast_to(x, (*beside.shape[:-1], x.shape[-1])), beside], axis=-1)
        if self.kernel is None:
            x = MLP(self.sizes, self.activation, self.ids, name="torso")(x)
        else:
            x = own_torso(self.kernel, x, self.ids)
        if self.memory:
            assert first is not None
            x = memory = GRU(self.memory, name="gru")(x, memory, first)
        out = Dense(self.outputs, self.out_scale, name="head")(x)
        if self.log_std:
            spread = self.param("log_std", nn.initializers.constant(-0.5), (self.outputs,))
            out = jnp.concatenate([out, jnp.broadcast_to(spread, out.shape)], axis=-1)
        return out, memory
