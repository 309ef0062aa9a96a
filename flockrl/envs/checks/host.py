"""The conformance kit for host environments: a few random episodes, looked at step by step.

`flockrl.envs.check` comes here for environments that are not compiled. Training calls it once at the start.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError, blame
from flockrl.core.types import EnvSpec, Observation
from flockrl.envs.checks.masks import unusable
from flockrl.envs.host.env import Form, Host, HostEnv, random_action

STEPS = 100
"""Steps of each episode that are looked at."""
LEAST = 10
"""Steps of an episode that are looked at even if there is no time."""
SECONDS = 1.0
"""Time after which no further steps are looked at."""


def find(host: Host, episodes: int, seed: int) -> Iterator[str]:
    """What is wrong, one sentence each; the first ones matter most."""
    size = sum(map(math.prod, host.spec.sight.pictures))
    shown, steps, changed = None, 0, not size
    for word, seen, outcome in _moments(host, episodes, seed):
        found = [*_observation(word, host.form, seen), *_outcome(word, host.spec, outcome)]
        yield from found
        if found:
            return
        if not changed:
            shown = np.copy(seen.obs[:, :size]) if shown is None else shown
            changed = not np.array_equal(shown, seen.obs[:, :size])
        steps += 1
    if not changed and steps > LEAST:
        yield (
            f"the pictures that agents see never changed in {steps} steps: does the environment draw only when it is "
            "built with render_mode='rgb_array'?"
        )


def _moments(host: Host, episodes: int, seed: int) -> Iterator[tuple[str, Observation, Any]]:
    """What random episodes consist of, as `episode` tells it, while there is time."""
    rng, deadline = np.random.default_rng(seed), time.perf_counter() + SECONDS
    for number in range(episodes):
        for length, moment in enumerate(episode(host, host.first, seed + number, rng), 1):
            yield moment
            if time.perf_counter() > deadline and length > LEAST:
                return


def episode(host: Host, team: HostEnv, seed: int, rng: np.random.Generator) -> Iterator[tuple[str, Observation, Any]]:
    """A random episode of at most `STEPS` steps, moment by moment: what was called, what was seen, and (reward,
    terminated, truncated), or () after the reset."""
    seen = _call(host, "reset", team.reset, seed)
    yield "reset", seen, ()
    for t in range(1, STEPS + 1):
        seen, *outcome = _call(host, f"step {t}", team.step, random_action(host.form, seen, rng), t)
        yield f"step {t}", seen, outcome
        over = np.asarray(outcome[1]) | np.asarray(outcome[2])
        if (over if seen.alive is None else over | ~seen.alive).all():
            return


def _call(host: Host, word: str, function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{host.spec.name}: {word} failed{blame(error)}.") from error


def _observation(word: str, form: Form, seen: Observation) -> Iterator[str]:
    spec = form.spec
    if not isinstance(seen, Observation):
        yield f"{word} must give an Observation first, not {type(seen).__name__}."
        return
    wanted = form.observation()
    for name in Observation._fields:
        value = getattr(seen, name)
        if (name in wanted) != (value is not None):
            does = "leaves out" if value is None else "gives"
            yield f"{word} {does} {name}, and masked, mortal and spec.state_size say otherwise."
            return
        if value is not None:
            shape, dtype = wanted[name]
            given = np.asarray(value)
            if (given.shape, given.dtype.name) != (shape, dtype):
                text = f"{word} gives {name} as {given.dtype} of shape {list(given.shape)}"
                yield f"{text}, but expected {dtype} of shape {list(shape)}."
                return
    alive = np.ones(spec.num_agents, bool) if seen.alive is None else seen.alive
    for i, agent in enumerate(spec.agents):
        if not np.isfinite(seen.obs[i]).all():
            k = int(np.flatnonzero(~np.isfinite(seen.obs[i]))[0])
            yield f"agent {agent!r}: obs[{k}] after {word} is {seen.obs[i, k]:g}, but expected a finite number."
    if seen.avail is not None:
        for (i,), text in unusable(spec, np.asarray(seen.avail), np.asarray(alive)):
            yield f"agent {spec.agents[i]!r}: after {word} it has {text}."
    if word == "reset" and not alive.any():
        yield "no agent is alive after reset."
    if seen.state is not None and not np.isfinite(seen.state).all():
        yield f"the global state after {word} is not finite."


def _outcome(word: str, spec: EnvSpec, outcome: Any) -> Iterator[str]:
    for name, value in zip(("reward", "terminated", "truncated"), outcome, strict=False):
        shape = np.shape(value)
        if shape != (spec.num_agents,) and (name == "reward" or shape != ()):
            yield f"{word} gives {name} with shape {list(shape)}, but expected [{spec.num_agents}], one for each agent."
            return
    if outcome:
        for agent, reward in zip(spec.agents, np.asarray(outcome[0], float), strict=True):
            if not np.isfinite(reward):
                yield f"agent {agent!r}: the reward of {word} is {reward:g}, but expected a finite number."
