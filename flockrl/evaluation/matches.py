"""Matches: policies that were trained apart play in one environment, each for its own agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Actor, Algorithm, Array, EnvSpec, EvalResult, Observation, PyTree
from flockrl.envs.api import Env
from flockrl.envs.host.env import Host
from flockrl.evaluation.playing import make_player, summarize
from flockrl.nets.actions import ActionCode


class Side(NamedTuple):
    """A policy and the names of the agents that it moves."""

    policy: Algorithm | Actor
    agents: tuple[str, ...]


def random_actor(spec: EnvSpec) -> Actor:
    """A team that takes random legal actions. Its parameters are ()."""
    code = ActionCode(spec)

    def act(
        params: PyTree, seen: Observation, memory: PyTree, key: Array, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        return code.decode(code.random(key, len(seen.obs), seen.avail)), memory, {}

    return Actor(act, lambda batch: ())


def compose(spec: EnvSpec, sides: Sequence[Side]) -> Actor:
    """One actor out of several. Its parameters and memory are tuples with an entry per side."""
    owner = {agent: i for i, side in enumerate(sides) for agent in side.agents}
    named = [agent for side in sides for agent in side.agents]
    if sorted(named) != sorted(spec.agents):
        raise UsageError(
            f"The sides must name every agent of {spec.name} once ({', '.join(spec.agents)}), not {named}."
        )
    mine = np.array([owner[agent] for agent in spec.agents])

    def act(
        params: PyTree, seen: Observation, memory: PyTree, key: Array, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        parts = [
            side.policy.act(p, seen, h, jax.random.fold_in(key, i), explore)
            for i, (side, p, h) in enumerate(zip(sides, params, memory, strict=True))
        ]
        action = parts[0][0]
        for i, part in enumerate(parts[1:], 1):
            theirs = (mine == i).reshape(-1, *(1,) * (action.ndim - 2))
            action = jnp.where(theirs, part[0], action)
        return action, tuple(part[1] for part in parts), {}

    return Actor(act, lambda batch: tuple(side.policy.memory(batch) for side in sides))


def make_match(env: Env | Host, sides: Sequence[Side], episodes: int) -> Callable[[Sequence[PyTree], int], EvalResult]:
    """A function (parameters of each side, seed) -> result of whole greedy episodes. It compiles once."""
    play = make_player(compose(env.spec, sides), env, episodes)
    return lambda params, seed: summarize(*play(tuple(params), jax.random.key(seed)))
