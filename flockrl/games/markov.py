"""Finite Markov games as values: states, transitions, payoffs and a discount; from arrays, rules or environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import PyTree
from flockrl.envs.api import Env
from flockrl.envs.games.rules import Rules
from flockrl.games.extensive import Front, Stepper, joint_moves
from flockrl.games.sequence import Gap

MOST_STATES = 30_000
MOST_MOVES = 20_000_000
"""The most states, and the most transitions (states x joint actions x outcomes), of a game."""
LARGEST = 1e30
"""The largest payoff in a file: sums of such are still numbers."""


@dataclass(frozen=True, eq=False)
class MarkovGame:
    """A game of N players, A actions each, over S states. Joint actions are numbered in C order, J = A^N.

    legal: [S, N, A]; next: [S, J, C] the states that may follow, S for the end; odds: [S, J, C] their
    probabilities; reward: [S, J, N]; start: [S] probabilities; seen: [S, N, O] what players see there, or None.
    """

    name: str
    legal: np.ndarray
    next: np.ndarray
    odds: np.ndarray
    reward: np.ndarray
    discount: float
    start: np.ndarray
    seen: np.ndarray | None = None

    @property
    def states(self) -> int:
        return len(self.legal)

    @property
    def players(self) -> int:
        return self.legal.shape[1]

    @property
    def actions(self) -> int:
        return self.legal.shape[2]

    @property
    def zero_sum(self) -> bool:
        scale = max(1.0, float(np.abs(self.reward).max(initial=0.0)))
        return self.players == 2 and bool((np.abs(self.reward.sum(-1)) <= 1e-9 * scale).all())

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """[A, ..., A], one axis for each player."""
        return (self.actions,) * self.players

    def stage(self, values: np.ndarray) -> np.ndarray:
        """[S, A, ..., A, N]: each state's payoffs if what follows is worth values [S, N]."""
        after = np.vstack([values, np.zeros(self.players)])
        total = self.reward + self.discount * np.einsum("sjc,sjcn->sjn", self.odds, after[self.next])
        return total.reshape(self.states, *self.shape, self.players)

    def together(self, policies: Sequence[np.ndarray]) -> np.ndarray:
        """[S, J]: probabilities of joint actions if each player follows its policy [S, A]."""
        joint = np.ones((self.states, 1))
        for policy in policies:
            joint = (joint[:, :, None] * policy[:, None, :]).reshape(self.states, -1)
        return joint

    def uniform(self) -> list[np.ndarray]:
        return [self.legal[:, i] / self.legal[:, i].sum(1, keepdims=True) for i in range(self.players)]

    def evaluate(self, joint: np.ndarray) -> np.ndarray:
        """[S, N]: what each state is worth under joint probabilities [S, J]."""
        rows = np.einsum("sj,sjn->sn", joint, self.reward)
        return self._fixed(joint[:, :, None] * self.odds, rows)

    def _fixed(self, odds: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The solution of  V = rows + discount P V  for transition probabilities [S, J, C] to `next`."""
        from scipy import sparse  # type: ignore[import-untyped]
        from scipy.sparse.linalg import splu  # type: ignore[import-untyped]

        size = self.states
        inside = (self.next < size) & (odds > 0)
        where = (np.broadcast_to(np.arange(size)[:, None, None], self.next.shape)[inside], self.next[inside])
        matrix = sparse.csc_array((self.discount * odds[inside], where), shape=(size, size))
        try:
            return splu((sparse.csc_array(sparse.identity(size)) - matrix).tocsc()).solve(rows)
        except RuntimeError as error:
            raise UsageError(
                f"{self.name}: some play never ends and nothing is discounted, so that it has no value: set a discount "
                "below 1."
            ) from error

    def best_response(self, player: int, policies: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The value [S] of the player's best answer to the others' policies, and that policy [S, A]."""
        others = [np.ones_like(p) if i == player else p for i, p in enumerate(policies)]
        weights = self.together(others)
        mine = np.moveaxis(np.arange(int(np.prod(self.shape))).reshape(self.shape), player, 0).reshape(self.actions, -1)
        policy = self.legal[:, player] / self.legal[:, player].sum(1, keepdims=True)
        now = [policy if i == player else p for i, p in enumerate(policies)]
        for _ in range(1000):
            value = self.evaluate(self.together(now))[:, player]
            after = np.append(value, 0.0)
            total = self.reward[..., player] + self.discount * (self.odds * after[self.next]).sum(-1)
            worth = np.stack([(weights[:, row] * total[:, row]).sum(1) for row in mine], 1)
            worth = np.where(self.legal[:, player], worth, -np.inf)
            better = worth.max(1) > value + 1e-12 * (1.0 + np.abs(value))
            if not better.any():
                return value, now[player]
            choice = np.where(better[:, None], np.eye(self.actions)[worth.argmax(1)], now[player])
            now[player] = choice
        raise UsageError(f"{self.name}: the best response of player {player} was not found in 1,000 rounds.")

    def gap(self, policies: Sequence[np.ndarray]) -> tuple[Gap, float]:
        """Values and gains of a best response at the start, and the largest gain in any state."""
        values = self.evaluate(self.together(policies))
        best = np.stack([self.best_response(i, policies)[0] for i in range(self.players)], 1)
        gains = np.maximum(best - values, 0.0)
        return Gap(self.start @ values, self.start @ gains), float(gains.max())


def from_arrays(transitions: Any, payoffs: Any, discount: float, start: Any = None, name: str = "game") -> MarkovGame:
    """A Markov game. transitions: [S, A1, ..., An, S] probabilities; what is missing to 1 ends the game. payoffs:
    [S, A1, ..., An, N]. start: [S] probabilities, by default the first state."""
    try:
        moves, pays = np.asarray(transitions, float), np.asarray(payoffs, float)
        first = None if start is None else np.asarray(start, float)
    except (TypeError, ValueError):
        raise UsageError(f"{name}: transitions, payoffs and start must be tensors of numbers.") from None
    states, counts = moves.shape[0] if moves.ndim else 0, moves.shape[1:-1]
    if moves.ndim < 3 or moves.shape[-1] != states or not moves.size or pays.shape != (*moves.shape[:-1], len(counts)):
        raise UsageError(
            f"{name}: transitions must have the shape [S, A1, ..., An, S] and payoffs [S, A1, ..., An, N], not "
            f"{list(moves.shape)} and {list(pays.shape)}."
        )
    if not (np.isfinite(moves).all() and (np.abs(pays) <= LARGEST).all()):
        raise UsageError(f"{name}: transitions and payoffs must be finite numbers, of at most {LARGEST:g}.")
    if (moves < 0).any() or (moves.sum(-1) > 1 + 1e-9).any():
        raise UsageError(f"{name}: the probabilities of what follows must be at least 0 and add up to at most 1.")
    if not 0 <= discount <= 1:
        raise UsageError(f"{name}: discount must be from 0 to 1, not {discount}.")
    first = np.eye(states)[0] if first is None else first
    if first.shape != (states,) or not (first >= 0).all() or abs(first.sum() - 1) > 1e-6:
        raise UsageError(f"{name}: start must have one probability for each of the {states} states.")
    n, most = len(counts), max(counts)
    joint = most**n
    _fits(name, states, joint * states)
    legal = np.stack([np.broadcast_to(np.arange(most) < count, (states, most)) for count in counts], 1)
    place = np.ravel_multi_index(np.indices(counts).reshape(n, -1), (most,) * n)
    odds, reward = np.zeros((states, joint, states)), np.zeros((states, joint, n))
    odds[:, place], reward[:, place] = moves.reshape(states, -1, states), pays.reshape(states, -1, n)
    following = np.broadcast_to(np.arange(states), odds.shape)
    return MarkovGame(name, legal, following, odds, reward, float(discount), first)


def _fits(name: str, states: int, moves: int) -> None:
    """moves: joint actions x outcomes of each state."""
    if states > MOST_STATES or states * moves > MOST_MOVES:
        raise UsageError(
            f"{name} is too large to enumerate: it has more than {MOST_STATES:,} states or {MOST_MOVES:,} transitions."
        )


class _Book:
    """The states found so far, by their bytes."""

    def __init__(self, name: str):
        self.name, self.numbers, self.rows = name, {}, []  # type: ignore[var-annotated]

    def number(self, states: PyTree) -> np.ndarray:
        """[K] the numbers of states, new ones included."""
        leaves = [np.asarray(x) for x in jax.tree.leaves(states)]
        flat = np.concatenate([np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8) for x in leaves], 1)
        keys = np.ascontiguousarray(flat).view(np.dtype((np.void, flat.shape[1]))).reshape(-1)
        found = np.zeros(len(keys), int)
        for i, key in enumerate(keys.tolist()):
            if key not in self.numbers:
                self.numbers[key] = len(self.numbers)
                self.rows.append(jax.tree.map(lambda x, i=i: x[i], states))
            found[i] = self.numbers[key]
        _fits(self.name, len(self.numbers), 1)
        return found

    def at(self, numbers: Sequence[int]) -> PyTree:
        return jax.tree.map(lambda *x: np.stack(x), *[self.rows[i] for i in numbers])


def from_rules(rules: Rules, discount: float | None = None) -> MarkovGame:
    """The states of a game whose players see all that matters; draws of chance are worked into the transitions."""
    if rules.recall:
        raise UsageError(f"{rules.name} has hidden information, so that it is no Markov game of its players' views.")
    stepper, book = Stepper(rules), _Book(rules.name)
    begin = _after_draws(stepper, _front(stepper.start(), np.ones(1), np.zeros((1, rules.players))))
    first = book.number(begin.states)
    done, rows = 0, []
    while done < len(book.rows):
        now = list(range(done, len(book.rows)))
        done = len(book.rows)
        rows.append(_explore(rules, stepper, book, now))
    legal, seen = (np.concatenate([row[i] for row in rows]) for i in range(2))
    count = len(book.rows)
    start = np.zeros(count)
    np.add.at(start, first, begin.odds)
    width = max(row[2].shape[2] for row in rows)
    following, odds = (np.concatenate([_widened(row[i], width) for row in rows]) for i in (2, 3))
    following = np.where(following < 0, count, following)
    reward = np.concatenate([row[4] for row in rows])
    chosen = rules.discount if discount is None else discount
    return MarkovGame(rules.name, legal, following, odds, reward, chosen, start, seen)


def _widened(x: np.ndarray, width: int) -> np.ndarray:
    return np.pad(x, [(0, 0), (0, 0), (0, width - x.shape[2])])


def _front(states: PyTree, odds: np.ndarray, paid: np.ndarray) -> Front:
    return Front(states, np.zeros((len(odds), 0), int), odds, paid, np.arange(len(odds)))


def _after_draws(stepper: Stepper, front: Front) -> Front:
    """The states after all draws of chance that are due; `parents` are kept."""
    done = []
    while len(front.odds):
        look = stepper.look(front.states)
        draws = ~look.movers.any(1) & ~look.over
        done.append(front.at(~draws))
        front, look = front.at(draws), look.at(draws)
        rows, outcomes = np.nonzero(look.odds > 0)
        if not len(rows):
            break
        states, paid = stepper.draw(front.at(rows).states, outcomes.astype(np.int32))
        chance = front.odds[rows] * look.odds[rows, outcomes].astype(float) / look.odds[rows].astype(float).sum(1)
        front = Front(states, front.seq[rows], chance, front.paid[rows] + paid, front.parents[rows])
    return jax.tree.map(lambda *x: np.concatenate(x), *done)


def _explore(rules: Rules, stepper: Stepper, book: _Book, now: list[int]) -> tuple[np.ndarray, ...]:
    """legal, seen, next (-1 for the end), odds and reward of these states."""
    states = book.at(now)
    look = stepper.look(states)
    legal = look.legal & look.movers[..., None]
    legal = np.concatenate([legal, ~look.movers[..., None]], 2) if rules.waits else legal
    shape = (legal.shape[2],) * rules.players
    joints = int(np.prod(shape))
    _fits(rules.name, len(book.rows), joints * max(rules.outcomes, 1) ** rules.draws)
    rows, actions = joint_moves(legal)
    given = jax.tree.map(lambda x: x[rows], states)
    moved, paid = stepper.move(given, np.minimum(actions, rules.choices - 1).astype(np.int32))
    front = _after_draws(stepper, _front(moved, np.ones(len(rows)), paid))
    over = stepper.look(front.states).over
    number = np.full(len(over), -1)
    if not over.all():
        number[~over] = book.number(front.at(~over).states)
    cell = np.ravel_multi_index((rows, *actions.T), (len(now), *shape))[front.parents]
    order = np.argsort(cell, kind="stable")
    cell, number, chance, paid = cell[order], number[order], front.odds[order], front.paid[order]
    begins = np.concatenate([[0], np.nonzero(np.diff(cell))[0] + 1])
    inside = np.arange(len(cell)) - np.repeat(begins, np.diff(np.append(begins, len(cell))))
    width = int(inside.max(initial=0)) + 1
    following, odds = np.full((len(now) * joints, width), -1), np.zeros((len(now) * joints, width))
    following[cell, inside], odds[cell, inside] = number, chance
    reward = np.zeros((len(now) * joints, rules.players))
    np.add.at(reward, cell, chance[:, None] * paid)
    lead = (len(now), joints)
    return legal, look.seen, following.reshape(*lead, width), odds.reshape(*lead, width), reward.reshape(*lead, -1)


def _equal(first: PyTree, second: PyTree) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(second)))


def from_env(env: Env, discount: float = 1.0) -> MarkovGame:
    """A compiled environment in which nothing is left to chance, by trying all joint actions in all states."""
    spec = env.spec
    if not spec.discrete:
        raise UsageError(f"{spec.name} cannot be enumerated: its actions are not a choice among a few.")
    sizes = [space.size for space in spec.actions]
    most = max(sizes)
    joints = most ** len(sizes)
    _fits(spec.name, 1, joints)
    keys = jax.random.split(jax.random.key(0), 4)
    step = jax.jit(jax.vmap(env.step))
    states, seen = jax.vmap(env.reset)(keys)
    states, seen = jax.tree.map(np.asarray, (states, seen))
    book = _Book(spec.name)
    if len(set(book.number(states).tolist())) > 1:
        raise UsageError(f"{spec.name} cannot be enumerated: it begins at random, and its draws are not listed.")
    actions = np.stack(np.unravel_index(np.arange(joints), (most,) * len(sizes)), 1).astype(np.int32)
    avail = [None if seen.avail is None else seen.avail[0]]
    shown, following, rewards, done = [seen.obs[0]], [], [], 0
    while done < len(book.rows):
        given = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], joints, 0), book.rows[done])
        outcomes = [step(jax.random.split(key, joints), given, actions) for key in keys[:2]]
        (state, after, reward, ended, cut), again = (jax.tree.map(np.asarray, x) for x in outcomes)
        if not _equal((state, reward), (again[0], again[2])):
            raise UsageError(f"{spec.name} cannot be enumerated: its steps are random, and outcomes are not listed.")
        over = np.asarray(ended | cut).reshape(joints, -1).all(1)
        row = np.full(joints, -1)
        for j in np.nonzero(~over)[0]:
            before = len(book.rows)
            row[j] = book.number(jax.tree.map(lambda x, j=j: x[j : j + 1], state))[0]
            if len(book.rows) > before:
                shown.append(after.obs[j])
                avail.append(None if after.avail is None else after.avail[j])
        following.append(row)
        rewards.append(reward)
        done += 1
        _fits(spec.name, len(book.rows), joints)
    own = np.stack([np.arange(most) < size for size in sizes])
    legal = np.stack([own if mask is None else own & mask for mask in avail])
    table = np.stack(following)[..., None]
    table = np.where(table < 0, len(book.rows), table)
    return MarkovGame(
        spec.name, legal, table, np.ones(table.shape), np.stack(rewards).astype(float), discount,
        np.eye(len(legal))[0], np.stack(shown),
    )  # fmt: skip
