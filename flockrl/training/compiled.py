"""A run on a compiled environment: rollout and update as one program, evaluation as another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from flockrl.core.types import Array, Trajectory
from flockrl.envs.api import Env
from flockrl.evaluation.playing import make_evaluator
from flockrl.rollouts.compiled import Episodes, scan_rollout, start
from flockrl.training.program import (
    Setting,
    TrainState,
    compile_all,
    compile_once,
    evaluation_key,
    means,
    seed_keys,
)


class CompiledProgram:
    """A `Program` whose environments are stepped by JAX."""

    def __init__(self, setting: Setting, env: Env):
        self.setting, self.env, self.algorithm = setting, env, setting.algorithm
        self.compile_seconds, self.note, self.fresh = 0.0, "", 0
        self.recording: Any = None
        self.chosen: dict[str, Any] = {}
        self._step: Any = jax.jit(self.step, donate_argnums=0)
        self._advance: Any = jax.jit(self.advance, donate_argnums=0)
        self._evaluate: Any = jax.jit(make_evaluator(self.algorithm, env, setting.options.eval_episodes))
        self._init: Any = compile_once(self.init)

    # Pure functions

    def init(self, key: Array) -> TrainState:
        learner_key, env_key = jax.random.split(key)
        actors = start(self.algorithm, self.env, env_key, self.setting.options.envs)
        return TrainState(self.algorithm.init(learner_key), actors, jnp.int32(0))

    def iterate(self, state: TrainState, key: Array) -> tuple[TrainState, Episodes, Any]:
        """One rollout and one update."""
        return self.step(state, key)[:3]

    def step(self, state: TrainState, key: Array) -> tuple[TrainState, Episodes, Any, Trajectory]:
        """One rollout and one update, and the rollout."""
        rollout_key, update_key = jax.random.split(jax.random.fold_in(key, state.iteration))
        params = self.algorithm.params(state.learner)
        actors, trajectory, episodes = scan_rollout(self.algorithm, params, self.env, state.actors, rollout_key)
        learner, metrics = self.algorithm.update(state.learner, trajectory, update_key)
        return TrainState(learner, actors, state.iteration + 1), episodes, metrics, trajectory

    def advance(self, state: TrainState, key: Array, count: Array) -> tuple[TrainState, Episodes, dict[str, Array]]:
        """`count` iterations: the state after them, sums over ended episodes, means of metrics."""
        shapes = jax.eval_shape(self.iterate, state, key)[1:]
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def body(_: Array, carry: tuple[TrainState, Any]) -> tuple[TrainState, Any]:
            state, totals = carry
            state, *new = self.iterate(state, key)
            return state, jax.tree.map(jnp.add, totals, tuple(new))

        state, (episodes, totals) = jax.lax.fori_loop(0, count, body, (state, zeros))
        return state, episodes, means(self.algorithm, state, totals, count)

    # What the loop calls

    def shape(self) -> TrainState:
        return jax.eval_shape(self.init, jax.random.key(0))

    def open(self, seeds: Sequence[int]) -> None:
        """A compiled environment needs nothing."""

    def close(self) -> None:
        """Nothing was opened."""

    def settle(self, state: TrainState, seed: int) -> TrainState:
        return state

    def compile(self, seed: int) -> None:
        began = time.perf_counter()
        init_key, train_key, eval_key = seed_keys(seed)
        state = self.shape()
        params = jax.eval_shape(self.algorithm.params, state.learner)
        lowered = [
            self._init.lower(init_key),
            self._evaluate.lower(params, eval_key),
            self._advance.lower(state, train_key, jnp.int32(1))
            if self.recording is None
            else self._step.lower(state, train_key),
        ]
        self._init, self._evaluate, train = compile_all(lowered)
        if self.recording is None:
            self._advance = train
        else:
            self._step = train
        self.compile_seconds = time.perf_counter() - began

    def start_state(self, seed: int) -> TrainState:
        return self._init(seed_keys(seed)[0])

    def run(self, state: TrainState, seed: int, count: int) -> tuple[TrainState, Episodes, dict[str, Array]]:
        key = seed_keys(seed)[1]
        if self.recording is None:
            return self._advance(state, key, jnp.int32(count))
        sums: Any = None
        for _ in range(count):
            version = int(state.iteration)
            state, *new, trajectory = self._step(state, key)
            self.recording.add(jax.device_get(trajectory), version)
            sums = new if sums is None else jax.tree.map(jnp.add, sums, new)
        return state, sums[0], means(self.algorithm, state, sums[1], count)

    def evaluate(self, state: TrainState, seed: int, step: int) -> tuple[Array, Array]:
        return self._evaluate(self.algorithm.params(state.learner), evaluation_key(seed, step))
