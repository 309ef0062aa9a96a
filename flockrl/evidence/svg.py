"""Charts as SVG text: sharp at any size, a few kilobytes each, without scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b", "#000000")
"""Colours that colour-blind people can tell apart (Okabe and Ito), then grey, brown and black; further lines are
dashed."""
WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 44


@dataclass(frozen=True)
class Series:
    """A line with the band around it. style: a number that selects its colour and dashes."""

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    style: int


def color(style: int) -> str:
    return COLORS[style % len(COLORS)]


def dash(style: int) -> str:
    rounds = style // len(COLORS)
    return f' stroke-dasharray="{6 // rounds} 3"' if rounds else ""


def chart(
    title: str, series: Sequence[Series], x_name: str, y_name: str, y_range: tuple[float, float] | None = None
) -> str:
    """Lines with bands on one pair of axes."""
    x_low, x_high = _span([s.x for s in series])
    y_low, y_high = y_range or _padded(*_span([part for s in series for part in (s.low, s.high, s.y)]))

    def at_x(value: float) -> float:
        return LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def at_y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">',
        *_grid(at_x, at_y, ticks(x_low, x_high), ticks(y_low, y_high)),
        _x_name(x_name, LEFT, HEIGHT - 6),
        f'<text class="name" transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_name)}</text>',
    ]
    for one in series:
        band = [(at_x(x), at_y(y)) for x, y in zip(one.x, one.high, strict=True)]
        band += reversed([(at_x(x), at_y(y)) for x, y in zip(one.x, one.low, strict=True)])
        line = [(at_x(x), at_y(y)) for x, y in zip(one.x, one.y, strict=True)]
        parts.append(f'<polygon points="{_points(band)}" fill="{color(one.style)}" fill-opacity=".16"/>')
        parts.append(
            f'<polyline points="{_points(line)}" fill="none" stroke="{color(one.style)}" stroke-width="2.2" '
            f'stroke-linejoin="round"{dash(one.style)}><title>{escape(one.name)}</title></polyline>'
        )
    return "".join([*parts, "</svg>"])


def intervals(title: str, rows: Sequence[tuple[str, float, float, float, int]], x_name: str) -> str:
    """One point with its interval per row: (name, value, low, high, style)."""
    low, high = _padded(*_span([np.array(row[1:4]) for row in rows]))
    height, left = 26 * len(rows) + 46, 150

    def at_x(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - left - RIGHT)

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">']
    for tick in ticks(low, high):
        parts.append(f'<line class="grid" x1="{at_x(tick):.1f}" x2="{at_x(tick):.1f}" y1="6" y2="{height - 38}"/>')
        parts.append(f'<text x="{at_x(tick):.1f}" y="{height - 24}" text-anchor="middle">{label(tick)}</text>')
    for i, (name, value, start, end, style) in enumerate(rows):
        y = 19 + 26 * i
        parts.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(_cut(name, 22))}</text>')
        parts.append(
            f'<line x1="{at_x(start):.1f}" x2="{at_x(end):.1f}" y1="{y}" y2="{y}" stroke="{color(style)}" '
            'stroke-width="7" stroke-opacity=".4" stroke-linecap="round"/>'
        )
        parts.append(f'<circle cx="{at_x(value):.1f}" cy="{y}" r="5" fill="{color(style)}"/>')
    parts.append(_x_name(x_name, left, height - 5))
    return "".join([*parts, "</svg>"])


def legend(names: Sequence[tuple[str, int]]) -> str:
    """Names with their colours, for all charts of a page."""
    items = [
        f'<span class="key"><svg viewBox="0 0 26 10" width="26" height="10"><line x1="1" x2="25" y1="5" y2="5" '
        f'stroke="{color(style)}" stroke-width="3.5"{dash(style)}/></svg>{escape(name)}</span>'
        for name, style in names
    ]
    return f'<p class="legend">{"".join(items)}</p>'


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers inside [low, high], about `count` of them."""
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = power * min((m for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999), default=10)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def label(value: float) -> str:
    """1,500,000 -> 1.5M; 20000 -> 20k; 0.25 -> 0.25."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}" if abs(value) > 1e-12 else "0"


def _grid(
    at_x: Callable[[float], float], at_y: Callable[[float], float], across: list[float], up: list[float]
) -> list[str]:
    parts = []
    for tick in up:
        y = at_y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{label(tick)}</text>')
    for tick in across:
        x = at_x(tick)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{label(tick)}</text>')
    bottom = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    return parts


def _x_name(name: str, left: float, y: float) -> str:
    x = (left + WIDTH - RIGHT) / 2
    return f'<text class="name" x="{x}" y="{y}" text-anchor="middle">{escape(name)}</text>'


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def _span(arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    low = float(min(np.min(a) for a in arrays))
    high = float(max(np.max(a) for a in arrays))
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _padded(low: float, high: float) -> tuple[float, float]:
    room = 0.06 * (high - low)
    return low - room, high + room


def _cut(name: str, length: int) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
