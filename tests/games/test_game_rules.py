"""Rules of the games as they are played: legal actions, waiting, rewards, ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.envs import make
from flockrl.envs.games.boards import ConnectFour, TicTacToe, lines
from flockrl.envs.games.grids import GridGame, GridState, Soccer, SoccerState
from flockrl.envs.games.poker import Kuhn, KuhnState, Leduc

KEY = jax.random.key(0)


def play(env, *actions, key=KEY):
    """Places, legal actions, rewards and whether it was over, of moves by whoever is to move; others wait."""
    step = jax.jit(env.step)
    place, seen = jax.jit(env.reset)(key)
    told = []
    for action in actions:
        waiting = env.spec.action_size - 1
        moves = np.asarray(env.rules.movers(place.state))
        joint = np.where(moves, action, waiting)
        legal = np.asarray(seen.avail)
        place, seen, reward, over, cut = step(key, place, jnp.array(joint, jnp.int32))
        told.append((legal, np.asarray(reward).tolist(), bool(over), bool(cut)))
    return place, seen, told


def test_an_agent_that_waits_has_one_legal_action():
    env = make("games/kuhn")
    _, seen = env.reset(KEY)
    assert np.asarray(seen.avail).tolist() == [[True, True, False], [False, False, True]]
    _, seen, _ = play(env, 1)
    assert np.asarray(seen.avail).tolist() == [[False, False, True], [True, True, False]]
    _, seen, told = play(env, 1, 1)
    assert told[-1][2]
    assert np.asarray(seen.avail).tolist() == [[False, False, True]] * 2, "after the end there is nothing but waiting"


@pytest.mark.parametrize(("moves", "paid"), [((0, 0), 1), ((1, 0), 1), ((1, 1), 2), ((0, 1, 0), -1), ((0, 1, 1), 2)])
def test_kuhn_pays_by_the_cards(moves, paid):
    rules, state = Kuhn(), KuhnState(jnp.array([2, 0]), jnp.full(3, -1), jnp.int32(0))
    for move in moves:
        assert not bool(rules.over(state))
        state, reward = rules.move(state, jnp.full(2, move))
    assert bool(rules.over(state))
    assert reward.tolist() == [paid, -paid]


LEDUC = Leduc()
MOVERS, LEGAL, DRAW, MOVE = map(jax.jit, (LEDUC.movers, LEDUC.legal, LEDUC.draw, LEDUC.move))


def leduc(cards, public, *moves):
    rules, state, reward = LEDUC, LEDUC.start()._replace(cards=jnp.array(cards)), None
    for move in moves:
        if not bool(MOVERS(state).any()):
            state, _ = DRAW(state, jnp.int32(public))
        assert bool(LEGAL(state)[0, move])
        state, reward = MOVE(state, jnp.full(2, move))
    return rules, state, reward


def test_leduc_pays_by_the_rules():
    assert leduc([0, 4], 1, 1, 1, 1, 1)[2].tolist() == [1, -1], "a pair beats the higher card"
    assert leduc([0, 4], 2, 1, 1, 1, 1)[2].tolist() == [-1, 1]
    assert leduc([4, 5], 2, 1, 1, 1, 1)[2].tolist() == [0, 0]
    assert leduc([4, 0], 2, 2, 2, 1, 2, 2, 1)[2].tolist() == [13, -13], "1 + 2 raises of 2 + 2 raises of 4"
    assert leduc([4, 0], 2, 2, 2, 0)[2].tolist() == [-3, 3], "the raise that was called is lost"
    rules, state, _ = leduc([4, 0], 2)
    assert rules.legal(state)[0].tolist() == [False, True, True], "nobody raised: there is nothing to fold to"
    rules, state, _ = leduc([4, 0], 2, 2, 2)
    assert rules.legal(state)[0].tolist() == [True, True, False], "two raises in a round"


def test_an_illegal_action_counts_as_the_first_legal_one():
    env = make("games/tic_tac_toe")
    place, _, _ = play(env, 0, 0)
    assert np.asarray(place.state.board).reshape(-1)[:3].tolist() == [1, 2, 0]


def test_tic_tac_toe():
    env = make("games/tic_tac_toe")
    assert play(env, 0, 3, 1, 4, 2)[2][-1][1:] == ([1, -1], True, False)
    assert play(env, 0, 3, 1, 4, 8, 5)[2][-1][1:] == ([-1, 1], True, False)
    draw = play(env, 0, 4, 8, 1, 7, 6, 2, 5, 3)[2]
    assert draw[-1][1:] == ([0, 0], True, False)
    assert not any(row[2] for row in draw[:-1])
    assert np.asarray(play(env, 4)[1].avail)[1].tolist() == [True] * 4 + [False] + [True] * 4 + [False]
    first, second = np.asarray(play(env, 4)[1].obs)
    assert first[2 + 4] == 1
    assert second[2 + 9 + 4] == 1, "each sees its own stones first"


def test_connect_four():
    env = make("games/connect_four")
    assert play(env, 0, 1, 0, 1, 0, 1, 0)[2][-1][1:] == ([1, -1], True, False)
    assert play(env, 3, 0, 4, 0, 5, 0, 0, 6, 6)[2][-1][2] is False
    place, seen, _ = play(env, 3, 3, 3, 3, 3, 3)
    assert np.asarray(place.state.board)[:, 3].tolist() == [2, 1, 2, 1, 2, 1]
    assert not np.asarray(seen.avail)[0, 3]
    assert TicTacToe().longest == 9
    assert ConnectFour().size == 2 + 84


def test_openings_of_connect_four():
    rules = make("games/connect_four:opening=6").rules
    assert rules.odds(rules.start()).tolist() == pytest.approx([6 / 7 / 7] * 7 + [1 / 7])
    env = make("games/connect_four:opening=2")
    place, seen = jax.jit(jax.vmap(env.reset))(jax.random.split(KEY, 3000))
    board, stones = np.asarray(place.state.board), np.asarray(place.state.board > 0).sum((1, 2))
    assert np.bincount(stones) / 3000 == pytest.approx([1 / 3] * 3, abs=0.05), "every number is as likely"
    assert ((board == 1).sum((1, 2)) == (stones + 1) // 2).all(), "in turn"
    assert (np.diff((board > 0).astype(int), axis=1) >= 0).all(), "no stone hangs in the air"
    assert np.bincount(board[stones == 1].sum(1).argmax(1)) / (stones == 1).sum() == pytest.approx(
        [1 / 7] * 7, abs=0.05
    )
    assert (np.asarray(seen.avail)[:, :, :7].all(2) == (stones[:, None] % 2 == np.arange(2))).all(), "then who is next"
    assert np.asarray(place.state.begun).all()
    assert np.asarray(make("games/connect_four").reset(KEY)[0].state.board).sum() == 0
    with pytest.raises(UsageError, match="opening of games/connect_four must be from 0 to 6 stones, not 7"):
        make("games/connect_four:opening=7")


def test_a_mirror_is_a_symmetry_of_connect_four():
    env, moves = make("games/connect_four"), [3, 2, 2, 0, 6, 6, 5]
    drawn = jax.vmap(env.symmetries)(jax.random.split(KEY, 40))
    kinds = np.unique(np.concatenate([drawn.obs, drawn.action], 1), axis=0)
    assert len(kinds) == 2, "the board as it is, and in a mirror"
    obs, action = kinds[1][:86], kinds[1][86:]
    assert action.tolist() == [6, 5, 4, 3, 2, 1, 0, 7]
    seen, other = play(env, *moves)[1], play(env, *action[moves])[1]
    assert (np.asarray(other.obs)[:, obs] == np.asarray(seen.obs)).all()
    assert (np.asarray(other.avail)[:, action] == np.asarray(seen.avail)).all()
    assert not hasattr(make("games/tic_tac_toe"), "symmetries")


@pytest.mark.parametrize(
    "cells", [[(2, 1), (3, 2), (4, 3), (5, 4)], [(0, 6), (1, 5), (2, 4), (3, 3)], [(5, 3), (5, 4), (5, 5), (5, 6)]]
)
def test_lines_in_all_directions(cells):
    board = np.zeros((6, 7), bool)
    board[tuple(zip(*cells, strict=True))] = True
    assert bool(lines(jnp.asarray(board), 4))
    board[cells[1]] = False
    assert not bool(lines(jnp.asarray(board), 4))


def soccer(at, ball, plan, first):
    state = SoccerState(jnp.array(at), jnp.int32(ball), jnp.array(plan), jnp.int32(-1))
    return Soccer().draw(state, jnp.int32(first))


def test_soccer():
    up, left, right, stand = 0, 2, 3, 4
    after, paid = soccer([[1, 4], [0, 0]], 0, [right, stand], 1)
    assert paid.tolist() == [1, -1]
    assert soccer([[0, 4], [1, 1]], 0, [right, stand], 0)[1].tolist() == [0, 0], "no goal beside the upper row"
    assert soccer([[1, 4], [0, 0]], 1, [right, stand], 0)[1].tolist() == [0, 0], "nor without the ball"
    assert soccer([[0, 4], [2, 0]], 1, [stand, left], 0)[1].tolist() == [-1, 1]
    after, _ = soccer([[1, 1], [1, 2]], 0, [right, stand], 0)
    assert (after.ball, after.at.tolist()) == (1, [[1, 1], [1, 2]]), "who runs into the other loses the ball"
    after, _ = soccer([[1, 1], [1, 2]], 0, [right, up], 1)
    assert (after.ball, after.at.tolist()) == (0, [[1, 2], [0, 2]]), "the second was gone before"
    after, _ = soccer([[1, 1], [1, 2]], 0, [right, up], 0)
    assert (after.ball, after.at.tolist()) == (1, [[1, 1], [0, 2]])
    assert make("games/soccer").spec.max_steps == 100


def test_grid_games():
    rules = GridGame(1)
    start = rules.start()
    after, paid = rules.move(start, jnp.array([3, 2]))
    assert after.at.tolist() == start.at.tolist()
    assert paid.tolist() == [-1, -1], "both wanted to the middle"
    near = GridState(jnp.array([[1, 2], [1, 0]]), start.plan, jnp.bool_(False))
    after, paid = rules.move(near, jnp.array([0, 0]))
    assert paid.tolist() == [100, 100]
    assert bool(after.done)
    two = GridGame(2)
    plan, _ = two.move(two.start(), jnp.array([0, 2]))
    through, _ = two.draw(plan, jnp.int32(1))
    stuck, _ = two.draw(plan, jnp.int32(2))
    assert (through.at.tolist(), stuck.at.tolist()) == ([[1, 0], [2, 1]], [[2, 0], [2, 1]])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("liars_dice:faces=1", "faces must be from 2 to 8, not 1"),
        ("goofspiel:cards=14", "cards must be from 2 to 13, not 14"),
        ("goofspiel:order=up", "order must be one of descending, ascending, random, not 'up'"),
        ("goofspiel:score=best", "score must be one of win, points, not 'best'"),
    ],
)
def test_bad_settings(name, words):
    with pytest.raises(UsageError, match=words):
        make(f"games/{name}")


def test_goofspiel_plays_the_last_card_by_itself():
    env = make("games/goofspiel:score=points")
    step = jax.jit(env.step)
    place, _ = env.reset(KEY)
    for first, second in ((3, 0), (2, 1), (1, 2)):
        place, _, reward, over, _ = step(KEY, place, jnp.array([first, second]))
    assert bool(over)
    assert reward.tolist() == [4 + 3 - 2 - 1, -(4 + 3 - 2 - 1)]
    assert np.asarray(place.state.bids).tolist() == [[3, 2, 1, 0], [0, 1, 2, 3]]
    random_order = make("games/goofspiel:order=random,hidden=false")
    assert random_order.spec.obs_size == 2 + 3 * 16
    begun, _ = jax.jit(jax.vmap(random_order.reset))(jax.random.split(KEY, 20))
    assert set(begun.state.prizes[:, 0].tolist()) == {0, 1, 2, 3}
