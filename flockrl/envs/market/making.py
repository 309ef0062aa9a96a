"""Market making after Avellaneda and Stoikov (2008), for one maker or several that compete for the same orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, EnvSpec, Observation
from flockrl.envs.market.optimal import MOST_STOCK, Market, solve
from flockrl.envs.settings import between, whole

LOW, HIGH = -2.0, 4.0
"""Bounds of a quote's distance from the mid price."""
PRICE = 100.0
"""The mid price at the start."""
NAME = "market/making"


class Book(NamedTuple):
    """t: steps so far; mid: the mid price; cash, stock: [N]; quotes: [N, 2] the last distances of bid and ask; filled:
    [N, 2] whether they were hit; width: the sum of the distances between the best bid and the best ask."""

    t: Array
    mid: Array
    cash: Array
    stock: Array
    quotes: Array
    filled: Array
    width: Array


class MarketMaking:
    """`makers` quote a bid and an ask each step; the best quotes are hit at random, the mid price walks at random.

    An action is [how far the bid is below the mid price, how far the ask is above it], each from -2 to 4. In a step of
    1 / `steps` of the day, the best bid, at distance d, buys one share with probability min(1, A exp(-k d) / steps),
    and the best ask sells one in the same way; among equal quotes chance decides. Then the mid price, 100 at first,
    goes up or down by `sigma` / sqrt(steps). A maker is paid the change of its wealth (cash + stock at the mid price)
    minus `aversion` / 2 * sigma² * stock² / steps. Truncated after `steps`.

    It observes [stock / 10, the share of the day that is left, the last best bid's and best ask's distances, whether
    its own bid and ask were hit in the last step]. Makers are opponents: each is a side of its own.
    """

    def __init__(
        self,
        makers: int = 1,
        aversion: float = 0.1,
        sigma: float = 2.0,
        A: float = 140.0,
        k: float = 1.5,
        steps: int = 200,
    ):
        whole(NAME, 1, 100, makers=makers)
        between(NAME, 0, 10, aversion=aversion)
        between(NAME, 0, 100, sigma=sigma)
        between(NAME, 0, 100_000, A=A)
        between(NAME, 0.01, 100, k=k)
        whole(NAME, 1, 10_000, steps=steps)
        self.n, self.steps, self.aversion = makers, steps, aversion
        self.sigma, self.rate, self.k = sigma, A / steps, k
        names = tuple(f"maker_{i}" for i in range(makers))
        low, high = (-100.0, 0.0, LOW, LOW, 0.0, 0.0), (100.0, 1.0, HIGH, HIGH, 1.0, 1.0)
        self.spec = EnvSpec(
            name=NAME,
            agents=names,
            observations=(Box((6,), low, high),) * makers,
            actions=(Box((2,), LOW, HIGH),) * makers,
            max_steps=steps,
            sides=names if makers > 1 else (),
        )
        self.policies = {"avellaneda_stoikov": self._avellaneda_stoikov, "symmetric": self._symmetric}
        if makers == 1:
            plan = solve(Market(steps, self.rate, k, self._risk, LOW, HIGH))
            self.table, self.best = plan.quotes.astype(np.float32), float(plan.value)
            """The quotes that earn the most, and what they earn."""
            self.policies["optimal"] = self._optimal

    @property
    def _risk(self) -> float:
        """What a stock of one costs per step."""
        return self.aversion / 2 * self.sigma**2 / self.steps

    def reset(self, key: Array) -> tuple[Book, Observation]:
        zero, pair = jnp.zeros(self.n), jnp.zeros((self.n, 2))
        state = Book(jnp.int32(0), jnp.float32(PRICE), zero, zero, pair, pair, jnp.float32(0))
        return state, self._observe(state)

    def step(self, key: Array, state: Book, action: Array) -> tuple[Book, Observation, Array, Array, Array]:
        luck_key, tie_key = jax.random.split(key)
        luck = jax.random.uniform(luck_key, (3,))
        best = action.min(0)
        taken = luck[:2] < self.rate * jnp.exp(-self.k * best)
        order = jnp.where(action == best, jax.random.uniform(tie_key, (self.n, 2)), 2.0)
        filled = ((order == order.min(0)) & taken).astype(jnp.float32)
        bought, sold = filled[:, 0], filled[:, 1]
        stock = state.stock + bought - sold
        cash = state.cash - bought * (state.mid - action[:, 0]) + sold * (state.mid + action[:, 1])
        mid = state.mid + self.sigma / np.sqrt(self.steps) * jnp.where(luck[2] < 0.5, -1.0, 1.0)
        reward = (filled * action).sum(1) + stock * (mid - state.mid) - self._risk * stock**2
        state = Book(state.t + 1, mid, cash, stock, action, filled, state.width + best.sum())
        return state, self._observe(state), reward, jnp.bool_(False), state.t >= self.steps

    def measures(self, state: Book) -> dict[str, Array]:
        """profit: wealth at the mid price; stock: how many shares are held or owed; spread: the mean distance between
        the best bid and the best ask. Means over makers."""
        return {
            "profit": (state.cash + state.stock * state.mid).mean(), "stock": jnp.abs(state.stock).mean(),
            "spread": state.width / jnp.maximum(state.t, 1),
        }  # fmt: skip

    def render(self, states: Sequence[Book], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.market.render import frames

        return frames(states, size)

    def _observe(self, state: Book) -> Observation:
        common = jnp.concatenate([(1 - state.t / self.steps)[None], state.quotes.min(0)])
        shared = jnp.broadcast_to(common, (self.n, 3))
        return Observation(jnp.concatenate([state.stock[:, None] / 10, shared, state.filled], -1))

    def _half_spread(self, state: Book) -> tuple[Array, Array]:
        """Half of Avellaneda and Stoikov's spread, and by how much one share shifts their price."""
        aversion = max(self.aversion, 1e-6)
        shift = aversion * self.sigma**2 * (1 - state.t / self.steps)
        return (shift + 2 / aversion * np.log1p(aversion / self.k)) / 2, shift

    def _avellaneda_stoikov(self, state: Book, seen: Observation, key: Array) -> Array:
        """Quotes around r = mid - stock aversion sigma² (T - t), aversion sigma² (T - t) + 2 / aversion
        ln(1 + aversion / k) apart."""
        half, shift = self._half_spread(state)
        return jnp.stack([half + state.stock * shift, half - state.stock * shift], -1)

    def _symmetric(self, state: Book, seen: Observation, key: Array) -> Array:
        """The same spread around the mid price, whatever is in stock."""
        return jnp.broadcast_to(self._half_spread(state)[0], (self.n, 2))

    def _optimal(self, state: Book, seen: Observation, key: Array) -> Array:
        """What dynamic programming finds for one maker."""
        held = jnp.clip(state.stock.astype(jnp.int32), -MOST_STOCK, MOST_STOCK) + MOST_STOCK
        return jnp.asarray(self.table)[jnp.minimum(state.t, self.steps - 1), held]
