"""Matches: policies that were trained apart play in one environment, each for its own agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from flockrl.algos.sides import Player, random_side
from flockrl.algos.sides import compose as compose_players
from flockrl.core.errors import UsageError
from flockrl.core.types import Actor, Algorithm, Array, EnvSpec, EvalResult, Observation, PyTree
from flockrl.envs.api import Env
from flockrl.envs.host.env import Host
from flockrl.evaluation.playing import make_player, summarize


class Side(NamedTuple):
    """A policy of the whole team, and the names of the agents that it moves."""

    policy: Algorithm | Actor
    agents: tuple[str, ...]


def random_actor(spec: EnvSpec) -> Actor:
    """A team that takes random legal actions. Its parameters are ()."""
    side = random_side(spec)
    return Actor(side.act, side.memory)


def compose(spec: EnvSpec, sides: Sequence[Side]) -> Actor:
    """One actor out of several. Its parameters and memory are tuples with an entry per side."""
    named = [agent for side in sides for agent in side.agents]
    if sorted(named) != sorted(spec.agents):
        raise UsageError(
            f"The sides must name every agent of {spec.name} once ({', '.join(spec.agents)}), not {named}."
        )
    players = {
        str(i): Player(spec.part([spec.agents.index(agent) for agent in side.agents]), side.policy, for_all=True)
        for i, side in enumerate(sides)
    }
    together = compose_players(spec, players)

    def act(
        params: PyTree, seen: Observation, memory: PyTree, key: Array, explore: bool
    ) -> tuple[Array, PyTree, Mapping[str, Array]]:
        named_params, named_memory = (dict(zip(players, x, strict=True)) for x in (params, memory))
        action, after, _ = together.act(named_params, seen, named_memory, key, explore)
        return action, tuple(after[name] for name in players), {}

    return Actor(act, lambda batch: tuple(together.memory(batch)[name] for name in players))


def make_match(env: Env | Host, sides: Sequence[Side], episodes: int) -> Callable[[Sequence[PyTree], int], EvalResult]:
    """A function (parameters of each side, seed) -> result of whole greedy episodes. It compiles once."""
    play: Any = make_player(compose(env.spec, sides), env, episodes)
    return lambda params, seed: summarize(*play(tuple(params), jax.random.key(seed)))
