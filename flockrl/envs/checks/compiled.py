"""The conformance kit: does an environment keep the contract that training relies on?

    from flockrl.envs import check
    check(MyEnv())

`check` raises a `UsageError` with one sentence about the first thing that is wrong; `problems` lists them. The stages
build on each other, so a stage is reached only when those before it find nothing: the spec, then what `reset` and
`step` return (by tracing alone, nothing is compiled), then whether they are pure, then the numbers in a few random
episodes, which are played by one compiled program. Environments on the host are checked by `checks.host`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from flockrl.core.errors import UsageError
from flockrl.core.types import EnvSpec
from flockrl.envs.checks.host import find as find_on_host
from flockrl.envs.checks.played import numbers, play
from flockrl.envs.checks.purity import purity
from flockrl.envs.checks.returns import maps, returns
from flockrl.envs.checks.spec import wrong_spec
from flockrl.envs.checks.tracing import name_of
from flockrl.envs.host.env import Host, HostEnv


def check(env: Any, episodes: int = 3, seed: int = 0) -> None:
    """Raise a `UsageError` about the first breach of the contract, or return quietly.

    env: what `flockrl.train` takes: an environment, its class, a function that builds one, or a name.
    """
    for sentence in _find(env, episodes, seed):
        raise UsageError(sentence)


def problems(env: Any, episodes: int = 3, seed: int = 0) -> list[str]:
    """What the first stage that finds anything wrong has to say, one sentence each; empty when all is well."""
    found: list[str] = []
    try:
        found.extend(_find(env, episodes, seed))
    except UsageError as error:
        found.append(str(error))
    return found


def _find(env: Any, episodes: int, seed: int) -> Iterator[str]:
    """The findings of the first stage that has any. Raises when the environment's own code fails."""
    env = _built(env)
    if isinstance(env, Host):
        for stage in (lambda: wrong_spec(env.spec), lambda: find_on_host(env, episodes, seed)):
            found = [f"{env.spec.name}: {sentence}" for sentence in stage()]
            yield from found
            if found:
                return
        return
    name = name_of(env)
    stages: tuple[Callable[[], Iterator[str]], ...] = (
        lambda: _interface(env),
        lambda: wrong_spec(env.spec),
        lambda: returns(env),
        lambda: purity(env, episodes, seed),
        lambda: maps(env),
        lambda: numbers(env.spec, *play(env, episodes, seed)),
    )
    for stage in stages:
        clean = True
        for sentence in stage():
            clean = False
            yield f"{name}: {sentence}"
        if not clean:
            return


def _built(env: Any) -> Any:
    """What training makes of an environment: one of PettingZoo or Gymnasium, a class, a function or a name is built."""
    if isinstance(env, str | type | HostEnv) or inspect.isroutine(env) or hasattr(env, "observation_space"):
        from flockrl.envs.registry import make

        return make(env)
    return env


def _interface(env: Any) -> Iterator[str]:
    spec = getattr(env, "spec", None)
    if not isinstance(spec, EnvSpec):
        yield f"the environment's spec must be an EnvSpec, not {type(spec).__name__}."
    for method in ("reset", "step", *(["counterfactual_reward"] if getattr(spec, "counterfactual", False) else [])):
        if not callable(getattr(env, method, None)):
            yield f"the environment has no method {method}."
