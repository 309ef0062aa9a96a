"""From what a user has to what flockrl trains on: names of outside suites, objects, classes, factories."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flockrl.core.code import load
from flockrl.core.errors import UsageError, located
from flockrl.core.settings import parse_settings
from flockrl.core.types import EnvSpec
from flockrl.envs.adapters.options import Options, split
from flockrl.envs.adapters.sides import infer_sides, random_rewards, read_sides
from flockrl.envs.host.env import Host, HostEnv

SUITES = {
    "pettingzoo": "MODULE",
    "gymnasium": "ID",
    "lbf": "ID",
    "rware": "ID",
    "jaxmarl": "NAME",
    "openspiel": "NAME",
    "python": "package.module:factory",
}
"""Suites of environments that others wrote -> what their names look like."""


ABOUT = {
    "pettingzoo": "any PettingZoo module, e.g. pettingzoo/mpe2.simple_spread_v3",
    "gymnasium": "any Gymnasium environment, e.g. gymnasium/CartPole-v1",
    "lbf": "level-based foraging, e.g. lbf/Foraging-8x8-2p-3f-v3",
    "rware": "robotic warehouse, e.g. rware/rware-tiny-2ag-v2; compiled: warehouse/tiny",
    "jaxmarl": "any JaxMARL environment, compiled, e.g. jaxmarl/HeuristicEnemySMAX:scenario=3m",
    "openspiel": "any game of OpenSpiel, e.g. openspiel/hex:board_size=5",
    "python": "your own: a class or a function that builds an environment",
}


@dataclass(frozen=True)
class Recipe:
    """How to build one team; plain values, so that it can travel to worker processes."""

    suite: str
    name: str
    settings: tuple[tuple[str, Any], ...]
    options: Options
    thing: Any = None
    """What an `object` recipe is about: an instance to copy, or a class or function to call."""

    def __call__(self, draw: bool) -> HostEnv:
        try:
            return wrap(self.raw(draw), self.label, self.options)
        except (UsageError, MemoryError):
            raise
        except Exception as error:  # of the first reset, which shows what the environment tells
            raise UsageError(f"{self.label} cannot be started{located(error)}.") from error

    @property
    def label(self) -> str:
        """What errors call the environment."""
        named = getattr(self.thing, "__name__", type(self.thing).__name__)
        return named if self.suite == "object" else f"{self.suite}/{self.name}"

    def raw(self, draw: bool) -> Any:
        """The environment as its package makes it. What fails there is told in a sentence; a TypeError, which may mean
        an unknown setting, goes to the caller."""
        try:
            return self._made(draw)
        except (UsageError, MemoryError, TypeError):
            raise
        except Exception as error:
            raise UsageError(f"{self.label} cannot be built{located(error)}.") from error

    def _made(self, draw: bool) -> Any:
        settings = dict(self.settings)
        if self.suite == "pettingzoo":
            from flockrl.envs.adapters import pettingzoo

            return pettingzoo.raw(self.name, settings, draw)
        if self.suite in ("python", "object"):
            thing = self.thing if self.suite == "object" else factory(self.name)
            return _call(thing, settings, draw) if callable(thing) else copy.deepcopy(thing)
        if self.suite == "openspiel":
            from flockrl.envs.adapters import openspiel

            return openspiel.SpielTeam(self.name, settings, self.options)
        from flockrl.envs.adapters import gymnasium

        return gymnasium.raw(self.suite, self.name, settings, draw)


def _call(build: Any, settings: dict[str, Any], draw: bool) -> Any:
    """An environment from a user's class or function; to be drawn, with pictures where it takes a render_mode."""
    if draw and "render_mode" not in settings:
        with contextlib.suppress(TypeError, ValueError):  # of builders that do not say what they take
            if "render_mode" in inspect.signature(build).parameters:
                settings = {**settings, "render_mode": "rgb_array"}
    return build(**settings)


def factory(name: str) -> Any:
    """The class or function at package.module:attribute, which must be able to build an environment."""
    if name.partition(".")[0].partition(":")[0] in sys.stdlib_module_names:
        raise UsageError(f"python/{name} is part of Python itself and no environment.")
    found = load(name, "environment")
    named = f"python/{name} is a {type(found).__name__}"
    if isinstance(found, type):
        if not all(callable(getattr(found, method, None)) for method in ("reset", "step")):
            raise UsageError(f"python/{name} is no environment: the class has no methods reset and step.")
    elif not callable(found) or inspect.isbuiltin(found):
        raise UsageError(f"{named}, but expected an environment's class or a function that builds one.")
    elif getattr(found, "__module__", "").partition(".")[0] in sys.stdlib_module_names - {"__main__", "functools"}:
        raise UsageError(f"python/{name} is part of Python itself and no environment.")
    return found


def code_of(name: str) -> str:
    """The code outside of known packages that the environment `name` would import; empty where there is none."""
    suite, _, rest = name.partition("/")
    short, _, text = rest.partition(":")
    if suite == "python":
        return f"python/{short}:{text.partition(',')[0]}"
    if suite == "pettingzoo" and short.partition(".")[0] not in ("pettingzoo", "mpe2"):
        return f"pettingzoo/{short}"
    return name if suite in SUITES and any(mark in text for mark in ":\\") else ""  # a setting may name a module, too


def make_outside(suite: str, rest: str, settings: Mapping[str, Any]) -> Any:
    """An environment of an outside suite. `rest` is what follows SUITE/ in its name, settings included."""

    short, _, text = rest.partition(":")
    if suite == "python":
        attribute, _, text = text.partition(",")
        if not attribute:
            raise UsageError(f"Write python/package.module:factory, not python/{rest}.")
        if ":" in attribute:
            attribute, _, text = attribute.partition(":")
            raise UsageError(f"Settings of your own environment follow a comma: python/{short}:{attribute},{text}.")
        short = f"{short}:{attribute}"
    given = {**parse_settings(text), **settings}
    if suite == "jaxmarl":
        from flockrl.envs.adapters import jaxmarl

        return jaxmarl.make(short, given)
    options, given = split(f"{suite}/{short}", given)
    recipe = Recipe(suite, short, tuple(given.items()), options)
    return _finished(recipe) if suite == "python" else _host(recipe)


def make_object(thing: Any) -> Any:
    """An environment from an instance, a class or a function that builds one. flockrl's own pass through."""
    if isinstance(thing, Host) or (_is_compiled(thing) and not isinstance(thing, type)):
        return thing
    return _finished(Recipe("object", "", (), Options(), thing))


def _finished(recipe: Recipe) -> Any:
    """A factory may return an environment of flockrl's own, which needs no host."""
    try:
        built = recipe.raw(False)
    except TypeError as error:
        what = recipe.name or getattr(recipe.thing, "__name__", "The factory")
        raise UsageError(f"{what} cannot be built with these settings: {error}.") from error
    if isinstance(built, Host) or _is_compiled(built):
        return built
    return _host(recipe)


def _host(recipe: Recipe) -> Host:
    """The recipe's environment. Where it does not say who plays together, that is found out and written into the
    recipe, so that worker processes need not look again."""
    host = Host(recipe)
    spec = host.spec
    if spec.num_agents == 1 or recipe.options.sides or not isinstance(getattr(host.first, "options", None), Options):
        return host
    text = infer_sides(spec.name, spec.agents, random_rewards(host))
    if text != "together":
        host.build = dataclasses.replace(recipe, options=dataclasses.replace(recipe.options, sides=text))
        host.take(dataclasses.replace(spec, sides=read_sides(spec.name, text, spec.agents), groups=()))
    return host


def _is_compiled(thing: Any) -> bool:
    return isinstance(getattr(thing, "spec", None), EnvSpec) and not _is_host(thing)


def _is_host(thing: Any) -> bool:
    return issubclass(thing if isinstance(thing, type) else type(thing), HostEnv)


def wrap(env: Any, name: str, options: Options) -> HostEnv:
    """One team from an environment object of any known make."""
    if isinstance(env, HostEnv):
        return env
    if callable(getattr(env, "observation_space", None)):
        from flockrl.envs.adapters import pettingzoo

        turns = hasattr(env, "agent_iter") or hasattr(env, "agent_selection")
        return (pettingzoo.TurnTeam if turns else pettingzoo.ParallelTeam)(env, name, options)
    if hasattr(env, "observation_space") and hasattr(env, "action_space"):
        from flockrl.envs.adapters import gymnasium

        return gymnasium.GymTeam(env, name, options)
    raise UsageError(
        f"{name}: a {type(env).__name__} is no environment, but expected one of PettingZoo's, Gymnasium's or flockrl's."
    )
