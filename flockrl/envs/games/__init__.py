"""Games with known answers."""

from flockrl.envs.games.matrix import ENVIRONMENTS, MatrixGame

__all__ = ["ENVIRONMENTS", "MatrixGame"]
