"""The command list."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

from flockrl.core.errors import UsageError, install


def listing(words: list[str]) -> int:
    from flockrl.algos.presets import algorithms
    from flockrl.commands.train import POOL_METHODS
    from flockrl.envs.adapters.adapt import ABOUT
    from flockrl.envs.adapters.adapt import SUITES as OUTSIDE
    from flockrl.envs.registry import SUITES, environments

    what = words[0] if words else "both"
    if what in ("-h", "--help"):
        print("usage: flockrl list [algorithms|envs]\n\nNames that `flockrl train` takes.")
        return 0
    if what not in ("algorithms", "envs", "both"):
        raise UsageError(f"flockrl list shows algorithms or envs, not {what!r}.")
    if what != "envs":
        for name in algorithms():
            print(f"{name:24}{_summary(name)}")
        for name, about in POOL_METHODS.items():
            print(f"{name:24}{about}")
    if what == "both":
        print()
    if what != "algorithms":
        for suite in SUITES:
            for name, builder in environments(suite).items():
                print(f"{suite + '/' + name:32}{_settings(builder)}{_more(builder)}")
        for suite, form in OUTSIDE.items():
            print(f"{suite + '/' + form:32}{ABOUT[suite]}{_missing(suite)}")
    return 0


def _missing(suite: str) -> str:
    """How to install the package behind a suite, where it is not there."""
    from flockrl.envs.adapters.gymnasium import PACKAGES

    package = {**PACKAGES, "python": "flockrl", "openspiel": "pyspiel"}.get(suite, suite)
    return "" if importlib.util.find_spec(package) else f"  [not installed: {install(suite)}]"


def _summary(name: str) -> str:
    from flockrl.algos.presets import preset

    try:
        return preset(name).summary
    except UsageError as error:  # of another distribution
        return str(error)


def _more(builder: Any) -> str:
    """The sides of an environment of opponents, and the policies that come with it."""
    try:
        env = builder()
    except UsageError:  # it cannot be built without settings
        return ""
    sides = env.spec.parties if len(set(env.spec.sides)) > 1 else ()
    found = {"sides": sides, "policies": getattr(env, "policies", ())}
    return "".join(f"  [{what}: {', '.join(names)}]" for what, names in found.items() if names)


def _settings(builder: Any) -> str:
    shown = [f"{p.name}={p.default}" for p in inspect.signature(builder).parameters.values()]
    return ", ".join(shown)
