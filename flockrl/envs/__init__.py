"""Environments: built-in suites, the interface, and the kit that checks an environment of your own."""

from flockrl.envs.api import Env
from flockrl.envs.checks.compiled import check
from flockrl.envs.registry import make

__all__ = ["Env", "check", "make"]
