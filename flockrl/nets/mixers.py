"""Mixers: from the agents' own values to the value of their joint action.

A mixer works for one side with n agents. Its inputs may have any leading axes; dead agents have value 0.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from flockrl.core.spaces import Sight
from flockrl.core.types import Array
from flockrl.nets.network import Network
from flockrl.nets.torsos import CNN, Dense, eyes, look

POSITIVE = 1e-6
"""The smallest weight where weights must be positive."""


class Joint(NamedTuple):
    """The joint action of a side, and its agents' values.

    q: [..., n] each agent's value of its action; best: [..., n] of its best legal action; action: [..., n, A] one-hot,
    zero for dead agents; state: [..., S] the global state.
    """

    q: Array
    best: Array
    action: Array
    state: Array

    @property
    def seen(self) -> Array:
        """[..., S + n A]: state and joint action, concatenated."""
        return jnp.concatenate([self.state, self.action.reshape(*self.state.shape[:-1], -1)], axis=-1)


def total(x: Array) -> Array:
    """Sum over the last, short axis, unrolled: the compiler makes vector code only of long rows."""
    return functools.reduce(jnp.add, [x[..., i] for i in range(x.shape[-1])])


class Hyper(nn.Module):
    """A two-layer network whose outputs are used as weights, [..., F] -> [..., outputs]. They start near `start`.

    tanh bounds the weights: with relu, large states give large weights and thereby large targets. Outputs that go
    through a sigmoid need not be `bounded`.
    """

    hidden: int
    outputs: int
    start: float = 0.0
    bounded: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = Dense(self.hidden, 5 / 3, name="dense")(x)
        x = jnp.tanh(x) if self.bounded else jax.nn.relu(x)
        return Dense(self.outputs, 0.01, name="weights")(x) + self.start


class Sum(nn.Module):
    """VDN (Sunehag et al. 2018): Q_tot = sum_i Q_i."""

    @nn.compact
    def __call__(self, joint: Joint) -> Array:
        return total(joint.q)


class Monotonic(nn.Module):
    """QMIX (Rashid et al. 2018): Q_tot = |w2(s)| . elu(|W1(s)| Q + b1(s)) + v(s), so dQ_tot / dQ_i >= 0."""

    size: int
    hyper: int

    @nn.compact
    def __call__(self, joint: Joint) -> Array:
        q, state = joint.q, joint.state
        agents = q.shape[-1]
        first = jnp.abs(Hyper(self.hyper, agents * self.size, 1 / agents, name="first")(state))
        bias = Dense(self.size, 0.01, name="bias")(state)
        rows = [q[..., i, None] * first[..., i * self.size : (i + 1) * self.size] for i in range(agents)]
        hidden = jax.nn.elu(functools.reduce(jnp.add, rows) + bias)
        second = jnp.abs(Hyper(self.hyper, self.size, 1 / self.size, name="second")(state))
        return (hidden * second).sum(-1) + Hyper(self.size, 1, name="value")(state)[..., 0]


class Dueling(nn.Module):
    """QPLEX (Wang et al. 2021): Q_tot = sum_i V_i + sum_i l_i(s, a) A_i with all weights positive.

    V_i = w_i(s) max_a Q_i + b_i(s), A_i = w_i(s) (Q_i - max_a Q_i) <= 0, and l_i(s, a) a sum over `heads` of
    products of a positive key, the agent's attention and the joint action's. Any joint value with the same best
    joint action can be represented.
    """

    hyper: int
    heads: int = 10

    @nn.compact
    def __call__(self, joint: Joint) -> Array:
        state, agents = joint.state, joint.q.shape[-1]
        scale = jnp.abs(Hyper(self.hyper, agents, 1.0, name="scale")(state)) + POSITIVE
        offset = Hyper(self.hyper, agents, name="offset")(state)
        values = scale * joint.q + offset
        advantage = jax.lax.stop_gradient(scale * (joint.q - joint.best))
        # Where agents are nearly indifferent, only very large weights can distinguish joint actions: hence exp.
        keys = jnp.exp(Hyper(self.hyper, self.heads, math.log(4 / self.heads), name="key")(state))
        to_agent = jax.nn.sigmoid(Hyper(self.hyper, agents * self.heads, name="agent")(state))
        to_action = jax.nn.sigmoid(Hyper(self.hyper, agents * self.heads, bounded=False, name="action")(joint.seen))
        heads = (*state.shape[:-1], agents, self.heads)
        weight = total((to_agent * to_action).reshape(heads) * keys[..., None, :])
        # Q_i = V_i + A_i. The term (weight - 1) * advantage trains only the weight: the agents learn from Q_i.
        return total(values) + total((weight - 1) * advantage)


class Looking(nn.Module):
    """A mixer for agents that observe pictures, where no other state exists: it reads a CNN's features of them."""

    mixer: nn.Module
    sight: Sight

    @nn.compact
    def __call__(self, joint: Joint) -> Array | tuple[Array, Array]:
        cnns = [CNN(shape, bytes=self.sight.bytes, name=name) for name, shape in eyes(self.sight).items()]
        return self.mixer(joint._replace(state=look(self.sight, cnns, joint.state)))


class Central(nn.Module):
    """Any function of state and joint action; it does not use the agents' own values."""

    sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, joint: Joint) -> Array:
        return Network(self.sizes, 1, "relu", name="network")(joint.seen[..., None, :])[0][..., 0, 0]


class Weighted(nn.Module):
    """Weighted QMIX (Rashid et al. 2020): a monotonic mixer beside an unrestricted joint value.

    Returns (Q_tot, Q*).
    """

    size: int
    hyper: int
    sizes: tuple[int, ...]

    def setup(self) -> None:
        self.mixer = Monotonic(self.size, self.hyper)
        self.central = Central(self.sizes)

    def __call__(self, joint: Joint) -> tuple[Array, Array]:
        return self.mixer(joint), self.central(joint)


class Constraint(nn.Module):
    """QTRAN (Son et al. 2019): a joint value Q_jt(s, a), and the state value V(s) that corrects the sum of values.

    Q_jt = sum_i Q_i + C(s, a) with any function C. The paper shares layers of the agents' networks with Q_jt, so that
    they learn from its temporal differences; here Q_jt contains their values. Returns (Q_jt, V).
    """

    sizes: tuple[int, ...]

    def setup(self) -> None:
        self.central = Central(self.sizes)
        self.rest = Network(self.sizes, 1, "relu")

    def __call__(self, joint: Joint) -> tuple[Array, Array]:
        return total(joint.q) + self.central(joint), self.rest(joint.state[..., None, :])[0][..., 0, 0]
