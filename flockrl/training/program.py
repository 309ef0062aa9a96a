"""What the loop calls: the interface of a program, and what its implementations share.

A program turns one configuration into functions that are compiled once and run for any seed. There are three:
`compiled` for environments that JAX steps, `hosted` for environments in Python, `recorded` for trajectory files.
Random numbers are a function of (seed, purpose, iteration) alone, never of how far one call went.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Array, EnvSpec, PyTree
from flockrl.rollouts.compiled import Episodes
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.memory import check_programs

MOST_ITERATIONS = 2**31 - 1
"""They are counted in 32 bits."""


class TrainState(NamedTuple):
    """The entire state of training, what a checkpoint holds. actors: an `Actors`, or () where nothing is stepped."""

    learner: PyTree
    actors: Any
    iteration: Array


class Setting(NamedTuple):
    """What every program knows about its run.

    iteration_steps: environment steps of one iteration; iterations: how many of them the run has.
    """

    spec: EnvSpec
    options: TrainOptions
    algorithm: Algorithm
    iteration_steps: int
    iterations: int


class Program(Protocol):
    """One configuration, ready to run for any seed."""

    setting: Setting
    compile_seconds: float
    note: str
    """How the environment is stepped, or that nothing is evaluated; may be empty."""
    chosen: dict[str, Any]
    """What it chose by itself and the configuration leaves open, by name."""
    fresh: int
    """Episodes that a resumed run could not continue and began anew."""
    recording: Any
    """An `evaluation.recording.Recording` that rollouts are written to, or None."""

    def shape(self) -> TrainState:
        """A state's structure, shapes and types without its numbers."""

    def open(self, seeds: Sequence[int]) -> None:
        """Get ready to train these seeds."""

    def close(self) -> None:
        """Let go of what `open` took."""

    def compile(self, seed: int) -> None:
        """Compile everything that a run needs."""

    def start_state(self, seed: int) -> TrainState:
        """The state before the first iteration."""

    def settle(self, state: TrainState, seed: int) -> TrainState:
        """The state to go on from when `state` was read from a checkpoint."""

    def run(self, state: TrainState, seed: int, count: int) -> tuple[TrainState, Episodes, dict[str, Any]]:
        """`count` iterations: the state after them, sums over ended episodes, means of metrics. Consumes `state`."""

    def evaluate(self, state: TrainState, seed: int, step: int) -> tuple[Any, ...] | None:
        """What `summarize` takes of the policy after `step` steps: returns [episodes, N], lengths [episodes] and, where
        there are any, the environment's own measures. None where nobody can play."""


def make_setting(config: RunConfig, spec: EnvSpec, make: Callable[..., Algorithm]) -> Setting:
    """The run's setting; `make(spec, envs=, updates=)` builds the algorithm."""
    options = config.options
    iteration_steps = options.envs * config.config.rollout_steps
    iterations = math.ceil(options.steps / iteration_steps)
    if iterations > MOST_ITERATIONS:
        raise UsageError(
            f"{options.steps:,} steps are {iterations:,} updates, more than {MOST_ITERATIONS:,}: lower --steps, or "
            "raise --envs or --rollout-steps."
        )
    algorithm = make(spec, envs=options.envs, updates=iterations)
    return Setting(spec, options, algorithm, iteration_steps, iterations)


def seed_keys(seed: int) -> tuple[Array, Array, Array]:
    """Independent keys for starting, training and evaluating."""
    start, train, test = jax.random.split(jax.random.key(seed), 3)
    return start, train, test


def evaluation_key(seed: int, step: int) -> Array:
    return jax.random.fold_in(seed_keys(seed)[2], step)


@jax.jit
def iteration_keys(key: Array, iteration: int) -> tuple[Array, Array]:
    """Keys of an iteration's rollout and of its update."""
    rollout_key, update_key = jax.random.split(jax.random.fold_in(key, iteration))
    return rollout_key, update_key


def means(algorithm: Algorithm, state: TrainState, totals: dict[str, Array], count: Array | int) -> dict[str, Array]:
    """Metrics over some iterations, from their sums."""
    metrics = {name: total / count for name, total in totals.items()}
    params = [leaf for leaf in jax.tree.leaves(algorithm.params(state.learner)) if leaf.ndim]
    return {**metrics, "param_norm": optax.tree.norm(params)}


def compile_all(lowered: Sequence[Any]) -> list[Any]:
    """Compile programs side by side. Those that need more memory than there is are refused."""
    with ThreadPoolExecutor(len(lowered)) as pool:
        programs = list(pool.map(lambda x: x.compile(), lowered))
    check_programs(programs)
    return programs


def compile_once(function: Callable[..., Any]) -> Any:
    """A function that runs once: a quick compilation is worth more than quick code, which a CPU can be told."""
    hurry = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else {}
    return jax.jit(function, compiler_options=hurry)


def blank_iteration() -> Any:
    """The structure of `TrainState.iteration`."""
    return jax.ShapeDtypeStruct((), jnp.int32)


@jax.jit
def all_finite(params: PyTree) -> Array:
    """Whether all numbers of all arrays are finite."""
    return jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(params)]).all()
