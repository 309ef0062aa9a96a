"""Returns and advantages. Truncation is handled only here.

All arrays are [T, B, N]. `next_value` is the value after the step: for a truncated episode the value
of its last observation, never of the one after the reset. `terminated` stops the bootstrap, `over`
(terminated or truncated) stops the recursion.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from flockrl.core.types import Array


def gae(
    reward: Array, value: Array, next_value: Array, terminated: Array, over: Array, gamma: float, lam: float
) -> Array:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    A_t = delta_t + gamma lam (1 - over_t) A_{t+1},
    delta_t = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t).
    """
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = jnp.where(over, 0.0, gamma * lam)

    def back(advantage: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        advantage = now[0] + now[1] * advantage
        return advantage, advantage

    return jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)[1]


def monte_carlo(reward: Array, over: Array, gamma: float) -> tuple[Array, Array]:
    """The discounted return from each step to the end of its episode, and whether that end is within the rollout.

    G_t = r_t + gamma (1 - over_t) G_{t+1}. Where the end is not, the sum lacks the rewards after the last step.
    """

    def back(later: tuple[Array, Array], now: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        (total, known), (reward, over) = later, now
        later = reward + jnp.where(over, 0.0, gamma * total), over | known
        return later, later

    start = jnp.zeros_like(reward[0]), jnp.zeros_like(over[0])
    return jax.lax.scan(back, start, (reward, over), reverse=True)[1]


def lambda_returns(reward: Array, next_value: Array, terminated: Array, over: Array, gamma: float, lam: float) -> Array:
    """Lambda returns (Sutton and Barto 2018, eq. 12.2); the last step has a one-step return.

    G_t = r_t + gamma (1 - terminated_t) ((1 - l_t) V(s_{t+1}) + l_t G_{t+1}),  l_t = lam, but 0 where over.
    """
    trust = jnp.where(over, 0.0, lam).at[-1].set(0.0)
    base = reward + gamma * jnp.where(terminated, 0.0, (1 - trust) * next_value)
    decay = jnp.where(terminated, 0.0, gamma * trust)

    def back(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        later = now[0] + now[1] * later
        return later, later

    return jax.lax.scan(back, jnp.zeros_like(base[0]), (base, decay), reverse=True)[1]


def n_step_returns(reward: Array, next_value: Array, terminated: Array, over: Array, gamma: float, n: int) -> Array:
    """[T - n + 1, B, N] n-step returns with the value after the last step; fewer steps where an episode ends before."""
    follows = jnp.where(terminated, 0.0, next_value)
    target = reward + gamma * follows
    for _ in range(n - 1):
        steps = len(target) - 1
        later = jnp.where(over[:steps], follows[:steps], target[1:])
        target = reward[:steps] + gamma * later
    return target
