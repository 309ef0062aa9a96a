"""Markov games on small grids: Littman's soccer, and the grid games of Hu and Wellman."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array
from flockrl.envs.games.rules import Rules, one_hot, seats, versus

MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1], [0, 0]], np.int32)
"""Rows and columns by which up, down, left, right and stand move."""


class SoccerState(NamedTuple):
    """at: [2, 2] row and column of each player; ball: who has it, -1 before it is drawn; plan: [2] moves chosen and not
    yet made, -1 where there are none; scored: who scored, or -1."""

    at: Array
    ball: Array
    plan: Array
    scored: Array


class Soccer(Rules):
    """Littman's soccer (1994) on 4 x 5 squares. Up (0), down (1), left (2), right (3), stand (4).

    Both choose at once, and chance decides who moves first. A move into the other's square does not take place, and
    gives the ball to the other. Whoever carries the ball out of the board beside the two middle rows scores 1 from
    the other and the game is over: the first player on the right, the second on the left. At first chance gives
    the ball to one of them. By symmetry the value is 0 before that. Solvers discount by 0.9 as Littman did.
    """

    name = "games/soccer"
    choices, outcomes, draws, waits = 5, 2, 1, False
    size, longest, endless, recall, discount = 2 + 40 + 2, 100, True, False, 0.9
    BEGIN = np.array([[2, 1], [1, 3]], np.int32)

    def start(self) -> SoccerState:
        none = jnp.int32(-1)
        return SoccerState(jnp.asarray(self.BEGIN), none, jnp.full(2, -1, jnp.int32), none)

    def over(self, state: SoccerState) -> Array:
        return state.scored >= 0

    def movers(self, state: SoccerState) -> Array:
        return jnp.broadcast_to((state.ball >= 0) & (state.plan[0] < 0) & ~self.over(state), 2)

    def move(self, state: SoccerState, action: Array) -> tuple[SoccerState, Array]:
        return state._replace(plan=action.astype(jnp.int32)), jnp.zeros(2)

    def odds(self, state: SoccerState) -> Array:
        return jnp.full(2, 0.5)

    def draw(self, state: SoccerState, outcome: Array) -> tuple[SoccerState, Array]:
        """The outcome says who gets the ball, or who moves first."""
        given = state._replace(ball=outcome)
        moved = self._walk(self._walk(state, outcome), 1 - outcome)._replace(plan=jnp.full(2, -1, jnp.int32))
        kick_off = state.ball < 0
        after = SoccerState(*(jnp.where(kick_off, a, b) for a, b in zip(given, moved, strict=True)))
        paid = jnp.where(after.scored >= 0, jnp.where(after.scored == 0, 1.0, -1.0), 0.0)
        return after, versus(paid)

    def _walk(self, state: SoccerState, player: Array) -> SoccerState:
        """One player makes its move."""
        own, other = state.at[player], state.at[1 - player]
        to = own + jnp.asarray(MOVES)[state.plan[player]]
        column = jnp.where(player == 0, 5, -1)
        goal = (state.ball == player) & (to[1] == column) & ((to[0] == 1) | (to[0] == 2))
        inside = (to >= 0).all() & (to < np.array([4, 5])).all()
        bumps = inside & (to == other).all()
        free = inside & ~bumps & (state.scored < 0)
        at = jnp.where((np.arange(2) == player)[:, None] & free, to, state.at)
        ball = jnp.where(bumps & (state.ball == player) & (state.scored < 0), 1 - player, state.ball)
        scored = jnp.where(goal & (state.scored < 0), player, state.scored)
        return SoccerState(at, ball.astype(jnp.int32), state.plan, scored.astype(jnp.int32))

    def see(self, state: SoccerState) -> Array:
        places = one_hot(state.at[:, 0] * 5 + state.at[:, 1], 20)
        has = (state.ball == np.arange(2)).astype(jnp.float32)
        return jnp.concatenate([seats(), places, places[::-1], has[:, None], has[::-1, None]], 1)


class GridState(NamedTuple):
    """at: [2, 2] row and column of each player; plan: [2] moves chosen and not yet made, -1 where there are none; done:
    whether somebody has arrived."""

    at: Array
    plan: Array
    done: Array


class GridGame(Rules):
    """Grid games 1 and 2 of Hu and Wellman (2003) on 3 x 3 squares. Up (0), down (1), left (2), right (3).

    The players begin in the lower corners and move at once. Arriving at one's goal pays 100 and ends the game, for
    both if both arrive. Players who would end on the same square, unless it is a goal, stay where they were and
    lose 1 each. In game 1 the goals are the opposite upper corners. In game 2 both want to the middle of the upper
    row, and a move up from a beginning square succeeds only half of the time. Solvers discount by 0.99.
    """

    choices, waits, size, longest, endless, recall, discount = 4, False, 2 + 18, 50, True, False, 0.99
    BEGIN = np.array([[2, 0], [2, 2]], np.int32)

    def __init__(self, number: int):
        self.name, self.barriers = f"games/grid_game_{number}", number == 2
        self.goals = np.array([[0, 1], [0, 1]] if self.barriers else [[0, 2], [0, 0]], np.int32)
        self.outcomes, self.draws = (4, 1) if self.barriers else (0, 0)

    def start(self) -> GridState:
        return GridState(jnp.asarray(self.BEGIN), jnp.full(2, -1, jnp.int32), jnp.bool_(False))

    def over(self, state: GridState) -> Array:
        return state.done

    def movers(self, state: GridState) -> Array:
        return jnp.broadcast_to((state.plan[0] < 0) & ~state.done, 2)

    def move(self, state: GridState, action: Array) -> tuple[GridState, Array]:
        if self.barriers:
            return state._replace(plan=action.astype(jnp.int32)), jnp.zeros(2)
        return self._walk(state, action, jnp.ones(2, bool))

    def odds(self, state: GridState) -> Array:
        return jnp.full(4, 0.25)

    def draw(self, state: GridState, outcome: Array) -> tuple[GridState, Array]:
        return self._walk(state, state.plan, jnp.stack([outcome % 2, outcome // 2]) == 1)

    def _walk(self, state: GridState, action: Array, lucky: Array) -> tuple[GridState, Array]:
        """lucky: [2] bool, who gets through a barrier."""
        steps = jnp.asarray(MOVES)[jnp.clip(action, 0, 3)]
        blocked = self.barriers & (state.at == self.BEGIN).all(1) & (action == 0) & ~lucky
        to = jnp.clip(state.at + jnp.where(blocked[:, None], 0, steps), 0, 2)
        goal = (to[0] == self.goals).all(1).any()
        clash = (to[0] == to[1]).all() & ~goal
        at = jnp.where(clash, state.at, to)
        arrived = (at == self.goals).all(1)
        paid = jnp.where(arrived, 100.0, 0.0) - jnp.where(clash, 1.0, 0.0)
        return GridState(at, jnp.full(2, -1, jnp.int32), arrived.any()), paid.astype(jnp.float32)

    def see(self, state: GridState) -> Array:
        places = one_hot(state.at[:, 0] * 3 + state.at[:, 1], 9)
        return jnp.concatenate([seats(), places, places[::-1]], 1)
