"""Pictures of market making: the mid price with the best quotes, and what the makers hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.sketch import BLUE, FAINT, INK, LINE, ORANGE, Sketch, color_of

LEFT, RIGHT = 0.04, 0.96


def frames(states: Sequence[Any], size: int) -> list[np.ndarray]:
    """states: `Book`s. Above the mid price with the best bid and ask; below everybody's stock."""
    mid = np.array([float(state.mid) for state in states])
    quotes = np.stack([np.asarray(state.quotes).min(0) for state in states])
    bid, ask = np.append(mid[:-1] - quotes[1:, 0], mid[-1]), np.append(mid[:-1] + quotes[1:, 1], mid[-1])
    stock = np.stack([np.asarray(state.stock) for state in states])
    low, high = min(mid.min(), bid.min()), max(mid.max(), ask.max())
    deep = max(5.0, np.abs(stock).max())
    across = LEFT + (RIGHT - LEFT) * np.arange(len(states)) / max(len(states) - 1, 1)

    def plot(sketch: Sketch, values: np.ndarray, top: float, bottom: float, span: Any, color: Any) -> None:
        heights = bottom - (bottom - top) * (values - span[0]) / max(span[1] - span[0], 1e-9)
        if len(values) > 1:
            sketch.line(list(zip(across, heights, strict=False)), color, 0.005)

    pictures = []
    for t, state in enumerate(states):
        sketch = Sketch(size)
        wealth = np.asarray(state.cash + state.stock * state.mid)
        told = ", ".join(f"{x:.1f}" for x in wealth[:4]) + (" ..." if len(wealth) > 4 else "")
        sketch.text(LEFT, 0.06, f"step {t}   wealth {told}", 0.045, anchor="lm")
        sketch.text(LEFT, 0.13, f"price, {low:.1f} to {high:.1f}", 0.036, FAINT, anchor="lm")
        sketch.box(LEFT, 0.16, RIGHT, 0.62, edge=LINE)
        for values, color in ((bid, BLUE), (ask, ORANGE), (mid, INK)):
            plot(sketch, values[: t + 1], 0.17, 0.61, (low, high), color)
        sketch.text(LEFT, 0.67, f"stock, {-deep:.0f} to {deep:.0f}", 0.036, FAINT, anchor="lm")
        sketch.box(LEFT, 0.7, RIGHT, 0.96, edge=LINE)
        sketch.line([(LEFT, 0.83), (RIGHT, 0.83)], LINE)
        for i in range(stock.shape[1]):
            plot(sketch, stock[: t + 1, i], 0.71, 0.95, (-deep, deep), color_of(i))
        pictures.append(sketch.picture())
    return pictures
