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


@jax.custom_vjp
def linear(x: Array, kernel: Array) -> Array:
    """[R, F] @ [F, K]. The same product and gradients as `x @ kernel`, with the kernel's gradient laid out so
    that the CPU's matrix product is fast: a factor of five for narrow outputs such as logits and values."""
    return x @ kernel


def _linear_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ kernel, (x, kernel)


def _linear_backward(residuals: tuple[Array, Array], upstream: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    narrow = kernel.shape[1] < kernel.shape[0]
    return upstream @ kernel.T, (upstream.T @ x).T if narrow else x.T @ upstream


linear.defvjp(_linear_forward, _linear_backward)


class Dense(nn.Module):
    """An affine layer on the last axis, computed on rows: products over several axes are slow backwards."""

    size: int
    scale: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param("kernel", orthogonal(self.scale), (x.shape[-1], self.size))
        bias = self.param("bias", nn.initializers.zeros, (self.size,))
        return linear(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], self.size) + bias


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
            x = Dense(size, gain, name=f"dense_{i}")(x)
            if i == 0 and self.ids:
                x = x + self.param("agent_ids", orthogonal(1.0), (self.ids, size))
            x = act(x)
        return x
