"""Environments by name, and from objects that users pass."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from flockrl.core.errors import UsageError, nearest
from flockrl.core.settings import parse_settings
from flockrl.envs.adapters import adapt
from flockrl.envs.api import Env

SUITES = {
    "mpe": "flockrl.envs.mpe",
    "games": "flockrl.envs.games",
    "classic": "flockrl.envs.classic",
    "probe": "flockrl.envs.probes",
}
"""Suite name -> module with `ENVIRONMENTS`, a dict from name to a callable that builds the environment."""


def make(name: Any, **settings: Any) -> Any:
    """Build an environment, compiled (`Env`) or on the host (`envs.host.env.Host`).

    name: `SUITE/NAME[:setting=value,...]`, or an object: an environment of flockrl, PettingZoo or Gymnasium, its
    class, or a function that builds one.
    """
    if not isinstance(name, str):
        if settings:
            raise UsageError(f"Settings ({', '.join(settings)}) go with an environment's name, not with a built one.")
        return adapt.make_object(name)
    path, _, text = name.partition(":")
    suite, slash, short = path.partition("/")
    if slash and suite in adapt.SUITES:
        return adapt.make_outside(suite, name.partition("/")[2], settings)
    if not slash or suite not in SUITES:
        known = [f"{s}/{n}" for s in SUITES for n in environments(s)]
        known += [f"{suite}/{form}" for suite, form in adapt.SUITES.items()]
        raise UsageError(f"There is no environment {path!r}.{nearest(path, known)}")
    builders = environments(suite)
    if short not in builders:
        raise UsageError(f"There is no environment {path!r}.{nearest(short, builders)}")
    given = {**parse_settings(text), **settings}
    return _build(path, builders[short], given)


def environments(suite: str) -> dict[str, Any]:
    """Name -> builder for one suite."""
    return importlib.import_module(SUITES[suite]).ENVIRONMENTS


def _build(path: str, builder: Any, settings: dict[str, Any]) -> Env:
    parameters = inspect.signature(builder).parameters
    for key in settings:
        if key not in parameters:
            raise UsageError(f"{path} has no setting {key!r}.{nearest(key, parameters)}")
    for key, value in settings.items():
        default = parameters[key].default
        if isinstance(default, bool) != isinstance(value, bool) and default is not None:
            wanted = "true or false" if isinstance(default, bool) else "not true or false"
            raise UsageError(f"{path}: setting {key} must be {wanted}, not {value!r}.")
        if isinstance(default, int | float) and not isinstance(value, int | float):
            raise UsageError(f"{path}: setting {key} must be a number, not {value!r}.")
        if isinstance(default, int) and isinstance(value, float):
            raise UsageError(f"{path}: setting {key} must be a whole number, not {value!r}.")
    return builder(**settings)
