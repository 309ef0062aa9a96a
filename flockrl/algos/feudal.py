"""Feudal learning: a manager sets every agent's goal each few steps, and workers are paid for reaching it.

After Dayan and Hinton 1993 and Ahilan and Dayan 2019 (FMH, arXiv 1901.08492). Manager and worker are learners of any
family. The manager learns from decisions: what the environment paid until the next one. A worker sees its goal beside
its observation and is paid

    r = (1 - w) (-|x_goal|) + w r_environment

where x_goal is the offset of its goal after the step. Goals are the entities of one kind in an agent's observation,
whose first two numbers are their offsets (`EnvSpec.entities`). With `worker identity` goals are actions, and agents do
what the manager says at every step: that is the manager's algorithm alone, bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.family import Family
from flockrl.algos.feudal_config import IDENTITY, FeudalConfig
from flockrl.algos.parts import mean
from flockrl.algos.presets import family
from flockrl.algos.segments import decided, segments
from flockrl.core.entities import Kind
from flockrl.core.errors import UsageError
from flockrl.core.random import Source, fold_in
from flockrl.core.types import Algorithm, Array, Box, Discrete, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.envs.assignment import share_out
from flockrl.nets.heads import pick

REACHED = 0.1
"""A goal within this distance counts as reached."""


class Held(NamedTuple):
    """What a team remembers. manager, worker: their memories; goal: [B, N(, W)] what was decided last; clock: [B] steps
    since then."""

    manager: PyTree
    worker: PyTree
    goal: Array
    clock: Array


def make(spec: EnvSpec, config: FeudalConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` updates."""
    return _Feudal(spec, config, envs, updates).algorithm()


class _Feudal:
    """Holds what is static. Its methods are pure. States, parameters: {"manager": ..., "worker": ...}, without a worker
    where agents do what the manager says."""

    def __init__(self, spec: EnvSpec, config: FeudalConfig, envs: int, updates: int):
        self.spec, self.config, self.every = spec, config, config.manager_every
        self.identity = config.worker == IDENTITY
        self.kinds = [] if self.identity else [_goal_kind(spec, i, config.goal) for i in range(spec.num_agents)]
        tasks = spec if self.identity else _manager_spec(spec, self.kinds, self.every)
        made = {"manager": make_algorithm(config.manager, tasks, config.tier("manager"), envs=envs, updates=updates)}
        if not self.identity:
            work = _worker_spec(spec, self.kinds[0])
            made["worker"] = make_algorithm(config.worker, work, config.tier("worker"), envs=envs, updates=updates)
        self.tasks, self.tiers = tasks, made
        if config.allocate != "scores" and made["manager"].scores is None:
            raise UsageError(f"manager={config.manager} has no scores to allocate goals by: use --allocate scores.")

    def algorithm(self) -> Algorithm:
        note = "; ".join(f"{name}: {tier.note}" for name, tier in self.tiers.items() if tier.note)
        return Algorithm(self.init, self.params, self.act, self.update, self.memory, self.config.rollout_steps, note)

    def init(self, key: Array) -> PyTree:
        return {name: tier.init(_own(key, name)) for name, tier in self.tiers.items()}

    def params(self, state: PyTree) -> PyTree:
        return {name: tier.params(state[name]) for name, tier in self.tiers.items()}

    def memory(self, batch: int) -> Held:
        worker = () if self.identity else self.tiers["worker"].memory(batch)
        goal = jnp.zeros((batch, *self.tasks.action_shape), self.tasks.action_dtype)
        return Held(self.tiers["manager"].memory(batch), worker, goal, jnp.zeros(batch, jnp.int32))

    def act(
        self, params: PyTree, seen: Observation, held: Held, key: Source, explore: bool
    ) -> tuple[Array, Held, dict[str, Array]]:
        asked = seen if self.identity else seen._replace(avail=None)
        wanted, after, noted = self.tiers["manager"].act(params["manager"], asked, held.manager, key, explore)  # type: ignore[arg-type]
        now = held.clock == 0
        if self.config.allocate != "scores":
            wanted, noted = self._allocated(params, asked, held, key, explore, noted)

        def chosen(new: Any, old: Any) -> Any:
            return jnp.where(now.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        goal, manager = chosen(wanted, held.goal), jax.tree.map(chosen, after, held.manager)
        clock = (held.clock + 1) % self.every
        extras = {f"manager.{name}": x for name, x in noted.items()}
        if self.identity:
            return goal, Held(manager, (), goal, clock), {**extras, "goal": goal}
        sees = self._with_goal(seen, goal)
        own: Any = _own(key, "worker")
        action, worker, noted = self.tiers["worker"].act(params["worker"], sees, held.worker, own, explore)
        extras |= {f"worker.{name}": x for name, x in noted.items()}
        return action, Held(manager, worker, goal, clock), {**extras, "goal": goal}

    def _allocated(
        self, params: PyTree, asked: Observation, held: Held, key: Source, explore: bool, noted: Mapping[str, Array]
    ) -> tuple[Array, dict[str, Array]]:
        """Goals [B, N] of which no two agents have the same, and what is noted of them.

        Their log-probabilities are those of agents who choose for themselves. Were assignments drawn in proportion to
        exp(sum of scores), as Gumbel noise on scores does nearly, policy gradients of the two would be equal.
        """
        assert self.tiers["manager"].scores is not None
        scores: Any = partial(self.tiers["manager"].scores, params["manager"], asked, held.manager, key)
        found, how = scores(explore), self.config.allocate
        goals = jax.lax.cond(
            (held.clock == 0).any(),
            lambda: jax.vmap(lambda own: share_out(own, how))(found).astype(held.goal.dtype),
            lambda: held.goal,
        )
        return goals, {**noted, **({"logp": pick(scores(False), goals)} if "logp" in noted else {})}

    def update(self, state: PyTree, trajectory: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
        held, goal = trajectory.memory, trajectory.extras["goal"]
        decides = decided(trajectory.first, held.clock, self.every)
        plain = trajectory if self.identity else trajectory._replace(avail=None, next_avail=None)
        decisions = segments(plain, decides, self.every, goal, _of(trajectory, "manager"), held.manager)
        after, found = self.tiers["manager"].update(state["manager"], decisions, key)
        state, metrics = {**state, "manager": after}, {f"manager/{name}": x for name, x in found.items()}
        metrics["manager/reward"] = mean(decisions.reward, decisions.weight)
        if self.identity:
            return state, metrics
        work, near = self._work(trajectory, goal, decides)
        state["worker"], found = self.tiers["worker"].update(state["worker"], work, _own(key, "worker"))
        metrics |= {f"worker/{name}": x for name, x in found.items()}
        return state, {
            **metrics,
            **_measures(trajectory, goal, decides, near, self.kinds[0].count),
            "worker/reward": work.reward.mean(),
        }

    def _work(self, trajectory: Trajectory, goal: Array, decides: Array) -> tuple[Trajectory, Array]:
        """The workers' rollout, and how far each agent was from its goal after each step [T, B, N]."""
        follows = jnp.concatenate([goal[1:], goal[-1:]])
        ends = (trajectory.terminated | trajectory.truncated).all(-1)[..., None]
        follows = jnp.where(ends, goal, follows)  # a goal of the next episode is none of this one
        seen, after = (
            self._with_goal(x, g).obs
            for x, g in ((trajectory.observation, goal), (trajectory.next_observation, follows))
        )
        offset = self._goal_features(trajectory.next_obs, goal)[..., :2]
        near = jnp.sqrt((offset**2).sum(-1))
        share = self.config.environment_share
        reward = share * trajectory.reward - (1 - share) * near
        extras, memory = _of(trajectory, "worker"), trajectory.memory.worker
        return trajectory._replace(obs=seen, next_obs=after, reward=reward, extras=extras, memory=memory), near

    def _goal_features(self, obs: Array, goal: Array) -> Array:
        """[..., N, width] what agents know of their goals."""
        kind = self.kinds[0]
        parts = [
            obs[..., start : start + kind.count * width].reshape(*obs.shape[:-1], kind.count, width)
            for start, width in kind.fields
        ]
        code = jax.nn.one_hot(goal, kind.count)[..., None]
        return (jnp.concatenate(parts, -1) * code).sum(-2)

    def _with_goal(self, seen: Observation, goal: Array) -> Observation:
        return seen._replace(obs=jnp.concatenate([seen.obs, self._goal_features(seen.obs, goal)], -1))


def _own(key: Source, tier: str) -> Any:
    """A key for a tier; the manager's is the key itself, so that a manager alone is the flat algorithm."""
    return key if tier == "manager" else fold_in(key, 1)


def _of(trajectory: Trajectory, tier: str) -> dict[str, Array]:
    """The extras of one tier."""
    start = f"{tier}."
    return {name.removeprefix(start): x for name, x in trajectory.extras.items() if name.startswith(start)}


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


def _manager_spec(spec: EnvSpec, kinds: list[Kind], every: int) -> EnvSpec:
    tasks = tuple(Discrete(kind.count) for kind in kinds)
    return dataclasses.replace(spec, actions=tasks, max_steps=-(-spec.max_steps // every))


def _worker_spec(spec: EnvSpec, kind: Kind) -> EnvSpec:
    size, more = spec.obs_size, kind.width
    boxes = (Box((size + more,)),) * spec.num_agents
    entities = tuple(own.more(size, more) for own in spec.entities)
    return dataclasses.replace(spec, observations=boxes, entities=entities)


def _measures(trajectory: Trajectory, goal: Array, decides: Array, near: Array, goals: int) -> dict[str, Array]:
    """How goals are set and met: the entropy of each agent's goals in nats, changes of an agent's goal per episode, the
    share of decisions whose goal was reached at their end, the share of agents that have their goal to themselves."""
    share = jax.nn.one_hot(goal, goals).mean((0, 1))
    entropy = -(share * jnp.log(jnp.maximum(share, 1e-9))).sum(-1).mean()
    changes = (goal[1:] != goal[:-1]) & ~trajectory.first[1:, :, None]
    over = (trajectory.terminated | trajectory.truncated).all(-1)
    closes = (jnp.concatenate([decides[1:], jnp.ones_like(decides[:1])]) | over)[..., None]
    reached = ((near < REACHED) & closes).mean() / jnp.maximum(closes.mean(), 1e-9)
    alone = ((goal[..., :, None] == goal[..., None, :]).sum(-1) == 1).mean()
    return {
        "goal_entropy": entropy,
        "goal_changes": changes.sum() / goal.shape[-1] / jnp.maximum(over.sum(), 1),
        "goals_reached": reached,
        "goals_apart": alone,
    }


def _central(config: FeudalConfig) -> bool:
    return any(family(getattr(config, tier)).central(config.tier(tier)) for tier in config.tiers)


FAMILY = Family(make, FeudalConfig, on_policy=True, factorised=True, memory=lambda config: True, central=_central)
