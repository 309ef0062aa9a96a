"""Liar's dice and Goofspiel with the rules and the numbering of OpenSpiel."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array
from flockrl.envs.games.rules import Rules, one_hot, seats, versus


class DiceState(NamedTuple):
    """dice: [2] faces from 0, -1 before the roll; bids: [2 F] those made so far; called: who called the other a liar,
    or -1."""

    dice: Array
    bids: Array
    called: Array


class LiarsDice(Rules):
    """Liar's dice with one die for each of two players, who see their own. The players bid in turn, each higher than
    before: action (q - 1) F + f is the bid that at least q dice show face f, where the highest face counts as
    every face. The last action calls the bid a lie: its caller wins 1 if it is one, else the bidder does.
    """

    waits = True

    def __init__(self, faces: int = 6):
        if not 2 <= faces <= 8:
            raise UsageError(f"games/liars_dice: faces must be from 2 to 8, not {faces}.")
        self.name, self.faces = "games/liars_dice", faces
        self.choices = self.longest = 2 * faces + 1
        self.outcomes, self.draws, self.size = faces, 2, 2 + 3 * faces

    def start(self) -> DiceState:
        return DiceState(jnp.full(2, -1, jnp.int32), jnp.zeros(2 * self.faces, bool), jnp.int32(-1))

    def over(self, state: DiceState) -> Array:
        return state.called >= 0

    def movers(self, state: DiceState) -> Array:
        going = (state.dice[1] >= 0) & ~self.over(state)
        return going & (state.bids.sum() % 2 == np.arange(2))

    def _last(self, state: DiceState) -> Array:
        """The highest bid, or -1."""
        return jnp.where(state.bids, np.arange(2 * self.faces), -1).max()

    def legal(self, state: DiceState) -> Array:
        last = self._last(state)
        row = jnp.append(jnp.arange(2 * self.faces) > last, last >= 0)
        return jnp.broadcast_to(row, (2, self.choices))

    def move(self, state: DiceState, action: Array) -> tuple[DiceState, Array]:
        player = state.bids.sum() % 2
        chosen, last = action[player], self._last(state)
        calls = chosen == 2 * self.faces
        after = DiceState(
            state.dice,
            state.bids | (np.arange(2 * self.faces) == chosen),
            jnp.where(calls, player, -1).astype(jnp.int32),
        )
        count, face = last // self.faces + 1, last % self.faces
        shown = ((state.dice == face) | (state.dice == self.faces - 1)).sum()
        caller = jnp.where(shown < count, 1.0, -1.0)
        return after, versus(jnp.where(calls, caller * jnp.where(player == 0, 1.0, -1.0), 0.0))

    def odds(self, state: DiceState) -> Array:
        return jnp.ones(self.faces) / self.faces

    def draw(self, state: DiceState, outcome: Array) -> tuple[DiceState, Array]:
        second = state.dice[0] >= 0
        return state._replace(dice=jnp.where(np.arange(2) == second, outcome, state.dice)), jnp.zeros(2)

    def see(self, state: DiceState) -> Array:
        public = jnp.broadcast_to(state.bids.astype(jnp.float32), (2, 2 * self.faces))
        return jnp.concatenate([seats(), one_hot(state.dice, self.faces), public], 1)


class GoofspielState(NamedTuple):
    """bids: [2, K] cards (from 0) that each player bid in each round, -1 before; prizes: [K] cards in the order of
    play, -1 before; played: rounds played."""

    bids: Array
    prizes: Array
    played: Array


ORDERS, SCORES = ("descending", "ascending", "random"), ("win", "points")


class Goofspiel(Rules):
    """Goofspiel with K cards: in each round both players bid a card of their hand at once for a prize card, and the
    higher bid wins its points; equal bids win nothing. The last card is played by itself.

    order: of the prizes. hidden: whether players learn only who won a bid, and not the other's card. score: `win`
    pays 1 for more points than the other, `points` pays the difference. Its value is 0.
    """

    waits = False

    def __init__(self, cards: int = 4, order: str = "descending", hidden: bool = True, score: str = "win"):
        if not 2 <= cards <= 13:
            raise UsageError(f"games/goofspiel: cards must be from 2 to 13, not {cards}.")
        for what, word, choices in (("order", order, ORDERS), ("score", score, SCORES)):
            if word not in choices:
                raise UsageError(f"games/goofspiel: {what} must be one of {', '.join(choices)}, not {word!r}.")
        self.name, self.cards, self.order, self.hidden, self.score = "games/goofspiel", cards, order, hidden, score
        self.choices, self.longest = cards, cards - 1
        self.outcomes = cards if order == "random" else 0
        self.draws = 1 if order == "random" else 0
        self.size = 2 + 2 * cards**2 + (3 * cards if hidden else cards**2)

    def start(self) -> GoofspielState:
        k = self.cards
        order = {"descending": np.arange(k)[::-1], "ascending": np.arange(k), "random": np.full(k, -1)}[self.order]
        return GoofspielState(jnp.full((2, k), -1, jnp.int32), jnp.asarray(order, jnp.int32), jnp.int32(0))

    def over(self, state: GoofspielState) -> Array:
        return state.played == self.cards

    def movers(self, state: GoofspielState) -> Array:
        prize = jnp.where(np.arange(self.cards) == state.played, state.prizes, 0).min() >= 0
        return jnp.broadcast_to(prize & ~self.over(state) & (state.played < self.cards - 1), 2)

    def _hands(self, bids: Array) -> Array:
        """[2, K] bool: the cards that each player still has."""
        return ~(bids[:, :, None] == np.arange(self.cards)).any(1)

    def legal(self, state: GoofspielState) -> Array:
        return self._hands(state.bids)

    def move(self, state: GoofspielState, action: Array) -> tuple[GoofspielState, Array]:
        bids = jnp.where(np.arange(self.cards) == state.played, action[:, None], state.bids)
        after = GoofspielState(bids, state.prizes, state.played + 1)
        return self._close(after)

    def _close(self, state: GoofspielState) -> tuple[GoofspielState, Array]:
        """Play the last card where all prizes lie open and one card is left."""
        k = self.cards
        last = (state.played == k - 1) & (state.prizes >= 0).all()
        rest = self._hands(state.bids).argmax(1).astype(jnp.int32)
        bids = jnp.where(last & (np.arange(k) == k - 1), rest[:, None], state.bids)
        after = GoofspielState(bids, state.prizes, jnp.where(last, k, state.played).astype(jnp.int32))
        points = (jnp.sign(bids[0] - bids[1]) * (state.prizes + 1)).sum()
        paid = jnp.sign(points) if self.score == "win" else points
        return after, versus(jnp.where(last, paid, 0).astype(jnp.float32))

    def odds(self, state: GoofspielState) -> Array:
        left = ~(state.prizes[:, None] == np.arange(self.cards)).any(0)
        return left / jnp.maximum(left.sum(), 1)

    def draw(self, state: GoofspielState, outcome: Array) -> tuple[GoofspielState, Array]:
        place = (state.prizes >= 0).sum()
        return self._close(state._replace(prizes=jnp.where(np.arange(self.cards) == place, outcome, state.prizes)))

    def see(self, state: GoofspielState) -> Array:
        k = self.cards
        prizes = jnp.broadcast_to(one_hot(state.prizes, k).reshape(-1), (2, k * k))
        own = one_hot(state.bids, k).reshape(2, -1)
        if self.hidden:
            sign = jnp.sign(state.bids - state.bids[::-1])
            played = state.bids >= 0
            others = jnp.stack([played & (sign == s) for s in (1, 0, -1)], -1).astype(jnp.float32).reshape(2, -1)
        else:
            others = one_hot(state.bids[::-1], k).reshape(2, -1)
        return jnp.concatenate([seats(), own, prizes, others], 1)
