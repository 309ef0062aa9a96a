"""Swarms: many simple agents with local rules, and measures of what emerges from them."""

from flockrl.envs.swarm.flocking import Flocking
from flockrl.envs.swarm.foraging import Foraging
from flockrl.envs.swarm.search import Search

ENVIRONMENTS = {"flocking": Flocking, "foraging": Foraging, "search": Search}
