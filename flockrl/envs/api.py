"""The environment interface and automatic resets.

An environment is an object with a `spec` and two pure functions of one environment instance (no batch
axis; the rollout maps them over B instances):

    reset(key) -> (state, Observation)
    step(key, state, action) -> (state, Observation, reward [N], terminated [N], truncated [N])

`terminated` and `truncated` may also be scalars, which then hold for all agents. A step never resets:
at the end of an episode it returns the last observation of that episode.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.actions import clip_action
from flockrl.core.types import Array, EnvSpec, Observation, PyTree


@runtime_checkable
class Env(Protocol):
    """A compiled environment. See the module's docstring for the contract."""

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, key: Array) -> tuple[PyTree, Observation]: ...

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Observation, Array, Array, Array]: ...


def reset_batch(env: Env, key: Array, batch: int) -> tuple[PyTree, Observation]:
    """Reset `batch` environments: states and observations with leading axis B."""
    return jax.vmap(env.reset)(jax.random.split(key, batch))


class StepResult(NamedTuple):
    """One step of B environments. `observation` is the one to act on next, `final` the one after the step.

    They differ only where an episode ended: there `observation` is the first of the next episode and
    `final` the last of the old one. reward, terminated, truncated: [B, N]; done: [B].
    """

    state: PyTree
    observation: Observation
    final: Observation
    reward: Array
    terminated: Array
    truncated: Array
    done: Array


def advance_batch(env: Env, key: Array, state: PyTree, observation: Observation, action: Array) -> StepResult:
    """Step B environments without resets. `observation` is the one that `action` was chosen for."""
    keys = jax.random.split(key, action.shape[0])
    state, final, reward, terminated, truncated = jax.vmap(env.step)(keys, state, clip_action(env.spec, action))
    terminated, truncated = _per_agent(terminated, reward), _per_agent(truncated, reward)
    if observation.alive is not None:
        terminated, truncated = terminated & observation.alive, truncated & observation.alive
    over = terminated | truncated
    done = (over if final.alive is None else over | ~final.alive).all(axis=-1)
    return StepResult(state, final, final, reward, terminated, truncated, done)


def step_batch(env: Env, key: Array, state: PyTree, observation: Observation, action: Array) -> StepResult:
    """Step B environments and reset those whose episode ended. `observation` is the one `action` was chosen for."""
    batch = action.shape[0]
    now = advance_batch(env, key, state, observation, action)
    state, final, done = now.state, now.final, now.done

    # In most environments all episodes of a batch end in the same step, so most steps skip the resets.
    def fresh(_: None) -> tuple[PyTree, Observation]:
        new = reset_batch(env, jax.random.fold_in(key, batch), batch)  # a key that no step uses
        return jax.tree.map(lambda new, old: _where(done, new, old), new, (state, final))

    state, observation = jax.lax.cond(done.any(), fresh, lambda _: (state, final), None)
    return now._replace(state=state, observation=observation)


def _per_agent(flag: Array, reward: Array) -> Array:
    """Flags per environment [B] or per agent [B, N], as flags per agent [B, N]."""
    return jnp.broadcast_to(flag[:, None] if flag.ndim == 1 else flag, reward.shape)


def _where(condition: Array, new: Array, old: Array) -> Array:
    """Choose along the leading axis of arrays of any rank, typed keys included."""
    return jnp.where(condition.reshape(condition.shape + (1,) * (new.ndim - 1)), new, old)


class Paths(NamedTuple):
    """Where the agents of an episode went. walked: [T + 1, N, 2]; sizes: [N] radii; paint: [N, 4] red, green, blue,
    opacity; marks [L, 2], mark_sizes, mark_paint: the same for the landmarks at the end of the episode."""

    walked: np.ndarray
    sizes: np.ndarray
    paint: np.ndarray
    marks: np.ndarray
    mark_sizes: np.ndarray
    mark_paint: np.ndarray
