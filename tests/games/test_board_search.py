"""The search that comes with connect four: against minimax by hand, tactics that it must see, and matches with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.envs import make
from flockrl.envs.games.boards import BoardState
from flockrl.envs.games.search import LATER, LINES, WORTH, column_values, depth_2, search

jitted = jax.jit(column_values, static_argnums=2)


def drop(board, column, stone):
    """The board [6, 7] after a move, or None where the column is full."""
    rows = np.nonzero(board[:, column] == 0)[0]
    if not len(rows):
        return None
    after = board.copy()
    after[rows[-1], column] = stone
    return after


def has_line(board, stone):
    own = board == stone
    for y, x in np.argwhere(own):
        for dy, dx in ((0, 1), (1, 0), (1, 1), (1, -1)):
            cells = [(y + k * dy, x + k * dx) for k in range(4)]
            if all(0 <= a < 6 and 0 <= b < 7 and own[a, b] for a, b in cells):
                return True
    return False


def estimate(board):
    """By counting lines, one after the other."""
    total = 0.0
    for line in LINES.T.astype(bool):
        mine, theirs = (board.ravel()[line] == 1).sum(), (board.ravel()[line] == 2).sum()
        total += WORTH[mine] * (theirs == 0) - WORTH[theirs] * (mine == 0)
    return float(np.clip(total, -0.5, 0.5))


def minimax(board, depth, ply=0):
    """What each column is worth to player 1, who moves where ply is even."""
    stone, sign, found = 1 + ply % 2, 1 - 2 * (ply % 2), []
    for column in range(7):
        after = drop(board, column, stone)
        if after is None:
            found.append(-np.inf)
        elif has_line(after, stone):
            found.append(1 - LATER * ply)
        elif (after > 0).all():
            found.append(0.0)
        else:
            found.append(sign * (estimate(after) if ply + 1 == depth else _best(after, depth, ply + 1)))
    return found


def _best(board, depth, ply):
    return (1 - 2 * (ply % 2)) * max(minimax(board, depth, ply))


def position(seed, stones):
    """A board of random moves in which nobody has won, player 1 to move."""
    rng = np.random.default_rng(seed)
    while True:
        board = np.zeros((6, 7), int)
        for i in range(stones):
            free = np.nonzero(board[0] == 0)[0]
            board = drop(board, rng.choice(free), 1 + i % 2)
        if not has_line(board, 1) and not has_line(board, 2):
            return board


def values(board, depth):
    return np.asarray(jitted(jnp.asarray(board.ravel() == 1), jnp.asarray(board.ravel() == 2), depth))


def test_there_are_69_lines():
    assert LINES.shape == (42, 69)
    assert (LINES.sum(0) == 4).all()


@pytest.mark.parametrize(("stones", "depth"), [(0, 2), (8, 3), (16, 3), (30, 3), (38, 3), (40, 3)])
def test_it_is_minimax(stones, depth):
    for seed in range(3):
        board = position(seed, stones)
        assert values(board, depth) == pytest.approx(np.array(minimax(board, depth)), abs=1e-5)


def test_it_takes_a_win_and_hinders_one():
    board = np.zeros((6, 7), int)
    board[5, :3], board[4, :3] = 1, 2
    assert values(board, 4).argmax() == 3, "wins at once"
    other = np.where(board > 0, 3 - board, 0)
    assert values(other, 4).argmax() == 3, "and takes the square where the other would, being where it wins itself"
    board[4, :3] = 0
    board[5, 5:], board[5, :3] = 1, 2
    stones = (jnp.asarray(board.ravel() == stone) for stone in (1, 2))
    column = jax.jit(search, static_argnums=2)(*stones, 2, jax.random.key(0))
    assert int(column) == 3, "nothing else stops the other"


def test_as_a_script_it_sees_what_the_players_see():
    env = make("games/connect_four")
    boards = np.stack([position(seed, stones) for seed in range(3) for stones in (8, 16)])
    seen = jax.vmap(lambda board: env.observe(BoardState(board, jnp.int32(0))))(jnp.asarray(boards))
    columns = np.asarray(jax.jit(depth_2, static_argnums=0)(None, seen, jax.random.key(0)))
    for board, chosen in zip(boards, columns, strict=True):
        for stone, column in zip((1, 2), chosen, strict=True):
            scores = values(board if stone == 1 else np.where(board > 0, 3 - board, 0), 2)
            assert scores[column] == pytest.approx(scores.max())


def test_depths_have_bounds():
    with pytest.raises(flockrl.UsageError, match="depth of games/connect_four must be from 1 to 5"):
        make("games/connect_four:depth=9")


def test_it_plays_for_any_side(cli):
    env = "games/connect_four:depth=2"
    result = flockrl.match({"agent_0": "random", "agent_1": "search"}, env, episodes=20)
    assert result.per_agent[1] > 0.8, "it nearly always beats chance"
    status, out, _ = cli("eval", env, "--policy", "search", "--against", "agent_1=random", "--episodes", 8)
    assert status == 0
    assert "against agent_1=random: agent_0 " in out
    status, _, err = cli("eval", env, "--policy", "search", "--against", "agent_1=serach", "--episodes", 8)
    assert status != 0
    assert "agent_1=serach: there is no such algorithm or run" in err
