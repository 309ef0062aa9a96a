"""The Gaussian squeeze (HolmesParker et al. 2014): all agents' efforts together should come to the right sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.settings import between, whole

EFFORTS = 10


class Efforts(NamedTuple):
    """chosen: [N] each agent's effort, -1 before it chose."""

    chosen: Array


class GaussianSqueeze:
    """n agents see nothing, each chooses an effort from 0 to 9, then the game ends.

    Everyone is paid G = x exp(-((x - mu) / sigma)^2), where x is the sum of efforts. Over real x it is highest at
    (mu + sqrt(mu^2 + 2 sigma^2)) / 2; `best` is exact, over the sums that n agents can reach. An agent that is not
    there adds nothing to the sum, as one with effort 0.
    """

    def __init__(self, n: int = 100, mu: float = 175.0, sigma: float = 100.0):
        whole("credit/gaussian_squeeze", 2, 1000, n=n)
        between("credit/gaussian_squeeze", 0, 10_000, mu=mu)
        between("credit/gaussian_squeeze", 0.1, 10_000, sigma=sigma)
        self.n, self.mu, self.sigma = n, float(mu), float(sigma)
        names = tuple(f"agent_{i}" for i in range(n))
        seen, does = (Box((1,), 0.0, 1.0),) * n, (Discrete(EFFORTS),) * n
        self.spec = EnvSpec("credit/gaussian_squeeze", names, seen, does, max_steps=1, counterfactual=True)
        sums = np.arange(n * (EFFORTS - 1) + 1)
        worth = sums * np.exp(-(((sums - self.mu) / self.sigma) ** 2))
        self.best, self.best_sum = float(worth.max()), int(worth.argmax())
        self.policies = {"best": self._best, "middle": self._middle}

    def reset(self, key: Array) -> tuple[Efforts, Observation]:
        return Efforts(jnp.full(self.n, -1, jnp.int32)), self._observe()

    def step(self, key: Array, state: Efforts, action: Array) -> tuple[Efforts, Observation, Array, Array, Array]:
        state = Efforts(action.astype(jnp.int32))
        paid = jnp.broadcast_to(self._worth(state.chosen.sum()), self.n)
        return state, self._observe(), paid, jnp.bool_(True), jnp.bool_(False)

    def counterfactual_reward(self, state: Efforts, action: Array, present: Array) -> Array:
        """G if only the agents in `present` [N] had made an effort."""
        return self._worth((action * present).sum())

    def alternatives(self, state: Efforts, action: Array) -> Array:
        """[N, 11] G if an agent had made each effort, or was not there (last)."""
        others = (action.sum() - action)[:, None]
        return self._worth(others + jnp.array([*range(EFFORTS), 0]))

    def measures(self, state: Efforts) -> dict[str, Array]:
        total = state.chosen.sum()
        return {"sum": total, "share_of_best": self._worth(total) / self.best}

    def render(self, states: Sequence[Efforts], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: what sums are worth, and the one that came out."""
        from flockrl.envs.credit.render import squeeze_frames

        sums = np.arange(self.n * (EFFORTS - 1) + 1)
        return squeeze_frames(states, np.asarray(self._worth(jnp.asarray(sums))), size)

    def _worth(self, total: Array) -> Array:
        return total * jnp.exp(-(((total - self.mu) / self.sigma) ** 2))

    def _observe(self) -> Observation:
        return Observation(jnp.ones((self.n, 1)))

    def _best(self, state: Efforts, seen: Observation, key: Array) -> Array:
        """The best sum, shared out evenly."""
        each, more = divmod(self.best_sum, self.n)
        return jnp.asarray(each + (np.arange(self.n) < more), jnp.int32)

    def _middle(self, state: Efforts, seen: Observation, key: Array) -> Array:
        """Everyone makes a middling effort of 5."""
        return jnp.full(self.n, EFFORTS // 2, jnp.int32)
