"""A run on recorded trajectories: nothing is stepped, every update learns from the next stretch of the files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.config import RunConfig
from flockrl.data.files import Files
from flockrl.data.pack import make_packer
from flockrl.errors import UsageError
from flockrl.evaluate import make_player
from flockrl.presets import PRESETS
from flockrl.program import Program, TrainState
from flockrl.rollout import Episodes
from flockrl.types import Array, EnvSpec, Trajectory

ON_POLICY = ("ppo", "reinforce")
"""Families that learn from their own fresh experience only."""


class Recorded:
    """Trajectory files in the place of an environment: data/FILE, with commas or * for several.

    home: the environment that they were recorded in, for evaluation, or None where it cannot be made here.
    """

    def __init__(self, names: str):
        self.files = Files(names.split(","))
        self.spec: EnvSpec = self.files.spec
        self.home: Any = None
        name = self.files.about.get("env")
        if isinstance(name, str) and not name.startswith(("custom/", "data/", "python/")):
            from flockrl.envs.base import make

            try:
                self.home = make(name)
            except UsageError:
                self.home = None
        self.best = getattr(self.home, "best", None)


class DataProgram(Program):
    """What `Program` is for environments. An iteration's data are a function of its number, so that a resumed run
    meets what an uninterrupted one would have met. The files are read again and again until the steps are done."""

    def __init__(self, config: RunConfig, env: Recorded):
        if PRESETS[config.algorithm].family in ON_POLICY:
            raise UsageError(
                f"{config.algorithm} learns from its own fresh experience, not from recorded trajectories: use bc, "
                "cql, or a learner with a replay."
            )
        super().__init__(config, env)  # type: ignore[arg-type]
        self.recorded = env
        self._packer = partial(make_packer, env.spec, config.config, config.options.envs)
        self._packer()  # a learner that it does not suit is refused now
        self._streams: dict[int, tuple[int, Iterator[Trajectory]]] = {}
        self._init: Any = jax.jit(self.algorithm.init, compiler_options={"xla_backend_optimization_level": 0})
        self._params: Any = jax.jit(self.algorithm.params)
        self._update: Any = jax.jit(self.algorithm.update, donate_argnums=0)
        self._play: Any = None
        if env.home is not None:
            self._play = make_player(
                self.algorithm, env.home, config.options.eval_episodes, workers=config.options.workers
            )
        else:
            self.note = "no evaluation: the environment of the recording is not known here"

    def rollouts(self) -> Iterator[Trajectory]:
        """The recorded trajectories, over and over, in the form of rollouts."""
        packer, memory = self._packer(), self.algorithm.memory(self.options.envs)
        while True:
            found = 0
            for data in self.recorded.files:
                found += data.steps
                packer.add(data)
                while packer.ready:
                    yield packer.take(memory)
            if not found or (not packer.parts and found < self.algorithm.rollout_steps):
                raise UsageError("The recorded trajectories hold no steps to learn from.")

    def shape(self) -> TrainState:
        learner = jax.eval_shape(self.algorithm.init, jax.random.key(0))
        return TrainState(learner, (), jax.ShapeDtypeStruct((), jnp.int32))  # type: ignore[arg-type]

    def compile(self, seed: int) -> None:
        began = time.perf_counter()
        learner, key = self.shape().learner, jax.random.key(0)
        rollout = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), next(self.rollouts()))
        lowered = [self._init.lower(key), self._update.lower(learner, rollout, key)]
        with ThreadPoolExecutor(len(lowered)) as pool:
            self._init, self._update = pool.map(lambda x: x.compile(), lowered)
        self.compile_seconds = time.perf_counter() - began

    def start_state(self, seed: int) -> TrainState:
        return TrainState(self._init(self.keys(seed)[0]), (), jnp.int32(0))  # type: ignore[arg-type]

    def _stream(self, seed: int, iteration: int) -> Iterator[Trajectory]:
        """The seed's stream, where it stands at this iteration."""
        at, stream = self._streams.get(seed, (-1, iter(())))
        if at != iteration:
            stream = self.rollouts()
            for _ in range(iteration):
                next(stream)
        return stream

    def run(self, state: TrainState, seed: int, count: int) -> tuple[TrainState, Episodes, dict[str, Array]]:
        learner, iteration, key = state.learner, int(state.iteration), self.keys(seed)[1]
        stream, sums = self._stream(seed, iteration), None
        for i in range(iteration, iteration + count):
            learner, metrics = self._update(learner, next(stream), jax.random.fold_in(key, i))
            sums = metrics if sums is None else jax.tree.map(jnp.add, sums, metrics)
        self._streams[seed] = iteration + count, stream
        state = TrainState(learner, (), jnp.int32(iteration + count))  # type: ignore[arg-type]
        none = Episodes(np.int32(0), np.zeros(self.recorded.spec.num_agents), np.int32(0))  # type: ignore[arg-type]
        return state, none, self._means(state, sums or {}, count)

    def evaluate(self, state: TrainState, seed: int, step: int) -> Any:
        """Returns and lengths in the environment of the recording, or None where it is not known."""
        if self._play is None:
            return None
        return self._play(self._params(state.learner), jax.random.fold_in(self.keys(seed)[2], step))
