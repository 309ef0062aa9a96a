"""How a team practises: the wrappers whose learners act differently in training than afterwards, put together."""

from __future__ import annotations

from typing import Any

from flockrl.algos.family import Family
from flockrl.algos.wrappers.adversary import attacked
from flockrl.algos.wrappers.league import league
from flockrl.algos.wrappers.other_play import other_play
from flockrl.algos.wrappers.self_play import self_play
from flockrl.algos.wrappers.settings import parse_attack, roles
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, EnvSpec


def practising(
    learner: Algorithm, spec: EnvSpec, config: Any, env: Any, *, envs: int, updates: int, about: Family
) -> Algorithm:
    """The learner with what its settings say about practice; as it is where they say nothing.

    env: what it plays in, or None where only the spec is known and nothing is learned.
    """
    if roles(config):
        learner = league(
            learner, spec, config, envs=envs, updates=updates, draws=about.logp, learns=env is not None
        )  # fmt: skip
    elif getattr(config, "self_play", "none") != "none":
        learner = self_play(learner, spec, config, envs=envs, updates=updates, draws=about.logp)
    if getattr(config, "other_play", False) and env is not None:
        learner = other_play(learner, spec, env)
    if getattr(config, "adversary", ""):
        attack = parse_attack(config.adversary)
        learner = attacked(learner, spec, attack, envs=envs, updates=updates, on_policy=about.on_policy)
    return learner


def refuse_practice(config: Any, who: str, needs: str) -> None:
    """Refuse settings of practice for a learner that does not act itself in rollouts of all agents."""
    for name, nothing in (("self_play", "none"), ("other_play", False), ("adversary", "")):
        if getattr(config, name, nothing) != nothing:
            raise UsageError(f"{who}: {name} needs {needs}: leave it out.")
