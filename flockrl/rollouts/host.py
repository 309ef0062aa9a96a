"""Rollouts in host environments: `act` is compiled, stepping is not."""

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
    """An algorithm's `act`, compiled for one step at a time; its arguments and results are NumPy arrays."""

    def __init__(self, algorithm: Algorithm | Actor, explore: bool = True):
        self.memory, self.explore = algorithm.memory, explore
        self.rollout_steps = algorithm.rollout_steps if isinstance(algorithm, Algorithm) else 0
        self.act: Any = jax.jit(lambda *args: self._step(algorithm, *args))

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
        """first: [B] where memory is cleared; mine: [B] where memory is updated; key: the words of a key."""
        action, memory, extras = self.act(params, seen, memory, first, mine, key)
        return np.asarray(action), memory, {name: np.asarray(value) for name, value in extras.items()}


class Draws(NamedTuple):
    """Random keys of a rollout on the host, the same as in a compiled rollout: the words of the keys for acting [T, W],
    for stepping [T, B, 2], and for resets [T, B, 2]."""

    act: np.ndarray
    step: np.ndarray
    reset: np.ndarray


def draw(key: Array, steps: int, batch: int) -> Draws:
    """A pure function; its callers compile it."""
    keys = jax.random.split(key, (steps, 2))
    step = jax.vmap(lambda k: jax.random.split(k, batch))(keys[:, 1])
    reset = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, batch), batch))(keys[:, 1])
    return Draws(jax.random.key_data(keys[:, 0]), words(step), words(reset))  # type: ignore[arg-type]


_draw = jax.jit(draw, static_argnums=(1, 2))


def host_draws(key: Array, steps: int, batch: int) -> Draws:
    """The keys of a rollout in NumPy."""
    return Draws(*map(np.asarray, _draw(key, steps, batch)))


class Played(NamedTuple):
    """What came of a rollout. columns, extras: [T, B, ...]; seen, memory, first, returns, lengths: [B, ...] after its
    last step, memory also of episodes that are over; ended: sums over ended episodes of each environment [B, ...]."""

    columns: dict[str, np.ndarray]
    extras: dict[str, np.ndarray]
    seen: Observation
    memory: PyTree
    first: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray
    ended: Episodes


def host_start(algorithm: Algorithm, form: Form, state: PyTree, seen: Observation) -> Actors:
    """B environments at the beginning of their first episode, with the observations `seen`."""
    batch = len(seen.obs)
    zeros = np.zeros((batch, form.spec.num_agents), np.float32)
    memory = jax.tree.map(np.asarray, algorithm.memory(batch))
    return Actors(state, seen, memory, np.ones(batch, bool), zeros, np.zeros(batch, np.int32))  # type: ignore[arg-type]


def host_rollout(
    algorithm: HostActor, params: PyTree, env: HostBatch, actors: Actors, key: Array
) -> tuple[Actors, Trajectory, Episodes]:
    """Do what `scan_rollout` does, step by step, with host environments. `actors` is their state before the rollout.

    With worker processes, `act` runs for one half of the environments while the other half steps. It is called on all
    environments for each half, and only the half's rows are used: the actions are the same as from a single call.
    """
    draws = host_draws(key, algorithm.rollout_steps, env.count)
    return concluded(algorithm, env, actors.memory, play(algorithm, params, env, actors, draws))


def play(algorithm: Any, params: PyTree, env: HostBatch, actors: Actors, draws: Draws) -> Played:
    """Take the steps of a rollout. algorithm: called like a `HostActor`."""
    work = _HostRollout(algorithm, params, env, actors, draws)
    pending = [(half, work.begin(0, half)) for half in env.executor.groups(env.count)]
    for t in range(algorithm.rollout_steps):
        for i, (half, step) in enumerate(pending):
            work.finish(t, half, step)
            if t + 1 < algorithm.rollout_steps:
                pending[i] = (half, work.begin(t + 1, half))
    return work.played()


def concluded(
    algorithm: HostActor, env: HostBatch, memory: PyTree, played: Played
) -> tuple[Actors, Trajectory, Episodes]:
    """A rollout as learners take it, and the state of the environments after it. memory: that before it."""
    blank = jax.tree.map(np.asarray, algorithm.memory(len(played.first)))
    after = Actors(
        env.state(), played.seen, choose(played.first, blank, played.memory, np),
        played.first, played.returns, played.lengths,  # type: ignore[arg-type]
    )  # fmt: skip
    columns: dict[str, Any] = {**played.columns, "extras": played.extras, "memory": memory}
    return after, Trajectory(**columns), jax.tree.map(lambda x: x.sum(0), played.ended)


class _HostRollout:
    """An unfinished rollout: current observations and memory, and the columns filled so far."""

    def __init__(self, algorithm: Any, params: PyTree, env: HostBatch, actors: Actors, draws: Draws):
        self.algorithm, self.params, self.env, self.draws = algorithm, params, env, draws
        self.seen, self.memory, self.first = env.seen, actors.memory, np.array(actors.first)
        self.returns, self.lengths = np.array(actors.returns), np.array(actors.lengths)
        zeros = np.zeros_like(self.lengths), np.zeros_like(self.returns), np.zeros_like(self.lengths)
        self.ended: Any = Episodes(*zeros)  # type: ignore[arg-type]
        self.columns: dict[str, np.ndarray] = {}
        self.extras: dict[str, np.ndarray] = {}

    def begin(self, t: int, half: slice) -> Any:
        """Choose the actions of a slice of the environments, and start the step."""
        mine = np.zeros(self.env.count, bool)
        mine[half] = True
        action, self.memory, extras = self.algorithm(
            self.params, self.seen, self.memory, self.first, mine, self.draws.act[t]
        )
        step = self.env.begin(half, action[half], self.draws.step[t, half], self.draws.reset[t, half])
        before = {**self.seen._asdict(), "action": action, "first": self.first}
        self._write(self.columns, t, half, {name: x[half] for name, x in before.items() if x is not None})
        self._write(self.extras, t, half, {name: x[half] for name, x in extras.items()})
        return step

    def finish(self, t: int, half: slice, step: Any) -> None:
        """Wait for the step and store its results."""
        self.env.finish(step)
        result = self.env.result(half)
        after = host_after(result)
        self._write(self.columns, t, half, after)
        self.returns[half] += after["reward"]
        self.lengths[half] += 1
        self.first[half] = result.done
        if np.any(result.done):
            over = np.arange(half.start, half.stop)[np.asarray(result.done)]
            whole = over[~self.env.was_cut[over]]
            self.ended.number[whole] += 1
            self.ended.returns[whole] += self.returns[whole]
            self.ended.lengths[whole] += self.lengths[whole]
            self.returns[over], self.lengths[over] = 0.0, 0

    def _write(self, columns: dict[str, np.ndarray], t: int, half: slice, values: Mapping[str, np.ndarray]) -> None:
        """Write the slice's values [G, ...] at time t into columns [T, B, ...]."""
        for name, value in values.items():
            if name not in columns:
                shape = self.algorithm.rollout_steps, self.env.count, *value.shape[1:]
                columns[name] = np.empty(shape, value.dtype)
            columns[name][t, half] = value

    def played(self) -> Played:
        seen, memory = jax.tree.map(np.copy, self.seen), jax.tree.map(np.asarray, self.memory)
        return Played(self.columns, self.extras, seen, memory, self.first, self.returns, self.lengths, self.ended)


def host_after(result: StepResult) -> dict[str, Any]:
    """The columns of a trajectory that follow from a step; the others are known before it: the fields of `Observation`,
    action and first."""
    after: dict[str, Any] = {
        "reward": result.reward,
        "terminated": result.terminated,
        "truncated": result.truncated,
    }
    if result.left is not None:
        after["next_alive"] = result.left
    final = {name: getattr(result.final, name) for name in ("obs", "avail", "state", "neighbours")}
    return after | {f"next_{name}": x for name, x in final.items() if x is not None}
