"""Road traffic: signals on a grid of junctions, and a platoon of vehicles, each with its classical controllers."""

from flockrl.envs.traffic.grid import SignalGrid
from flockrl.envs.traffic.platoon import Platoon

ENVIRONMENTS = {"grid": SignalGrid, "platoon": Platoon}
