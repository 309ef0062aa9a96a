"""Environments in which messages reach only so far, or only so many: who is near enough stands in
`Observation.neighbours`.

An environment tells how far its agents are from each other by a method: a compiled one by `distances(state)`, one on
the host by `distances()`, both [N, N] in units of its own, inf or nan where an agent has no place.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, EnvSpec, Observation, PyTree
from flockrl.envs.api import Env, tuned
from flockrl.envs.host.env import Host, HostEnv, TeamStep


class Reach:
    """A compiled environment whose `neighbours` are the agents within `limit`, at most the `nearest` of them; with
    `seen`, of those whom the environment itself calls neighbours, and with `links` [N, N] of those in the agent's row.
    Everything else is the environment's own."""

    def __init__(self, env: Env, limit: float | None, seen: bool, nearest: int | None, links: np.ndarray | None):
        own = {"limit": limit, "seen": seen, "nearest": nearest, "links": links, "spec": _told(env.spec, seen)}
        for name, value in {"inner": env, **own}.items():
            object.__setattr__(self, name, value)

    def reset(self, key: Array) -> tuple[PyTree, Observation]:
        state, seen = self.inner.reset(key)
        return state, self._near(state, seen)

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Observation, Array, Array, Array]:
        state, seen, *outcome = self.inner.step(key, state, action)
        return state, self._near(state, seen), *outcome

    def _near(self, state: PyTree, seen: Observation) -> Observation:
        return _within(seen, self.inner.distances(state), self)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # a copy that is being made has nothing yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, "inner", tuned(self.inner, {name: value}))


class _HostReach(HostEnv):
    """The same on the host."""

    def __init__(self, team: HostEnv, limit: float | None, seen: bool, nearest: int | None, links: np.ndarray | None):
        self.inner, self.limit, self.seen, self.nearest, self.links = team, limit, seen, nearest, links
        self.spec = _told(team.spec, seen)
        self.masked, self.mortal, self.codec = team.masked, team.mortal, team.codec

    def reset(self, seed: int) -> Observation:
        return self._near(self.inner.reset(seed))

    def step(self, action: np.ndarray, seed: int) -> TeamStep:
        seen, *outcome = self.inner.step(action, seed)
        return self._near(seen), *outcome

    def _near(self, seen: Observation) -> Observation:
        assert self.inner.distances is not None  # `reaching` looked
        n, apart = self.spec.num_agents, np.asarray(self.inner.distances(), np.float32)
        if apart.shape != (n, n):
            raise UsageError(f"{self.spec.name}: distances must be a square of {n} x {n}, not {list(apart.shape)}.")
        return _within(seen, apart, self)

    def render(self) -> np.ndarray | None:
        return self.inner.render()

    def close(self) -> None:
        self.inner.close()


class _Build:
    """How such teams are built, as something that travels to worker processes."""

    def __init__(self, inner: Any, *limits: Any):
        self.inner, self.limits = inner, limits

    def __call__(self, draw: bool) -> HostEnv:
        return _HostReach(self.inner(draw), *self.limits)


def reaching(
    env: Any, limit: float | None, seen: bool = False, nearest: int | None = None, links: np.ndarray | None = None
) -> Any:
    """The environment with `neighbours` by distance, or as it is by itself where there is no limit."""
    inner = original(env)
    if limit is None and nearest is None:
        return inner
    teller = inner.first if isinstance(inner, Host) else inner
    if not callable(getattr(teller, "distances", None)):
        name = "range" if nearest is None else "nearest"
        raise UsageError(
            f"{name} needs an environment that tells how far agents are from each other, unlike {inner.spec.name}: "
            "leave it out, or give the environment a method `distances`."
        )
    if not isinstance(inner, Host):
        return Reach(inner, limit, seen, nearest, links)
    found = Host(_Build(inner.build, limit, seen, nearest, links))
    found.reaches = inner  # type: ignore[attr-defined]
    return found


def original(env: Any) -> Any:
    """The environment without a limit that `reaching` gave it."""
    if isinstance(env, Reach):
        return env.inner
    return getattr(env, "reaches", env) if isinstance(env, Host) else env


def _told(spec: EnvSpec, seen: bool) -> EnvSpec:
    if seen and not spec.neighbours:
        raise UsageError(f"topology=neighbours needs an environment that says who perceives whom, unlike {spec.name}.")
    return dataclasses.replace(spec, neighbours=True)


def _within(seen: Observation, apart: Any, limits: Any) -> Observation:
    """What agents see, with who is near. Who has no place (nan) is far from everybody."""
    module: Any = np if isinstance(apart, np.ndarray) else jnp
    near = (apart < np.inf) & ~module.eye(len(apart), dtype=bool)
    if limits.limit is not None:
        near &= apart <= limits.limit
    if limits.seen:
        near &= seen.neighbours
    if limits.links is not None:
        near &= limits.links
    if limits.nearest is not None and limits.nearest < len(apart):
        there = near if seen.alive is None else near & seen.alive
        far = module.where(there, apart, np.inf)
        order = jnp.argsort(far, axis=1) if module is jnp else np.argsort(far, axis=1, kind="stable")
        near = there & (order[:, : limits.nearest, None] == np.arange(len(apart))).any(1)
    return seen._replace(neighbours=near)
