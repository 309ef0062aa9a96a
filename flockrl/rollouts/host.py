"""Rollouts in environments on the host: acting is compiled, stepping is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from flockrl.core.types import Actor, Algorithm, Array, Observation, PyTree, Trajectory, choose
from flockrl.envs.api import StepResult
from flockrl.envs.host.batch import HostBatch, words
from flockrl.envs.host.env import Form
from flockrl.rollouts.compiled import Actors, Episodes


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
        begun = choose(first, algorithm.memory(len(first)), memory)
        action, after, extras = algorithm.act(params, seen, begun, jax.random.wrap_key_data(key), self.explore)
        return action, choose(mine, after, memory), extras

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
        blank, memory = jax.tree.map(np.asarray, (self.algorithm.memory(len(self.first)), self.memory))
        memory = choose(self.first, blank, memory, np)
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
    final = {name: getattr(result.final, name) for name in ("obs", "avail", "state", "neighbours")}
    return after | {f"next_{name}": x for name, x in final.items() if x is not None}
