"""Feudal learning: a manager sets every agent's goal each few steps, and workers are paid for reaching it.

After Dayan and Hinton 1993 and Ahilan and Dayan 2019 (FMH, arXiv 1901.08492). Manager and worker are learners of any
family. The manager learns from decisions: what the environment paid until the next one. A worker sees its goal beside
its observation and is paid

    r = (1 - w) (-|x_goal|) + w r_environment

where x_goal is the offset of its goal after the step. Goals are the entities of one kind in an agent's observation,
whose first two numbers are their offsets (`algos.goals`), or roles, which limit what a worker may do (`algos.roles`):
then the environment alone pays. With `worker identity` goals are actions, and agents do what the manager says at every
step: that is the manager's algorithm alone, bit for bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.family import Family
from flockrl.algos.feudal_config import IDENTITY, ROLE, FeudalConfig
from flockrl.algos.goals import EntityGoals, decisions_of
from flockrl.algos.parts import mean
from flockrl.algos.presets import family
from flockrl.algos.roles import RoleGoals
from flockrl.algos.segments import decided, segments
from flockrl.core.errors import UsageError
from flockrl.core.groups import make_groups
from flockrl.core.random import Source, Tape, fold_in
from flockrl.core.types import Algorithm, Array, Critic, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.envs.assignment import share_out
from flockrl.nets.heads import pick


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
        goals: Any = () if self.identity else _goals(spec, config, updates)
        tasks = spec if self.identity else decisions_of(spec, goals.count, self.every, goals.chosen)
        made = {"manager": make_algorithm(config.manager, tasks, config.tier("manager"), envs=envs, updates=updates)}
        if not self.identity:
            made["worker"] = make_algorithm(
                config.worker, goals.work, config.tier("worker"), envs=envs, updates=updates
            )
        self.goals, self.tasks, self.tiers = goals, tasks, made
        if config.allocate != "scores":
            if made["manager"].scores is None:
                raise UsageError(f"manager={config.manager} has no scores to allocate goals by: use --allocate scores.")
            _require_one_unit(config, tasks)

    @property
    def learns_goals(self) -> bool:
        """Whether it is learned what goals are; the state has "goals" then."""
        return not self.identity and self.goals.learned

    def algorithm(self) -> Algorithm:
        note = "; ".join(f"{name}: {tier.note}" for name, tier in self.tiers.items() if tier.note)
        critic = None if self.identity else self.tiers["worker"].critic
        return Algorithm(
            self.init, self.params, self.act, self.update, self.memory, self.config.rollout_steps, note,
            critic=critic and Critic(self._valuing, self.values),
        )  # fmt: skip

    def _valuing(self, state: PyTree) -> PyTree:
        """What the workers' critic needs, and what goals are."""
        return self.tiers["worker"].critic.params(state["worker"]), self.params(state).get("goals", ())  # type: ignore[union-attr]

    def values(self, params: PyTree, trajectory: Trajectory) -> Array:
        """[T, B, N] what workers expect of what they are paid."""
        worker, goals = self.tiers["worker"].critic, params[1]
        assert worker is not None
        return worker.values(params[0], self._work(goals, trajectory, trajectory.extras["goal"]))

    def init(self, key: Array) -> PyTree:
        state = {name: tier.init(_own(key, name)) for name, tier in self.tiers.items()}
        return {**state, "goals": self.goals.init(fold_in(key, 2))} if self.learns_goals else state

    def params(self, state: PyTree) -> PyTree:
        params = {name: tier.params(state[name]) for name, tier in self.tiers.items()}
        return {**params, "goals": self.goals.params(state["goals"])} if self.learns_goals else params

    def memory(self, batch: int) -> Held:
        worker = () if self.identity else self.tiers["worker"].memory(batch)
        goal = jnp.zeros((batch, *self.tasks.action_shape), self.tasks.action_dtype)
        return Held(self.tiers["manager"].memory(batch), worker, goal, jnp.zeros(batch, jnp.int32))

    def act(
        self, params: PyTree, seen: Observation, held: Held, key: Source, explore: bool
    ) -> tuple[Array, Held, dict[str, Array]]:
        now = held.clock == 0
        decide = partial(self._decide, params, seen, held, key, explore)
        if self.every == 1 or isinstance(key, Tape):  # a tape is read in the order of the draws, whoever decides
            wanted, after, noted = decide()
        else:
            wanted, after, noted = jax.lax.cond(now.any(), decide, lambda: _nothing(decide))

        def chosen(new: Any, old: Any) -> Any:
            return jnp.where(now.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        goal, manager = chosen(wanted, held.goal), jax.tree.map(chosen, after, held.manager)
        clock = (held.clock + 1) % self.every
        extras = {f"manager.{name}": x for name, x in noted.items()}
        if self.identity:
            return goal, Held(manager, (), goal, clock), {**extras, "goal": goal}
        sees = self.goals.show(params.get("goals", ()), seen, goal)
        own: Any = _own(key, "worker")
        action, worker, found = self.tiers["worker"].act(params["worker"], sees, held.worker, own, explore)
        extras |= {f"worker.{name}": x for name, x in found.items()}
        return action, Held(manager, worker, goal, clock), {**extras, "goal": goal}

    def _decide(
        self, params: PyTree, seen: Observation, held: Held, key: Source, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        """Goals [B, N(, W)] for all agents, the manager's memory after it, and what is noted of them.

        Of allocated goals no two agents have the same. Their log-probabilities are those of agents who choose for
        themselves. Were assignments drawn in proportion to exp(sum of scores), as Gumbel noise on scores does nearly,
        policy gradients of the two would be equal.
        """
        asked, manager, own = seen if self.identity else seen._replace(avail=None), self.tiers["manager"], held.manager
        goals, after, noted = manager.act(params["manager"], asked, own, key, explore)  # type: ignore[arg-type]
        how = self.config.allocate
        if how == "scores":
            return goals, after, dict(noted)
        assert manager.scores is not None
        scores = partial(manager.scores, params["manager"], asked, own, key)  # type: ignore[arg-type]
        found = scores(explore)
        if asked.alive is not None:  # to the dead all goals are alike, so that they take what others leave
            found = jnp.where(asked.alive[..., None], found, 0.0)
        goals = jax.vmap(lambda table: share_out(table, how))(found).astype(held.goal.dtype)
        return goals, after, {**noted, **({"logp": pick(scores(False), goals)} if "logp" in noted else {})}

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
        work = self._work(self.params(state).get("goals", ()), trajectory, goal)
        state["worker"], found = self.tiers["worker"].update(state["worker"], work, _own(key, "worker"))
        metrics |= {f"worker/{name}": x for name, x in found.items()}
        metrics |= {**self.goals.measures(trajectory, goal, decides), "worker/reward": work.reward.mean()}
        if self.learns_goals:
            state["goals"], found = self.goals.learn(state["goals"], trajectory, fold_in(key, 2))
            metrics |= found
        return state, metrics

    def _work(self, params: PyTree, trajectory: Trajectory, goal: Array) -> Trajectory:
        """The workers' rollout. params: of goals."""
        follows = jnp.concatenate([goal[1:], goal[-1:]])
        ends = (trajectory.terminated | trajectory.truncated).all(-1)[..., None]
        follows = jnp.where(ends, goal, follows)  # a goal of the next episode is none of this one
        seen = self.goals.show(params, trajectory.observation, goal)
        after = self.goals.show(params, trajectory.next_observation, follows)
        return trajectory._replace(
            obs=seen.obs, avail=seen.avail, next_obs=after.obs, next_avail=after.avail,
            reward=self.goals.pay(trajectory, goal), extras=_of(trajectory, "worker"),
            memory=trajectory.memory.worker,
        )  # fmt: skip


def _goals(spec: EnvSpec, config: FeudalConfig, updates: int) -> EntityGoals | RoleGoals:
    if config.goal == ROLE:
        return RoleGoals(spec, config.of_roles("roles"), config.of_roles("roles_after"), updates)
    return EntityGoals(spec, config.goal, config.environment_share or 0.0)


def _require_one_unit(config: FeudalConfig, tasks: EnvSpec) -> None:
    """Refuse to add up scores that count in units of their own."""
    manager = config.tier("manager")
    alone = getattr(manager, "normalize_reward", False) and getattr(manager, "mixer", "none") == "none"
    if alone and len(make_groups(tasks, manager.share)) > 1:
        raise UsageError(
            f"manager={config.manager} counts the rewards of agents that share nothing in units of their own, and "
            f"--allocate {config.allocate} adds up their scores: set --manager.no-normalize-reward."
        )


def _own(key: Source, tier: str) -> Any:
    """A key for a tier; the manager's is the key itself, so that a manager alone is the flat algorithm."""
    return key if tier == "manager" else fold_in(key, 1)


def _nothing(decide: Any) -> Any:
    """What stands in the place of decisions in a step in which nobody decides."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(decide))


def _of(trajectory: Trajectory, tier: str) -> dict[str, Array]:
    """The extras of one tier."""
    start = f"{tier}."
    return {name.removeprefix(start): x for name, x in trajectory.extras.items() if name.startswith(start)}


def _central(config: FeudalConfig) -> bool:
    return any(family(getattr(config, tier)).central(config.tier(tier)) for tier in config.tiers)


FAMILY = Family(make, FeudalConfig, on_policy=True, factorised=True, memory=lambda config: True, central=_central)
