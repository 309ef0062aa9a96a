"""Homes with a battery, solar cells and load that can wait, behind one transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, EnvSpec, Observation
from flockrl.envs.grid.profiles import FLEXIBLE, SELL, Profiles, draw
from flockrl.envs.settings import between, whole

AHEAD = 6
"""Hours ahead whose prices are known."""
NAME = "grid/homes"


class Village(NamedTuple):
    """t: hours so far; energy: [N] kWh in batteries; owed: [N] kWh of flexible load left for this day; net: [N] kW
    drawn from the grid in the last hour; peak: the most that all drew together; cost: [N] paid so far, without the
    peak."""

    t: Array
    profiles: Profiles
    energy: Array
    owed: Array
    net: Array
    peak: Array
    cost: Array


class Homes:
    """`homes` decide each hour what their batteries and their flexible loads do.

    An action is [battery: -1 discharges, 1 charges with `power` kW; flexible load: -1 none, 1 all of its 2 kW]. The
    battery holds `capacity` kWh, half full at first, and keeps `efficiency` of what goes in and of what goes out. The
    flexible load needs 4 to 8 kWh each day; it runs when it must to be done by midnight. Load, sunshine and prices are
    drawn for `days` days (`grid.profiles`). A kWh bought costs the hour's price, one sold brings 0.08; besides, all pay
    together `peak_price` for each kW of the highest power that the homes together draw in the episode, when it rises.

    A home is paid minus its cost and its share of the peak's. It observes [cos and sin of the hour, price now and in
    the next 6 hours, hours left of the day / 24, the share of the episode left, what all drew in the last hour and the
    peak so far, per home and 5 kW, its load and sunshine / 5 kW, its battery from 0 to 1, flexible load left / 8 kWh].
    Truncated after 24 `days` hours.
    """

    def __init__(
        self,
        homes: int = 4,
        days: int = 2,
        capacity: float = 10.0,
        power: float = 5.0,
        efficiency: float = 0.95,
        peak_price: float = 1.0,
    ):
        whole(NAME, 1, 200, homes=homes)
        whole(NAME, 1, 60, days=days)
        between(NAME, 0, 1000, capacity=capacity, power=power, peak_price=peak_price)
        between(NAME, 0.1, 1, efficiency=efficiency)
        self.n, self.days, self.steps = homes, days, 24 * days
        self.capacity, self.power, self.efficiency, self.peak_price = capacity, power, efficiency, peak_price
        self.spec = EnvSpec(
            name=NAME,
            agents=tuple(f"home_{i}" for i in range(homes)),
            observations=(Box((17,)),) * homes,
            actions=(Box((2,), -1.0, 1.0),) * homes,
            max_steps=self.steps,
        )
        self.policies = {"idle": self._idle, "rules": self._rules, "foresight": self._foresight}

    def reset(self, key: Array) -> tuple[Village, Observation]:
        profiles, zero = draw(key, self.n, self.days), jnp.zeros(self.n)
        energy = jnp.full(self.n, self.capacity / 2)
        state = Village(jnp.int32(0), profiles, energy, profiles.flexible[0], zero, jnp.float32(0), zero)
        return state, self._observe(state)

    def step(self, key: Array, state: Village, action: Array) -> tuple[Village, Observation, Array, Array, Array]:
        into, out, flexible = self._limits(state, action)
        t = state.t
        net = state.profiles.load[t] + flexible + into - out - state.profiles.solar[t]
        cost = state.profiles.price[t] * jnp.maximum(net, 0.0) - SELL * jnp.maximum(-net, 0.0)
        peak = jnp.maximum(state.peak, net.sum())
        # Rounding must not leave the battery's bounds, nor load undone.
        energy = jnp.clip(state.energy + self.efficiency * into - out / self.efficiency, 0.0, self.capacity)
        day = jnp.minimum((t + 1) // 24, self.days - 1)
        owed = jnp.where((t + 1) % 24 == 0, state.profiles.flexible[day], jnp.maximum(state.owed - flexible, 0.0))
        reward = -cost - self.peak_price * (peak - state.peak) / self.n
        state = Village(t + 1, state.profiles, energy, owed, net, peak, state.cost + cost)
        return state, self._observe(state), reward, jnp.bool_(False), state.t >= self.steps

    def _limits(self, state: Village, action: Array) -> tuple[Array, Array, Array]:
        """[N] kW into the battery, out of it, and of the flexible load, as far as the actions can be carried out."""
        asked = self.power * action[:, 0]
        into = jnp.minimum(jnp.maximum(asked, 0.0), (self.capacity - state.energy) / self.efficiency)
        out = jnp.minimum(jnp.maximum(-asked, 0.0), state.energy * self.efficiency)
        later = FLEXIBLE * (23 - state.t % 24)
        flexible = jnp.clip(FLEXIBLE * (action[:, 1] + 1) / 2, jnp.maximum(state.owed - later, 0.0), FLEXIBLE)
        return into, out, jnp.minimum(flexible, state.owed)

    def measures(self, state: Village) -> dict[str, Array]:
        """cost: of a home, its share of the peak included; relative: the same over that without batteries and with
        flexible load as early as possible; peak: kW per home."""
        plain, plain_peak = self._plain(state.profiles)
        peak = self.peak_price / self.n
        cost, idle = state.cost.mean() + peak * state.peak, plain + peak * plain_peak
        return {"cost": cost, "relative": cost / idle, "peak": state.peak / self.n}

    def _plain(self, profiles: Profiles) -> tuple[Array, Array]:
        """The mean cost of a home that does nothing clever, and the peak of all."""
        hours = np.arange(24)[:, None]
        each = jnp.clip(profiles.flexible[:, None] - FLEXIBLE * hours, 0.0, FLEXIBLE).reshape(-1, self.n)
        net = profiles.load + each - profiles.solar
        cost = profiles.price[:, None] * jnp.maximum(net, 0.0) - SELL * jnp.maximum(-net, 0.0)
        return cost.sum(0).mean(), jnp.maximum(net.sum(1).max(), 0.0)

    def render(self, states: Sequence[Village], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.grid.render import frames

        return frames(states, self.capacity, size)

    def _observe(self, state: Village) -> Observation:
        t, n, angle = state.t, self.n, 2 * jnp.pi * (state.t % 24) / 24
        hours = jnp.minimum(t + np.arange(AHEAD + 1), self.steps - 1)
        drawn = jnp.stack([state.net.sum(), state.peak]) / (5 * n)
        common = jnp.concatenate(
            [jnp.cos(angle)[None], jnp.sin(angle)[None], state.profiles.price[hours], (24 - t % 24)[None] / 24,
             1 - t[None] / self.steps, drawn]
        )  # fmt: skip
        now = hours[0]
        own = jnp.stack(
            [state.profiles.load[now] / 5, state.profiles.solar[now] / 5,
             state.energy / max(self.capacity, 1e-6), state.owed / 8], -1
        )  # fmt: skip
        return Observation(jnp.concatenate([jnp.broadcast_to(common, (n, len(common))), own], -1))

    def _actions(self, battery: Array, flexible: Array) -> Array:
        """kW into the battery (negative: out of it) and of the flexible load, as actions."""
        return jnp.stack([jnp.clip(battery / max(self.power, 1e-6), -1, 1), 2 * flexible / FLEXIBLE - 1], -1)

    def _idle(self, state: Village, seen: Observation, key: Array) -> Array:
        """Batteries rest, and flexible load runs at once."""
        return self._actions(jnp.zeros(self.n), jnp.full(self.n, FLEXIBLE))

    def _rules(self, state: Village, seen: Observation, key: Array) -> Array:
        """As installers set it: flexible load at noon; solar surplus into the battery; in dear hours the battery covers
        the load; at night it is filled to 60 %."""
        now = jnp.minimum(state.t, self.steps - 1)
        hour, price = now % 24, state.profiles.price[now]
        flexible = jnp.where((hour >= 10) & (hour < 14), FLEXIBLE, 0.0) * jnp.ones(self.n)
        surplus = state.profiles.solar[now] - state.profiles.load[now] - flexible
        night = jnp.where((hour < 6) & (state.energy < 0.6 * self.capacity), 1.0, 0.0)
        battery = jnp.where(surplus > 0, surplus, jnp.where(price > 0.3, surplus, night))
        return self._actions(battery, flexible)

    def _foresight(self, state: Village, seen: Observation, key: Array) -> Array:
        """What a linear program that knows the whole future does; solved in each step, so play few episodes."""
        from flockrl.envs.grid.bound import plan

        def solve(state: Any) -> np.ndarray:
            return np.stack(plan(self, state)[1], -1).astype(np.float32)

        form = jax.ShapeDtypeStruct((self.n, 2), jnp.float32)
        wanted = jax.pure_callback(solve, form, state, vmap_method="sequential")
        return self._actions(wanted[:, 0], wanted[:, 1])
