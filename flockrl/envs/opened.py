"""An environment whose players know everything: for the policies that come with it."""

from __future__ import annotations

from typing import Any

from flockrl.core.types import Array, Observation, PyTree
from flockrl.envs.api import Env


class Opened:
    """An environment that shows its state: in `Observation.state` stands the state itself, of whatever form.

    For playing only: learners take a global state as numbers [S].
    """

    def __init__(self, env: Env):
        self.inner, self.spec = env, env.spec

    def reset(self, key: Array) -> tuple[PyTree, Observation]:
        state, seen = self.inner.reset(key)
        return state, seen._replace(state=state)

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Observation, Array, Array, Array]:
        state, seen, *outcome = self.inner.step(key, state, action)
        return state, seen._replace(state=state), *outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
