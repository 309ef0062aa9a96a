"""Memory: a gated recurrent unit over time, with resets where episodes begin."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from flockrl.core.types import Array
from flockrl.nets.torsos import Dense, orthogonal


class GRU(nn.Module):
    """Gated recurrent unit (Cho et al. 2014, with the reset gate after the product as in cuDNN).

    x: [T, B, n, F], memory: [B, n, H], first: [T, B] or [T, B, n] bool -> features and memory after each step,
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
        keep = 1.0 - first.astype(x.dtype)
        keep = (jnp.repeat(keep, agents, axis=1) if first.ndim == 2 else keep.reshape(steps, -1))[..., None]
        out = gru_scan(gates.reshape(steps, -1, 3 * size), memory.reshape(-1, size), keep, kernel, bias)
        return out.reshape(*x.shape[:3], size)


class _Step(NamedTuple):
    """What the backward pass needs from one step: the memory before it (cleared where an episode begins), the
    gates r and z, the candidate n, and the memory's contribution to the candidate; each [R, H]."""

    before: Array
    reset: Array
    update: Array
    new: Array
    recalled: Array


def _thirds(x: Array) -> tuple[Array, Array, Array]:
    size = x.shape[-1] // 3
    return x[..., :size], x[..., size : 2 * size], x[..., 2 * size :]


def _cell(gates: tuple[Array, Array, Array], before: Array, kernel: Array, bias: Array) -> tuple[Array, _Step]:
    """One step of R rows. r = s(x_r + h W_r), z = s(x_z + h W_z), n = tanh(x_n + r (h W_n + b)), h' = n + z (h - n)."""
    to_reset, to_update, to_new = _thirds(before @ kernel)
    reset = jax.nn.sigmoid(gates[0] + to_reset)
    update = jax.nn.sigmoid(gates[1] + to_update)
    recalled = to_new + bias
    new = jnp.tanh(gates[2] + reset * recalled)
    return new + update * (before - new), _Step(before, reset, update, new, recalled)


@jax.custom_vjp
def gru_scan(gates: Array, memory: Array, keep: Array, kernel: Array, bias: Array) -> Array:
    """Memory after each step, [T, R, H]. gates: [T, R, 3H] from the input; memory: [R, H]; keep: [T, R, 1]."""
    return _forward(gates, memory, keep, kernel, bias)[0]


def _forward(gates: Array, memory: Array, keep: Array, kernel: Array, bias: Array) -> tuple[Array, tuple]:
    def step(h: Array, now: tuple[tuple[Array, Array, Array], Array]) -> tuple[Array, tuple[Array, _Step]]:
        h, saved = _cell(now[0], now[1] * h, kernel, bias)
        return h, (h, saved)

    # The gates are split before the loop: splitting inside would keep the compiler from vectorising it.
    out, saved = jax.lax.scan(step, memory, (_thirds(gates), keep))[1]
    return out, (saved, keep, kernel)


def _backward(residuals: tuple[_Step, Array, Array], upstream: Array) -> tuple[Array, Array, None, Array, Array]:
    """Backpropagation through time. Only the recurrent part stays in the loop: the kernel's gradient is one product
    over all steps after the loop, instead of a small product in every step."""
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
        return earlier, (jnp.concatenate([d_reset, d_update, d_new], axis=-1), d_recalled)

    zeros = jnp.zeros_like(saved.before[0])
    d_memory, (d_gates, d_recalled) = jax.lax.scan(step, zeros, (upstream, keep, saved), reverse=True)
    size = d_recalled.shape[-1]
    before, rows, recalled = (a.reshape(-1, a.shape[-1]) for a in (saved.before, d_gates, d_recalled))
    # The last third of the first product is not needed, but removing it before would copy the gates' gradients.
    d_kernel = jnp.concatenate([(before.T @ rows)[:, : 2 * size], before.T @ recalled], axis=-1)
    return d_gates, d_memory, None, d_kernel, recalled.sum(0)


gru_scan.defvjp(_forward, _backward)
