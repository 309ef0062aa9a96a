"""Pictures of particle worlds, rendered with Pillow.

Agents are filled discs, landmarks that they collide with are dark and solid, landmarks that they can cross are rings.
An agent's last word is a letter beside it. Pictures are rendered large and scaled down, which smooths the edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

    from flockrl.envs.mpe.core import Body, Scenario, World

SUPERSAMPLING = 3
TRAIL = 12
"""How many past positions of an agent stay visible in an episode's frames."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PAPER = (250, 250, 248)
FLOOR = (255, 255, 255)
EDGE = (222, 222, 218)
INK = (40, 40, 44)

RGBA = tuple[int, int, int, int]


class Span(NamedTuple):
    """What the camera sees: a square with centre (x, y) and width 2 * half."""

    x: float
    y: float
    half: float


def frames(scenario: Scenario, states: Sequence[World], size: int = 400) -> list[np.ndarray]:
    """One picture [size, size, 3] for each world of an episode, all from the same camera."""
    if not len(states):
        return []
    span = fit(scenario, states)
    paths = np.stack([np.asarray(world.pos)[: len(scenario.agents)] for world in states])
    return [frame(scenario, world, size, paths[max(0, t - TRAIL) : t + 1], span) for t, world in enumerate(states)]


def fit(scenario: Scenario, states: Sequence[World]) -> Span:
    """A camera that sees all visible bodies at all times, and the square they start in."""
    sizes = scenario.sizes[:, None]
    low, high = np.full(2, -1.0), np.full(2, 1.0)
    for world in states:
        pos, seen = np.asarray(world.pos), scenario.paint(world)[:, 3] > 0
        low = np.minimum(low, (pos - sizes)[seen].min(axis=0))
        high = np.maximum(high, (pos + sizes)[seen].max(axis=0))
    x, y = (low + high) / 2
    return Span(float(x), float(y), float((high - low).max()) / 2 + 0.05)


def frame(
    scenario: Scenario, world: World, size: int = 400, trail: np.ndarray | None = None, span: Span | None = None
) -> np.ndarray:
    """Render one world (no batch axes): [size, size, 3] uint8.

    trail: [K, N, 2] where the agents were, oldest first, shown as lines that fade towards the past.
    span: what the camera sees; None fits it to this world.
    """
    from PIL import Image, ImageDraw

    canvas = _Canvas(size * SUPERSAMPLING, span or fit(scenario, [world]))
    image = Image.new("RGB", (canvas.size, canvas.size), PAPER)
    pen = ImageDraw.Draw(image, "RGBA")
    canvas.floor(pen)
    n, sizes = len(scenario.agents), scenario.sizes
    pos, paint = np.asarray(world.pos, float), scenario.paint(world)
    # Large landmarks first, so that they do not hide small ones; those smaller than every agent last, above agents.
    marks = sorted(range(n, len(pos)), key=lambda e: -sizes[e])
    marks = [e for e in marks if paint[e, 3] > 0]
    on_top = [e for e in marks if sizes[e] < sizes[:n].min()]
    for e in marks:
        if e not in on_top:
            canvas.landmark(pen, scenario.landmarks[e - n], pos[e], paint[e])
    if trail is not None:
        for i in range(n):
            canvas.path(pen, np.asarray(trail)[:, i], paint[i])
    for i, body in enumerate(scenario.agents):
        canvas.agent(pen, body, pos[i], paint[i])
    for e in on_top:
        canvas.landmark(pen, scenario.landmarks[e - n], pos[e], paint[e])
    for i, body in enumerate(scenario.agents):
        word = np.asarray(world.comm[i])
        if not body.silent and word.any():
            canvas.label(pen, LETTERS[int(word.argmax()) % len(LETTERS)], body, pos[i])
    return np.array(image.resize((size, size), Image.Resampling.LANCZOS))


class _Canvas:
    """A square of `size` pixels onto which the world is mapped."""

    def __init__(self, size: int, span: Span):
        self.size, self.span, self.scale = size, span, size / (2 * span.half)

    def point(self, pos: Any) -> tuple[float, float]:
        """From world to pixel coordinates. The world's y axis points up, the picture's down."""
        right, up = float(pos[0]) - self.span.x, float(pos[1]) - self.span.y
        return self.size / 2 + right * self.scale, self.size / 2 - up * self.scale

    @property
    def line(self) -> int:
        """The line width: one and a half pixels in a final picture of 400 pixels, in proportion at other sizes."""
        return max(1, round(self.size / 270))

    def floor(self, pen: ImageDraw) -> None:
        """The square in which episodes start."""
        (left, top), (right, bottom) = self.point((-1, 1)), self.point((1, -1))
        pen.rectangle((left, top, right, bottom), fill=FLOOR, outline=EDGE, width=self.line)

    def disc(self, pen: ImageDraw, pos: Any, radius: float, **style: Any) -> None:
        x, y = self.point(pos)
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), **style)

    def radius(self, body: Body) -> float:
        """In pixels, and never too small to be seen."""
        return max(body.size * self.scale, 4 * self.line)

    def landmark(self, pen: ImageDraw, body: Body, pos: Any, paint: np.ndarray) -> None:
        radius = self.radius(body)
        if body.collide or paint[3] < 1:
            self.disc(pen, pos, radius, fill=_rgba(paint))
            return
        self.disc(pen, pos, radius, fill=_rgba(paint, 0.25), outline=_rgba(paint), width=round(0.4 * radius))

    def agent(self, pen: ImageDraw, body: Body, pos: Any, paint: np.ndarray) -> None:
        self.disc(pen, pos, self.radius(body), fill=_rgba(paint), outline=_rgba(paint * 0.5, 1), width=self.line)

    def path(self, pen: ImageDraw, path: np.ndarray, paint: np.ndarray) -> None:
        for k in range(1, len(path)):
            ends = (*self.point(path[k - 1]), *self.point(path[k]))
            pen.line(ends, fill=_rgba(paint * 0.8, 0.8 * k / len(path)), width=2 * self.line)

    def label(self, pen: ImageDraw, letter: str, body: Body, pos: Any) -> None:
        """A letter in a bubble above the agent, to the right, kept inside the picture."""
        from PIL import ImageFont

        half = self.size / 36
        x, y = self.point(pos)
        away = 0.71 * self.radius(body) + half
        x, y = (float(np.clip(v, half, self.size - half)) for v in (x + away, y - away))
        pen.rounded_rectangle(
            (x - half, y - half, x + half, y + half), half / 2, fill=FLOOR, outline=INK, width=self.line
        )
        pen.text((x, y), letter, fill=INK, font=ImageFont.load_default(1.5 * half), anchor="mm")


def _rgba(paint: np.ndarray, opacity: float | None = None) -> RGBA:
    """A colour as bytes; `opacity`, when given, replaces the colour's own."""
    red, green, blue, alpha = np.clip(255 * paint, 0, 255).astype(int).tolist()
    return red, green, blue, alpha if opacity is None else round(255 * opacity)
