"""What a day brings to homes: load, sunshine and prices, by the hour."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array

HOURS = np.arange(24)
LOAD = (
    0.3 + 0.9 * np.exp(-((HOURS - 7.5) ** 2) / 3) + 1.6 * np.exp(-((HOURS - 19) ** 2) / 6)
).astype(np.float32)  # fmt: skip
"""kW of a home by the hour: a morning and an evening peak."""
SUN = np.maximum(0.0, np.sin(np.pi * (HOURS - 6) / 12)).astype(np.float32)
"""Share of the solar cells' peak power under a clear sky."""
TARIFF = np.where(HOURS < 6, 0.15, np.where((HOURS >= 17) & (HOURS < 22), 0.45, 0.25)).astype(np.float32)
"""Price per kWh bought, by the hour."""
CELLS = 4.0
"""Peak power of a home's solar cells (kW)."""

SELL = 0.08
"""Price of a kWh sold, below every price of one bought."""
FLEXIBLE = 2.0
"""Power (kW) of the load that can wait."""


class Profiles(NamedTuple):
    """load, solar: [T, N] kW; price: [T] per kWh bought; flexible: [days, N] kWh that each home needs some time that
    day."""

    load: Array
    solar: Array
    price: Array
    flexible: Array


def draw(key: Array, homes: int, days: int) -> Profiles:
    """Random days: a home's load varies by up to 40 % over the days and by 30 % by the hour, clouds take 10 to 80 % of
    the sun, prices vary by 20 % over the days and by 10 % by the hour."""
    scale, hourly, cloud, tariff, ripple, flexible = jax.random.split(key, 6)

    def vary(key: Array, shape: tuple[int, ...], by: float) -> Array:
        return 1 + by * (2 * jax.random.uniform(key, shape) - 1)

    load = jnp.asarray(LOAD)[:, None] * vary(scale, (days, 1, homes), 0.4) * vary(hourly, (days, 24, homes), 0.3)
    clear = 0.2 + 0.7 * jax.random.uniform(cloud, (days, 1, 1))
    solar = jnp.broadcast_to(CELLS * SUN[:, None] * clear, (days, 24, homes))
    price = jnp.asarray(TARIFF) * vary(tariff, (days, 1), 0.2) * vary(ripple, (days, 24), 0.1)
    return Profiles(
        load.reshape(-1, homes), solar.reshape(-1, homes), price.reshape(-1),
        4 + 4 * jax.random.uniform(flexible, (days, homes)),
    )  # fmt: skip
