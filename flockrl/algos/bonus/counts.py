"""Novelty by counting: what was seen n times pays n^-decay (Strehl and Littman 2008; Tang et al. 2017, 1611.04717)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.bonus.novelty import Look, Novelty
from flockrl.algos.parts import require_room
from flockrl.algos.tabular import PRINT, ROW, cells, hash_cells
from flockrl.core.types import Array, EnvSpec, Metrics, Trajectory

TABLE = 1 << 18
"""Rows of each table of counts. Cells that fall on the same row are counted together."""
SEEN = 1 << 18
"""Rows of the table that coverage is told by."""


class CountState(NamedTuple):
    """counts: [K, R] visits; directions: [bits, F] of SimHash, or ()."""

    counts: Array
    directions: Array | tuple[()]


class Counts(Novelty):
    """Visits of cells, by a table for each function."""

    def __init__(self, look: Look, config: Any):
        self.look, self.width = look, config.of_bonus("bonus_cell")
        self.bits, self.decay = config.of_bonus("bonus_bits"), config.of_bonus("bonus_decay")
        require_room(look.rows * TABLE * 4, f"{look.rows} tables of counts take", "team, or --bonus-on state")

    def init(self, key: Array) -> CountState:
        directions = jax.random.normal(key, (self.bits, self.look.size)) if self.bits else ()
        return CountState(jnp.zeros((self.look.rows, TABLE), jnp.uint32), directions)

    def places(self, state: CountState, x: Array) -> Array:
        """[..., K] the rows of what is seen, x [..., K, F]."""
        if isinstance(state.directions, Array):
            signs = (x @ state.directions.T > 0).astype(jnp.int32)
            reads = np.ones((self.look.rows, self.bits), bool)
            return (hash_cells(signs, reads, ROW) & np.uint32(TABLE - 1)).astype(jnp.int32)
        return (hash_cells(cells(x, self.width), self.look.reads, ROW) & np.uint32(TABLE - 1)).astype(jnp.int32)

    def learn(self, state: CountState, rollout: Trajectory, key: Array) -> tuple[CountState, Metrics]:
        place = self.places(state, self.look.then(rollout))
        there = visits(self.look, rollout).astype(jnp.uint32)
        number = jnp.broadcast_to(np.arange(self.look.rows), place.shape)
        return state._replace(counts=state.counts.at[number, place].add(there)), {}

    def own(self, state: CountState, rows: Trajectory) -> Array:
        place = self.places(state, self.look.then(rows))
        return self._pay(state.counts[np.arange(self.look.rows), place])

    def cross(self, state: CountState, rows: Trajectory) -> Array:
        place = self.places(state, self.look.then(rows))
        return self._pay(jnp.moveaxis(state.counts[:, place], 0, -2))

    def _pay(self, count: Array) -> Array:
        """What was never seen pays as much as what was seen once."""
        return jnp.maximum(count, 1).astype(jnp.float32) ** -self.decay


def visits(look: Look, rollout: Trajectory) -> Array:
    """[T, B, K] 1 where somebody was there to see it."""
    if look.on == "own":
        return rollout.weight
    return rollout.weight.max(-1, keepdims=True)


class Coverage:
    """How many cells of the joint state were ever seen, by a table of marks."""

    def __init__(self, spec: EnvSpec, width: float):
        self.look, self.width = Look(spec, "state"), width

    def init(self) -> Array:
        return jnp.zeros(SEEN, bool)

    def learn(self, marks: Array, rollout: Trajectory) -> Array:
        hashed = hash_cells(cells(self.look.then(rollout), self.width), self.look.reads, PRINT)
        there = visits(self.look, rollout) > 0
        place = jnp.where(there, (hashed & np.uint32(SEEN - 1)).astype(jnp.int32), SEEN)
        return marks.at[place].set(True, mode="drop")

    def number(self, marks: Array) -> Array:
        """Distinct cells, some of which share a mark: linear counting (Whang et al. 1990) by those left empty."""
        empty = SEEN - marks.sum()
        return -SEEN * jnp.log(jnp.maximum(empty, 1) / SEEN)
