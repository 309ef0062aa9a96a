"""From a configuration to the program that runs it, and from a name to what it learns from."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import jax

from flockrl.algos.assembly import ACTS, Sides, facts, make_algorithm
from flockrl.algos.defaults import as_begun
from flockrl.algos.feudal_config import FeudalConfig
from flockrl.algos.wrappers.held import held
from flockrl.algos.wrappers.practice import refuse_practice
from flockrl.core.errors import UsageError, install
from flockrl.core.memory import MEMORY, parse_size
from flockrl.core.types import Algorithm, EnvSpec
from flockrl.envs.host.env import Host
from flockrl.envs.registry import make
from flockrl.training.channels import around, channels
from flockrl.training.compiled import CompiledProgram
from flockrl.training.config import RunConfig
from flockrl.training.hosted import HostProgram
from flockrl.training.pack import make_packer
from flockrl.training.population import plan_of
from flockrl.training.program import Program, Setting, make_setting


def make_source(name: Any, memory_limit: str | None = None) -> Any:
    """What a run learns from: an environment, or for data/FILE recorded trajectories, read within this memory."""
    if not (isinstance(name, str) and name.startswith("data/")):
        if memory_limit is not None:
            raise UsageError("memory_limit is for recorded trajectories (data/FILE), not for environments.")
        return make(name)
    try:
        from flockrl.training.recorded import Recorded
    except ImportError as error:
        raise UsageError(f"Trajectory files need pyarrow: {install('relay')}.") from error
    return Recorded(name.removeprefix("data/"), MEMORY if memory_limit is None else parse_size(memory_limit))


def make_program(config: RunConfig, source: Any) -> Program:
    """The program for an environment, compiled or on the host, or for recorded trajectories."""
    source = source if config.recorded else around(config.config, source)
    env = None if config.recorded else source
    config = _as_begun(config, source.spec)
    build = partial(make_algorithm, config.algorithm, config=config.config, env=env)
    if plan := plan_of(config.algorithm, config.options, config.config):
        if config.recorded or isinstance(source, Host):
            raise UsageError(
                f"A population copies whole states, for which {config.env} must be compiled: leave out --pbt."
            )
        build = partial(_held, config, plan.names, env)
    setting = make_setting(config, source.spec, build)
    if config.recorded:
        return _on_files(config, source, setting)
    if facts(config.algorithm, config.config).recorded:
        raise UsageError(
            f"{config.algorithm} learns from recorded trajectories: `flockrl train {config.algorithm} data/FILE`, with "
            "a file that `flockrl train ... --record FILE` or `flockrl eval RUN --record FILE` wrote."
        )
    if isinstance(source, Host):
        if setting.algorithm.through is not None:
            raise UsageError(
                f"{config.algorithm} differentiates its environment, and {config.env} is not compiled: use ippo, or a "
                "learner with a replay."
            )
        _one_device(config)
        return HostProgram(setting, source)
    for name in ("workers", "worker_timeout", "ray", "acting"):
        if getattr(config.options, name) is not None:
            raise UsageError(f"{name} is for environments that run on the host, and {config.env} is compiled.")
    return CompiledProgram(setting, source)


def _as_begun(config: RunConfig, spec: EnvSpec) -> RunConfig:
    """The run with what follows from its first length, where it was lengthened."""
    if not config.extended:
        return config
    given, begun = config.config, partial(_begun, spec=spec, envs=config.options.envs, steps=config.extended[0])
    if isinstance(given, Sides):
        learners = {n: dataclasses.replace(side, config=begun(side.config)) for n, side in given.learners.items()}
        return dataclasses.replace(config, config=Sides({**given.players, **learners}))
    return dataclasses.replace(config, config=begun(given))


def _begun(config: Any, spec: EnvSpec, envs: int, steps: int) -> Any:
    """Settings of a learner as a run of `steps` environment steps has them, those of tiers included."""
    if not isinstance(config, FeudalConfig):
        return as_begun(config, spec, envs, steps)
    updates = math.ceil(steps / (envs * config.rollout_steps))
    found: dict[str, Any] = {}
    for name in config.tiers:
        own, word = config.tier(name), f"{name}_settings"
        first = _begun(own, spec, envs, updates * envs * own.rollout_steps)
        values = {field.name: getattr(first, field.name) for field in dataclasses.fields(own)}
        changed = {key: value for key, value in values.items() if value != getattr(own, key)}
        found[word] = {**getattr(config, word), **changed}
    return dataclasses.replace(config, **found)


def _held(config: RunConfig, names: tuple[str, ...], env: Any, spec: EnvSpec, *, envs: int, updates: int) -> Algorithm:
    """The learner of a population, whose settings are part of its state."""
    make = partial(make_algorithm, config.algorithm, spec, envs=envs, updates=updates, env=env)
    return held(lambda config: make(config=config), config.config, names)


def _one_device(config: RunConfig) -> None:
    if config.options.devices != 1 or jax.process_count() > 1:
        raise UsageError(f"Several devices are for compiled environments, and {config.env} is none: leave out devices.")


def _on_files(config: RunConfig, source: Any, setting: Setting) -> Program:
    from flockrl.training.recorded import RecordedProgram  # needs pyarrow

    _one_device(config)
    about = facts(config.algorithm, config.config)
    if about.on_policy:
        raise UsageError(
            f"{config.algorithm} learns from its own fresh experience, not from recorded trajectories: use bc, cql, "
            "implicit_q, td3_bc or a learner with a replay."
        )
    if about.acts:
        raise UsageError(ACTS)
    always = bool(source.spec.graph)  # who perceives whom never changes
    if any(c.range is not None or c.nearest is not None or (c.near and not always) for c in channels(config.config)):
        raise UsageError("Recordings do not tell who perceives whom: leave out range, nearest and topology=neighbours.")
    refuse_practice(config.config, config.algorithm, "an environment, not recorded trajectories")
    steps = setting.algorithm.rollout_steps
    packer = partial(make_packer, source.spec, steps, config.options.envs, whole=about.memory)
    return RecordedProgram(setting, source, packer)
