"""Matrix games whose solutions are known."""

from flockrl.envs.games.matrix import ENVIRONMENTS, MatrixGame

__all__ = ["ENVIRONMENTS", "MatrixGame"]
