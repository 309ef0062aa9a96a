"""Memory: a gated recurrent unit over time, with resets where episodes begin."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from flockrl.nets.torsos import Dense, orthogonal
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
        gates = Dense(3 * size, 1.0, name="input")(x)
        kernel = self.param("kernel", orthogonal(1.0), (size, 3 * size))
        bias = self.param("bias", nn.initializers.zeros, (size,))
        steps, agents = x.shape[0], x.shape[2]
        keep = jnp.repeat(1.0 - first.astype(x.dtype), agents, axis=1)[..., None]
        out = gru_scan(gates.reshape(steps, -1, 3 * size), memory.reshape(-1, size), keep, kernel, bias)
        return out.reshape(*x.shape[:3], size)


class _Step(NamedTuple):
    """What the backward pass needs of one step: memory before it (cleared where an episode begins),
    the gates r and z, the candidate n, and what the memory contributed to it; each [R, H]."""

    before: Array
    reset: Array
    update: Array
    new: Array
    recalled: Array


def _cell(gate: Array, before: Array, kernel: Array, bias: Array) -> tuple[Array, _Step]:
    """One step of R rows. r = s(x_r + h W_r), z = s(x_z + h W_z), n = tanh(x_n + r (h W_n + b)), h' = n + z (h - n)."""
    size = before.shape[-1]
    product = before @ kernel
    both = jax.nn.sigmoid(gate[:, : 2 * size] + product[:, : 2 * size])
    reset, update = both[:, :size], both[:, size:]
    recalled = product[:, 2 * size :] + bias
    new = jnp.tanh(gate[:, 2 * size :] + reset * recalled)
    return new + update * (before - new), _Step(before, reset, update, new, recalled)


@jax.custom_vjp
def gru_scan(gates: Array, memory: Array, keep: Array, kernel: Array, bias: Array) -> Array:
    """Memory after each step, [T, R, H]. gates: [T, R, 3H] from the input; memory: [R, H]; keep: [T, R, 1]."""
    return _forward(gates, memory, keep, kernel, bias)[0]


def _forward(gates: Array, memory: Array, keep: Array, kernel: Array, bias: Array) -> tuple[Array, tuple]:
    def step(h: Array, now: tuple[Array, Array]) -> tuple[Array, tuple[Array, _Step]]:
        h, saved = _cell(now[0], now[1] * h, kernel, bias)
        return h, (h, saved)

    out, saved = jax.lax.scan(step, memory, (gates, keep))[1]
    return out, (saved, keep, kernel)


def _backward(residuals: tuple[_Step, Array, Array], upstream: Array) -> tuple[Array, Array, None, Array, Array]:
    """Back through time. Only what is recurrent stays in the loop: the kernel's gradient is one
    product over all steps afterwards instead of a small one added up in every step."""
    saved, keep, kernel = residuals

    def step(later: Array, now: tuple[Array, Array, _Step]) -> tuple[Array, tuple[Array, Array]]:
        grad, kept, s = now
        grad = grad + later
        d_new = grad * (1 - s.update) * (1 - s.new**2)
        d_update = grad * (s.before - s.new) * s.update * (1 - s.update)
        d_reset = d_new * s.recalled * s.reset * (1 - s.reset)
        d_recalled = d_new * s.reset
        d_product = jnp.concatenate([d_reset, d_update, d_recalled], axis=-1)
        earlier = (d_product @ kernel.T + grad * s.update) * kept
        return earlier, (d_product, d_new)

    zeros = jnp.zeros_like(saved.before[0])
    d_memory, (d_product, d_new) = jax.lax.scan(step, zeros, (upstream, keep, saved), reverse=True)
    size = d_new.shape[-1]
    d_kernel = jnp.tensordot(saved.before, d_product, axes=((0, 1), (0, 1)))
    d_gates = jnp.concatenate([d_product[..., : 2 * size], d_new], axis=-1)
    return d_gates, d_memory, None, d_kernel, d_product[..., 2 * size :].sum((0, 1))


gru_scan.defvjp(_forward, _backward)
