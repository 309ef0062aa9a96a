"""A run on recorded trajectories: nothing is stepped, every update learns from the next of them, in a random order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.code import Untrusted, require_trust
from flockrl.core.errors import UsageError
from flockrl.core.types import EnvSpec, Trajectory
from flockrl.data.files import Files
from flockrl.data.shuffle import Shuffled
from flockrl.envs.adapters.adapt import code_of
from flockrl.envs.registry import make
from flockrl.evaluation.playing import make_player
from flockrl.rollouts.compiled import Episodes
from flockrl.training.pack import Packer
from flockrl.training.program import (
    Setting,
    TrainState,
    blank_iteration,
    compile_all,
    compile_once,
    evaluation_key,
    means,
    seed_keys,
)


class Recorded:
    """Trajectory files in the place of an environment: data/FILE, with commas or * for several.

    home: the environment that they were recorded in, for evaluation, or None where it cannot be made here.
    why: the reason why it cannot.
    memory_limit: bytes that reading and shuffling them may take.
    """

    def __init__(self, names: str, memory_limit: int):
        self.files = Files(names.split(","), memory_limit // 2)
        self.shuffled = Shuffled(self.files, memory_limit // 4)  # it needs twice its window at times
        self.spec: EnvSpec = self.files.spec
        self.home: Any = None
        self.why = "the environment of the recording is not known here"
        name = self.files.about.get("env")
        if isinstance(name, str) and not name.startswith(("custom/", "data/")):
            try:
                require_trust(self.files.paths[0], filter(None, [code_of(name)]))
                self.home = make(name)
            except Untrusted as error:
                self.why = str(error)
            except UsageError:
                self.home = None
        self.best = getattr(self.home, "best", None)


class RecordedProgram:
    """A `Program` on files. An iteration's data are a function of the seed and its number, so that a resumed run meets
    what an uninterrupted one would have met. The files are read again and again until the steps are done, each time in
    another order.

    packer: makes the `Packer` that turns recorded trajectories into rollouts.
    """

    def __init__(self, setting: Setting, source: Recorded, packer: Callable[[], Packer]):
        self.setting, self.recorded, self.algorithm = setting, source, setting.algorithm
        self.compile_seconds, self.note, self.fresh = 0.0, "", 0
        self.recording: Any = None
        self.chosen: dict[str, Any] = {}
        self._packer = packer
        self._packer()  # a learner that it does not suit is refused now
        self._streams: dict[int, tuple[int, Iterator[Trajectory]]] = {}
        self._init: Any = compile_once(self.algorithm.init)
        self._params: Any = jax.jit(self.algorithm.params)
        self._update: Any = jax.jit(self.algorithm.update, donate_argnums=0)
        self._play: Any = None
        options = setting.options
        if source.home is not None:
            self._play = make_player(self.algorithm, source.home, options.eval_episodes, workers=options.workers)
        else:
            self.note = f"no evaluation: {source.why}"

    def rollouts(self, seed: int) -> Iterator[Trajectory]:
        """The recorded trajectories, over and over in this seed's orders, in the form of rollouts."""
        packer, memory = self._packer(), self.algorithm.memory(self.setting.options.envs)
        for number in itertools.count():
            found = 0
            for data in self.recorded.shuffled.read(seed, number, self.setting.iteration_steps):
                found += data.steps
                packer.add(data)
                while packer.ready:
                    yield packer.take(memory)
            if not found or (not packer.parts and found < self.algorithm.rollout_steps):
                raise UsageError("The recorded trajectories hold no steps to learn from.")

    def shape(self) -> TrainState:
        return TrainState(jax.eval_shape(self.algorithm.init, jax.random.key(0)), (), blank_iteration())

    def open(self, seeds: Sequence[int]) -> None:
        """Files are opened when they are read."""

    def close(self) -> None:
        """Nothing was opened."""

    def settle(self, state: TrainState, seed: int) -> TrainState:
        return state

    def compile(self, seed: int) -> None:
        began = time.perf_counter()
        learner, key = self.shape().learner, jax.random.key(0)
        rollout = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), next(self.rollouts(seed)))
        lowered = [self._init.lower(key), self._update.lower(learner, rollout, key)]
        self._init, self._update = compile_all(lowered)
        self.compile_seconds = time.perf_counter() - began

    def start_state(self, seed: int) -> TrainState:
        return TrainState(self._init(seed_keys(seed)[0]), (), jnp.int32(0))

    def _stream(self, seed: int, iteration: int) -> Iterator[Trajectory]:
        """The seed's stream, where it stands at this iteration."""
        at, stream = self._streams.get(seed, (-1, iter(())))
        if at != iteration:
            stream = self.rollouts(seed)
            for _ in range(iteration):
                next(stream)
        return stream

    def run(self, state: TrainState, seed: int, count: int) -> tuple[TrainState, Episodes, dict[str, Any]]:
        learner, iteration, key = state.learner, int(state.iteration), seed_keys(seed)[1]
        stream, sums = self._stream(seed, iteration), None
        for i in range(iteration, iteration + count):
            learner, metrics = self._update(learner, next(stream), jax.random.fold_in(key, i))
            sums = metrics if sums is None else jax.tree.map(jnp.add, sums, metrics)
        self._streams[seed] = iteration + count, stream
        state = TrainState(learner, (), jnp.int32(iteration + count))
        none = Episodes(np.int32(0), np.zeros(self.recorded.spec.num_agents), np.int32(0))  # type: ignore[arg-type]
        return state, none, means(self.algorithm, state, sums or {}, count)

    def evaluate(self, state: TrainState, seed: int, step: int) -> tuple[Any, ...] | None:
        """Whole episodes in the environment of the recording, or None where it is not known."""
        if self._play is None:
            return None
        return self._play(self._params(state.learner), evaluation_key(seed, step))
