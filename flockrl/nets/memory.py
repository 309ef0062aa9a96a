"""Memory: a gated recurrent unit over time, with resets where episodes begin."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from flockrl.nets.torsos import orthogonal
from flockrl.types import Array


class GRU(nn.Module):
    """Gated recurrent unit (Cho et al. 2014, with the reset gate after the product as in cuDNN).

    x: [T, B, n, F], memory: [B, n, H], first: [T, B] bool -> features and memory after each step,
    both the same array [T, B, n, H].
    """

    size: int

    @nn.compact
    def __call__(self, x: Array, memory: Array, first: Array) -> Array:
        size = self.size
        gates = nn.Dense(3 * size, kernel_init=orthogonal(1.0), name="input")(x)
        kernel = self.param("kernel", orthogonal(1.0), (size, 3 * size))
        bias = self.param("bias", nn.initializers.zeros, (size,))

        def step(h: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            gate, begin = now
            h = jnp.where(begin[:, None, None], 0.0, h)
            h = gru_cell(gate, h @ kernel, bias, h)
            return h, h

        return jax.lax.scan(step, memory, (gates, first))[1]


def gru_cell(x: Array, r: Array, bias: Array, h: Array) -> Array:
    """One step. x, r: [..., 3H] what input and memory contribute to the gates; h: [..., H]."""
    xr, xz, xn = jnp.split(x, 3, axis=-1)
    hr, hz, hn = jnp.split(r, 3, axis=-1)
    reset, update = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    new = jnp.tanh(xn + reset * (hn + bias))
    return new + update * (h - new)
