"""What the small renderers share: a white square, smooth edges, colours that colour-blind people can tell apart."""

from __future__ import annotations

from typing import Any

import numpy as np

FINE = 2
"""Pictures are rendered larger by this factor and scaled down, which smooths the edges."""
PAPER, INK, FAINT, LINE = (255, 255, 255), (38, 38, 42), (120, 120, 126), (214, 214, 210)
BLUE, ORANGE, GREEN, ROSE, GOLD, SKY = (
    (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233),
)  # fmt: skip
AGENTS = (BLUE, ORANGE, GREEN, ROSE, GOLD, SKY)
ABOVE, BELOW = BLUE, ORANGE
"""Numbers above 0 and below, in every picture and on the page."""

Color = tuple[int, ...]


class Sketch:
    """A square picture in units of its size: (0, 0) is the upper left corner, (1, 1) the lower right one."""

    def __init__(self, size: int):
        from PIL import Image, ImageDraw

        self.size, self.scale = size, size * FINE
        self.image: Any = Image.new("RGB", (self.scale, self.scale), PAPER)
        self.pen: Any = ImageDraw.Draw(self.image, "RGBA")

    def _at(self, *values: float) -> tuple[float, ...]:
        return tuple(float(value) * self.scale for value in values)

    def _width(self, width: float) -> int:
        return max(1, round(width * self.scale))

    def line(self, points: Any, color: Color = INK, width: float = 0.006) -> None:
        flat = [self._at(*point) for point in points]
        self.pen.line(flat, fill=color, width=self._width(width), joint="curve")

    def disc(self, x: float, y: float, radius: float, color: Color = INK) -> None:
        self.pen.ellipse(self._at(x - radius, y - radius, x + radius, y + radius), fill=color)

    def box(self, left: float, top: float, right: float, bottom: float, fill: Color | None = None,
            edge: Color | None = None, width: float = 0.004) -> None:  # fmt: skip
        where = self._at(left, top, right, bottom)
        self.pen.rectangle(where, fill=fill, outline=edge, width=self._width(width))

    def shape(self, points: Any, color: Color) -> None:
        self.pen.polygon([self._at(*point) for point in points], fill=color)

    def text(
        self, x: float, y: float, words: str, height: float = 0.05, color: Color = INK, anchor: str = "mm"
    ) -> None:
        from PIL import ImageFont

        font = ImageFont.load_default(height * self.scale)
        self.pen.text(self._at(x, y), words, fill=color, font=font, anchor=anchor)

    def picture(self) -> np.ndarray:
        """[size, size, 3] uint8."""
        from PIL import Image

        return np.array(self.image.resize((self.size, self.size), Image.Resampling.LANCZOS))


def color_of(agent: int) -> Color:
    return AGENTS[agent % len(AGENTS)]


def shade(value: float) -> Color:
    """The colour of a number from -1 to 1: white for 0."""
    return mix(ABOVE if value > 0 else BELOW, 1 - min(abs(value), 1.0))


def mix(color: Color, paper: float) -> Color:
    """A colour mixed with white. paper: the share of white, from 0 to 1."""
    return tuple(round(c + (255 - c) * paper) for c in color)


def number(value: float) -> str:
    """A number in few characters: 7, 2.5, -0.03."""
    value = value + 0.0  # no -0
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
