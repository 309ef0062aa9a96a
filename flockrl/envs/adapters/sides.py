"""Who plays together in an environment that does not say it: by what the user says, by names, and by rewards.

Agents whose names have one stem (adversary_0, adversary_1) are on one side. Stems that are paid alike in random play
share a side: a speaker and a listener. What cannot be told that way, the user says: `:sides=adversary+lead/agent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError, nearest, notice
from flockrl.core.spec import ONE_SIDE, stem
from flockrl.envs.checks.host import episode
from flockrl.envs.host.env import Host

STEPS = 60
"""Steps of random play that are looked at."""
SMALLEST = 1e-6
"""Deviation of a reward that never changes."""
ALIKE, OPPOSED = 0.5, -0.5
"""Correlation of rewards from which on stems share a side, and below which agents of a side seem to be opponents."""


def read_sides(name: str, text: Any, agents: Sequence[str]) -> tuple[str, ...]:
    """[N] each agent's side. text: sides separated by `/`, each a few agents or stems of names joined by `+`, or
    `together` for one side, or `stems`."""
    stems = [stem(agent) for agent in agents]
    if text == "together":
        return (ONE_SIDE,) * len(agents)
    if text == "stems":
        text = "/".join(dict.fromkeys(stems))
    how = "write them as in sides=adversary+lead/agent: agents or their stems joined by +, and / between sides"
    found: dict[str, str] = {}
    for part in str(text).split("/"):
        words = part.split("+")
        for word in words:
            own = [a for a, kind in zip(agents, stems, strict=True) if word in (a, kind)]
            if not own:
                meant = nearest(word, {*stems, *agents})
                raise UsageError(f"{name}: sides names {word!r}, which is no agent.{meant} Or {how}.")
            for agent in own:
                if agent in found:
                    raise UsageError(f"{name}: sides puts {agent} on two sides; {how}.")
                found[agent] = words[0]
    if missing := [agent for agent in agents if agent not in found]:
        raise UsageError(f"{name}: sides leaves out {', '.join(missing)}; {how}.")
    return tuple(found[agent] for agent in agents)


def infer_sides(name: str, agents: Sequence[str], reward: np.ndarray) -> str:
    """Sides as `read_sides` takes them. reward: [S, N] of random play; [0, N] where nothing is known."""
    stems = list(dict.fromkeys(map(stem, agents)))
    own = {word: [i for i, agent in enumerate(agents) if stem(agent) == word] for word in stems}
    sides: list[list[str]] = []
    for word in stems:
        pay = reward[:, own[word]].mean(1)
        home = next((side for side in sides if correlation(pay, reward[:, own[side[0]]].mean(1)) >= ALIKE), None)
        sides.append([word]) if home is None else home.append(word)
    for side in sides:
        for a, b in opponents([agents[i] for word in side for i in own[word]], agents, reward)[:1]:
            notice(
                f"{name}: what {a} gains {b} loses in random play, and both are taken to be on one side. If they are "
                f"opponents, say so: {name}:sides={a}/{b}."
            )
    if len(sides) == 1:
        return "together"
    ranked = [sorted(side, key=lambda word: -len(own[word])) for side in sides]
    return "/".join("+".join(side) for side in ranked)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Of two series; 0 where one of them never changes, which tells nothing."""
    if len(a) < 2 or not np.isfinite([a, b]).all() or min(a.std(), b.std()) <= SMALLEST:
        return 0.0
    return float(((a - a.mean()) * (b - b.mean())).mean() / (a.std() * b.std()))


def opponents(side: Sequence[str], agents: Sequence[str], reward: np.ndarray) -> list[tuple[str, str]]:
    """Pairs of agents of a side whose rewards [S, N], of all `agents`, go against each other."""
    columns = {agent: reward[:, i] for i, agent in enumerate(agents)}
    pairs = [(side[i], side[j]) for j in range(len(side)) for i in range(j)]
    return [(a, b) for a, b in pairs if correlation(columns[a], columns[b]) < OPPOSED]


def random_rewards(host: Host) -> np.ndarray:
    """[S, N] what agents of a host environment earn in random play; [0, N] where it cannot be played."""
    rng, count = np.random.default_rng(0), host.spec.num_agents
    rows: list[np.ndarray] = []
    try:
        for number in range(STEPS):  # an episode has at least one step
            for _, _, outcome in episode(host, host.first, number, rng):
                if outcome:
                    rows.append(np.broadcast_to(np.asarray(outcome[0], np.float64), count))
                if len(rows) == STEPS:
                    return np.stack(rows)
    except UsageError:  # what is wrong with the environment is told where it is used
        return np.zeros((0, count))
    return np.stack(rows)
