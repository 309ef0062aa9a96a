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
    if kernel.shape[1] >= kernel.shape[0]:
        return upstream @ kernel.T, x.T @ upstream
    # The barrier keeps the compiler from turning the product around again.
    return upstream @ kernel.T, jax.lax.optimization_barrier(upstream.T @ x).T


linear.defvjp(_linear_forward, _linear_backward)


class Dense(nn.Module):
    """An affine layer on the last axis, computed on rows: products over several axes are slow backwards.

    With `ids` > 0 the bias is one per agent of the axis before the last, [n, size]: the same function as
    appending a one-hot agent id to the input, without making the input wider.
    """

    size: int
    scale: float
    ids: int = 0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param("kernel", orthogonal(self.scale), (x.shape[-1], self.size))
        if self.ids:
            bias = self.param("bias", orthogonal(1.0), (self.ids, self.size))
        else:
            bias = self.param("bias", nn.initializers.zeros, (self.size,))
        return linear(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], self.size) + bias


def orthogonal(scale: float) -> jax.nn.initializers.Initializer:
    return nn.initializers.orthogonal(scale)


class MLP(nn.Module):
    """Dense layers with an activation after each. [..., n, F] -> [..., n, sizes[-1]].

    With `ids` > 0 the first layer tells the n agents apart.
    """

    sizes: tuple[int, ...]
    activation: Activation = "tanh"
    ids: int = 0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        act = ACTIVATIONS[self.activation]
        gain = 2.0**0.5 if self.activation != "tanh" else 5 / 3
        for i, size in enumerate(self.sizes):
            x = act(Dense(size, gain, self.ids if i == 0 else 0, name=f"dense_{i}")(x))
        return x
