"""Pictures of homes: prices and what all draw over the hours, and the batteries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.sketch import BLUE, FAINT, GREEN, INK, LINE, ORANGE, Sketch, color_of, mix

LEFT, RIGHT = 0.05, 0.96


def frames(states: Sequence[Any], capacity: float, size: int) -> list[np.ndarray]:
    """states: `Village`s. Above prices (shaded) with what all draw (blue) and sunshine (orange); below batteries."""
    profiles = states[0].profiles
    price, solar = np.asarray(profiles.price), np.asarray(profiles.solar).sum(1)
    net = np.array([float(np.asarray(state.net).sum()) for state in states])
    low, high = min(net.min(), 0.0) - 1, max(net.max(), solar.max()) + 1
    hours, homes = len(price), len(states[0].energy)
    across = LEFT + (RIGHT - LEFT) * np.arange(hours + 1) / hours

    def height(value: float) -> float:
        return 0.58 - 0.44 * (value - low) / (high - low)

    pictures = []
    for t, state in enumerate(states):
        sketch = Sketch(size)
        paid = float(np.asarray(state.cost).sum())
        words = f"day {min(t, hours - 1) // 24 + 1}, {t % 24}:00   cost {paid:.2f}   peak {float(state.peak):.1f} kW"
        sketch.text(LEFT, 0.06, words, 0.042, anchor="lm")
        for k in range(hours):
            shade = mix(INK, 1 - 0.35 * float(price[k] / price.max()))
            sketch.box(across[k], 0.14, across[k + 1], 0.58, fill=shade)
        sketch.line([(LEFT, height(0)), (RIGHT, height(0))], INK, 0.003)
        sketch.line([(across[k], height(x)) for k, x in enumerate(solar)], ORANGE, 0.006)
        if t > 1:
            sketch.line([(across[k], height(net[k])) for k in range(1, t + 1)], BLUE, 0.008)
        sketch.text(LEFT, 0.63, "grey: price   orange: sun   blue: drawn by all", 0.036, FAINT, anchor="lm")
        wide = (RIGHT - LEFT) / homes
        for i in range(homes):
            x, full = LEFT + (i + 0.5) * wide, float(state.energy[i]) / max(capacity, 1e-6)
            half = min(0.05, 0.35 * wide)
            sketch.box(x - half, 0.7, x + half, 0.9, edge=LINE, width=0.006)
            sketch.box(x - half, 0.9 - 0.2 * full, x + half, 0.9, fill=mix(GREEN, 0.2))
            sketch.text(x, 0.945, f"{100 * full:.0f} %", min(0.036, 0.4 * wide), color_of(i))
        pictures.append(sketch.picture())
    return pictures
