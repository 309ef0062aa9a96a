"""Environments in which it pays to decide first who does what, each with its trivial and its best policy."""

from flockrl.envs.hierarchy.goal_assignment import GoalAssignment
from flockrl.envs.hierarchy.rooms import Rooms

ENVIRONMENTS = {"goal_assignment": GoalAssignment, "rooms": Rooms}
