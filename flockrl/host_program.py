"""A run on a host environment: steps on the host, acting and learning as compiled programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.config import RunConfig
from flockrl.envs.base import StepResult
from flockrl.envs.batch import HostBatch, blank_state, words
from flockrl.envs.host import Host
from flockrl.envs.workers import Executor, open_executor
from flockrl.errors import UsageError
from flockrl.evaluate import HOST_TEAMS, host_episodes
from flockrl.program import Program, TrainState
from flockrl.rollout import Actors, Episodes, HostActor, host_after, host_rollout, host_start
from flockrl.types import Array, PyTree, Trajectory


class HostProgram(Program):
    """What `Program` is for compiled environments, with the same keys, states and results.

    Teams are processes and objects, not values, yet a `TrainState` still is one: it holds each team's episode as its
    seed and actions so far. Where the teams stand elsewhere, they are brought there by playing them again.
    """

    def __init__(self, config: RunConfig, env: Host):
        super().__init__(config, env)  # type: ignore[arg-type]
        if config.options.workers == 0 and config.options.worker_timeout is not None:
            raise UsageError("worker_timeout is for workers, and workers is 0: leave one of them out.")
        self.host, self.fresh = env, 0
        self.actor, self.greedy = HostActor(self.algorithm), HostActor(self.algorithm, explore=False)
        self._executor: Executor | None = None
        self._batches: dict[int, HostBatch] = {}
        self._init: Any = jax.jit(self.algorithm.init, compiler_options={"xla_backend_optimization_level": 0})
        self._params: Any = jax.jit(self.algorithm.params)
        self._update: Any = jax.jit(self.algorithm.update, donate_argnums=0)

    # Teams

    def open(self, seeds: Sequence[int]) -> None:
        """Set up teams for every seed and for evaluation."""
        self.close()
        self._tests = min(HOST_TEAMS, self.options.eval_episodes)
        sizes = [self.options.envs] * len(seeds) + [self._tests]
        self._executor, self.note = open_executor(self.host, sizes, self.options.workers, self.options.worker_timeout)
        starts = np.cumsum([0, *sizes[:-1]])
        self._batches = {
            seed: HostBatch(self._executor, int(at), self.options.envs)
            for seed, at in zip(seeds, starts[:-1], strict=True)
        }
        self._test = HostBatch(self._executor, int(starts[-1]), self._tests)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()
        self._executor, self._batches = None, {}

    def batch(self, seed: int) -> HostBatch:
        """The teams of a seed."""
        if seed not in self._batches:
            self.open([seed])
        return self._batches[seed]

    # Compiling

    def _blank(self) -> Actors:
        """The structure of actors, with zeros."""
        envs = self.options.envs
        return host_start(self.algorithm, self.host.form, blank_state(self.host.form, envs), self.host.form.blank(envs))

    def shape(self) -> TrainState:
        learner = jax.eval_shape(self.algorithm.init, jax.random.key(0))
        actors = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self._blank())
        return TrainState(learner, actors, jax.ShapeDtypeStruct((), jnp.int32))  # type: ignore[arg-type]

    def _trajectory(self, params: PyTree) -> Trajectory:
        """The structure of a rollout."""
        blank = self._blank()
        act: Any = partial(self.algorithm.act, explore=True)  # type: ignore[call-arg]
        action, _, extras = jax.eval_shape(act, params, blank.observation, blank.memory, jax.random.key(0))
        flags = np.zeros(blank.returns.shape, bool)
        result = StepResult((), blank.observation, blank.observation, blank.returns, flags, flags, flags[:, 0])  # type: ignore[arg-type]
        columns: dict[str, Any] = {**blank.observation._asdict(), **host_after(result, blank.observation.alive)}  # type: ignore[arg-type]
        row = Trajectory(**columns, action=action, first=blank.first, extras=extras)
        steps = self.algorithm.rollout_steps
        rows = jax.tree.map(lambda x: jax.ShapeDtypeStruct((steps, *x.shape), x.dtype), row)
        return rows._replace(memory=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), blank.memory))

    def compile(self, seed: int) -> None:
        """Workers start while the update is compiled."""
        began = time.perf_counter()
        self.batch(seed)
        learner = self.shape().learner
        params = jax.eval_shape(self.algorithm.params, learner)
        key = jax.random.key(0)
        lowered = [self._init.lower(key), self._update.lower(learner, self._trajectory(params), key)]
        with ThreadPoolExecutor(len(lowered)) as pool:
            self._init, self._update = pool.map(lambda x: x.compile(), lowered)
        self.compile_seconds = time.perf_counter() - began

    # Running

    def start_state(self, seed: int) -> TrainState:
        learner_key, env_key = jax.random.split(self.keys(seed)[0])
        env = self.batch(seed)
        seen = env.reset(np.asarray(words(jax.random.split(env_key, env.count))))
        actors = host_start(self.algorithm, self.host.form, env.state(), seen)
        return TrainState(self._init(learner_key), actors, jnp.int32(0))

    def settle(self, state: TrainState, seed: int) -> TrainState:
        """Bring the teams to where `state` was taken; where that fails, they stand at the beginning of new episodes."""
        env, actors = self.batch(seed), state.actors
        if env.stands_at(actors.env, np.asarray(actors.lengths)):
            return state
        key = jax.random.fold_in(self.keys(seed)[0], state.iteration)
        seeds = np.asarray(words(jax.random.split(key, env.count)))
        old = jax.tree.map(np.asarray, actors)
        fresh = env.restore(old.env, old.lengths, old.observation, seeds)
        self.fresh += int(fresh.sum())
        going = ~fresh

        def keep(x: np.ndarray) -> np.ndarray:
            return x * going.reshape(-1, *(1,) * (x.ndim - 1))

        returns, lengths, memory = jax.tree.map(keep, (old.returns, old.lengths, old.memory))
        actors = Actors(env.state(), jax.tree.map(np.copy, env.seen), memory, old.first | fresh, returns, lengths)
        return state._replace(actors=actors)

    def run(self, state: TrainState, seed: int, count: int) -> tuple[TrainState, Episodes, dict[str, Array]]:
        env, key = self.batch(seed), self.keys(seed)[1]
        learner, actors, iteration = self.settle(state, seed)
        totals: Any = None
        for i in range(count):
            rollout_key, update_key = _keys(key, int(iteration) + i)
            params = self._params(learner)
            actors, trajectory, episodes = host_rollout(self.actor, params, env, actors, rollout_key)
            if self.recording is not None:
                self.recording.add(trajectory, int(iteration) + i)
            learner, metrics = self._update(learner, trajectory, update_key)
            new = (episodes, metrics)
            totals = new if totals is None else jax.tree.map(lambda a, b: a + b, totals, new)
        episodes, sums = totals
        assert self._executor is not None
        state = TrainState(learner, actors, iteration + count)
        metrics = {**self._means(state, sums, count), "restarts": self._executor.restarts, "cut_episodes": env.cuts}
        return state, episodes, metrics

    def evaluate(self, state: TrainState, seed: int, step: int) -> tuple[Any, Any]:
        self.batch(seed)
        key = jax.random.fold_in(self.keys(seed)[2], step)
        return host_episodes(self.greedy, self._params(state.learner), self._test, key, self.options.eval_episodes)


@jax.jit
def _keys(key: Array, iteration: int) -> tuple[Array, Array]:
    rollout_key, update_key = jax.random.split(jax.random.fold_in(key, iteration))
    return rollout_key, update_key
