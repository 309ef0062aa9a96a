"""The conformance kit: what an environment must hold to, checked by playing it."""

from flockrl.envs.checks.compiled import check, problems

__all__ = ["check", "problems"]
