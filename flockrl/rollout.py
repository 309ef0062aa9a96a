"""Rollouts: a policy acts in B environments for T steps, as one scan or, on the host, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.envs.base import Env, StepResult, reset_batch, step_batch
from flockrl.envs.batch import HostBatch, words
from flockrl.envs.host import Form
from flockrl.types import Actor, Algorithm, Array, Observation, PyTree, Trajectory


class Actors(NamedTuple):
    """Where B environments stand between rollouts: states, what the teams see, what they remember.

    first: [B] whether an episode begins here. returns: [B, N] and lengths: [B] of the episodes under way.
    """

    env: PyTree
    observation: Observation
    memory: PyTree
    first: Array
    returns: Array
    lengths: Array


class Episodes(NamedTuple):
    """Sums over the episodes that ended in a stretch of time: their number, returns [N], lengths."""

    number: Array
    returns: Array
    lengths: Array


def start(algorithm: Algorithm, env: Env, key: Array, batch: int) -> Actors:
    """B teams at the beginning of their first episode."""
    state, observation = reset_batch(env, key, batch)
    zeros = jnp.zeros((batch, env.spec.num_agents))
    return Actors(
        state, observation, algorithm.memory(batch), jnp.ones(batch, bool), zeros, jnp.zeros(batch, jnp.int32)
    )


def scan_rollout(
    algorithm: Algorithm, params: PyTree, env: Env, actors: Actors, key: Array
) -> tuple[Actors, Trajectory, Episodes]:
    """`algorithm.rollout_steps` steps of every environment, exploring."""

    def step(carry: tuple[Actors, Episodes], keys: Array) -> tuple[tuple[Actors, Episodes], Trajectory]:
        (now, ended), (act_key, env_key) = carry, keys
        seen = now.observation
        action, memory, extras = algorithm.act(params, seen, now.memory, act_key, True)
        result = step_batch(env, env_key, now.env, seen, action)
        reward = result.reward if seen.alive is None else jnp.where(seen.alive, result.reward, 0.0)
        returns, lengths = now.returns + reward, now.lengths + 1
        ended = Episodes(
            ended.number + result.done,
            ended.returns + jnp.where(result.done[:, None], returns, 0.0),
            ended.lengths + jnp.where(result.done, lengths, 0),
        )
        going = ~result.done
        memory = jax.tree.map(lambda h: h * going.reshape(-1, *(1,) * (h.ndim - 1)), memory)
        row = Trajectory(
            obs=seen.obs, avail=seen.avail, state=seen.state, alive=seen.alive,
            action=action, reward=reward, terminated=result.terminated, truncated=result.truncated,
            next_obs=result.final.obs, next_avail=result.final.avail, next_state=result.final.state,
            first=now.first, extras=extras,
        )  # fmt: skip
        after = Actors(result.state, result.observation, memory, result.done, returns * going[:, None], lengths * going)
        return (after, ended), row

    # Keys are split here and sums are taken at the end: each small operation less in the loop counts.
    keys = jax.random.split(key, (algorithm.rollout_steps, 2))
    none = Episodes(jnp.zeros_like(actors.lengths), jnp.zeros_like(actors.returns), jnp.zeros_like(actors.lengths))
    (after, ended), trajectory = jax.lax.scan(step, (actors, none), keys)
    return after, trajectory._replace(memory=actors.memory), jax.tree.map(lambda x: x.sum(0), ended)


class HostActor:
    """An algorithm's `act`, compiled for one step at a time, with arrays of the host going in and coming out."""

    def __init__(self, algorithm: Algorithm | Actor, explore: bool = True):
        self.memory, self.explore = algorithm.memory, explore
        self.rollout_steps = algorithm.rollout_steps if isinstance(algorithm, Algorithm) else 0
        self._act: Any = jax.jit(lambda *args: self._step(algorithm, *args))

    def _step(
        self, algorithm: Algorithm | Actor, params: PyTree, seen: Observation, memory: PyTree, first: Array,
        mine: Array, key: Array,
    ) -> tuple[Array, PyTree, Mapping[str, Array]]:  # fmt: skip
        def where(condition: Array, a: Array | float, b: Array) -> Array:
            return jnp.where(condition.reshape(-1, *(1,) * (b.ndim - 1)), a, b)

        clear = jax.tree.map(lambda h: where(first, jnp.zeros_like(h), h), memory)
        action, after, extras = algorithm.act(params, seen, clear, jax.random.wrap_key_data(key), self.explore)
        return action, jax.tree.map(lambda new, old: where(mine, new, old), after, memory), extras

    def __call__(
        self, params: PyTree, seen: Observation, memory: PyTree, first: Any, mine: Any, key: np.ndarray
    ) -> tuple[np.ndarray, PyTree, dict[str, np.ndarray]]:
        """first: [B] where memory is cleared; mine: [B] whose memory moves on; key: the words of a key."""
        action, memory, extras = self._act(params, seen, memory, first, mine, key)
        return np.asarray(action), memory, {name: np.asarray(value) for name, value in extras.items()}


class Draws(NamedTuple):
    """Chance for a rollout on the host, the same that the compiled one draws: the words of keys for acting [T, W], for
    stepping [T, B, 2], and for the episodes that begin [T, B, 2]."""

    act: np.ndarray
    step: np.ndarray
    reset: np.ndarray


def draw(key: Array, steps: int, batch: int) -> Draws:
    """Pure: compiled by its callers."""
    keys = jax.random.split(key, (steps, 2))
    step = jax.vmap(lambda k: jax.random.split(k, batch))(keys[:, 1])
    reset = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, batch), batch))(keys[:, 1])
    return Draws(jax.random.key_data(keys[:, 0]), words(step), words(reset))  # type: ignore[arg-type]


_draw = jax.jit(draw, static_argnums=(1, 2))


def host_start(algorithm: Algorithm, form: Form, state: PyTree, seen: Observation) -> Actors:
    """B teams at the beginning of their first episode, which shows `seen`."""
    batch = len(seen.obs)
    zeros = np.zeros((batch, form.spec.num_agents), np.float32)
    memory = jax.tree.map(np.asarray, algorithm.memory(batch))
    return Actors(state, seen, memory, np.ones(batch, bool), zeros, np.zeros(batch, np.int32))  # type: ignore[arg-type]


def host_rollout(
    algorithm: HostActor, params: PyTree, env: HostBatch, actors: Actors, key: Array
) -> tuple[Actors, Trajectory, Episodes]:
    """What `scan_rollout` does, with environments that have to be asked step by step. `actors` is where they stand.

    Where workers step, half of the teams are answered while the other half steps. `act` is then called on all teams
    for each half, and the half's rows are taken: every team gets the numbers it would have got in one call.
    """
    work = _HostRollout(algorithm, params, env, actors, key)
    under_way = [(group, work.begin(0, group)) for group in env.executor.groups(env.count)]
    for t in range(algorithm.rollout_steps):
        for i, (group, step) in enumerate(under_way):
            work.finish(t, group, step)
            if t + 1 < algorithm.rollout_steps:
                under_way[i] = (group, work.begin(t + 1, group))
    return work.result()


class _HostRollout:
    """A rollout under way: what the teams see, remember and have done so far."""

    def __init__(self, algorithm: HostActor, params: PyTree, env: HostBatch, actors: Actors, key: Array):
        self.algorithm, self.params, self.env, self.start = algorithm, params, env, actors
        self.draws = Draws(*map(np.asarray, _draw(key, algorithm.rollout_steps, env.count)))
        self.seen, self.memory, self.first = env.seen, actors.memory, np.array(actors.first)
        self.returns, self.lengths = np.array(actors.returns), np.array(actors.lengths)
        zeros = np.zeros_like(self.lengths), np.zeros_like(self.returns), np.zeros_like(self.lengths)
        self.ended: Any = Episodes(*zeros)  # type: ignore[arg-type]
        self.columns: dict[str, np.ndarray] = {}
        self.extras: dict[str, np.ndarray] = {}

    def begin(self, t: int, group: slice) -> Any:
        """Choose actions of a group of teams and have them step."""
        mine = np.zeros(self.env.count, bool)
        mine[group] = True
        action, self.memory, extras = self.algorithm(
            self.params, self.seen, self.memory, self.first, mine, self.draws.act[t]
        )
        step = self.env.begin(group, action[group], self.draws.step[t, group], self.draws.reset[t, group])
        before = {**self.seen._asdict(), "action": action, "first": self.first}
        self._write(self.columns, t, group, {name: x[group] for name, x in before.items() if x is not None})
        self._write(self.extras, t, group, {name: x[group] for name, x in extras.items()})
        return step

    def finish(self, t: int, group: slice, step: Any) -> None:
        """Wait for the step and write down what came of it."""
        self.env.finish(step)
        result = self.env.result(group)
        alive = self.columns["alive"][t, group] if "alive" in self.columns else None
        after = host_after(result, alive)
        self._write(self.columns, t, group, after)
        self.returns[group] += after["reward"]
        self.lengths[group] += 1
        self.first[group] = result.done
        if np.any(result.done):
            over = np.arange(group.start, group.stop)[np.asarray(result.done)]
            whole = over[~self.env.was_cut[over]]
            self.ended.number[whole] += 1
            self.ended.returns[whole] += self.returns[whole]
            self.ended.lengths[whole] += self.lengths[whole]
            self.returns[over], self.lengths[over] = 0.0, 0

    def _write(self, columns: dict[str, np.ndarray], t: int, group: slice, values: Mapping[str, np.ndarray]) -> None:
        """Put the group's values [G, ...] where they belong in columns [T, B, ...]."""
        for name, value in values.items():
            if name not in columns:
                shape = self.algorithm.rollout_steps, self.env.count, *value.shape[1:]
                columns[name] = np.empty(shape, value.dtype)
            columns[name][t, group] = value

    def result(self) -> tuple[Actors, Trajectory, Episodes]:
        going = ~self.first
        memory = jax.tree.map(lambda h: np.asarray(h) * going.reshape(-1, *(1,) * (h.ndim - 1)), self.memory)
        seen: Observation = jax.tree.map(np.copy, self.seen)
        after = Actors(self.env.state(), seen, memory, self.first, self.returns, self.lengths)  # type: ignore[arg-type]
        totals = jax.tree.map(lambda x: x.sum(0), self.ended)
        columns: dict[str, Any] = {**self.columns, "extras": self.extras, "memory": self.start.memory}
        return after, Trajectory(**columns), totals


def host_after(result: StepResult, alive: np.ndarray | None) -> dict[str, np.ndarray]:
    """The columns of a trajectory that a step leads to; those it begins with are `types.Observation`'s, action and
    first. alive: [B, N] who lived before the step."""
    reward: Any = result.reward if alive is None else np.where(alive, result.reward, np.float32(0))
    after = {"reward": reward, "terminated": result.terminated, "truncated": result.truncated}
    final = {"obs": result.final.obs, "avail": result.final.avail, "state": result.final.state}
    return after | {f"next_{name}": x for name, x in final.items() if x is not None}
