"""A run's team on another channel than it was trained with, and what its messages do."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.wrappers.measured import distance
from flockrl.comm.settings import channel_of
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, EnvSpec
from flockrl.envs.host.env import Host
from flockrl.evaluation.talk import Listening, measure_talk

SILENCE = "bits=0"
"""The channel on which nothing is said."""


def talks(config: Any) -> bool:
    """Whether the agents of a run with this `RunConfig` talk."""
    return getattr(config.config, "comm", "none") != "none"


def on_channel(config: Any, spec: EnvSpec, channel: str) -> Algorithm:
    """The learner of a `RunConfig` whose messages take another channel; its parameters stay what they are."""
    if not talks(config):
        raise UsageError("A channel is between agents that talk, and those of this run do not: train with --comm.")
    own = config.config
    other = dataclasses.replace(own, channel=channel)
    if channel_of(other).ranked and not channel_of(own).ranked:
        raise UsageError("These agents did not learn who should speak: use access=round_robin with top.")
    return make_algorithm(config.algorithm, spec, other, envs=config.options.envs, updates=1)


def listening(run: Any, seed: int = 0, best: bool = False, envs: int = 64) -> Listening:
    """What the messages of a run's team do, in its own environment, which must be compiled."""
    if not talks(run.config):
        raise UsageError(f"The agents of {run.path} do not talk.")
    if isinstance(run.env, Host):
        raise UsageError("What messages do is measured in compiled environments, and this one runs on the host.")
    spec = run.spec
    return measure_talk(
        run.algorithm, run.env, run.params(best), jax.random.key(seed), envs, lambda a, b: distance(spec, a, b)
    )
