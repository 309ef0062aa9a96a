"""Pictures of a fleet: the density or the parcels, no-fly zones, the pad, drones with their batteries and radio
links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.fleet.flight import DT, PAD, SIDE, ZONE
from flockrl.envs.sketch import FAINT, GOLD, GREEN, INK, LINE, ORANGE, ROSE, Sketch, color_of, mix

LEFT, TOP, SPAN = 0.06, 0.1, 0.88


def place(pos: Any) -> tuple[float, float]:
    """From metres to the picture; north is up."""
    x, y = np.asarray(pos, float) / SIDE
    return LEFT + SPAN * x, TOP + SPAN * (1 - y)


def coverage_frames(states: Sequence[Any], radio: float, battery: float, size: int) -> list[np.ndarray]:
    """states: `Patrol`s. Darker cells matter more."""
    pictures = []
    for t, state in enumerate(states):
        sketch = Sketch(size)
        density = np.asarray(state.density)
        cells, most = int(np.sqrt(len(density))), density.max()
        for k, value in enumerate(density):
            (i, j), side = divmod(k, cells), SPAN / cells
            x, y = LEFT + i * side, TOP + SPAN - (j + 1) * side
            sketch.box(x, y, x + side, y + side, fill=mix(GOLD, 1 - 0.75 * float(value / most)))
        rms = SIDE * float(np.sqrt(state.cost / max(int(state.t), 1)))
        words = f"{t * DT:.0f} s   mean distance {rms:.0f} m" if t else "0 s"
        _air(sketch, state.air, radio, battery, words)
        pictures.append(sketch.picture())
    return pictures


def delivery_frames(states: Sequence[Any], radio: float, battery: float, size: int) -> list[np.ndarray]:
    """states: `Parcels`s. A square is a parcel that waits, a ring its goal; a line leads from a carrier to the goal."""
    pictures = []
    for t, state in enumerate(states):
        sketch = Sketch(size)
        sketch.box(LEFT, TOP, LEFT + SPAN, TOP + SPAN, edge=LINE)
        for k in np.flatnonzero(np.asarray(state.status) > 0):
            (x, y), goal = place(state.pick[k]), place(state.drop[k])
            urgent = ORANGE if float(state.left[k]) < 60 else ROSE
            carried = int(state.status[k]) == 2
            start = place(state.air.pos[int(state.carrier[k])]) if carried else (x, y)
            sketch.line([start, goal], mix(urgent, 0.2 if carried else 0.7), 0.004)
            sketch.disc(*goal, 0.016, urgent)
            sketch.disc(*goal, 0.009, (255, 255, 255))
            if not carried:
                sketch.box(x - 0.014, y - 0.014, x + 0.014, y + 0.014, fill=urgent)
        words = f"{t * DT:.0f} s   {int(state.delivered)} in time, {int(state.missed)} not"
        _air(sketch, state.air, radio, battery, words)
        pictures.append(sketch.picture())
    return pictures


def _air(sketch: Sketch, air: Any, radio: float, battery: float, words: str) -> None:
    sketch.text(LEFT, TOP / 2, f"{words}   {int(air.near)} near misses", 0.042, anchor="lm")
    scale = SPAN / SIDE
    for zone in np.asarray(air.zones):
        sketch.disc(*place(zone), ZONE * scale, (*mix(ORANGE, 0.5), 120))
    x, y = place((SIDE / 2, SIDE / 2))
    sketch.disc(x, y, PAD * scale, (*mix(GREEN, 0.4), 120))
    pos, up = np.asarray(air.pos), np.asarray(air.charge) > 0
    for i in range(len(pos)):
        for j in range(i):
            if up[i] and up[j] and np.hypot(*(pos[i] - pos[j])) <= radio:
                sketch.line([place(pos[i]), place(pos[j])], (*FAINT, 70), 0.003)
    for i in range(len(pos)):
        x, y = place(pos[i])
        sketch.disc(x, y, 0.024, color_of(i) if up[i] else mix(INK, 0.6))
        sketch.text(x, y, str(i), 0.03, (255, 255, 255))
        full = float(air.charge[i]) / battery
        sketch.box(x - 0.025, y + 0.03, x + 0.025, y + 0.037, fill=mix(INK, 0.8))
        sketch.box(x - 0.025, y + 0.03, x - 0.025 + 0.05 * full, y + 0.037, fill=GREEN if full > 0.3 else ORANGE)
