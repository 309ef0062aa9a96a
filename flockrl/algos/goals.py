"""What a manager tells its workers: a thing to go to. What workers see of it, and what they are paid for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from flockrl.core.entities import Kind
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Metrics, Observation, PyTree, Trajectory

REACHED = 0.1
"""A goal within this distance counts as reached."""


def decisions_of(spec: EnvSpec, count: int, every: int, chosen: str = "") -> EnvSpec:
    """The spec of a manager who chooses one of `count` goals for each agent. chosen: the kind of entities they are."""
    tasks = (Discrete(count),) * spec.num_agents
    entities = tuple(dataclasses.replace(own, chosen=chosen) for own in spec.entities)
    return dataclasses.replace(spec, actions=tasks, max_steps=-(-spec.max_steps // every), entities=entities)


def sees_more(spec: EnvSpec, more: int) -> EnvSpec:
    """The spec of agents who see `more` further numbers each."""
    size = spec.obs_size
    boxes = (Box((size + more,)),) * spec.num_agents
    return dataclasses.replace(spec, observations=boxes, entities=tuple(own.more(size, more) for own in spec.entities))


class EntityGoals:
    """Goals are the entities of one kind. Workers see what they know of theirs once more, and are paid by distance.

    params: of nothing here; a kind of goals that is learned has some. chosen: the kind, "" where goals are no entities.
    """

    learned = False

    def __init__(self, spec: EnvSpec, kind: str, share: float):
        self.share = share
        kinds = [_goal_kind(spec, i, kind) for i in range(spec.num_agents)]
        self.kind = kinds[0]
        self.count, self.chosen = self.kind.count, kind
        self.work = sees_more(spec, self.kind.width)

    def show(self, params: PyTree, seen: Observation, goal: Array) -> Observation:
        """What workers see who have these goals [..., N]."""
        return seen._replace(obs=jnp.concatenate([seen.obs, self.features(seen.obs, goal)], -1))

    def features(self, obs: Array, goal: Array) -> Array:
        """[..., N, width] what agents know of their goals."""
        kind = self.kind
        parts = [
            obs[..., start : start + kind.count * width].reshape(*obs.shape[:-1], kind.count, width)
            for start, width in kind.fields
        ]
        code = jax.nn.one_hot(goal, kind.count)[..., None]
        return (jnp.concatenate(parts, -1) * code).sum(-2)

    def pay(self, trajectory: Trajectory, goal: Array) -> Array:
        """[T, B, N] what workers earn."""
        return self.share * trajectory.reward - (1 - self.share) * self._near(trajectory, goal)

    def _near(self, trajectory: Trajectory, goal: Array) -> Array:
        """[T, B, N] how far each agent was from its goal after each step."""
        return jnp.sqrt((self.features(trajectory.next_obs, goal)[..., :2] ** 2).sum(-1))

    def measures(self, trajectory: Trajectory, goal: Array, decides: Array) -> Metrics:
        """The share of decisions whose goal was reached at their end, beside what `spread` tells."""
        over = (trajectory.terminated | trajectory.truncated).all(-1)
        closes = (jnp.concatenate([decides[1:], jnp.ones_like(decides[:1])]) | over)[..., None]
        reached = ((self._near(trajectory, goal) < REACHED) & closes).mean() / jnp.maximum(closes.mean(), 1e-9)
        found = {f"goal_{name}": x for name, x in spread(trajectory, goal, self.count).items()}
        return {**found, "goals_apart": apart(goal), "goals_reached": reached}

    def init(self, key: Array) -> Any:
        return ()

    def params(self, state: Any) -> PyTree:
        return ()

    def learn(self, state: Any, trajectory: Trajectory, key: Array) -> tuple[Any, Metrics]:
        return (), {}


def spread(trajectory: Trajectory, goal: Array, count: int) -> dict[str, Array]:
    """The entropy of each agent's goals in nats, mean over agents, and changes of an agent's goal per episode."""
    share = jax.nn.one_hot(goal, count).mean((0, 1))
    entropy = -(share * jnp.log(jnp.maximum(share, 1e-9))).sum(-1).mean()
    changes = (goal[1:] != goal[:-1]) & ~trajectory.first[1:, :, None]
    over = (trajectory.terminated | trajectory.truncated).all(-1)
    return {"entropy": entropy, "changes": changes.sum() / goal.shape[-1] / jnp.maximum(over.sum(), 1)}


def apart(goal: Array) -> Array:
    """The share of agents that have their goal to themselves."""
    return ((goal[..., :, None] == goal[..., None, :]).sum(-1) == 1).mean()


def _goal_kind(spec: EnvSpec, agent: int, name: str) -> Kind:
    """The entities of an agent's observation that are goals."""
    kinds = {kind.name: kind for kind in spec.entities[agent].kinds} if spec.entities else {}
    found = kinds.get(name)
    if found is None or found.count == 0 or found.fields[0][1] < 2:
        known = f": it has {', '.join(kinds)}" if kinds else ""
        raise UsageError(
            f"{spec.name} has no entities {name!r} with an offset, as goals are{known}. Choose with --goal."
        )
    if agent and found != _goal_kind(spec, 0, name):
        raise UsageError(
            f"Agents of {spec.name} see their goals at unlike places: a hierarchy needs agents of one kind."
        )
    return found
