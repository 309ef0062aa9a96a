"""Homes with a battery, solar cells and load that can wait, behind one transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, EnvSpec, Observation
from flockrl.envs.grid.profiles import FLEXIBLE, SELL, Profiles, draw
from flockrl.envs.settings import between, one_of, whole

AHEAD = 6
"""Hours ahead whose prices are known."""
CONTROLS, REWARDS = ("battery", "net", "draw"), ("share", "whole")
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

    An action is [battery: -1 discharges, 1 charges with `power` kW; flexible load: -1 none, 1 all of its 2 kW]. With
    `control=net` the first number is what the home wants to draw from the grid (1: `setpoint` kW, by default `power`;
    -1: feed in as much), and the battery does what that takes, as inverters with a set point do. `control=draw` is the
    same from nothing (-1) to `setpoint` kW (1): surplus is stored, and sold once the battery is full. The battery holds
    `capacity` kWh, half full at first, and keeps `efficiency` of what goes in and of what goes out. The flexible load
    needs 4 to 8 kWh each day; it runs when it must to be done by midnight. Load, sunshine and prices are drawn for
    `days` days (`grid.profiles`). A kWh bought costs the hour's price, one sold brings 0.08; besides, all pay together
    `peak_price` for each kW of the highest power that the homes together draw in the episode, when it rises.

    A home is paid minus its cost and its share of the peak's, which makes a dilemma: whoever raises the peak pays one
    n-th of it. With `reward=whole` every home pays the whole rise, so that what is best for one is best for all. It
    observes [cos and sin of the hour, price now and in the next 6 hours / 0.25, hours left of the day / 24, the share
    of the episode left, what all drew in the last hour and the peak so far, kW per home, its load and sunshine / 2 kW,
    its battery from 0 to 1, flexible load left / 8 kWh, and as forecasts its load and sunshine in the rest of the day
    and in the next one / 30 kWh]. Terminated after 24 `days` hours, when the bill is due: what is stored then is worth
    nothing.
    """

    def __init__(
        self,
        homes: int = 4,
        days: int = 2,
        capacity: float = 10.0,
        power: float = 5.0,
        efficiency: float = 0.95,
        peak_price: float = 1.0,
        control: str = "battery",
        reward: str = "share",
        setpoint: float | None = None,
    ):
        whole(NAME, 1, 200, homes=homes)
        whole(NAME, 1, 60, days=days)
        between(NAME, 0, 1000, capacity=capacity, power=power, peak_price=peak_price)
        between(NAME, 0.1, 1, efficiency=efficiency)
        one_of(NAME, CONTROLS, control=control)
        if setpoint is not None:
            between(NAME, 0.1, 1000, setpoint=setpoint)
            if control == "battery":
                raise UsageError(f"{NAME}: setpoint is for control=net and control=draw.")
        one_of(NAME, REWARDS, reward=reward)
        self.n, self.days, self.steps = homes, days, 24 * days
        self.net, self.draw = control != "battery", control == "draw"
        self.capacity, self.power, self.efficiency, self.peak_price = capacity, power, efficiency, peak_price
        self.unit = power if setpoint is None else setpoint
        """kW that the first number of an action counts in."""
        self.pays = 1.0 if reward == "whole" else 1 / homes
        """The part of a rise of the peak that each home is charged."""
        self.spec = EnvSpec(
            name=NAME,
            agents=tuple(f"home_{i}" for i in range(homes)),
            observations=(Box((21,)),) * homes,
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
        t, net = state.t, self._needs(state, flexible) + into - out
        cost = state.profiles.price[t] * jnp.maximum(net, 0.0) - SELL * jnp.maximum(-net, 0.0)
        peak = jnp.maximum(state.peak, net.sum())
        # Rounding must not leave the battery's bounds, nor load undone.
        energy = jnp.clip(state.energy + self.efficiency * into - out / self.efficiency, 0.0, self.capacity)
        day = jnp.minimum((t + 1) // 24, self.days - 1)
        owed = jnp.where((t + 1) % 24 == 0, state.profiles.flexible[day], jnp.maximum(state.owed - flexible, 0.0))
        reward = -cost - self.peak_price * self.pays * (peak - state.peak)
        state = Village(t + 1, state.profiles, energy, owed, net, peak, state.cost + cost)
        return state, self._observe(state), reward, state.t >= self.steps, jnp.bool_(False)

    def _limits(self, state: Village, action: Array) -> tuple[Array, Array, Array]:
        """[N] kW into the battery, out of it, and of the flexible load, as far as the actions can be carried out."""
        flexible = self._runs(state, FLEXIBLE * (action[:, 1] + 1) / 2)
        asked = self.unit * ((action[:, 0] + 1) / 2 if self.draw else action[:, 0])
        if self.net:
            asked = jnp.clip(asked - self._needs(state, flexible), -self.power, self.power)
        into = jnp.minimum(jnp.maximum(asked, 0.0), (self.capacity - state.energy) / self.efficiency)
        out = jnp.minimum(jnp.maximum(-asked, 0.0), state.energy * self.efficiency)
        return into, out, flexible

    def _runs(self, state: Village, wanted: Array) -> Array:
        """[N] kW of the flexible loads where so many are wanted [N]: as much as is left, and what must run now."""
        later = FLEXIBLE * (23 - state.t % 24)
        least = jnp.maximum(state.owed - later, 0.0)
        return jnp.minimum(jnp.clip(wanted, least, FLEXIBLE), state.owed)

    def _needs(self, state: Village, flexible: Array) -> Array:
        """[N] kW that homes would draw without their batteries."""
        now = jnp.minimum(state.t, self.steps - 1)
        return state.profiles.load[now] + flexible - state.profiles.solar[now]

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
        drawn = jnp.stack([state.net.sum(), state.peak]) / n
        common = jnp.concatenate(
            [jnp.cos(angle)[None], jnp.sin(angle)[None], state.profiles.price[hours] / 0.25, (24 - t % 24)[None] / 24,
             1 - t[None] / self.steps, drawn]
        )  # fmt: skip
        now = hours[0]
        own = jnp.stack(
            [state.profiles.load[now] / 2, state.profiles.solar[now] / 2,
             state.energy / max(self.capacity, 1e-6), state.owed / 8], -1
        )  # fmt: skip
        ahead = [self._to_come(x, t) / 30 for x in (state.profiles.load, state.profiles.solar)]
        return Observation(jnp.concatenate([jnp.broadcast_to(common, (n, len(common))), own, *ahead], -1))

    def _to_come(self, x: Array, t: Array) -> Array:
        """[N, 2] the sum of x [T, N] over the hours of this day that follow, and over the next day."""
        hours = np.arange(self.steps)
        later = jnp.stack([(hours > t) & (hours // 24 == t // 24), hours // 24 == t // 24 + 1])
        return jnp.where(later[..., None], x, 0.0).sum(1).T

    def _actions(self, state: Village, battery: Array, flexible: Array) -> Array:
        """kW into the battery (negative: out of it) and of the flexible load, as actions."""
        if self.net:
            battery = battery + self._needs(state, self._runs(state, flexible))
        asked = battery / max(self.unit, 1e-6)
        return jnp.stack([jnp.clip(2 * asked - 1 if self.draw else asked, -1, 1), 2 * flexible / FLEXIBLE - 1], -1)

    def _idle(self, state: Village, seen: Observation, key: Array) -> Array:
        """Batteries rest, and flexible load runs at once."""
        return self._actions(state, jnp.zeros(self.n), jnp.full(self.n, FLEXIBLE))

    def _rules(self, state: Village, seen: Observation, key: Array) -> Array:
        """As installers set it: flexible load at noon; solar surplus into the battery; in dear hours the battery covers
        the load; at night it is filled to 60 %."""
        now = jnp.minimum(state.t, self.steps - 1)
        hour, price = now % 24, state.profiles.price[now]
        flexible = jnp.where((hour >= 10) & (hour < 14), FLEXIBLE, 0.0) * jnp.ones(self.n)
        surplus = state.profiles.solar[now] - state.profiles.load[now] - flexible
        night = jnp.where((hour < 6) & (state.energy < 0.6 * self.capacity), 1.0, 0.0)
        battery = jnp.where(surplus > 0, surplus, jnp.where(price > 0.3, surplus, night))
        return self._actions(state, battery, flexible)

    def _foresight(self, state: Village, seen: Observation, key: Array) -> Array:
        """What a linear program that knows the whole future does; solved in each step, so play few episodes."""
        from flockrl.envs.grid.bound import plan

        def solve(state: Any) -> np.ndarray:
            return np.stack(plan(self, state)[1], -1).astype(np.float32)

        form = jax.ShapeDtypeStruct((self.n, 2), jnp.float32)
        wanted = jax.pure_callback(solve, form, state, vmap_method="sequential")
        return self._actions(state, wanted[:, 0], wanted[:, 1])
