"""Torsos: networks that extract features from observations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from flockrl.core.code import load
from flockrl.core.errors import UsageError
from flockrl.core.spaces import Sight
from flockrl.core.types import Array

Activation = Literal["tanh", "relu", "gelu", "silu"]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}


@jax.custom_vjp
def linear(x: Array, kernel: Array) -> Array:
    """[R, F] @ [F, K]. The same product and gradients as `x @ kernel`, but the kernel's gradient is computed in an
    order that is fast on a CPU: five times as fast for narrow outputs such as logits and values."""
    return x @ kernel


def _linear_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ kernel, (x, kernel)


def _linear_backward(residuals: tuple[Array, Array], upstream: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    if kernel.shape[1] >= kernel.shape[0]:
        return upstream @ kernel.T, x.T @ upstream
    # The barrier keeps the compiler from reversing the order again.
    return upstream @ kernel.T, jax.lax.optimization_barrier(upstream.T @ x).T


linear.defvjp(_linear_forward, _linear_backward)


class Dense(nn.Module):
    """An affine layer on the last axis, computed on rows: products over several axes have slow gradients.

    With `ids` > 0 each agent on the axis before the last has its own bias, [n, size]: the same function as
    appending a one-hot agent id to the input, without making the input wider. With `plain` there is no bias, so that
    zeros stay zeros exactly. beside: [..., n, A] more inputs to the right of x; x may then have one row [..., 1, F] for
    all n agents, which is multiplied once.
    """

    size: int
    scale: float
    ids: int = 0
    plain: bool = False

    @nn.compact
    def __call__(self, x: Array, beside: Array | None = None) -> Array:
        width, more = x.shape[-1], 0 if beside is None else beside.shape[-1]
        kernel = self.param("kernel", orthogonal(self.scale), (width + more, self.size))
        product = _rows(x, kernel[:width] if more else kernel)
        if beside is not None:
            product = product + _rows(beside, kernel[width:])
        if self.plain:
            return product
        if self.ids:
            bias = self.param("bias", orthogonal(1.0), (self.ids, self.size))
        else:
            bias = self.param("bias", nn.initializers.zeros, (self.size,))
        return product + bias


def _rows(x: Array, kernel: Array) -> Array:
    """[..., F] @ [F, K], as a product of rows."""
    return linear(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], kernel.shape[-1])


def orthogonal(scale: float) -> jax.nn.initializers.Initializer:
    return nn.initializers.orthogonal(scale)


class MLP(nn.Module):
    """Dense layers with an activation after each. [..., n, F] -> [..., n, sizes[-1]].

    With `ids` > 0 the first layer has one bias per agent. beside: more inputs of the first layer, see `Dense`.
    """

    sizes: tuple[int, ...]
    activation: Activation = "tanh"
    ids: int = 0

    @nn.compact
    def __call__(self, x: Array, beside: Array | None = None) -> Array:
        act = ACTIVATIONS[self.activation]
        gain = 2.0**0.5 if self.activation != "tanh" else 5 / 3
        for i, size in enumerate(self.sizes):
            x = act(Dense(size, gain, self.ids if i == 0 else 0, name=f"dense_{i}")(x, beside if i == 0 else None))
        return x


def call_own_torso(torso: nn.Module, name: str, x: Array, ids: int) -> Array:
    """Apply the user's flax module `name` to [..., n, F]. With `ids` > 0 the one-hot agent id is appended.

    Inputs that are the same for all agents, [..., 1, F], are then repeated for each agent.
    """
    if ids:
        x = jnp.broadcast_to(x, (*x.shape[:-2], ids, x.shape[-1]))
        x = jnp.concatenate([x, jnp.broadcast_to(jnp.eye(ids), (*x.shape[:-1], ids))], axis=-1)
    y = torso(x)
    if y.shape[:-1] != x.shape[:-1]:
        raise UsageError(
            f"The kernel {name} must keep all axes but the last: it makes {list(y.shape)} of {list(x.shape)}."
        )
    return y


def load_kernel(name: str) -> type[nn.Module]:
    """The flax module called package.module:Class."""
    kernel = load(name, "kernel")
    if not (isinstance(kernel, type) and issubclass(kernel, nn.Module)):
        raise UsageError(f"The kernel {name} must be a class derived from flax.linen.Module.")
    return kernel


class CNN(nn.Module):
    """Features of pictures. [..., k h w c] bytes -> [..., k size], for k pictures in a row.

    A 3x3 convolution with stride 3, two with stride 2, and a dense layer. They are written as products of patches: on
    a CPU the compiler's own convolutions, above all their gradients, take six times as long. Bytes are scaled to
    numbers between -1 and 1; without `bytes`, that has been done. The activation is smooth (SiLU): with ReLU, two
    thirds of the units that read bright pictures were dead after a hundred steps at the learning rate that suits the
    other layers.
    """

    shape: tuple[int, ...]
    size: int = 64
    filters: tuple[int, ...] = (16, 32, 32)
    bytes: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        y = x.reshape(-1, *self.shape).astype(jnp.float32)
        if self.bytes:
            y = y / 127.5 - 1.0
        for i, count in enumerate(self.filters):
            y = _blocks(y, 3) if i == 0 else _patches(y, 3, 2)
            y = jax.nn.silu(Dense(count, 2.0**0.5, name=f"conv_{i}")(y))
        y = jax.nn.silu(Dense(self.size, 2.0**0.5, name="dense")(y.reshape(len(y), -1)))
        return y.reshape(*x.shape[:-1], -1)


def eyes(sight: Sight) -> dict[str, tuple[int, ...]]:
    """The shape of each picture, by the name of its CNN's parameters."""
    return {f"cnn_{i}" if i else "cnn": shape for i, shape in enumerate(sight.pictures)}


def look(sight: Sight, cnns: Sequence[CNN], x: Array) -> Array:
    """[..., k F] -> [..., k F'], for k observations in a row: the features of their pictures, then their numbers."""
    if len(cnns) == 1 and not sight.numbers:
        return cnns[0](x)
    rows, parts, at = x.reshape(*x.shape[:-1], -1, sight.size), [], 0
    for cnn, shape in zip(cnns, sight.pictures, strict=True):
        parts.append(cnn(rows[..., at : at + math.prod(shape)]))
        at += math.prod(shape)
    y = jnp.concatenate([*parts, rows[..., at:].astype(jnp.float32)], axis=-1)
    return y.reshape(*x.shape[:-1], -1)


def _blocks(y: Array, patch: int) -> Array:
    """[R, h, w, c] -> [R, h / patch, w / patch, patch patch c]: patches of a convolution whose stride is its size."""
    rows, height, width, channels = y.shape
    y = jnp.pad(y, ((0, 0), (0, -height % patch), (0, -width % patch), (0, 0)))
    height, width = y.shape[1] // patch, y.shape[2] // patch
    y = y.reshape(rows, height, patch, width, patch, channels).transpose(0, 1, 3, 2, 4, 5)
    return y.reshape(rows, height, width, -1)


def _patches(y: Array, patch: int, stride: int) -> Array:
    """[R, h, w, c] -> [R, h / stride, w / stride, patch patch c]: the patches of a padded convolution."""
    edge = patch // 2
    y = jnp.pad(y, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    height, width = ((size - patch) // stride + 1 for size in y.shape[1:3])
    rows, columns = (slice(None, stride * (size - 1) + 1, stride) for size in (height, width))
    shifted = [y[:, i:, j:][:, rows, columns] for i in range(patch) for j in range(patch)]
    return jnp.concatenate(shifted, axis=-1)
