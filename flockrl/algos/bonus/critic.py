"""What the bonus is worth to learners with advantages: returns of it with their own value, discount and no episode cut.

Burda et al. 2019 (RND, arXiv 1810.12894): what is new does not end with an episode, so that agents do not shun ends
that lead to more of it. Bonuses fall by orders of magnitude as things become known, faster than a network unlearns.
So the network speaks in units of the newest returns, and what it expects falls with them; and advantages are
normalised, so that the last novelty counts as much as the first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.parts import adam, descend, joint, mean, var
from flockrl.algos.returns import gae
from flockrl.core.types import Array, EnvSpec, PyTree, Trajectory
from flockrl.nets.network import Network
from flockrl.nets.normalisation import Moments, moments, observe

LAMBDA, LR, EPOCHS = 0.95, 1e-3, 2
SLOWEST, FLOOR = 0.5, 0.05
"""The least weight of a new rollout in the units, and the part of the returns' deviation that advantages are divided by
at least."""


class CriticState(NamedTuple):
    """params, optimiser: of the network; scale: moments of the newest returns, which are its units."""

    params: PyTree
    optimiser: PyTree
    scale: Moments


class BonusCritic:
    """One network reads the global state (else all observations) and values the bonuses to come of all agents."""

    def __init__(self, spec: EnvSpec, config: Any, envs: int):
        self.spec, self.envs, self.gamma = spec, envs, config.of_bonus("bonus_gamma")
        hidden = getattr(config, "hidden", (64, 64))
        self.net = Network(hidden, spec.num_agents, getattr(config, "activation", "tanh"), sight=spec.sight)
        self.optimiser = adam(0.5, eps=1e-5)
        self.parts = next(n for n in (4, 3, 2, 1) if envs % n == 0)

    def init(self, key: Array) -> CriticState:
        params = self.net.init(key, jnp.zeros((1, 1, self.spec.central_size)))["params"]
        return CriticState(params, self.optimiser.init(params), moments((self.spec.num_agents,)))

    def advantage(
        self, state: CriticState, rollout: Trajectory, bonus: Array, key: Array
    ) -> tuple[Array, CriticState, dict[str, Array]]:
        """[T, B, N] advantages of bonuses with mean 0 and a deviation of at most 1, and the state after it."""
        old, seen = state.scale, self._see(rollout.obs, rollout.state)
        last = self._see(rollout.next_obs[-1:], None if rollout.next_state is None else rollout.next_state[-1:])
        values = self._value(state.params, jnp.concatenate([seen, last])) * old.std + old.mean
        never = jnp.zeros(bonus.shape, bool)
        advantage = gae(bonus, values[:-1], values[1:], never, never, self.gamma, LAMBDA)
        returns = advantage + values[:-1]
        scale = observe(old, returns, None, np.zeros(self.spec.num_agents, np.int32), slowest=SLOWEST)
        params, optimiser, loss = self._fit(state, seen, (returns - scale.mean) / scale.std, key)
        weight = None if rollout.alive is None else rollout.weight
        spread = jnp.maximum(jnp.sqrt(var(advantage, weight)), FLOOR * scale.std)
        normal = (advantage - mean(advantage, weight)) / (spread + 1e-8)
        return normal, CriticState(params, optimiser, scale), {"bonus_value_loss": loss}

    def _see(self, obs: Array, state: Array | None) -> Array:
        return joint(self.spec, obs, state if self.spec.state_size else None)

    def _value(self, params: PyTree, seen: Array) -> Array:
        """[..., N] values of what a team sees, [..., S]."""
        out: Any = self.net.apply({"params": params}, seen[..., None, :])
        return out[0][..., 0, :]

    def _fit(self, state: CriticState, seen: Array, target: Array, key: Array) -> tuple[PyTree, PyTree, Array]:
        """A few passes over the rollout, environments shuffled into minibatches."""

        def loss(params: PyTree, seen: Array, target: Array) -> Array:
            return 0.5 * mean((self._value(params, seen) - target) ** 2, None)

        def step(carry: tuple[PyTree, PyTree], part: tuple[Array, Array]) -> tuple[tuple[PyTree, PyTree], Array]:
            value, grads = jax.value_and_grad(loss)(carry[0], *part)
            nets, states = descend(self.optimiser, (carry[0],), (carry[1],), (grads,), jnp.float32(LR))
            return (nets[0], states[0]), value

        def epoch(carry: tuple[PyTree, PyTree], key: Array) -> tuple[tuple[PyTree, PyTree], Array]:
            order = jax.random.permutation(key, self.envs)

            def split(x: Array) -> Array:
                rows = jnp.swapaxes(x, 0, 1)[order]
                return rows.reshape(self.parts, self.envs // self.parts, *rows.shape[1:])

            carry, losses = jax.lax.scan(step, carry, (split(seen), split(target)))
            return carry, losses.mean()

        (params, optimiser), losses = jax.lax.scan(
            epoch, (state.params, state.optimiser), jax.random.split(key, EPOCHS)
        )
        return params, optimiser, losses.mean()
