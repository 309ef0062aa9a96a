"""Twin delayed deterministic policy gradients for teams: TD3, ITD3, MATD3.

Fujimoto et al. 2018 (arXiv 1802.09477), Ackermann et al. 2019 (MATD3, arXiv 1910.01465). DDPG with three changes:

    y_i = r_i + gamma min_k Q'_k,i(s', mu'(o') + clip(eps, -c, c)),   eps ~ N(0, sigma^2)

two critics with targets of their own, smoothed target actions, and policies and targets that move only every
`policy_delay` critic steps. For discrete actions, target actions are smoothed by sampling the target policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flockrl.algos.ddpg import DDPG, DDPGConfig
from flockrl.algos.parts import require
from flockrl.algos.replay_learner import Learned
from flockrl.data.replay import Batch
from flockrl.types import Algorithm, Array, EnvSpec


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Settings of the TD3 family."""

    policy_delay: int = 2
    """Critic steps for each step of the policies and targets."""
    target_noise: float = 0.2
    """Deviation of the noise on target actions, in half ranges."""
    target_noise_clip: float = 0.5
    """The noise on target actions is cut off here, in half ranges."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self,
            policy_delay=self.policy_delay > 0,
            target_noise=self.target_noise >= 0,
            target_noise_clip=self.target_noise_clip >= 0,
        )


def make(spec: EnvSpec, config: TD3Config, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` iterations."""
    return TD3(spec, config, envs, updates).algorithm()


class TD3(DDPG):
    """Two critics per group, smoothed targets, delayed policies."""

    twins = 2

    def _next_action(self, learned: Learned, batch: Batch, key: Array) -> Array:
        if self.spec.discrete:
            drawn = self._gumbel(key, len(batch.obs))
            return self._choose(learned.targets["actor"], batch.next_obs, batch.next_avail, batch.next_alive, drawn)
        action = super()._next_action(learned, batch, key)
        limit = self.config.target_noise_clip
        noise = jnp.clip(self.config.target_noise * jax.random.normal(key, action.shape), -limit, limit)
        return jnp.clip(action + noise, -1.0, 1.0) * self.code.own * batch.next_alive[..., None]

    def _improve(
        self, learned: Learned, batch: Batch, action: Array, key: Array, factor: Array
    ) -> tuple[Learned, dict[str, Array]]:
        """As DDPG's, every `policy_delay` steps. In between the loss is reported as 0, so that means stay sums."""

        def move(learned: Learned) -> tuple[Learned, dict[str, Array]]:
            learned, metrics = super(TD3, self)._improve(learned, batch, action, key, factor)
            return learned, {name: value * self.config.policy_delay for name, value in metrics.items()}

        def wait(learned: Learned) -> tuple[Learned, dict[str, Array]]:
            return learned, {"policy_loss": jnp.float32(0)}

        due = (learned.updates + 1) % self.config.policy_delay == 0
        return jax.lax.cond(due, move, wait, learned)
