"""Environments that pay the whole team one reward and tell what it would have been without an agent, each with its
trivial and its best policy."""

from flockrl.envs.credit.bar import Bar
from flockrl.envs.credit.gaussian_squeeze import GaussianSqueeze
from flockrl.envs.credit.rover import Rover

ENVIRONMENTS = {"bar": Bar, "gaussian_squeeze": GaussianSqueeze, "rover": Rover}
