"""Classic control for one agent."""

from flockrl.envs.classic.control import ENVIRONMENTS

__all__ = ["ENVIRONMENTS"]
