"""Teams that do not learn, played and shown like a run: the policies that come with an environment, and chance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax

from flockrl.algos.sides import random_side
from flockrl.core.errors import UsageError, nearest
from flockrl.core.types import Algorithm, EnvSpec, EvalResult
from flockrl.envs.api import Knowing
from flockrl.envs.opened import Opened
from flockrl.envs.registry import make
from flockrl.evaluation.episodes import Episode
from flockrl.evaluation.playing import make_player, record_episode, summarize
from flockrl.training.players import RANDOM, knowing


class Scripted:
    """A named policy of an environment, or "random". env: its name, or the environment itself."""

    def __init__(self, policy: str, env: Any):
        place = make(env)
        self.spec: EnvSpec = place.spec
        known: dict[str, Knowing] = getattr(place, "policies", {})
        if policy != RANDOM and policy not in known:
            raise UsageError(f"{self.spec.name} has no policy {policy!r}.{nearest(policy, [*known, RANDOM])}")
        self.env = place if policy == RANDOM else Opened(place)
        self.algorithm: Algorithm = random_side(self.spec) if policy == RANDOM else knowing(self.spec, known[policy])
        self.path = f"{policy} in {env if isinstance(env, str) else self.spec.name}"
        self.config = SimpleNamespace(algorithm=policy, env=self.spec.name, config=None)

    def params(self, best: bool = False) -> tuple[()]:
        """It has none."""
        return ()

    def evaluate(self, episodes: int = 100, seed: int = 0) -> EvalResult:
        """Play whole episodes."""
        if episodes < 1:
            raise UsageError(f"episodes must be at least 1, not {episodes}.")
        return summarize(*make_player(self.algorithm, self.env, episodes)((), jax.random.key(seed)))

    def episode(self, seed: int = 0, explore: bool = False, best: bool = False) -> Episode:
        """One episode in full, for drawing."""
        return record_episode(self.algorithm, self.env, (), jax.random.key(seed), explore)
