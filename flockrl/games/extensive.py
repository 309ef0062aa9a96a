"""Games unfolded from their rules: all histories, and the information sets that they fall into, as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import PyTree
from flockrl.envs.games.rules import Rules
from flockrl.games.sequence import Seat, SequenceForm

MOST = 1_000_000
"""The most histories that a game may have to be unfolded."""
SMALL_BATCH, LARGE_BATCH = 128, 4_096


class Moment(NamedTuple):
    """All K histories of a number of moves after which somebody moves.

    seen: [K, N, O] what the players see; legal: [K, N, A] their legal actions; sets: [K, N] the information sets of
    those who move, -1 for those who wait; parents: [K] the history of the moment before that each goes on from.
    """

    seen: np.ndarray
    legal: np.ndarray
    sets: np.ndarray
    parents: np.ndarray


@dataclass(frozen=True, eq=False)
class Extensive:
    """A game with information sets. histories: how many there are, draws of chance and ends included."""

    name: str
    form: SequenceForm
    moments: tuple[Moment, ...]
    histories: int
    shown: tuple[np.ndarray, ...]
    """For each player [I, O]: what it sees in each of its information sets."""


class Front(NamedTuple):
    """Histories of the same number of moves. seq: [K, N] the players' sequences; odds: [K] what chance contributed;
    paid: [K, N] rewards so far; parents: [K]."""

    states: PyTree
    seq: np.ndarray
    odds: np.ndarray
    paid: np.ndarray
    parents: np.ndarray

    def at(self, rows: np.ndarray) -> Front:
        return Front(jax.tree.map(lambda x: x[rows], self.states), *(x[rows] for x in self[1:]))


class Look(NamedTuple):
    """What the rules say about K states."""

    movers: np.ndarray
    over: np.ndarray
    legal: np.ndarray
    seen: np.ndarray
    odds: np.ndarray

    def at(self, rows: np.ndarray) -> Look:
        return Look(*(x[rows] for x in self))


class Stepper:
    """A game's rules for many states at once, compiled for a few batch sizes."""

    def __init__(self, rules: Rules):
        self.rules = rules

        def look(state: PyTree) -> Look:
            odds = rules.odds(state) if rules.outcomes else jnp.zeros(0)
            return Look(rules.movers(state), rules.over(state), rules.legal(state), rules.see(state), odds)  # type: ignore[arg-type]

        self._look, self._move, self._draw = (_compiled(f) for f in (look, rules.move, rules.draw))

    def start(self) -> PyTree:
        return jax.tree.map(lambda x: np.asarray(x)[None], self.rules.start())

    def look(self, states: PyTree) -> Look:
        return Look(*_in_batches(self._look, states))

    def move(self, states: PyTree, actions: np.ndarray) -> tuple[PyTree, np.ndarray]:
        return _in_batches(self._move, states, actions)

    def draw(self, states: PyTree, outcomes: np.ndarray) -> tuple[PyTree, np.ndarray]:
        return _in_batches(self._draw, states, outcomes)


def _compiled(function: Any) -> Any:
    """The function for many rows. It runs few times: a quick compilation is worth more than quick code."""
    hurry = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else {}
    return jax.jit(jax.vmap(function), compiler_options=hurry)


def _in_batches(function: Any, *trees: Any) -> Any:
    """A mapped function applied to any number of rows, in batches of few sizes, so that it is compiled seldom."""
    rows = len(jax.tree.leaves(trees)[0])
    size = SMALL_BATCH if rows <= SMALL_BATCH else LARGE_BATCH
    parts = []
    for start in range(0, max(rows, 1), size):
        place = np.minimum(np.arange(start, start + size), max(rows - 1, 0))
        given = jax.tree.map(lambda x, place=place: x[place], trees)
        parts.append(jax.tree.map(lambda x, left=rows - start: np.asarray(x)[:left], function(*given)))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


class _Sets:
    """The information sets found so far, by what their player sees."""

    def __init__(self, name: str, players: int):
        self.name, self.players = name, players
        self.numbers: list[dict[bytes, int]] = [{} for _ in range(players)]
        self.parents: list[list[int]] = [[] for _ in range(players)]
        self.legal: list[list[np.ndarray]] = [[] for _ in range(players)]
        self.shown: list[list[np.ndarray]] = [[] for _ in range(players)]
        self.starts: list[list[int]] = [[] for _ in range(players)]
        self.sequences = [1] * players

    def number(self, look: Look, seq: np.ndarray) -> np.ndarray:
        """[K, N] the information set of each player who moves, -1 for those who wait."""
        found = np.full(look.movers.shape, -1)
        for player in range(self.players):
            rows = np.nonzero(look.movers[:, player])[0]
            if not len(rows):
                continue
            seen = np.ascontiguousarray(look.seen[rows, player])
            keys = seen.view(np.dtype((np.void, seen.shape[1] * seen.itemsize))).reshape(-1)
            unlike, first, which = np.unique(keys, return_index=True, return_inverse=True)
            numbers = np.array([
                self._one(player, key.tobytes(), look.legal[rows[i], player], seq[rows[i], player], seen[i])
                for key, i in zip(unlike, first, strict=True)
            ])  # fmt: skip
            sets = numbers[which]
            self._same(player, sets, look.legal[rows, player], seq[rows, player])
            found[rows, player] = sets
        return found

    def _one(self, player: int, key: bytes, legal: np.ndarray, parent: int, seen: np.ndarray) -> int:
        numbers = self.numbers[player]
        if key not in numbers:
            numbers[key] = len(numbers)
            self.parents[player].append(int(parent))
            self.legal[player].append(legal)
            self.shown[player].append(seen)
            self.starts[player].append(self.sequences[player])
            self.sequences[player] += int(legal.sum())
        return numbers[key]

    def _same(self, player: int, sets: np.ndarray, legal: np.ndarray, seq: np.ndarray) -> None:
        """Histories that look alike must have the same legal actions and the same own past."""
        if (np.array(self.parents[player])[sets] != seq).any():
            raise UsageError(
                f"{self.name}: player {player} forgets what it did, so that its game tree cannot be solved."
            )
        if (np.array(self.legal[player])[sets] != legal).any():
            raise UsageError(f"{self.name}: player {player} cannot know its legal actions from what it sees.")

    def next(self, player: int, sets: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """[K] the sequence that taking the actions in the information sets makes."""
        ranks = np.cumsum(np.array(self.legal[player]), 1)[sets, actions] - 1
        return np.array(self.starts[player])[sets] + ranks

    def seat(self, player: int) -> Seat:
        legal = np.array(self.legal[player]).reshape(len(self.parents[player]), -1)
        actions = np.concatenate([[-1], np.nonzero(legal)[1]]).astype(int)
        starts, counts = np.array(self.starts[player], int), legal.sum(1).astype(int)
        return Seat(np.array(self.parents[player], int), counts, starts, actions)


def unfold(rules: Rules, most: int = MOST) -> Extensive:
    """All histories of a game. One with more than `most` of them is refused."""
    if not rules.recall:
        raise UsageError(
            f"{rules.name} is solved by its states, not as a game tree: its players see the present alone."
        )
    stepper, sets = Stepper(rules), _Sets(rules.name, rules.players)
    n = rules.players
    front = Front(stepper.start(), np.zeros((1, n), int), np.ones(1), np.zeros((1, n)), np.zeros(1, int))
    moments: list[Moment] = []
    ends: list[Front] = []
    histories = 0
    while len(front.odds):
        front, look, drawn = _settle(stepper, front, rules, most - histories)
        histories += drawn
        ends.append(front.at(look.over))
        front, look = front.at(~look.over), look.at(~look.over)
        if not len(front.odds):
            break
        numbers = sets.number(look, front.seq)
        legal = look.legal & look.movers[..., None]
        legal = np.concatenate([legal, ~look.movers[..., None]], 2) if rules.waits else legal
        moments.append(Moment(look.seen.astype(np.float32), legal, numbers, front.parents))
        front = _moves(stepper, sets, front, look, numbers, rules, most - histories)
    return _assembled(rules, sets, ends, moments, histories)


def _settle(stepper: Stepper, front: Front, rules: Rules, room: int) -> tuple[Front, Look, int]:
    """Let chance draw wherever it is to. Returns the histories after all draws, and how many there were on the way."""
    done: list[tuple[Front, Look]] = []
    count = 0
    while len(front.odds):
        count += len(front.odds)
        look = stepper.look(front.states)
        draws = ~look.movers.any(1) & ~look.over
        done.append((front.at(~draws), look.at(~draws)))
        front, look = front.at(draws), look.at(draws)
        rows, outcomes = np.nonzero(look.odds > 0)
        _fits(rules, count + len(rows), room)
        if len(rows):
            states, paid = stepper.draw(front.at(rows).states, outcomes.astype(np.int32))
            chance = front.odds[rows] * look.odds[rows, outcomes].astype(float)
            chance = chance / look.odds[rows].astype(float).sum(1)
            front = Front(states, front.seq[rows], chance, front.paid[rows] + paid, front.parents[rows])
        elif len(front.odds):
            raise UsageError(f"{rules.name}: chance draws, and no outcome has a probability above 0.")
    fronts, looks = zip(*done, strict=True)
    together = jax.tree.map(lambda *x: np.concatenate(x), *fronts)
    return together, Look(*(np.concatenate(x) for x in zip(*looks, strict=True))), count


def _moves(
    stepper: Stepper, sets: _Sets, front: Front, look: Look, numbers: np.ndarray, rules: Rules, room: int
) -> Front:
    """All joint moves from these histories."""
    legal = np.where(look.movers[..., None], look.legal, np.arange(rules.choices) == 0)
    _fits(rules, int(legal.sum(2).prod(1).sum()), room)
    rows, actions = joint_moves(legal)
    states, paid = stepper.move(front.at(rows).states, actions.astype(np.int32))
    seq = front.seq[rows].copy()
    for player in range(rules.players):
        mine = np.nonzero(look.movers[rows, player])[0]
        if len(mine):
            seq[mine, player] = sets.next(player, numbers[rows[mine], player], actions[mine, player])
    return Front(states, seq, front.odds[rows], front.paid[rows] + paid, rows)


def joint_moves(legal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All combinations of legal actions [K, N, A]: the row of each [M], and the actions [M, N]."""
    rows, actions = np.arange(len(legal)), np.zeros((len(legal), 0), int)
    for player in range(legal.shape[1]):
        place, chosen = np.nonzero(legal[rows, player])
        rows, actions = rows[place], np.concatenate([actions[place], chosen[:, None]], 1)
    return rows, actions


def _fits(rules: Rules, count: int, room: int) -> None:
    if count > room:
        raise UsageError(f"{rules.name} is too large to enumerate: it has more than {MOST:,} histories.")


def _assembled(rules: Rules, sets: _Sets, ends: list[Front], moments: list[Moment], histories: int) -> Extensive:
    seq = np.concatenate([end.seq for end in ends])
    worth = np.concatenate([end.paid * end.odds[:, None] for end in ends])
    leaves, which = np.unique(seq, axis=0, return_inverse=True)
    total = np.zeros((len(leaves), rules.players))
    np.add.at(total, which.reshape(-1), worth)
    seats = tuple(sets.seat(player) for player in range(rules.players))
    shown = tuple(np.array(sets.shown[player]) for player in range(rules.players))
    return Extensive(rules.name, SequenceForm(seats, leaves, total), tuple(moments), histories, shown)
