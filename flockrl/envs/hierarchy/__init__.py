"""Environments in which it pays to decide first who does what, each with its trivial and its best policy."""

from flockrl.envs.hierarchy.goal_assignment import GoalAssignment

ENVIRONMENTS = {"goal_assignment": GoalAssignment}
