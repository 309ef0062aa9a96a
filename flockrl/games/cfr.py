"""Counterfactual regret minimisation, compiled: CFR (Zinkevich et al. 2007) and CFR+ (Tammelin 2014).

The players update in turn, as in OpenSpiel. All work is on the sequence form: counterfactual values are a gather of the
others' plans at the leaves, and one sum per depth of a player's own information sets. Numbers are float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array
from flockrl.games.sequence import Seat, SequenceForm


class Level(NamedTuple):
    """The information sets of one depth, n of them, padded to A actions.

    start: where their n A cells begin among the player's; legal: [n, A]; parents: [n] cells of the level before;
    children: [n A, W] sets of the next level that follow each cell, n' where there are none.
    """

    start: int
    legal: np.ndarray
    parents: np.ndarray
    children: np.ndarray


class Layout(NamedTuple):
    """A player's sequences as cells: sequence 0 first, then A cells for each information set, by depth.

    levels; cells: [S] the cell of each sequence; size: the number of cells; leaves: [R, W] numbers of leaves for
    each cell that has any, L where there are none; where: [cells] the row of each cell in `leaves`, R where none.
    """

    levels: tuple[Level, ...]
    cells: np.ndarray
    size: int
    leaves: np.ndarray
    where: np.ndarray


class Progress(NamedTuple):
    """regrets, sums: for each player [cells], regrets and weights of the average policy; t: iterations so far."""

    regrets: tuple[Array, ...]
    sums: tuple[Array, ...]
    t: Array


def solve_cfr(
    form: SequenceForm, iterations: int, plus: bool = False,
    each: Callable[[int, list[np.ndarray]], None] | None = None, marks: tuple[int, ...] = (),
) -> list[np.ndarray]:  # fmt: skip
    """The average policies [S] of all players after some iterations.

    plus: CFR+, whose regrets stay at least 0 and whose average weighs iteration t by t. each: called with the number
    of iterations and the policies so far after each of the `marks`.
    """
    if iterations < 1:
        raise UsageError(f"iterations must be at least 1, not {iterations}.")
    with double():
        machine = CFR(form, plus)
        progress, done = machine.start(), 0
        for mark in sorted({m for m in marks if 0 < m < iterations} | {iterations}):
            progress = machine.run(progress, mark - done)
            done = mark
            if each is not None and mark in marks:
                each(mark, machine.average(progress))
        return machine.average(progress)


def double() -> Any:
    """A context in which JAX computes with float64."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # type: ignore[attr-defined]  # JAX 0.6 and 0.7

    return enable_x64(True)


class CFR:
    """One game's compiled iteration. Use inside of `double()`."""

    def __init__(self, form: SequenceForm, plus: bool):
        self.form, self.plus = form, plus
        self.layouts = [_layout(seat, form.leaves[:, i]) for i, seat in enumerate(form.seats)]
        self._run = jax.jit(self._iterate)

    def start(self) -> Progress:
        zeros = tuple(jnp.zeros(layout.size) for layout in self.layouts)
        return Progress(zeros, zeros, jnp.zeros((), jnp.int64))

    def run(self, progress: Progress, count: int) -> Progress:
        """`count` more iterations."""
        return jax.block_until_ready(self._run(progress, count))

    def average(self, progress: Progress) -> list[np.ndarray]:
        """The average policies [S]."""
        found = []
        for seat, layout, sums in zip(self.form.seats, self.layouts, progress.sums, strict=True):
            found.append(seat.policy(np.asarray(sums)[layout.cells]))
        return found

    def _iterate(self, progress: Progress, count: int) -> Progress:
        def one(_: Any, now: Progress) -> Progress:
            regrets, sums, t = list(now.regrets), list(now.sums), now.t + 1
            policies = [_match(layout, r) for layout, r in zip(self.layouts, regrets, strict=True)]
            plans = [_plan(layout, policy) for layout, policy in zip(self.layouts, policies, strict=True)]
            for player, layout in enumerate(self.layouts):
                advantage = _advantages(layout, policies[player], self._slope(player, plans))
                after = regrets[player] + advantage
                regrets[player] = jnp.maximum(after, 0.0) if self.plus else after
                sums[player] = sums[player] + (t * plans[player] if self.plus else plans[player])
                policies[player] = _match(layout, regrets[player])
                plans[player] = _plan(layout, policies[player])
            return Progress(tuple(regrets), tuple(sums), t)

        return jax.lax.fori_loop(0, count, one, progress)

    def _slope(self, player: int, plans: list[Array]) -> Array:
        """[cells] the gradient of the player's payoff, see `SequenceForm.gradient`."""
        form, layout = self.form, self.layouts[player]
        picked = np.append(np.arange(len(form.leaves)), 0)[layout.leaves]  # [R, W]
        real = layout.leaves < len(form.leaves)
        total: Array = jnp.asarray(np.where(real, form.worth[:, player][picked], 0.0))
        for other, plan in enumerate(plans):
            if other != player:
                total = total * plan[self.layouts[other].cells[form.leaves[:, other]][picked]]
        rows = jnp.append(total.sum(1), 0.0)
        return rows[layout.where]


def _match(layout: Layout, regrets: Array) -> Array:
    """[cells] the policy in proportion to positive regrets, uniform where there are none."""
    parts = [jnp.ones(1)]
    for level in layout.levels:
        own = jnp.maximum(regrets[level.start : level.start + level.legal.size].reshape(level.legal.shape), 0.0)
        own = jnp.where(level.legal, own, 0.0)
        total = own.sum(1, keepdims=True)
        fair = level.legal / level.legal.sum(1, keepdims=True)
        parts.append(jnp.where(total > 0, own / jnp.where(total > 0, total, 1.0), fair).reshape(-1))
    return jnp.concatenate(parts)


def _plan(layout: Layout, policy: Array) -> Array:
    """[cells] the product of probabilities along the player's own path."""
    parts = [jnp.ones(1)]
    for level in layout.levels:
        own = policy[level.start : level.start + level.legal.size].reshape(level.legal.shape)
        parts.append((parts[-1][level.parents][:, None] * own).reshape(-1))
    return jnp.concatenate(parts)


def _advantages(layout: Layout, policy: Array, slope: Array) -> Array:
    """[cells] how much better each action is than the policy, weighted by how often the others let it matter."""
    below = jnp.zeros(1)
    parts = []
    for level in reversed(layout.levels):
        cells = slice(level.start, level.start + level.legal.size)
        worth = (slope[cells] + below[level.children].sum(1)).reshape(level.legal.shape)
        value = (policy[cells].reshape(level.legal.shape) * worth).sum(1)
        parts.append(jnp.where(level.legal, worth - value[:, None], 0.0).reshape(-1))
        below = jnp.append(value, 0.0)
    return jnp.concatenate([jnp.zeros(1), *reversed(parts)])


def _layout(seat: Seat, leaves: np.ndarray) -> Layout:
    """leaves: [L] the player's sequence at each leaf."""
    width = int(seat.counts.max(initial=1))
    cells, start = np.zeros(len(seat.actions), int), 1
    places = []
    for sets, sequences, begins in seat.levels:
        inside = np.arange(len(sequences)) - np.repeat(begins, seat.counts[sets])
        cells[sequences] = start + np.repeat(np.arange(len(sets)) * width, seat.counts[sets]) + inside
        places.append(start)
        start += len(sets) * width
    levels = []
    for depth, (sets, _, _) in enumerate(seat.levels):
        before = 0 if depth == 0 else places[depth - 1]
        after = seat.levels[depth + 1][0] if depth + 1 < len(seat.levels) else np.zeros(0, int)
        children = _grouped(cells[seat.parents[after]] - places[depth], len(sets) * width)
        legal = np.arange(width) < seat.counts[sets][:, None]
        levels.append(Level(places[depth], legal, cells[seat.parents[sets]] - before, children))
    own = cells[leaves]
    rows, which = np.unique(own, return_inverse=True)
    where = np.full(start, len(rows))
    where[rows] = np.arange(len(rows))
    return Layout(tuple(levels), cells, start, _grouped(which.reshape(-1), len(rows)), where)


def _grouped(groups: np.ndarray, count: int) -> np.ndarray:
    """[count, W]: the numbers of the items of each group, filled up with the number of items."""
    sizes = np.bincount(groups, minlength=count)
    order = np.argsort(groups, kind="stable")
    table = np.full((count, int(sizes.max(initial=0))), len(groups))
    inside = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    table[groups[order], inside] = order
    return table
