"""Environments that agents can solve only if they talk, each with its trivial and its best known policy."""

from flockrl.envs.comm.levers import Levers
from flockrl.envs.comm.predator_prey import PredatorPrey
from flockrl.envs.comm.signalling import Signalling
from flockrl.envs.comm.switch_riddle import SwitchRiddle
from flockrl.envs.comm.traffic_junction import TrafficJunction

ENVIRONMENTS = {
    "signalling": Signalling,
    "levers": Levers,
    "switch_riddle": SwitchRiddle,
    "traffic_junction": TrafficJunction,
    "predator_prey": PredatorPrey,
}
