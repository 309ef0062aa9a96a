"""The network of one group of agents: torso, optional memory, optional exchange with other agents, linear output."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from flockrl.core.spaces import Sight
from flockrl.core.types import Array
from flockrl.nets.memory import GRU
from flockrl.nets.torsos import ACTIVATIONS, CNN, MLP, Activation, Dense, call_own_torso, eyes, load_kernel, look


class Network(nn.Module):
    """MLP (or the user's own `kernel`), then a GRU when `memory` > 0, then a linear layer.

    x: [..., n, F] with leading axes [T, B] when there is memory; memory: [B, n, H]; first: [T, B].
    Returns ([..., n, outputs], memory after each step [T, B, n, H] or ()).
    Where observations hold pictures (`sight`), these go through CNNs first (a global state does not).
    beside: [..., n, A] more inputs; x may then have one row for all n agents. Without memory, the torso reads both
    concatenated. With memory, `beside` is added after it, in a hidden layer of its own, so that memory depends only
    on x. With `log_std`, learned log standard deviations, the same for all inputs, follow the outputs.

    exchange: a module that is called between memory and output as (own [..., n, F], team [..., N, F], alive,
    neighbours, agents) -> [..., n, F'], see `policies.network`.
    """

    sizes: tuple[int, ...]
    outputs: int
    activation: Activation = "tanh"
    ids: int = 0
    memory: int = 0
    log_std: bool = False
    out_scale: float = 1.0
    sight: Sight = Sight()
    kernel: str | None = None
    exchange: nn.Module | None = None

    def setup(self) -> None:
        for name, shape in eyes(self.sight).items():
            setattr(self, name, CNN(shape, bytes=self.sight.bytes))
        self.torso = MLP(self.sizes, self.activation, self.ids) if self.kernel is None else load_kernel(self.kernel)()
        if self.memory:
            self.gru = GRU(self.memory)
            self.joined = Dense(self.sizes[-1], 2.0**0.5)
        self.head = Dense(self.outputs, self.out_scale)
        if self.log_std:
            self.spread = self.param("log_std", nn.initializers.constant(-0.5), (self.outputs,))

    def __call__(
        self, x: Array, memory: Any = (), first: Array | None = None, beside: Array | None = None
    ) -> tuple[Array, Any]:
        x, memory = self.features(x, memory, first, beside)
        return self.output(x), memory

    def features(
        self, x: Array, memory: Any = (), first: Array | None = None, beside: Array | None = None
    ) -> tuple[Array, Any]:
        """The features [..., n, F] before the exchange and the output, and memory after each step."""
        if self.sight.pictures and x.shape[-1] % self.sight.size == 0:
            x = look(self.sight, [getattr(self, name) for name in eyes(self.sight)], x)
        if beside is not None and not self.memory:
            x = _side_by_side(x, beside)
        x = self.torso(x) if self.kernel is None else call_own_torso(self.torso, self.kernel, x, self.ids)
        if self.memory:
            assert first is not None
            x = memory = self.gru(x, memory, first)
            if beside is not None:
                x = ACTIVATIONS[self.activation](self.joined(_side_by_side(x, beside)))
        return x, memory

    def output(self, x: Array, *others: Any) -> Array:
        """[..., n, outputs] from features [..., n, F]; others: the other arguments of the exchange, if there is one."""
        if self.exchange is not None:
            x = self.exchange(x, *others)
        out = self.head(x)
        return jnp.concatenate([out, jnp.broadcast_to(self.spread, out.shape)], axis=-1) if self.log_std else out


def _side_by_side(x: Array, beside: Array) -> Array:
    return jnp.concatenate([jnp.broadcast_to(x, (*beside.shape[:-1], x.shape[-1])), beside], axis=-1)
