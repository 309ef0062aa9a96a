"""Environments of very many agents, each of which meets only the mean of its neighbours."""

from flockrl.envs.mean_field.battle import Battle
from flockrl.envs.mean_field.ising import Ising

ENVIRONMENTS = {"ising": Ising, "battle": Battle}
