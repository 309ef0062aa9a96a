"""The power grid: homes with batteries, solar cells and load that can wait."""

from flockrl.envs.grid.homes import Homes

ENVIRONMENTS = {"homes": Homes}
