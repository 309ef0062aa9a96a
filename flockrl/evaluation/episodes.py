"""Episodes that a trained policy plays, recorded in full: for pictures, and for choosing good and bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from flockrl.core.actions import clip_action
from flockrl.core.types import Actor, Algorithm, Array, Observation, PyTree
from flockrl.envs.api import Env, StepResult, advance_batch, reset_batch


class Episode(NamedTuple):
    """One episode of T steps.

    states: T + 1 environment states without batch axes. obs: [T, N, O]; action: [T, N] or [T, N, A] as the
    environment took it; reward: [T, N], 0 for dead agents.
    """

    states: list[PyTree]
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray

    @property
    def score(self) -> float:
        """Undiscounted return, mean over agents."""
        return float(self.reward.sum(axis=0).mean())


def record(
    algorithm: Algorithm | Actor, env: Env, params: PyTree, key: Array, count: int = 1, explore: bool = False,
    limit: int | None = None,
) -> list[Episode]:  # fmt: skip
    """Play `count` episodes in parallel, greedily unless `explore`, of at most `limit` steps."""

    @jax.jit
    def step(state: PyTree, seen: Observation, memory: PyTree, key: Array) -> tuple[StepResult, Array, PyTree]:
        act_key, env_key = jax.random.split(key)
        action, memory, _ = algorithm.act(params, seen, memory, act_key, explore)
        return advance_batch(env, env_key, state, seen, action), clip_action(env.spec, action), memory

    reset_key, key = jax.random.split(key)
    state, seen = jax.jit(partial(reset_batch, env, batch=count))(reset_key)
    memory, going = algorithm.memory(count), np.ones(count, bool)
    states, rows, lengths = [state], [], np.zeros(count, int)
    for t in range(min(env.spec.max_steps, limit or env.spec.max_steps)):
        now, action, memory = step(states[-1], seen, memory, jax.random.fold_in(key, t))
        rows.append((seen.obs, action, now.reward))
        states.append(now.state)
        seen = now.final
        lengths += going
        going &= ~np.asarray(now.done)
        if not going.any():
            break
    states, rows = jax.device_get((states, rows))
    return [_cut(states, rows, i, int(length)) for i, length in enumerate(lengths)]


def _cut(states: list[PyTree], rows: list[tuple[Any, ...]], i: int, length: int) -> Episode:
    """Episode i of the batch, up to its own end."""
    own = [jax.tree.map(lambda x: x[i], state) for state in states[: length + 1]]
    obs, action, reward = (np.stack([row[k][i] for row in rows[:length]]) for k in range(3))
    return Episode(own, obs, action, reward)


def spread(episodes: Sequence[Episode]) -> dict[str, Episode]:
    """The best, the median and the worst episode by return."""
    ranked = sorted(episodes, key=lambda episode: episode.score)
    return {"best": ranked[-1], "median": ranked[(len(ranked) - 1) // 2], "worst": ranked[0]}
