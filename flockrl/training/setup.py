"""From what a user gives to a config and a title, for runs and for trainers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from flockrl.algos.assembly import Side, Sides, config_from_json
from flockrl.algos.feudal_config import FEUDAL, gathered, hierarchy, is_hierarchy, leads
from flockrl.algos.presets import family, fitting, make_config
from flockrl.algos.wrappers.practice import refuse_practice
from flockrl.algos.wrappers.self_play import symmetric
from flockrl.core.errors import UsageError
from flockrl.core.spec import Box, Discrete, EnvSpec, spec_from_json
from flockrl.training.players import RANDOM, make_sides, split_sides


def configure(algorithm: str | Mapping[str, Any], settings: Mapping[str, Any], spec: EnvSpec) -> tuple[str, Any]:
    """What the run is called, and its config: an algorithm's, or a `Sides`.

    algorithm: a name, SIDE=PLAYER,... or a dict of players by side, or manager=NAME,worker=NAME or such a dict;
    settings: the algorithm's, or those of sides or tiers.
    """
    players = split_sides(algorithm) if isinstance(algorithm, str) else dict(algorithm)
    if is_hierarchy(players):
        algorithm, settings, players = FEUDAL, hierarchy(players, settings), {}
    if not players:
        name = fitting(str(algorithm), spec)
        settings = gathered(settings) if leads(name) else settings
        return name, _together(make_config(name, settings), spec)
    sides = make_sides(players, settings, spec)
    return title(sides), sides


def _together(config: Any, spec: EnvSpec) -> Any:
    """In self-play, sides whose agents have equal spaces share parameters, as the agents of one kind do."""
    if getattr(config, "self_play", "none") == "none" or config.share != "groups" or not symmetric(spec):
        return config
    return dataclasses.replace(config, share="all")


def title(sides: Sides) -> str:
    """`adversary=maddpg,agent=runs/prey`: who plays for each side, as the command line takes it."""

    def word(side: Side) -> str:
        return side.algorithm if side.kind == "learner" else side.source or RANDOM

    return ",".join(f"{name}={word(side)}" for name, side in sides.players.items())


def configure_trainer(
    algorithm: str | Mapping[str, Any], spec: EnvSpec, hyperparams: Any, kernel: Any, buffer_size: int | None, envs: int
) -> tuple[str, Any]:
    """A trainer's title and config, whose learning rates stay constant by default.

    hyperparams: settings by name, by side where there are several learners, or a whole config. buffer_size: transitions
    that a replay holds, or for on-policy learners the steps of one update.
    """
    if isinstance(hyperparams, Sides):
        return title(hyperparams), hyperparams
    if not isinstance(hyperparams, Mapping):
        return str(algorithm), hyperparams
    own = {name: value for name, value in hyperparams.items() if not isinstance(value, Mapping)}  # no side's settings
    refuse_practice(SimpleNamespace(**own), str(algorithm), "rollouts of its own (`flockrl train`)")
    given: dict[str, Any] = {}
    if kernel is not None:
        given["kernel"] = kernel if isinstance(kernel, str) else f"{kernel.__module__}:{kernel.__qualname__}"
    players = split_sides(algorithm) if isinstance(algorithm, str) else dict(algorithm)
    if is_hierarchy(players):
        algorithm, hyperparams, players = FEUDAL, hierarchy(players, hyperparams), {}
    if not players:
        name = fitting(str(algorithm), spec)
        return name, _sized(name, {**_steady(name), **given, **hyperparams}, buffer_size, envs)
    if buffer_size is not None:
        raise UsageError("Each side has a buffer of its own: set buffer_size or rollout_steps in its hyperparams.")
    learners = make_sides(players, hyperparams, spec).learners
    settings = {
        name: {**_steady(side.algorithm), **given, **hyperparams.get(name, {})} for name, side in learners.items()
    }
    return configure(players, settings, spec)


def _steady(algorithm: str) -> dict[str, Any]:
    """A learning rate that stays constant, where the algorithm has a schedule for it."""
    names = {field.name for field in dataclasses.fields(family(algorithm).config)}
    return {"lr_schedule": "constant"} if "lr_schedule" in names else {}


def _sized(algorithm: str, settings: dict[str, Any], buffer_size: int | None, envs: int) -> Any:
    config = make_config(algorithm, settings)
    if buffer_size is None:
        return config
    if hasattr(config, "buffer_size"):
        return make_config(algorithm, {**settings, "buffer_size": buffer_size})
    if buffer_size % envs:
        raise UsageError(f"buffer_size ({buffer_size}) must be a multiple of envs ({envs}).")
    return make_config(algorithm, {**settings, "rollout_steps": buffer_size // envs})


def describe_team(
    obs_dim: int | Sequence[int] | None,
    act_dim: int | Sequence[int] | None,
    agents: int | Sequence[str],
    continuous: float | None,
    max_steps: int,
    state_dim: int,
) -> EnvSpec:
    """The spec of a team that is described by sizes, see `Trainer`."""
    if obs_dim is None or act_dim is None:
        raise UsageError("A trainer needs to know its team: give obs_dim and act_dim, or spec.")
    names = tuple(f"agent_{i}" for i in range(agents)) if isinstance(agents, int) else tuple(agents)
    sizes, widths = (
        (x,) * len(names) if isinstance(x, int) else tuple(x) for x in (obs_dim, act_dim)
    )  # one for each agent
    if not names or len(sizes) != len(names) or len(widths) != len(names) or min(*sizes, *widths, max_steps) < 1:
        raise UsageError(
            f"obs_dim and act_dim must be positive numbers, one for all or one for each of {len(names)} agents."
        )
    spaces: tuple[Any, ...] = tuple(
        Discrete(n) if continuous is None else Box((n,), -float(continuous), float(continuous)) for n in widths
    )
    return EnvSpec("own", names, tuple(Box((n,)) for n in sizes), spaces, max_steps, state_size=state_dim)


def saved_trainer(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a `Trainer` that was saved as `trainer.json`."""
    given: dict[str, Any] = {}
    for name, least in {"envs": 1, "steps": 1, "seed": 0}.items():
        given[name] = saved.get(name)
        if not isinstance(given[name], int) or given[name] < least:
            raise UsageError(f"{name} of a trainer must be a whole number from {least} on, not {given[name]!r}.")
    algorithm, lag = saved.get("algorithm"), saved.get("max_version_lag")
    if not isinstance(algorithm, str) or not isinstance(lag, int | None):
        raise UsageError("A saved trainer must name its algorithm, and max_version_lag as a whole number or null.")
    sided = {name: saved.get(name) for name in ("sides", "config")} if "sides" in saved else saved.get("config")
    config = config_from_json(algorithm, sided)
    spec = spec_from_json(saved.get("spec"))
    return {**given, "algorithm": algorithm, "spec": spec, "hyperparams": config, "max_version_lag": lag}
