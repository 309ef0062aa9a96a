"""The Ising model as a game of many agents, with Onsager's curve as the known answer (after Yang et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.settings import whole

CRITICAL = 1 / math.log(1 + math.sqrt(2))
"""The temperature above which there is no order: 1.1346."""


class Lattice(NamedTuple):
    """spin: [N] -1 or 1; field: [N] the thermal field that each agent feels now; t: steps so far; magnet, aligned:
    sums over the second half of the episode."""

    spin: Array
    field: Array
    t: Array
    magnet: Array
    aligned: Array


class Ising:
    """side x side agents on a torus, each with a spin, down (action 0) or up (1), and four neighbours.

    Sites move in turns, as on a chessboard: in a step, those of one colour choose their spins anew while their
    neighbours keep theirs (for those, keeping is the only legal action). Who moves is paid s (S + h) / 2: s is its
    spin, S the sum of its neighbours' spins, h a thermal field, drawn for each agent and step from the logistic
    distribution with scale `temperature`, which the agent observes. Others are paid nothing. So the reply that pays
    best is the sign of S + h, and it is up with probability 1 / (1 + exp(-S / temperature)): Boltzmann's choice among
    the spins, which is heat-bath dynamics of the Ising model at twice this temperature. (Utilities are random instead
    of the policy, so that greedy teams can be measured.) In equilibrium a large lattice has Onsager's order.

    An agent observes [whether it moves, h if it does, its own spin], and not its neighbours' spins: these are what
    their last actions were, so that learners with a mean field know S. They are the `graph` of the spec. An episode
    begins with all spins up, or random (`start`), and is truncated after `steps` steps. Return: the sum of what an
    agent was paid, mean over agents. Measures: `order`, the size of the mean magnetisation in the second half of the
    episode; `onsager`, what it would be on an infinite lattice; `alignment`, the mean of s s' over neighbours.
    """

    tunable = ("temperature",)

    def __init__(self, side: int = 20, temperature: float = 1.0, steps: int = 200, start: str = "up"):
        whole("mean_field/ising", 4, 100, side=side)
        whole("mean_field/ising", 2, 1_000_000, steps=steps)
        if side % 2:
            raise UsageError(f"mean_field/ising: side must be even, as on a chessboard, not {side}.")
        if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 < temperature < 1e6:
            raise UsageError(f"mean_field/ising: temperature must be a positive number, not {temperature!r}.")
        if start not in ("up", "random"):
            raise UsageError(f"mean_field/ising: start must be up or random, not {start!r}.")
        self.side, self.temperature, self.steps, self.start = side, temperature, steps, start
        self.n = n = side * side
        rows, columns = np.divmod(np.arange(n), side)
        self.color = (rows + columns) % 2
        shifts = ((1, 0), (-1, 0), (0, 1), (0, -1))
        self.near = np.stack([(rows + i) % side * side + (columns + j) % side for i, j in shifts], 1)
        self.spec = EnvSpec(
            name="mean_field/ising",
            agents=tuple(f"spin_{i}" for i in range(n)),
            observations=(Box((3,)),) * n,
            actions=(Discrete(2),) * n,
            max_steps=steps,
            graph=tuple(map(tuple, self.near.tolist())),
        )
        self.policies = {"heat_bath": self._heat_bath, "deaf": self._deaf}

    def reset(self, key: Array) -> tuple[Lattice, Observation]:
        field_key, spin_key = jax.random.split(key)
        spin = jnp.ones(self.n)
        if self.start == "random":
            spin = 2.0 * jax.random.bernoulli(spin_key, shape=(self.n,)) - 1.0
        state = Lattice(spin, self._field(field_key), jnp.int32(0), jnp.float32(0), jnp.float32(0))
        return state, self._observe(state)

    def step(self, key: Array, state: Lattice, action: Array) -> tuple[Lattice, Observation, Array, Array, Array]:
        moves = self._moves(state)
        spin = jnp.where(moves, 2.0 * action - 1.0, state.spin)
        around = self._around(spin)
        reward = jnp.where(moves, 0.5 * spin * (around + state.field), 0.0)
        t = state.t + 1
        late = t > self.steps // 2
        magnet = state.magnet + jnp.where(late, spin.mean(), 0.0)
        aligned = state.aligned + jnp.where(late, (spin * around).mean() / 4, 0.0)
        state = Lattice(spin, self._field(key), t, magnet, aligned)
        return state, self._observe(state), reward, jnp.bool_(False), t >= self.steps

    def measures(self, state: Lattice) -> dict[str, Array]:
        counted = jnp.maximum(state.t - self.steps // 2, 1)
        order, alignment = jnp.abs(state.magnet) / counted, state.aligned / counted
        return {"order": order, "onsager": onsager(self.temperature), "alignment": alignment}

    def render(self, states: Sequence[Lattice], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: spins that are up in orange, others in blue."""
        at = np.arange(size) * self.side // size
        colors = np.array([(70, 110, 180), (240, 160, 60)], np.uint8)
        grids = [(np.asarray(state.spin) > 0).astype(int).reshape(self.side, self.side) for state in states]
        return [colors[grid[at][:, at]] for grid in grids]

    def _field(self, key: Array) -> Array:
        return self.temperature * jax.random.logistic(key, (self.n,))

    def _moves(self, state: Lattice) -> Array:
        return self.color == state.t % 2

    def _around(self, spin: Array) -> Array:
        """[N] S, the sum of each site's neighbours."""
        grid = spin.reshape(self.side, self.side)
        return sum(jnp.roll(grid, by, axis) for axis in (0, 1) for by in (1, -1)).reshape(-1)  # type: ignore[union-attr]

    def _observe(self, state: Lattice) -> Observation:
        moves = self._moves(state)
        obs = jnp.stack([moves * 1.0, jnp.where(moves, state.field, 0.0), state.spin], -1)
        kept = jnp.stack([state.spin < 0, state.spin > 0], -1)
        return Observation(obs, avail=moves[:, None] | kept)

    def _answer(self, state: Lattice, wish: Array) -> Array:
        return jnp.where(self._moves(state), wish > 0, state.spin > 0).astype(jnp.int32)

    def _heat_bath(self, state: Lattice, seen: Observation, key: Array) -> Array:
        """The spin that pays best now: Boltzmann's choice."""
        return self._answer(state, self._around(state.spin) + state.field)

    def _deaf(self, state: Lattice, seen: Observation, key: Array) -> Array:
        """The spin that would pay best without neighbours: no order at any temperature."""
        return self._answer(state, state.field)


def onsager(temperature: Any) -> Array:
    """The order |m| of the infinite lattice (Onsager, Yang 1952): (1 - sinh(1 / temperature)^-4)^(1/8) below the
    critical temperature, 0 above it."""
    below = 1 - jnp.sinh(1 / jnp.float32(temperature)) ** -4
    return jnp.maximum(below, 0.0) ** 0.125
