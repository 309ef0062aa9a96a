"""The network of one group of agents: torso, optional memory, optional talk with other agents, linear output."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from flockrl.core.spaces import Sight
from flockrl.core.types import Array
from flockrl.nets.entities import EntityTorso, Points
from flockrl.nets.memory import GRU
from flockrl.nets.torsos import ACTIVATIONS, CNN, MLP, Activation, Dense, call_own_torso, eyes, load_kernel, look


class Network(nn.Module):
    """MLP (or the user's own `kernel`), then a GRU when `memory` > 0, then a linear layer.

    x: [..., n, F] with leading axes [T, B] when there is memory; memory: [B, n, H]; first: [T, B]
    or [T, B, n], where memory is cleared.
    Returns ([..., n, outputs], memory after each step [T, B, n, H] or ()).
    Where observations hold pictures (`sight`), these go through CNNs first (a global state does not).
    beside: [..., n, A] more inputs; x may then have one row for all n agents. Without memory, the torso reads both
    concatenated. With memory, `beside` is added after it, in a hidden layer of its own, so that memory depends only
    on x. With `log_std`, learned log standard deviations, the same for all inputs and of this value at first, follow
    the outputs.

    entities: a torso that reads observations as sets of entities, in the place of the MLP. Where it `points`, the last
    outputs are scores of the entities that agents choose from.
    exchange: modules through which agents talk between memory and output, one for each round, see `comm.exchange`.
    foreseen: outputs of a second linear layer beside the first, which predicts what others do, the global state or
    returns.
    """

    sizes: tuple[int, ...]
    outputs: int
    activation: Activation = "tanh"
    ids: int = 0
    memory: int = 0
    log_std: float | None = None
    out_scale: float = 1.0
    sight: Sight = Sight()
    kernel: str | None = None
    entities: EntityTorso | None = None
    exchange: tuple[nn.Module, ...] = ()
    foreseen: int = 0

    def setup(self) -> None:
        for name, shape in eyes(self.sight).items():
            setattr(self, name, CNN(shape, bytes=self.sight.bytes))
        self.torso: Any
        if self.entities is not None:
            self.torso = self.entities.clone(parent=None)
        elif self.kernel is None:
            self.torso = MLP(self.sizes, self.activation, self.ids)
        else:
            self.torso = load_kernel(self.kernel)()
        if self.memory:
            self.gru = GRU(self.memory)
            self.joined = Dense(self.sizes[-1], 2.0**0.5)
        torso = self.entities
        self.choices = torso.entities.choices if torso is not None and torso.points else 0
        if torso is not None and self.choices:
            self.points = Points(self.choices, torso.size, self.out_scale, self.activation)
        if self.outputs > self.choices:
            self.head = Dense(self.outputs - self.choices, self.out_scale)
        if self.foreseen:
            self.foresight = Dense(self.foreseen, self.out_scale)
        if self.log_std is not None:
            self.spread = self.param("log_std", nn.initializers.constant(self.log_std), (self.outputs,))

    def __call__(
        self, x: Array, memory: Any = (), first: Array | None = None, beside: Array | None = None
    ) -> tuple[Array, Any]:
        x, memory = self.features(x, memory, first, beside)
        return self.output(x), memory

    def features(
        self, x: Array, memory: Any = (), first: Array | None = None, beside: Array | None = None
    ) -> tuple[Array, Any]:
        """The features [..., n, F] before talk and output, and memory after each step."""
        x, memory = self.remember(self.encode(x, beside), memory, first)
        if beside is not None and self.memory:
            x = ACTIVATIONS[self.activation](self.joined(_side_by_side(x, beside)))
        return x, memory

    def encode(self, x: Array, beside: Array | None = None) -> Array:
        """The features before memory."""
        if self.sight.pictures and x.shape[-1] % self.sight.size == 0:
            x = look(self.sight, [getattr(self, name) for name in eyes(self.sight)], x)
        if beside is not None and not self.memory:
            if isinstance(self.torso, MLP) and x.shape[-2] < beside.shape[-2]:
                return self.torso(x, beside)
            x = _side_by_side(x, beside)
        return self.torso(x) if self.kernel is None else call_own_torso(self.torso, self.kernel, x, self.ids)

    def remember(self, x: Array, memory: Any, first: Array | None) -> tuple[Array, Any]:
        """The features after memory, and memory after each step."""
        if self.memory:
            assert first is not None
            x = memory = self.gru(x, memory, first)
        return x, memory

    def output(self, x: Array) -> Array:
        """[..., n, outputs] from features [..., n, F]."""
        if self.choices:
            x, scores = self.points(x)
            return jnp.concatenate([self.head(x), scores], -1) if self.outputs > self.choices else scores
        out = self.head(x)
        if self.log_std is None:
            return out
        return jnp.concatenate([out, jnp.broadcast_to(self.spread, out.shape)], axis=-1)

    def foresee(self, x: Array) -> Array:
        """[..., n, foreseen] from features [..., n, F]; those of entities that agents choose from are left out."""
        return self.foresight(self.points.split(x)[0] if self.choices else x)

    def speak(self, x: Array, obs: Array, number: int) -> tuple[Array, Array | None, Array | None]:
        """What agents with features x [..., n, F] say in a round: messages, gates and urges."""
        talk: Any = self.exchange[number]
        subject = {"features": lambda: x, "obs": lambda: obs, "intent": lambda: self.head(x)}[talk.speaks]()
        return talk.speak(subject), talk.gate(x), talk.urge(x)

    def hear(
        self, x: Array, said: Array, own: Array, there: Array, possible: Array, number: int, who: Any = None
    ) -> Array:
        """Features after a round in which the team said `said` [..., N, C]."""
        talk: Any = self.exchange[number]
        return talk.hear(x, said, own, there, possible, who)

    def attends(
        self, x: Array, said: Array, own: Array, there: Array, possible: Array, number: int, who: Any = None
    ) -> Array:
        """How much attention agents give each message in a round, see `comm.exchange`."""
        talk: Any = self.exchange[number]
        return talk.attends(x, said, own, there, who)


def _side_by_side(x: Array, beside: Array) -> Array:
    return jnp.concatenate([jnp.broadcast_to(x, (*beside.shape[:-1], x.shape[-1])), beside], axis=-1)
