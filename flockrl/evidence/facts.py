"""Facts about an environment: from its spec, and from a short random game."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import EnvSpec
from flockrl.envs.adapters.sides import opponents
from flockrl.envs.api import Env
from flockrl.envs.checks.host import episode as host_episode
from flockrl.envs.host.env import Host
from flockrl.evaluation.episodes import record
from flockrl.evaluation.matches import random_actor

EPISODES, STEPS = 8, 100
"""The random game: the number of episodes, and the most steps of each."""
HOST_EPISODES, SECONDS = 50, 2.0
"""On the host: the most episodes, since those of board games are short, and the time after which no step follows."""
TABLE = 64
"""Up to this number of different observations, a table is the simplest thing that works."""


@dataclass(frozen=True)
class Facts:
    """Facts about an environment. Those that only playing shows are None where it cannot be played here."""

    spec: EnvSpec
    common: bool | None = None
    """Whether the agents of each side always earn the same."""
    zero_sum: bool | None = None
    """Whether the rewards of the sides add up to 0."""
    same_view: bool | None = None
    """Whether all agents see the same."""
    paid: float | None = None
    """Share of the steps in which any agent's reward was not 0."""
    views: int | None = None
    """Number of different observations seen, counted up to `TABLE` + 1."""
    opposed: tuple[tuple[str, str], ...] | None = None
    """Pairs of agents of one side that earn against each other."""

    @property
    def agents(self) -> int:
        return self.spec.num_agents

    @property
    def sides(self) -> int:
        return len(set(self.spec.sides))

    @property
    def opponents(self) -> bool:
        """Whether agents oppose each other, be it that the environment says so or that it looks so."""
        return self.sides > 1 or bool(self.opposed)


def look(env: Any) -> Facts:
    """Play a few random episodes and collect the facts. Where that is not possible, only the spec is known."""
    spec = env.spec
    try:
        obs, reward = _play_host(env) if isinstance(env, Host) else _play_compiled(env)
    except UsageError:
        return Facts(spec)
    sides = np.array(spec.sides)
    sums = np.stack([reward[:, sides == side].sum(axis=1) for side in dict.fromkeys(spec.sides)], axis=1)
    opposed = _opposed(spec, reward)
    parts = reward if opposed else sums
    return Facts(
        spec,
        common=all(bool(np.ptp(reward[:, sides == side], axis=1).max() < 1e-6) for side in set(spec.sides)),
        zero_sum=parts.shape[1] > 1 and bool(np.abs(parts).max() > 0 and np.abs(parts.sum(axis=1)).max() < 1e-5),
        same_view=len(set(spec.observations)) == 1 and bool((obs == obs[:, :1]).all()),
        paid=float((np.abs(reward).max(axis=1) > 0).mean()),
        views=min(len(np.unique(obs.reshape(-1, spec.obs_size), axis=0)), TABLE + 1),
        opposed=opposed,
    )


def _play_compiled(env: Any) -> tuple[np.ndarray, np.ndarray]:
    """Observations [S, N, O] and rewards [S, N] of all episodes, one after the other."""
    actor = random_actor(env.spec)
    if not isinstance(env, Env):
        raise UsageError("It cannot be played.")
    episodes = record(actor, env, (), jax.random.key(0), EPISODES, True, STEPS)
    return np.concatenate([x.obs for x in episodes]), np.concatenate([x.reward for x in episodes])


def _play_host(host: Host) -> tuple[np.ndarray, np.ndarray]:
    """The same on the host, while there is time."""
    rng, deadline = np.random.default_rng(0), time.perf_counter() + SECONDS
    seen: list[list[np.ndarray]] = []  # of each episode, from its reset on
    rewards: list[np.ndarray] = []
    for number in range(HOST_EPISODES):
        for _, now, outcome in host_episode(host, host.first, number, rng):
            if outcome:
                rewards.append(np.array(outcome[0], np.float32))
            else:
                seen.append([])
            seen[-1].append(np.copy(now.obs))
            if rewards and time.perf_counter() > deadline:
                break
        if time.perf_counter() > deadline or len(rewards) >= EPISODES * STEPS:
            break
    return np.stack([obs for episode in seen for obs in episode[:-1]]), np.stack(rewards)


def _opposed(spec: EnvSpec, reward: np.ndarray) -> tuple[tuple[str, str], ...]:
    """Pairs of agents of one side whose rewards [S, N] go against each other."""
    sides = [[a for a, own in zip(spec.agents, spec.sides, strict=True) if own == side] for side in set(spec.sides)]
    found = [pair for side in sides for pair in opponents(side, spec.agents, reward)]
    return tuple(sorted(found, key=lambda pair: [spec.agents.index(agent) for agent in reversed(pair)]))


def describe(facts: Facts) -> list[str]:
    """The facts as lines of text."""
    spec = facts.spec
    kinds = len(set(spec.groups))
    actions = sorted({space.size for space in spec.actions})
    sizes = " to ".join(str(size) for size in dict.fromkeys((actions[0], actions[-1])))
    views = sorted({space.size for space in spec.observations})
    seen = " to ".join(str(size) for size in dict.fromkeys((views[0], views[-1])))
    lines = [
        f"{facts.agents} agent{'s' * (facts.agents > 1)} of {kinds} kind{'s' * (kinds > 1)} in {facts.sides} "
        f"side{'s' * (facts.sides > 1)}{_named(facts)}, episodes of at most {spec.max_steps:,} steps",
        f"{'discrete actions' if spec.discrete else 'continuous actions, dimensions'}: {sizes}; observations: {seen} "
        f"numbers each; a central critic reads {spec.central_size:,}",
    ]
    if facts.common is None:
        return [*lines, "rewards and observations were not examined: a random game could not be played"]
    return [*lines, _rewards(facts), _views(facts)]


def _named(facts: Facts) -> str:
    """The names of the sides, where agents oppose each other."""
    return f" ({', '.join(facts.spec.parties)})" if facts.sides > 1 else ""


def _rewards(facts: Facts) -> str:
    if facts.agents == 1:
        kind = "rewards of a single agent"
    elif facts.sides > 1:
        kind = "sides against each other" + (", zero-sum" if facts.zero_sum else "")
    elif facts.opposed:
        pair = " and ".join(facts.opposed[0])
        kind = f"one side, but {pair} look like opponents: when one earns, the other loses"
        kind += " (zero-sum)" if facts.zero_sum else ""
    else:
        kind = "one side with " + ("a common reward" if facts.common else "individual rewards")
    return f"{kind}; {facts.paid:.0%} of random steps had a reward other than 0"


def _views(facts: Facts) -> str:
    if facts.agents == 1:
        return "whether the agent observes everything cannot be found out by playing"
    if facts.same_view:
        return "all agents see the same"
    return "agents have different observations: none of them sees everything"
