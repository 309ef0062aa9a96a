"""Tic-tac-toe and connect four: two players place stones in turn, and see the whole board."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Observation
from flockrl.envs.api import Renaming
from flockrl.envs.games.rules import Rules, seats, versus
from flockrl.envs.games.search import DEEPEST, search

MOST_OPENING = 6
"""The most stones of an opening: nobody can have four of them."""


class BoardState(NamedTuple):
    """board: [H, W] 0 empty, 1 and 2 the players' stones; winner: 1, 2, or 0 while nobody has won; begun: whether the
    players move, or chance still does."""

    board: Array
    winner: Array
    begun: Array | bool = True


class Board(Rules):
    """What both games share: stones in turn, and the first line of `line` stones wins 1 from the other; a full board
    is a draw. Each player sees which seat it has, its own stones and the other's."""

    height: int
    width: int
    line: int
    recall = False

    def start(self) -> BoardState:
        return BoardState(jnp.zeros((self.height, self.width), jnp.int32), jnp.int32(0))

    @property
    def size(self) -> int:  # type: ignore[override]
        return 2 + 2 * self.height * self.width

    @property
    def longest(self) -> int:  # type: ignore[override]
        return self.height * self.width

    def over(self, state: BoardState) -> Array:
        return (state.winner > 0) | (state.board > 0).all()

    def _player(self, state: BoardState) -> Array:
        return (state.board > 0).sum() % 2

    def movers(self, state: BoardState) -> Array:
        return ~self.over(state) & (self._player(state) == np.arange(2))

    def _put(self, state: BoardState, action: Array) -> Array:
        """[H, W] bool: where the stone of `action` lies."""
        raise NotImplementedError

    def move(self, state: BoardState, action: Array) -> tuple[BoardState, Array]:
        player = self._player(state)
        board = jnp.where(self._put(state, action[player]), player + 1, state.board)
        won = lines(board == player + 1, self.line)
        after = BoardState(board, jnp.where(won, player + 1, 0).astype(jnp.int32))
        return after, versus(jnp.where(won, jnp.where(player == 0, 1.0, -1.0), 0.0))

    def see(self, state: BoardState) -> Array:
        first, second = ((state.board == stone).astype(jnp.float32).reshape(-1) for stone in (1, 2))
        stones = jnp.stack([jnp.concatenate([first, second]), jnp.concatenate([second, first])])
        return jnp.concatenate([seats(), stones], 1)


def lines(own: Array, length: int) -> Array:
    """Whether stones [H, W] bool hold a line of that length: across, down or diagonal."""
    height, width = own.shape
    found = jnp.bool_(False)
    for dy, dx in ((0, 1), (1, 0), (1, 1), (1, -1)):
        rows, columns = height - dy * (length - 1), width - abs(dx) * (length - 1)
        left = (length - 1) if dx < 0 else 0
        together = jnp.ones((rows, columns), bool)
        for k in range(length):
            y, x = k * dy, left + k * dx
            together &= own[y : y + rows, x : x + columns]
        found |= together.any()
    return found


class TicTacToe(Board):
    """Tic-tac-toe: action i puts a stone on square i, counted row by row. Perfect play is a draw."""

    name = "games/tic_tac_toe"
    height, width, line, choices = 3, 3, 3, 9

    def legal(self, state: BoardState) -> Array:
        return jnp.broadcast_to(state.board.reshape(-1) == 0, (2, 9))

    def _put(self, state: BoardState, action: Array) -> Array:
        return (jnp.arange(9) == action).reshape(3, 3)


class ConnectFour(Board):
    """Connect four on six rows and seven columns: action i drops a stone into column i. The player who begins wins with
    perfect play. The policy `search` that comes with it looks `depth` moves ahead. A game begins with up to `opening`
    stones that chance drops, in turn for both players: every number of them is as likely, and every free column."""

    name = "games/connect_four"
    height, width, line, choices = 6, 7, 4, 7

    def __init__(self, depth: int = 4, opening: int = 0):
        if not 1 <= depth <= DEEPEST:
            raise UsageError(f"depth of {self.name} must be from 1 to {DEEPEST} moves, not {depth}.")
        if not 0 <= opening <= MOST_OPENING:
            raise UsageError(f"opening of {self.name} must be from 0 to {MOST_OPENING} stones, not {opening}.")
        self.policies = {"search": partial(self._search, depth)}
        self.opening = opening
        self.outcomes, self.draws = (self.width + 1, opening + 1) if opening else (0, 0)

    def start(self) -> BoardState:
        return super().start()._replace(begun=jnp.bool_(not self.opening))

    def movers(self, state: BoardState) -> Array:
        return super().movers(state) & state.begun

    def odds(self, state: BoardState) -> Array:
        """Of a stone in each column, and of no more, such that every number of stones is as likely."""
        free = state.board[0] == 0
        enough = 1 / (self.opening + 1 - (state.board > 0).sum())
        return jnp.append((1 - enough) * free / free.sum(), enough)

    def draw(self, state: BoardState, outcome: Array) -> tuple[BoardState, Array]:
        board = jnp.where(self._put(state, outcome), self._player(state) + 1, state.board)
        return state._replace(board=board, begun=outcome == self.width), jnp.zeros(2)

    def symmetries(self, key: Array) -> Renaming:
        """The board as it is, or in a mirror."""
        columns = jnp.where(jax.random.bernoulli(key), jnp.arange(7)[::-1], jnp.arange(7))
        stones = 2 + (np.arange(12) * 7)[:, None] + columns  # rows of one's own board, then of the other's
        return Renaming(
            jnp.concatenate([jnp.arange(2), stones.reshape(-1)]).astype(jnp.int32),
            jnp.append(columns, self.choices).astype(jnp.int32),
        )

    def legal(self, state: BoardState) -> Array:
        return jnp.broadcast_to(state.board[0] == 0, (2, 7))

    def _put(self, state: BoardState, action: Array) -> Array:
        row = (state.board == 0).sum(0) - 1  # row 0 is the top
        return (np.arange(6)[:, None] == row) & (np.arange(7) == action)

    def _search(self, depth: int, place: Any, seen: Observation, key: Array) -> Array:
        """The move of the player whose turn it is; the other waits."""
        board, player = place.state.board.reshape(-1), self._player(place.state)
        column = search(board == player + 1, board == 2 - player, depth, key)
        return jnp.where(jnp.arange(2) == player, column, self.choices).astype(jnp.int32)
