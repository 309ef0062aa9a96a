"""Environments: built-in suites, the interface, and the kit that checks an environment of your own."""

from flockrl.envs.base import Env, make
from flockrl.envs.checks import check

__all__ = ["Env", "check", "make"]
