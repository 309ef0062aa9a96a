"""A run on a compiled environment: rollout and update as one program, evaluation as another.

On several devices, environments are shared out among them; parameters, optimiser and replay are the same everywhere.
Several seeds are dealt to the devices instead, each seed to one, where its program is that of a single device.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from flockrl.core.devices import everywhere, make_mesh, shared_out, spread, within
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, PyTree, Trajectory
from flockrl.envs.api import Env, in_training, tuned
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

NONE: Mapping[str, Any] = MappingProxyType({})


class CompiledProgram:
    """A `Program` whose environments are stepped by JAX.

    settings: values of settings that the environment calls tunable; they may change between calls.
    """

    def __init__(self, setting: Setting, env: Env):
        self.setting, self.env, self.algorithm = setting, env, setting.algorithm
        self.actor = setting.algorithm.in_training
        self.compile_seconds, self.note, self.fresh = 0.0, "", 0
        self.recording: Any = None
        self.chosen: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self._mesh: Any = None
        self._seeds: tuple[int, ...] = ()
        self._places: dict[int, Any] = {}
        """Seed -> its device, where there are several of both."""
        self._elsewhere: dict[Any, Any] = {}
        """Device -> the training that is compiled for it, where it is not the first."""
        self._init, self._evaluate, self._advance, self._step = self._jitted()

    def _jitted(self) -> tuple[Any, Any, Any, Any]:
        """Starting, evaluating, training, and training by single steps, to be compiled for the devices there are."""
        if self._mesh is None:
            train = (jax.jit(f, donate_argnums=0) for f in (self.advance, self.step))
            return compile_once(self.init), jax.jit(self.play), *train
        same, state = everywhere(self._mesh), self._layout()
        gives = (state, same, same)
        return (
            jax.jit(self.init, out_shardings=state),
            jax.jit(self.play, in_shardings=(same, same, same), out_shardings=same),
            jax.jit(self.advance, in_shardings=(state, same, same, same), out_shardings=gives, donate_argnums=0),
            jax.jit(self.step, in_shardings=(state, same, same), out_shardings=(*gives, same), donate_argnums=0),
        )

    def _layout(self) -> TrainState:
        """Where the parts of a state are."""
        same = everywhere(self._mesh)
        return TrainState(same, shared_out(self._mesh), same)  # type: ignore[arg-type]

    def _take_devices(self) -> None:
        """Find the devices that were asked for; several processes use all that they have."""
        asked, there, several = self.setting.options.devices, jax.devices(), jax.process_count() > 1
        count = len(there) if asked == "all" or (several and asked == 1) else asked
        if several and count != len(there):
            raise UsageError(f"Several processes train on all their {len(there)} devices: use --devices all.")
        if count == 1:
            return
        if count > len(there):
            raise UsageError(
                f"The {jax.default_backend()} here has {len(there)} device{'s' * (len(there) > 1)} and not {count}: "
                f"use --devices {len(there)} or all. XLA_FLAGS=--xla_force_host_platform_device_count=N divides a CPU."
            )
        if len(self._seeds) > 1 and not several:
            self._deal(there[:count], asked)
            return
        envs = self.setting.options.envs
        if envs % count:
            raise UsageError(f"{count} devices must share {envs} environments evenly: change --envs or --devices.")
        self._mesh = make_mesh(there[:count])
        self.chosen["devices"] = count
        self._init, self._evaluate, self._advance, self._step = self._jitted()

    def _deal(self, devices: Sequence[Any], asked: Any) -> None:
        """Give each seed a device, in turns."""
        if asked != "all" and len(devices) > len(self._seeds):
            raise UsageError(
                f"Each seed trains on one device, and {len(self._seeds)} seeds leave some of {len(devices)} idle: use "
                f"--devices {len(self._seeds)}."
            )
        devices = devices[: len(self._seeds)]
        self._places = {seed: devices[i % len(devices)] for i, seed in enumerate(self._seeds)}
        self.chosen["devices"] = len(devices)

    # Pure functions

    def play(self, params: PyTree, key: Array, settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Evaluation episodes."""
        return make_evaluator(self.algorithm, tuned(self.env, settings), self.setting.options.eval_episodes)(
            params, key
        )

    def init(self, key: Array, settings: Mapping[str, Any] = NONE) -> TrainState:
        learner_key, env_key = jax.random.split(key)
        actors = start(self.actor, tuned(self.env, settings), env_key, self.setting.options.envs)
        return TrainState(self.algorithm.init(learner_key), actors, jnp.int32(0))

    def iterate(
        self, state: TrainState, key: Array, settings: Mapping[str, Any] = NONE
    ) -> tuple[TrainState, Episodes, Any]:
        """One rollout and one update."""
        return self.step(state, key, settings)[:3]

    def step(
        self, state: TrainState, key: Array, settings: Mapping[str, Any] = NONE
    ) -> tuple[TrainState, Episodes, Any, Trajectory]:
        """One rollout and one update, and the rollout."""
        rollout_key, update_key = jax.random.split(jax.random.fold_in(key, state.iteration))
        params, trained = self.actor.params(state.learner), state.iteration * jnp.float32(self.setting.iteration_steps)
        env = in_training(tuned(self.env, settings), trained)

        def play(params: PyTree) -> tuple[Trajectory, tuple[Any, Episodes]]:
            actors, trajectory, episodes = scan_rollout(self.actor, params, env, state.actors, rollout_key)
            return trajectory, (actors, episodes)

        extras: Mapping[str, Any] = {}
        if self.algorithm.through is None:
            trajectory, (actors, episodes) = play(params)
        else:
            trajectory, (actors, episodes), extras = self.algorithm.through(state.learner, play)
        trajectory = spread(trajectory._replace(memory=()), axis=1)._replace(memory=trajectory.memory)
        told = trajectory._replace(extras={**trajectory.extras, **extras}) if extras else trajectory
        learner, metrics = self.algorithm.update(state.learner, told, update_key)
        return TrainState(learner, actors, state.iteration + 1), episodes, metrics, trajectory

    def advance(
        self, state: TrainState, key: Array, count: Array, settings: Mapping[str, Any] = NONE
    ) -> tuple[TrainState, Episodes, dict[str, Array]]:
        """`count` iterations: the state after them, sums over ended episodes, means of metrics."""
        shapes = jax.eval_shape(self.iterate, state, key, dict(settings))[1:]
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def body(_: Array, carry: tuple[TrainState, Any]) -> tuple[TrainState, Any]:
            state, totals = carry
            state, *new = self.iterate(state, key, settings)
            return state, jax.tree.map(jnp.add, totals, tuple(new))

        state, (episodes, totals) = jax.lax.fori_loop(0, count, body, (state, zeros))
        return state, episodes, means(self.algorithm, state, totals, count)

    # What the loop calls

    def shape(self) -> TrainState:
        return jax.eval_shape(self.init, jax.random.key(0))

    def open(self, seeds: Sequence[int]) -> None:
        """A compiled environment needs nothing; where there are several devices, seeds are dealt to them."""
        self._seeds = tuple(seeds)

    def close(self) -> None:
        """Nothing was opened."""

    def settle(self, state: TrainState, seed: int) -> TrainState:
        if self._places:
            return jax.device_put(state, self._places[seed])
        if self._mesh is None:
            return state
        learner, actors, iteration = self._layout()
        put: Any = jax.device_put
        return TrainState(put(state.learner, learner), put(state.actors, actors), put(state.iteration, iteration))

    def compile(self, seed: int) -> None:
        began = time.perf_counter()
        self._take_devices()
        init_key, train_key, eval_key = seed_keys(seed)
        state = self.shape()
        params = jax.eval_shape(self.algorithm.params, state.learner)
        with within(self._mesh):
            lowered = [
                self._init.lower(init_key, self.settings),
                self._evaluate.lower(params, eval_key, self.settings),
                self._advance.lower(state, train_key, jnp.int32(1), self.settings)
                if self.recording is None
                else self._step.lower(state, train_key, self.settings),
            ]
        others = list(dict.fromkeys(self._places.values()))[1:]
        lowered += [
            self._advance.lower(*_on(device, (state, train_key, jnp.int32(1), self.settings))) for device in others
        ]
        self._init, self._evaluate, train, *rest = compile_all(lowered)
        self._elsewhere = dict(zip(others, rest, strict=True))
        if self.recording is None:
            self._advance = train
        else:
            self._step = train
        self.compile_seconds = time.perf_counter() - began

    def start_state(self, seed: int, moves: int = 0) -> TrainState:
        """The state before the first iteration, or one like it after so many moves in a curriculum."""
        key = seed_keys(seed)[0]
        state = self._init(jax.random.fold_in(key, moves) if moves else key, self.settings)
        return self.settle(state, seed) if self._places else state

    def run(self, state: TrainState, seed: int, count: int) -> tuple[TrainState, Episodes, dict[str, Array]]:
        key = seed_keys(seed)[1]
        if self._places.get(seed) in self._elsewhere:
            place = self._places[seed]
            return self._elsewhere[place](state, *jax.device_put((key, jnp.int32(count), self.settings), place))
        if self.recording is None:
            return self._advance(state, key, jnp.int32(count), self.settings)
        sums: Any = None
        for _ in range(count):
            version = int(state.iteration)
            state, *new, trajectory = self._step(state, key, self.settings)
            self.recording.add(jax.device_get(trajectory), version)
            sums = new if sums is None else jax.tree.map(jnp.add, sums, new)
        return state, sums[0], means(self.algorithm, state, sums[1], count)

    def evaluate(self, state: TrainState, seed: int, step: int) -> tuple[Any, ...]:
        params = self.algorithm.params(state.learner)
        if self._places:  # programs that are not worth compiling for each device run on the first
            params = jax.device_put(params, self._places[self._seeds[0]])
        return self._evaluate(params, evaluation_key(seed, step), self.settings)


def _on(device: Any, arrays: PyTree) -> PyTree:
    """The shapes of these arrays as arrays of one device."""
    place = SingleDeviceSharding(device)

    def shape(x: Any) -> Any:
        return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x), sharding=place)

    return jax.tree.map(shape, arrays)
