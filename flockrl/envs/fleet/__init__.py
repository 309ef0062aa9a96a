"""Fleets of drones: covering an area and delivering parcels, each with its classical controllers."""

from flockrl.envs.fleet.coverage import Coverage
from flockrl.envs.fleet.delivery import Delivery

ENVIRONMENTS = {"coverage": Coverage, "delivery": Delivery}
