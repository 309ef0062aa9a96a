"""Two small games of poker with the rules and the numbering of OpenSpiel: Kuhn's and Leduc."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array
from flockrl.envs.games.rules import Rules, one_hot, seats, versus


class KuhnState(NamedTuple):
    """cards: [2], -1 before they are dealt; moves: [3] passes (0) and bets (1), -1 before; played: moves so far."""

    cards: Array
    moves: Array
    played: Array


class Kuhn(Rules):
    """Kuhn poker (Kuhn 1950): three cards, one each, an ante of 1 each and one bet of 1. Pass (0) or bet (1).

    The value for the player who begins is -1/18.
    """

    name = "games/kuhn"
    choices, outcomes, draws, longest = 2, 3, 2, 3
    size = 2 + 3 + 6

    def start(self) -> KuhnState:
        return KuhnState(jnp.full(2, -1, jnp.int32), jnp.full(3, -1, jnp.int32), jnp.int32(0))

    def movers(self, state: KuhnState) -> Array:
        going = (state.cards[1] >= 0) & ~self.over(state)
        return going & (state.played % 2 == np.arange(2))

    def over(self, state: KuhnState) -> Array:
        checked_then_bet = (state.moves[0] == 0) & (state.moves[1] == 1)
        return (state.played == 3) | ((state.played == 2) & ~checked_then_bet)

    def move(self, state: KuhnState, action: Array) -> tuple[KuhnState, Array]:
        chosen = jnp.clip(action[state.played % 2], 0, 1)
        moves = jnp.where(np.arange(3) == state.played, chosen, state.moves)
        after = KuhnState(state.cards, moves, state.played + 1)
        return after, versus(jnp.where(self.over(after), self._paid(after), 0.0))

    def _paid(self, state: KuhnState) -> Array:
        """What the first player wins at the end."""
        bets = (state.moves == 1).sum()
        last = jnp.where(state.played == 3, state.moves[2], state.moves[1])
        higher = jnp.where(state.cards[0] > state.cards[1], 1.0, -1.0)
        bettor = jnp.where(state.moves[0] == 1, 1.0, -1.0)
        folded = (bets == 1) & (last == 0)
        return jnp.where(folded, bettor, higher * jnp.where(bets == 2, 2.0, 1.0))

    def odds(self, state: KuhnState) -> Array:
        left = jnp.arange(3) != state.cards[0]
        return left / left.sum()

    def draw(self, state: KuhnState, outcome: Array) -> tuple[KuhnState, Array]:
        second = state.cards[0] >= 0
        cards = jnp.where(np.arange(2) == second, outcome, state.cards)
        return state._replace(cards=cards), jnp.zeros(2)

    def see(self, state: KuhnState) -> Array:
        public = jnp.broadcast_to(one_hot(state.moves, 2).reshape(-1), (2, 6))
        return jnp.concatenate([seats(), one_hot(state.cards, 3), public], 1)


class LeducState(NamedTuple):
    """cards: [2] and public: -1 before they are dealt. moves: [2 rounds, 4], calls (0) and raises (1), -1 before.
    counts: [2] moves in each round; stakes: [2] money in the pot; round: 0 or 1; folded: who folded, or -1; done:
    whether it is over."""

    cards: Array
    public: Array
    moves: Array
    counts: Array
    stakes: Array
    round: Array
    folded: Array
    done: Array


FOLD, CALL, RAISE = 0, 1, 2


class Leduc(Rules):
    """Leduc poker (Southey et al. 2005): six cards of three ranks, one each and a public one after the first of two
    rounds. The ante is 1, raises are 2 in the first round and 4 in the second, at most two in a round.
    Fold (0), call or check (1), raise (2). A pair with the public card wins, else the higher rank; equal hands
    share the pot. The value for the player who begins is -0.085606.
    """

    name = "games/leduc"
    choices, outcomes, draws, longest = 3, 6, 2, 8
    size = 2 + 6 + 6 + 16

    def start(self) -> LeducState:
        none = jnp.int32(-1)
        return LeducState(
            jnp.full(2, -1, jnp.int32), none, jnp.full((2, 4), -1, jnp.int32), jnp.zeros(2, jnp.int32),
            jnp.ones(2, jnp.int32), jnp.int32(0), none, jnp.bool_(False),
        )  # fmt: skip

    def over(self, state: LeducState) -> Array:
        return state.done

    def _player(self, state: LeducState) -> Array:
        return state.counts[state.round] % 2

    def movers(self, state: LeducState) -> Array:
        dealt = (state.cards[1] >= 0) & ((state.round == 0) | (state.public >= 0))
        return dealt & ~state.done & (self._player(state) == np.arange(2))

    def legal(self, state: LeducState) -> Array:
        raises = (state.moves[state.round] == 1).sum()
        own = state.stakes[self._player(state)]
        row = jnp.stack([state.stakes.max() > own, jnp.bool_(True), raises < 2])
        return jnp.broadcast_to(row, (2, 3))

    def move(self, state: LeducState, action: Array) -> tuple[LeducState, Array]:
        player, now = self._player(state), state.round
        chosen, count = action[player], state.counts[now]
        mine = np.arange(2) == player
        raised = chosen == RAISE
        stake = state.stakes.max() + jnp.where(raised, jnp.where(now == 0, 2, 4), 0)
        stakes = jnp.where(mine & (chosen != FOLD), stake, state.stakes)
        here = (np.arange(2)[:, None] == now) & (np.arange(4) == count)
        moves = jnp.where(here & (chosen != FOLD), raised.astype(jnp.int32), state.moves)
        counts = state.counts + (np.arange(2) == now)
        closed = (chosen == CALL) & (count > 0)  # a call ends the round, except a check that opens it
        folded = jnp.where(chosen == FOLD, player, -1)
        after = LeducState(
            state.cards, state.public, moves, counts, stakes, jnp.where(closed & (now == 0), 1, now), folded,
            (chosen == FOLD) | (closed & (now == 1)),
        )  # fmt: skip
        return after, versus(jnp.where(after.done, self._paid(after), 0.0))

    def _paid(self, state: LeducState) -> Array:
        """What the first player wins at the end."""
        ranks, public = state.cards // 2, state.public // 2
        strength = ranks + 3 * (ranks == public)
        shown = jnp.sign(strength[0] - strength[1])
        given_up = jnp.where(state.folded == 0, -1, 1)
        winner = jnp.where(state.folded >= 0, given_up, shown)
        return (winner * state.stakes.min()).astype(jnp.float32)

    def odds(self, state: LeducState) -> Array:
        left = (jnp.arange(6) != state.cards[0]) & (jnp.arange(6) != state.cards[1])
        return left / left.sum()

    def draw(self, state: LeducState, outcome: Array) -> tuple[LeducState, Array]:
        place = jnp.where(state.cards[0] < 0, 0, jnp.where(state.cards[1] < 0, 1, 2))
        cards = jnp.where(np.arange(2) == place, outcome, state.cards)
        public = jnp.where(place == 2, outcome, state.public)
        return state._replace(cards=cards, public=public), jnp.zeros(2)

    def see(self, state: LeducState) -> Array:
        public = jnp.concatenate([one_hot(state.public, 6), one_hot(state.moves, 2).reshape(-1)])
        return jnp.concatenate([seats(), one_hot(state.cards, 6), jnp.broadcast_to(public, (2, 22))], 1)
