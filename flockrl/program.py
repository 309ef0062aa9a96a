"""The compiled part of a run: rollout and update as one program, evaluation as another."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from flockrl.change import measured
from flockrl.config import RunConfig
from flockrl.envs.base import Env
from flockrl.envs.host import Host
from flockrl.errors import UsageError
from flockrl.evaluate import make_evaluator
from flockrl.presets import PRESETS, make_algorithm
from flockrl.rollout import Actors, Episodes, scan_rollout, start
from flockrl.types import Array, PyTree, Trajectory

if TYPE_CHECKING:
    from flockrl.data.record import Recording


class TrainState(NamedTuple):
    """The entire state of training, what a checkpoint holds."""

    learner: PyTree
    actors: Actors
    iteration: Array


class Program:
    """Pure functions of one configuration, compiled once and run for any seed.

    Random numbers are a function of (seed, purpose, iteration) alone, never of how far one call went.
    """

    def __init__(self, config: RunConfig, env: Env):
        self.env, self.options = env, config.options
        self.iteration_steps = config.options.envs * config.config.rollout_steps
        self.iterations = math.ceil(config.options.steps / self.iteration_steps)
        algorithm = make_algorithm(
            config.algorithm, env.spec, config.config, envs=config.options.envs, updates=self.iterations
        )
        self.algorithm = measured(algorithm, env.spec)
        self.compile_seconds, self.note, self.fresh = 0.0, "", 0
        """Besides: a word about how the environment is stepped, and how many episodes a resume had to begin anew."""
        self.recording: Recording | None = None
        """Where the rollouts are written, if anywhere."""
        self._step: Any = jax.jit(self.step, donate_argnums=0)
        self._advance: Any = jax.jit(self.advance, donate_argnums=0)
        self._evaluate: Any = jax.jit(make_evaluator(self.algorithm, env, config.options.eval_episodes))
        # Runs once: a quick compilation is worth more here than quick code.
        self._init: Any = jax.jit(self.init, compiler_options={"xla_backend_optimization_level": 0})

    @staticmethod
    def keys(seed: int) -> tuple[Array, Array, Array]:
        """Independent keys for starting, training and evaluating."""
        start, train, test = jax.random.split(jax.random.key(seed), 3)
        return start, train, test

    def init(self, key: Array) -> TrainState:
        learner_key, env_key = jax.random.split(key)
        actors = start(self.algorithm, self.env, env_key, self.options.envs)
        return TrainState(self.algorithm.init(learner_key), actors, jnp.int32(0))

    def shape(self) -> TrainState:
        """A state's structure, shapes and types without its numbers."""
        return jax.eval_shape(self.init, jax.random.key(0))

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
        return state, episodes, self._means(state, totals, count)

    def _means(self, state: TrainState, totals: dict[str, Array], count: Array | int) -> dict[str, Array]:
        """Metrics over some iterations, from their sums."""
        metrics = {name: total / count for name, total in totals.items()}
        params = [leaf for leaf in jax.tree.leaves(self.algorithm.params(state.learner)) if leaf.ndim]
        return {**metrics, "param_norm": optax.tree.norm(params)}

    def open(self, seeds: Sequence[int]) -> None:
        """Get ready to train these seeds. A compiled environment needs nothing."""

    def close(self) -> None:
        """Let go of what `open` took."""

    def settle(self, state: TrainState, seed: int) -> TrainState:
        """The state to go on from when `state` was read from a checkpoint."""
        return state

    def compile(self, seed: int) -> None:
        """Compile everything a run needs, the two large programs side by side."""
        began = time.perf_counter()
        init_key, train_key, eval_key = self.keys(seed)
        state = self.shape()
        params = jax.eval_shape(self.algorithm.params, state.learner)
        lowered = [
            self._init.lower(init_key),
            self._evaluate.lower(params, eval_key),
            self._advance.lower(state, train_key, jnp.int32(1))
            if self.recording is None
            else self._step.lower(state, train_key),
        ]
        with ThreadPoolExecutor(len(lowered)) as pool:
            self._init, self._evaluate, train = pool.map(lambda x: x.compile(), lowered)
        if self.recording is None:
            self._advance = train
        else:
            self._step = train
        self.compile_seconds = time.perf_counter() - began

    def start_state(self, seed: int) -> TrainState:
        return self._init(self.keys(seed)[0])

    def run(self, state: TrainState, seed: int, count: int) -> tuple[TrainState, Episodes, dict[str, Array]]:
        """Advance on the device. `state` is consumed."""
        key = self.keys(seed)[1]
        if self.recording is None:
            return self._advance(state, key, jnp.int32(count))
        sums: Any = None
        for _ in range(count):
            version = int(state.iteration)
            state, *new, trajectory = self._step(state, key)
            self.recording.add(jax.device_get(trajectory), version)
            sums = new if sums is None else jax.tree.map(jnp.add, sums, new)
        return state, sums[0], self._means(state, sums[1], count)

    def evaluate(self, state: TrainState, seed: int, step: int) -> tuple[Array, Array]:
        """Returns [episodes, N] and lengths [episodes] of the policy as it stands after `step` steps."""
        key = jax.random.fold_in(self.keys(seed)[2], step)
        return self._evaluate(self.algorithm.params(state.learner), key)


def make_program(config: RunConfig, env: Env | Host) -> Program:
    """The program for an environment, compiled or on the host."""
    if config.recorded:
        from flockrl.data.program import DataProgram

        return DataProgram(config, env)  # type: ignore[arg-type]
    if PRESETS[config.algorithm].recorded:
        raise UsageError(
            f"{config.algorithm} learns from recorded trajectories: `flockrl train {config.algorithm} data/FILE`, with "
            "a file that `flockrl train ... --record FILE` or `flockrl eval RUN --record FILE` wrote."
        )
    if isinstance(env, Host):
        from flockrl.host_program import HostProgram

        return HostProgram(config, env)
    for name in ("workers", "worker_timeout"):
        if getattr(config.options, name) is not None:
            raise UsageError(f"{name} is for environments that run on the host, and {config.env} is compiled.")
    return Program(config, env)
