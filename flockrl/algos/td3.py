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
from flockrl.algos.family import Family
from flockrl.algos.off_policy_config import JOINT
from flockrl.algos.replay_learner import Learned
from flockrl.algos.views import View
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Settings of the TD3 family. Try first: --lr, --critic-lr, --gamma, --steps-per-update, --hidden, --memory."""

    policy_delay: int = 2
    """Critic steps for each step of the policies and targets."""
    target_noise: float = 0.2
    """Deviation of the noise on target actions, in half ranges."""
    target_noise_clip: float = 0.5
    """The noise on target actions is cut off here, in half ranges."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "policy_delay", least=1)
        check_numbers(self, "target_noise", "target_noise_clip", least=0)


def make(spec: EnvSpec, config: TD3Config, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` iterations."""
    return TD3(spec, config, envs, updates).algorithm()


FAMILY = Family(make, TD3Config, **JOINT, factorised=True)


class TD3(DDPG):
    """Two critics per group, smoothed targets, delayed policies."""

    twins = 2

    def _next_action(self, learned: Learned, view: View, key: Array) -> Array:
        outs, seen = self._outputs(learned.targets["actor"], view), view.seen
        drawn = self._gumbel(key, seen.obs.shape[:-2]) if self.spec.maskable else None
        action = self._codes(outs, seen.avail, seen.alive, drawn)
        if self.spec.discrete:
            return action
        limit = self.config.target_noise_clip
        noise = jnp.clip(self.config.target_noise * jax.random.normal(key, action.shape), -limit, limit)
        smoothed = jnp.clip(action + noise, -1.0, 1.0) * self.code.own * view.alive[..., None]
        return smoothed if self.spec.continuous else jnp.where(self.code.real, smoothed, action)

    def _improve(
        self, learned: Learned, view: View, action: Array, key: Array, factor: Array
    ) -> tuple[Learned, dict[str, Array]]:
        """As DDPG's, every `policy_delay` steps. In between the loss counts as 0 and where it is due it counts
        `policy_delay` times, so that the mean over all steps is the mean over those that were due."""

        def move(learned: Learned) -> tuple[Learned, dict[str, Array]]:
            learned, metrics = super(TD3, self)._improve(learned, view, action, key, factor)
            return learned, {name: value * self.config.policy_delay for name, value in metrics.items()}

        def wait(learned: Learned) -> tuple[Learned, dict[str, Array]]:
            return learned, {"policy_loss": jnp.float32(0)}

        due = (learned.updates + 1) % self.config.policy_delay == 0
        return jax.lax.cond(due, move, wait, learned)
