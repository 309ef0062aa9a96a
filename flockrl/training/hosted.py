"""A run on a host environment: steps on the host, acting and learning as compiled programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.cluster import require_ray
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, PyTree, Trajectory, choose
from flockrl.envs.api import StepResult
from flockrl.envs.host.batch import HostBatch, blank_state, words
from flockrl.envs.host.env import Host
from flockrl.envs.host.executor import open_executor
from flockrl.envs.host.workers import TIMEOUT, Executor
from flockrl.evaluation.playing import HOST_ENVS, host_episodes
from flockrl.rollouts.compiled import Actors, Episodes
from flockrl.rollouts.host import HostActor, host_after, host_rollout, host_start
from flockrl.rollouts.remote import Player, Recipe, make_recipe, remote_rollout
from flockrl.training.program import (
    Setting,
    TrainState,
    blank_iteration,
    compile_all,
    compile_once,
    evaluation_key,
    iteration_keys,
    means,
    seed_keys,
)


class HostProgram:
    """A `Program` with the same keys, states and results as a compiled one.

    Environment instances are processes and objects, not values, yet a `TrainState` is a value: it holds each running
    episode as its seed and actions so far. Instances that stand elsewhere are brought there by playing them again.
    """

    def __init__(self, setting: Setting, env: Host):
        self.setting, self.host, self.algorithm = setting, env, setting.algorithm
        self.options = setting.options
        for name in ("worker_timeout", "ray"):
            if self.options.workers == 0 and getattr(self.options, name) is not None:
                raise UsageError(f"{name} is for workers, and workers is 0: leave one of them out.")
        if self.options.acting is not None and self.options.ray is None:
            raise UsageError("acting says where policies act that have Ray actors: leave it out, or use it with ray.")
        self.remote = self.options.ray is not None and self.options.acting != "learner"
        self.compile_seconds, self.note, self.fresh = 0.0, "", 0
        self.recording: Any = None
        self.chosen: dict[str, Any] = {}
        self.player = setting.algorithm.in_training
        self.actor, self.greedy = HostActor(self.player), HostActor(self.algorithm, explore=False)
        self._executor: Executor | None = None
        self._batches: dict[int, HostBatch] = {}
        self._init: Any = compile_once(self.algorithm.init)
        self._params: Any = jax.jit(self.algorithm.params)
        self._practice_params: Any = jax.jit(self.player.params)
        self._update: Any = jax.jit(self.algorithm.update, donate_argnums=0)

    # Environment instances

    def open(self, seeds: Sequence[int]) -> None:
        """Set up instances for every seed and for evaluation."""
        self.close()
        self._tests = min(HOST_ENVS, self.options.eval_episodes)
        sizes = [self.options.envs] * len(seeds) + [self._tests]
        how = self.options.workers, self.options.worker_timeout, self.options.ray
        if self.remote:
            self._executor, note = open_executor(self.host, sizes, *how, Player, [self._recipe()])
            self.note = f"{note}, which act"
        else:
            self._executor, self.note = open_executor(self.host, sizes, *how)
        self.chosen = {"workers": self._executor.workers}
        starts = np.cumsum([0, *sizes[:-1]])
        self._batches = {
            seed: HostBatch(self._executor, int(at), self.options.envs)
            for seed, at in zip(seeds, starts[:-1], strict=True)
        }
        self._test = HostBatch(self._executor, int(starts[-1]), self._tests)

    def _recipe(self) -> Recipe:
        """How actors act."""
        require_ray()
        params = jax.eval_shape(lambda key: self.player.params(self.algorithm.init(key)), jax.random.key(0))
        return make_recipe(self.actor, params, self._blank(), self.options.worker_timeout or TIMEOUT)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()
        self._executor, self._batches = None, {}

    def batch(self, seed: int) -> HostBatch:
        """The instances of a seed."""
        if seed not in self._batches:
            self.open([seed])
        return self._batches[seed]

    # Compiling

    def _blank(self) -> Actors:
        """The structure of actors, with zeros."""
        envs = self.options.envs
        return host_start(self.player, self.host.form, blank_state(self.host.form, envs), self.host.form.blank(envs))

    def shape(self) -> TrainState:
        learner = jax.eval_shape(self.algorithm.init, jax.random.key(0))
        actors = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self._blank())
        return TrainState(learner, actors, blank_iteration())

    def _trajectory(self, params: PyTree) -> Trajectory:
        """The structure of a rollout."""
        blank = self._blank()
        act: Any = partial(self.player.act, explore=True)  # type: ignore[call-arg]
        action, _, extras = jax.eval_shape(act, params, blank.observation, blank.memory, jax.random.key(0))
        flags = np.zeros(blank.returns.shape, bool)
        ends = flags, flags, flags[:, 0], blank.observation.alive
        result = StepResult((), blank.observation, blank.observation, blank.returns, *ends)  # type: ignore[arg-type]
        seen = {name: x for name, x in blank.observation._asdict().items() if x is not None}
        columns: dict[str, Any] = {**seen, **host_after(result)}
        row = Trajectory(**columns, action=action, first=blank.first, extras=extras)
        steps = self.algorithm.rollout_steps
        rows = jax.tree.map(lambda x: jax.ShapeDtypeStruct((steps, *x.shape), x.dtype), row)
        return rows._replace(memory=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), blank.memory))

    def compile(self, seed: int) -> None:
        """Workers start while the update is compiled."""
        began = time.perf_counter()
        self.batch(seed)
        learner = self.shape().learner
        params = jax.eval_shape(self.player.params, learner)
        key = jax.random.key(0)
        lowered = [self._init.lower(key), self._update.lower(learner, self._trajectory(params), key)]
        self._init, self._update = compile_all(lowered)
        self.compile_seconds = time.perf_counter() - began

    # Running

    def start_state(self, seed: int) -> TrainState:
        learner_key, env_key = jax.random.split(seed_keys(seed)[0])
        env = self.batch(seed)
        seen = env.reset(np.asarray(words(jax.random.split(env_key, env.count))))
        actors = host_start(self.player, self.host.form, env.state(), seen)
        return TrainState(self._init(learner_key), actors, jnp.int32(0))

    def settle(self, state: TrainState, seed: int) -> TrainState:
        """Bring the instances to where `state` was taken; where that fails, they begin new episodes."""
        env, actors = self.batch(seed), state.actors
        assert isinstance(actors, Actors)
        if env.stands_at(actors.env, np.asarray(actors.lengths)):
            return state
        key = jax.random.fold_in(seed_keys(seed)[0], state.iteration)
        seeds = np.asarray(words(jax.random.split(key, env.count)))
        old = jax.tree.map(np.asarray, actors)
        fresh = env.restore(old.env, old.lengths, old.observation, seeds)
        self.fresh += int(fresh.sum())
        memory = choose(fresh, jax.tree.map(np.asarray, self.player.memory(env.count)), old.memory, np)
        returns, lengths = np.where(fresh[:, None], 0, old.returns), np.where(fresh, 0, old.lengths)
        seen = jax.tree.map(np.copy, env.seen)
        actors = Actors(env.state(), seen, memory, old.first | fresh, returns, lengths)  # type: ignore[arg-type]
        return state._replace(actors=actors)

    def run(self, state: TrainState, seed: int, count: int) -> tuple[TrainState, Episodes, dict[str, Array]]:
        env, key = self.batch(seed), seed_keys(seed)[1]
        learner, actors, iteration = self.settle(state, seed)
        totals: Any = None
        rollout = remote_rollout if self.remote else host_rollout
        for i in range(count):
            rollout_key, update_key = iteration_keys(key, int(iteration) + i)
            params = self._practice_params(learner)
            actors, trajectory, episodes = rollout(self.actor, params, env, actors, rollout_key)
            if self.recording is not None:
                self.recording.add(trajectory, int(iteration) + i)
            learner, metrics = self._update(learner, trajectory, update_key)
            new = (episodes, metrics)
            totals = new if totals is None else jax.tree.map(lambda a, b: a + b, totals, new)
        episodes, sums = totals
        assert self._executor is not None
        state = TrainState(learner, actors, iteration + count)
        metrics = {
            **means(self.algorithm, state, sums, count), "restarts": self._executor.restarts, "cut_episodes": env.cuts
        }  # fmt: skip
        return state, episodes, metrics

    def evaluate(self, state: TrainState, seed: int, step: int) -> tuple[Any, ...]:
        self.batch(seed)
        key, episodes = evaluation_key(seed, step), self.options.eval_episodes
        return host_episodes(self.greedy, self._params(state.learner), self._test, key, episodes)
