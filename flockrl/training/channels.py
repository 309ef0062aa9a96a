"""A run's team on another channel than it was trained with, and what its messages do."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from flockrl.algos.assembly import Sides, make_algorithm
from flockrl.algos.feudal_config import FeudalConfig
from flockrl.algos.wrappers.measured import distance
from flockrl.comm.channel import Channel
from flockrl.comm.settings import channel_of
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, EnvSpec
from flockrl.envs.host.env import Host
from flockrl.envs.reach import original, reaching
from flockrl.evaluation.talk import Listening, measure_talk

SILENCE = "bits=0"
"""The channel on which nothing is said."""


def talks(config: Any) -> bool:
    """Whether the agents of a run with this `RunConfig` are one team that talks. Sides and tiers are not: each has a
    channel of its own (`channels`)."""
    return getattr(config.config, "comm", "none") != "none"


def around(config: Any, env: Any) -> Any:
    """The environment for agents with an algorithm's settings: where messages have a range, or reach the nearest ones
    alone, it says who these are, among those who can be heard at all."""
    near = [c for c in channels(config) if c.near]
    found = {(c.range, c.nearest, c.topology if c.nearest else c.topology == "neighbours") for c in near}
    if len(found) > 1 and any(limit is not None or nearest is not None for limit, nearest, _ in found):
        raise UsageError(
            "Sides and tiers that talk within a range, or to the nearest, share it: give them the same range, nearest "
            "and topology."
        )
    limit, nearest, seen = found.pop() if len(found) == 1 else (None, None, False)
    links = None if nearest is None else _links(config, original(env).spec)
    return reaching(env, limit, seen in (True, "neighbours"), nearest, links)


def _links(config: Any, spec: EnvSpec) -> np.ndarray:
    """[N, N] whether the agent of the row could hear that of the column, by sides and topologies."""
    if not isinstance(config, Sides):
        return channels(config)[0].links(spec.num_agents)
    found = np.zeros((spec.num_agents, spec.num_agents), bool)
    for name, side in config.players.items():
        own = list(spec.parties[name])
        for channel in channels(side.config):
            found[np.ix_(own, own)] = channel.links(len(own))
    return found


def channels(config: Any) -> list[Channel]:
    """The channels of an algorithm's settings, or those of all sides or tiers."""
    if isinstance(config, Sides):
        return [channel for side in config.players.values() for channel in channels(side.config)]
    if isinstance(config, FeudalConfig):
        return [channel for tier in config.tiers for channel in channels(config.tier(tier))]
    return [channel_of(config)] if getattr(config, "comm", "none") != "none" else []


def on_channel(config: Any, env: Any, channel: str) -> tuple[Algorithm, Any]:
    """The learner of a `RunConfig` whose messages take another channel, with its parameters as they are; and the
    environment as it is with that channel."""
    own = config.config
    if not talks(config) and channels(own):
        raise UsageError("Another channel is for runs of one team, and here each side or tier has one of its own.")
    if not talks(config):
        raise UsageError("A channel is between agents that talk, and those of this run do not: train with --comm.")
    other = dataclasses.replace(own, channel=channel)
    if channel_of(other).ranked and not channel_of(own).ranked:
        raise UsageError("These agents did not learn who should speak: use access=round_robin with top.")
    env = around(other, env)
    return make_algorithm(config.algorithm, env.spec, other, envs=config.options.envs, updates=1), env


def listening(run: Any, seed: int = 0, best: bool = False, envs: int = 64) -> Listening:
    """What the messages of a run's team do, in its own environment, which must be compiled."""
    if not talks(run.config):
        raise UsageError(f"{run.path} is no run of one team that talks.")
    if isinstance(run.env, Host):
        raise UsageError("What messages do is measured in compiled environments, and this one runs on the host.")
    spec = run.spec
    return measure_talk(
        run.algorithm, run.env, run.params(best), jax.random.key(seed), envs, lambda a, b: distance(spec, a, b)
    )
