"""Returns and advantages. Truncation is handled once, here.

All arrays are [T, B, N]. `next_value` is the value of what followed the step: for a truncated episode
the value of the observation it ended on, never of the one after the reset. `terminated` cuts the
bootstrap, `over` (terminated or truncated) cuts the recursion.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from flockrl.types import Array


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
