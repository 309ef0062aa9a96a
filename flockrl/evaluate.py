"""Evaluation: whole episodes, greedy unless asked otherwise, as one compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.envs.base import Env, clip_action, reset_batch
from flockrl.types import Algorithm, Array, EvalResult, PyTree

Evaluator = Callable[[PyTree, Array], tuple[Array, Array]]


def make_evaluator(algorithm: Algorithm, env: Env, episodes: int, explore: bool = False) -> Evaluator:
    """A pure function (params, key) -> (returns [episodes, N], lengths [episodes])."""

    def evaluate(params: PyTree, key: Array) -> tuple[Array, Array]:
        reset_key, key = jax.random.split(key)
        state, observation = reset_batch(env, reset_key, episodes)
        zeros = jnp.zeros((episodes, env.spec.num_agents))
        carry = (0, state, observation, algorithm.memory(episodes), zeros, jnp.zeros(episodes, jnp.int32))

        def unfinished(carry: tuple[Any, ...]) -> Array:
            return (carry[0] < env.spec.max_steps) & carry[-1].any()

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            t, state, seen, memory, returns, lengths, going = carry
            act_key, env_key = jax.random.split(jax.random.fold_in(key, t))
            action, memory, _ = algorithm.act(params, seen, memory, act_key, explore)
            keys = jax.random.split(env_key, episodes)
            state, after, reward, terminated, truncated = jax.vmap(env.step)(keys, state, clip_action(env.spec, action))
            counted = going[:, None] if seen.alive is None else going[:, None] & seen.alive
            returns = returns + jnp.where(counted, reward, 0.0)
            over = _team(terminated) | _team(truncated)
            if after.alive is not None:
                over = over | ~after.alive
            return t + 1, state, after, memory, returns, lengths + going, going & ~over.all(-1)

        ended = jax.lax.while_loop(unfinished, step, (*carry, jnp.ones(episodes, bool)))
        return ended[4], ended[5]

    return evaluate


def _team(flag: Array) -> Array:
    """[B] or [B, N] -> [B, 1] or [B, N]."""
    return flag[:, None] if flag.ndim == 1 else flag


def summarize(returns: Array, lengths: Array) -> EvalResult:
    scores = np.asarray(returns)
    means = scores.mean(axis=1)
    return EvalResult(float(means.mean()), float(means.std()), len(means), scores, np.asarray(lengths))


def record_episode(
    algorithm: Algorithm, env: Env, params: PyTree, key: Array, explore: bool = False
) -> tuple[list[PyTree], np.ndarray]:
    """Play one episode and keep every environment state: (states, returns [N])."""
    reset_key, key = jax.random.split(key)
    step = jax.jit(env.step)
    act = jax.jit(lambda params, seen, memory, key: algorithm.act(params, seen, memory, key, explore))
    state, seen = jax.jit(env.reset)(reset_key)
    memory, states, returns = algorithm.memory(1), [state], np.zeros(env.spec.num_agents)
    for t in range(env.spec.max_steps):
        act_key, env_key = jax.random.split(jax.random.fold_in(key, t))
        batched = jax.tree.map(lambda x: x[None], seen)
        action, memory, _ = act(params, batched, memory, act_key)
        state, after, reward, terminated, truncated = step(env_key, state, clip_action(env.spec, action)[0])
        returns += np.where(True if seen.alive is None else np.asarray(seen.alive), np.asarray(reward), 0.0)
        states.append(state)
        over = np.asarray(terminated) | np.asarray(truncated)
        seen = after
        if (over if after.alive is None else over | ~np.asarray(after.alive)).all():
            break
    return jax.device_get(states), returns
