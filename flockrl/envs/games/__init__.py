"""Games whose solutions are known: matrix games, cards, dice, boards and small grids."""

from flockrl.envs.games.bidding import Goofspiel, LiarsDice
from flockrl.envs.games.boards import ConnectFour, TicTacToe
from flockrl.envs.games.grids import GridGame, Soccer
from flockrl.envs.games.matrix import MATRIX_GAMES, MatrixGame
from flockrl.envs.games.poker import Kuhn, Leduc
from flockrl.envs.games.rules import Rules, RulesEnv

__all__ = ["ENVIRONMENTS", "MatrixGame", "Rules", "RulesEnv"]


def kuhn() -> RulesEnv:
    return RulesEnv(Kuhn())


def leduc() -> RulesEnv:
    return RulesEnv(Leduc())


def liars_dice(faces: int = 6) -> RulesEnv:
    return RulesEnv(LiarsDice(faces))


def goofspiel(cards: int = 4, order: str = "descending", hidden: bool = True, score: str = "win") -> RulesEnv:
    return RulesEnv(Goofspiel(cards, order, hidden, score))


def tic_tac_toe() -> RulesEnv:
    return RulesEnv(TicTacToe())


def connect_four(depth: int = 4, opening: int = 0) -> RulesEnv:
    return RulesEnv(ConnectFour(depth, opening))


def soccer() -> RulesEnv:
    return RulesEnv(Soccer())


def grid_game_1() -> RulesEnv:
    return RulesEnv(GridGame(1))


def grid_game_2() -> RulesEnv:
    return RulesEnv(GridGame(2))


RULES = (kuhn, leduc, liars_dice, goofspiel, tic_tac_toe, connect_four, soccer, grid_game_1, grid_game_2)
ENVIRONMENTS = {**MATRIX_GAMES, **{builder.__name__: builder for builder in RULES}}
