"""Pictures of classic control: a swinging rod, a pole on a cart, both with a trail of the tip's past positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.sketch import BLUE, FAINT, INK, LINE, ORANGE, Color, Sketch, mix

TRAIL = 14


def pendulum_frames(states: Sequence[Any], size: int) -> list[np.ndarray]:
    """states: `Swing`s. An upright pendulum points up."""
    tips = [(0.5 - 0.34 * math.sin(s.angle), 0.52 - 0.34 * math.cos(s.angle)) for s in states]
    pictures = []
    for t, (x, y) in enumerate(tips):
        sketch = Sketch(size)
        sketch.text(0.04, 0.06, f"step {t}", 0.05, anchor="lm")
        angle = (float(states[t].angle) + math.pi) % (2 * math.pi) - math.pi
        sketch.text(0.96, 0.06, f"{math.degrees(angle):+.0f}° from upright", 0.05, FAINT, "rm")
        sketch.line([(0.5, 0.52), (0.5, 0.12)], LINE)
        _trail(sketch, tips[max(0, t - TRAIL) : t + 1])
        sketch.line([(0.5, 0.52), (x, y)], ORANGE, 0.045)
        sketch.disc(x, y, 0.0225, ORANGE)
        sketch.disc(0.5, 0.52, 0.026, INK)
        pictures.append(sketch.picture())
    return pictures


def cartpole_frames(states: Sequence[Any], limits: tuple[float, float], size: int) -> list[np.ndarray]:
    """states: `Balance`s; limits: the cart's position and the pole's angle at which the episode ends."""
    reach, lean = limits
    ground, length = 0.72, 0.42
    carts = [0.5 + 0.42 * float(s.body[0]) / reach for s in states]
    tips = [
        (x + length * math.sin(s.body[2]), ground - 0.04 - length * math.cos(s.body[2]))
        for x, s in zip(carts, states, strict=True)
    ]
    pictures = []
    for t, ((x, y), cart) in enumerate(zip(tips, carts, strict=True)):
        sketch = Sketch(size)
        sketch.text(0.04, 0.06, f"step {t}", 0.05, anchor="lm")
        leaning = math.degrees(float(states[t].body[2]))
        sketch.text(0.96, 0.06, f"{leaning:+.1f}° of ±{math.degrees(lean):.0f}°", 0.05, FAINT, "rm")
        sketch.line([(0.08, ground + 0.05), (0.92, ground + 0.05)], FAINT)
        for end in (0.08, 0.92):
            sketch.line([(end, ground + 0.02), (end, ground + 0.08)], FAINT)
        _trail(sketch, tips[max(0, t - TRAIL) : t + 1])
        sketch.box(cart - 0.09, ground - 0.04, cart + 0.09, ground + 0.03, fill=INK)
        for wheel in (-0.05, 0.05):
            sketch.disc(cart + wheel, ground + 0.033, 0.018, FAINT)
        sketch.line([(cart, ground - 0.04), (x, y)], ORANGE, 0.03)
        sketch.disc(x, y, 0.015, ORANGE)
        sketch.disc(cart, ground - 0.04, 0.014, mix(ORANGE, 0.5))
        pictures.append(sketch.picture())
    return pictures


def _trail(sketch: Sketch, points: Sequence[tuple[float, float]]) -> None:
    """The tip's past positions, fading towards the past."""
    for k in range(1, len(points)):
        color: Color = (*BLUE, round(200 * k / len(points)))
        sketch.line(points[k - 1 : k + 1], color, 0.01)
