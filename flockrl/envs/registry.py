"""Environments by name, and from objects that users pass."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from flockrl.core.errors import UsageError, nearest
from flockrl.core.settings import parse_settings
from flockrl.core.synonyms import closest
from flockrl.envs.adapters import adapt
from flockrl.envs.api import Env

SUITES = {
    "mpe": "flockrl.envs.mpe",
    "games": "flockrl.envs.games",
    "comm": "flockrl.envs.comm",
    "traffic": "flockrl.envs.traffic",
    "market": "flockrl.envs.market",
    "foraging": "flockrl.envs.foraging",
    "explore": "flockrl.envs.explore",
    "warehouse": "flockrl.envs.warehouse",
    "credit": "flockrl.envs.credit",
    "mean_field": "flockrl.envs.mean_field",
    "fleet": "flockrl.envs.fleet",
    "swarm": "flockrl.envs.swarm",
    "grid": "flockrl.envs.grid",
    "tasks": "flockrl.envs.tasks",
    "hierarchy": "flockrl.envs.hierarchy",
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
        known = [f"{s}/{n}" for s in ([suite] if suite in SUITES else SUITES) for n in environments(s)]
        known += [f"{s}/{form}" for s, form in adapt.SUITES.items() if suite not in SUITES]
        meant = _meant(suite, short) or (_own(name, known) if suite not in SUITES else "") or nearest(path, known)
        raise UsageError(f"There is no environment {path!r}.{meant}")
    builders = environments(suite)
    if short not in builders:
        outside = short.partition("-")[0]
        meant = f" Did you mean '{outside}/{short}'?" if outside in adapt.SUITES else nearest(short, builders)
        raise UsageError(f"There is no environment {path!r}.{meant}{ALSO.get(suite, '')}")
    given = {**parse_settings(text), **settings}
    return _build(path, builders[short], given)


ELSEWHERE = {
    "smac": "jaxmarl/HeuristicEnemySMAX:scenario={}", "smax": "jaxmarl/HeuristicEnemySMAX:scenario={}",
    "smacv2": "jaxmarl/HeuristicEnemySMAX:scenario={}", "overcooked": "jaxmarl/overcooked:layout={}",
    "gym": "gymnasium/{}", "lbforaging": "lbf/{}",
    "robotic_warehouse": "warehouse/tiny or rware/{}", "mpe2": "pettingzoo/mpe2.{}",
    "atari": "pettingzoo/pettingzoo.atari.{}", "butterfly": "pettingzoo/pettingzoo.butterfly.{}",
    "sisl": "pettingzoo/pettingzoo.sisl.{}",
}  # fmt: skip
"""What people call suites -> the names of such environments here, one or several with `or` between them."""
ALSO = {
    "foraging": " Other fields are foraging/field:size=8,players=2,food=2,coop=true; the package's own are lbf/ID.",
    "lbforaging": " Compiled tasks of it are in foraging/, such as foraging/8x8-2p-2f-coop.",
}
"""What else to say where a name of a suite is not known."""


def _meant(suite: str, short: str) -> str:
    """`` Did you mean 'x'?`` for names that other libraries use; empty for others."""
    if short and suite.lower() in ELSEWHERE:
        names = ELSEWHERE[suite.lower()].format(short).split(" or ")
        return f" Did you mean {' or '.join(map(repr, names))}?{ALSO.get(suite.lower(), '')}"
    if short:
        return ""
    if suite.startswith("Foraging-"):
        return _meant("lbforaging", suite)
    if re.search(r"-v[0-9]+$", suite):
        return f" Did you mean 'gymnasium/{suite}'?"
    from flockrl.envs.adapters import pettingzoo

    found = pettingzoo.find(suite) if pettingzoo.VERSION.search(suite) else None
    return f" Did you mean 'pettingzoo/{found}'?" if found else ""


def _own(name: str, known: list[str]) -> str:
    """`` Did you mean 'python/worlds:Arena'?`` for worlds:Arena, worlds.py:Arena and ./worlds.py:Arena; else empty."""
    path, _, rest = name.partition(":")
    module = path.removeprefix("./").removesuffix(".py").replace("/", ".")
    parts = (*module.split("."), rest.partition(",")[0])
    if closest(path, known) or not all(part.isidentifier() for part in parts):
        return ""
    return f" Did you mean 'python/{module}:{rest}', an environment of your own?"


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
            other = "a number" if isinstance(default, int | float) else "a word"
            wanted = "true or false" if isinstance(default, bool) else other
            raise UsageError(f"{path}: setting {key} must be {wanted}, not {value!r}.")
        if isinstance(default, int | float) and not isinstance(value, int | float):
            raise UsageError(f"{path}: setting {key} must be a number, not {value!r}.")
        if isinstance(default, int) and isinstance(value, float):
            raise UsageError(f"{path}: setting {key} must be a whole number, not {value!r}.")
    return builder(**settings)
