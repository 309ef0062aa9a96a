"""The scales on which learners with a replay count rewards and read observations.

Learning rates, limits of gradients and the noise of networks have sizes of their own, and what is learned should fit
to them. Rewards are counted in a unit: a tenth of the largest discounted sum of rewards so far, so that values
are about as large whatever the environment pays. If all rewards are twice as large, the policies are the same, bit
for bit. The replay keeps rewards and observations as they were; they are scaled when they are learned from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, Trajectory
from flockrl.nets.normalisation import Moments, observe

FULL = 10.0
"""The size of the largest discounted sum of rewards in its own unit."""
LIMIT = 10.0
"""Normalised observations are cut off here."""


class Unit(NamedTuple):
    """earned: [B, N] what each agent has earned in its episode up to now, older rewards discounted; most: [N] the
    largest size of such a sum so far, 0 before the first reward."""

    earned: Array
    most: Array

    @property
    def size(self) -> Array:
        """[N] what one unit is worth; 1 before the first reward."""
        return jnp.where(self.most == 0, 1.0, self.most / FULL)


class Scales(NamedTuple):
    """reward: a `Unit`; seen: moments of observations [N, O]; central: those of the global state [1, S]; each of them
    is () where nothing is scaled."""

    reward: Any = ()
    seen: Any = ()
    central: Any = ()

    def values(self, value: Array) -> Array:
        """Values [..., N] as returns, of those in units."""
        return value * self.reward.size if isinstance(self.reward, Unit) else value

    def units(self, reward: Array) -> Array:
        """Rewards [..., N], or what counts like them, in units."""
        return reward / self.reward.size if isinstance(self.reward, Unit) else reward

    def experience(self, batch: Any) -> Any:
        """A `Batch` or `Trajectory` as it is learned from."""
        batch = batch._replace(reward=self.units(batch.reward))
        if isinstance(self.seen, Moments):
            batch = batch._replace(obs=in_deviations(batch.obs, self.seen))
            batch = batch._replace(next_obs=in_deviations(batch.next_obs, self.seen))
        if isinstance(self.central, Moments) and batch.state is not None:
            whole = Moments(self.central.mean[0], self.central.var[0], self.central.batches)
            batch = batch._replace(state=in_deviations(batch.state, whole))
            batch = batch._replace(next_state=in_deviations(batch.next_state, whole))
        return batch


def no_unit(envs: int, num_agents: int) -> Unit:
    """Before anything was earned."""
    return Unit(jnp.zeros((envs, num_agents)), jnp.zeros(num_agents))


def earn(unit: Unit, reward: Array, first: Array, gamma: float, pool: np.ndarray) -> Unit:
    """After a rollout: reward [T, B, N], first [T, B] where episodes begin. pool: [N] numbers from 0 on; agents with
    the same one have a unit in common."""

    def step(before: Unit, now: tuple[Array, Array]) -> tuple[Unit, None]:
        reward, begins = now
        earned = reward + gamma * jnp.where(begins[:, None], 0.0, before.earned)
        return Unit(earned, jnp.maximum(before.most, jnp.abs(earned).max(0))), None

    after, _ = jax.lax.scan(step, unit, (reward, first))
    return after._replace(most=jax.ops.segment_max(after.most, pool, int(pool.max()) + 1)[pool])


def look(scales: Scales, trajectory: Trajectory, pool: np.ndarray) -> Scales:
    """After a rollout: the moments of what was observed, all rollouts with equal weight."""
    seen, central = scales.seen, scales.central
    weight = None if trajectory.alive is None else trajectory.weight
    if isinstance(seen, Moments):
        seen = observe(seen, trajectory.obs, weight, pool, slowest=0.0)
    if isinstance(central, Moments) and trajectory.state is not None:
        there = None if weight is None else weight.max(-1, keepdims=True)
        central = observe(central, trajectory.state[:, :, None], there, np.zeros(1, np.int32), slowest=0.0)
    return scales._replace(seen=seen, central=central)


def in_deviations(x: Array, stats: Moments) -> Array:
    """Observations with mean 0 and deviation 1, within limits."""
    return jnp.clip((x - stats.mean) / stats.std, -LIMIT, LIMIT)
