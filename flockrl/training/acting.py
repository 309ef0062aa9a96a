"""A learner's policy in somebody else's loop: one team, one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.actions import clip_action
from flockrl.core.types import Algorithm, Array, EnvSpec, Observation, PyTree
from flockrl.data.episode import Choose


class Acting:
    """Compiled once for all episodes of a trainer."""

    def __init__(self, algorithm: Algorithm, spec: EnvSpec):
        self.algorithm, self.spec = algorithm, spec
        self._kept: tuple[int, PyTree] | None = None
        self._step: Any = jax.jit(self._pure_step, static_argnames="explore")

    def params(self, version: int, read: Callable[[], PyTree]) -> PyTree:
        """A copy of the parameters of this version, made when the version is new: an update overwrites its state."""
        if self._kept is None or self._kept[0] != version:
            self._kept = version, jax.tree.map(jnp.copy, read())
        return self._kept[1]

    def forget(self) -> None:
        """The version's number has come to mean other parameters."""
        self._kept = None

    def begin(self, params: PyTree, key: Array, explore: bool) -> Choose:
        """Acts for one episode: it remembers, and draws numbers that no other episode draws."""
        memory, steps = self.algorithm.memory(1), 0
        everything = self.spec.own_actions if self.spec.maskable else None

        def choose(obs: np.ndarray, there: np.ndarray, legal: Any, state: Any) -> tuple[Any, Any, Any]:
            nonlocal memory, steps
            avail = everything if legal is None else legal
            seen = Observation(obs, avail, state, there)  # type: ignore[arg-type]
            action, raw, logp, memory = self._step(params, seen, memory, key, steps, explore=explore)
            steps += 1
            return np.asarray(action), np.asarray(raw), None if logp is None else np.asarray(logp)

        return choose

    def _pure_step(
        self, params: PyTree, seen: Observation, memory: PyTree, key: Array, step: Array, explore: bool
    ) -> tuple[Array, Array, Array | None, PyTree]:
        batch = jax.tree.map(lambda x: jnp.asarray(x)[None], seen)
        key = jax.random.fold_in(key, step)
        raw, memory, extras = self.algorithm.act(params, batch, memory, key, explore)
        logp = extras.get("logp")
        return clip_action(self.spec, raw)[0], raw[0], None if logp is None else logp[0], memory
