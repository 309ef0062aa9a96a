"""Pictures of level-based foraging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.envs.comm.render import Grid, shared
from flockrl.envs.sketch import GREEN, INK, LINE, color_of, mix


def frames(states: Sequence[Any], cells: int, size: int) -> list[np.ndarray]:
    """states: `Harvest`s. Food is a green cell with its level, players are discs with theirs."""
    pictures = []
    for t, state in enumerate(states):
        left = int(np.sum(state.worth)) / max(int(state.spawned), 1)
        sketch = Grid(size, cells, f"step {t} of {len(states) - 1}", f"{1 - left:.0%} collected")
        for place in np.ndindex(cells, cells):
            sketch.cell(place, edge=LINE)
        for place, level in zip(np.asarray(state.food).tolist(), np.asarray(state.worth).tolist(), strict=True):
            if level:
                sketch.cell(place, mix(GREEN, 0.35), LINE)
                sketch.text(*sketch.middle(place), str(level), 0.6 * sketch.side, INK)
        places = [tuple(place) for place in np.asarray(state.players).tolist()]
        for i, (place, share) in enumerate(zip(places, shared(places), strict=True)):
            sketch.piece(place, color_of(i), str(int(state.levels[i])), share)
        pictures.append(sketch.picture())
    return pictures
