"""Evaluation: whole episodes, greedy unless asked otherwise, as one compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.envs.base import Env, StepResult, advance_batch, reset_batch
from flockrl.types import Actor, Algorithm, Array, EvalResult, Observation, PyTree

Evaluator = Callable[[PyTree, Array], tuple[Array, Array]]


def make_evaluator(algorithm: Algorithm | Actor, env: Env, episodes: int, explore: bool = False) -> Evaluator:
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
            now = advance_batch(env, env_key, state, seen, action)
            counted = going[:, None] if seen.alive is None else going[:, None] & seen.alive
            returns = returns + jnp.where(counted, now.reward, 0.0)
            return t + 1, now.state, now.final, memory, returns, lengths + going, going & ~now.done

        ended = jax.lax.while_loop(unfinished, step, (*carry, jnp.ones(episodes, bool)))
        return ended[4], ended[5]

    return evaluate


def summarize(returns: Array, lengths: Array) -> EvalResult:
    scores = np.asarray(returns)
    means = scores.mean(axis=1)
    return EvalResult(float(means.mean()), float(means.std()), len(means), scores, np.asarray(lengths))


def record_episode(algorithm: Algorithm, env: Env, params: PyTree, key: Array, explore: bool = False) -> list[PyTree]:
    """Play one episode and keep every environment state."""

    @jax.jit
    def step(state: PyTree, seen: Observation, memory: PyTree, key: Array) -> tuple[StepResult, PyTree]:
        act_key, env_key = jax.random.split(key)
        action, memory, _ = algorithm.act(params, seen, memory, act_key, explore)
        return advance_batch(env, env_key, state, seen, action), memory

    reset_key, key = jax.random.split(key)
    state, seen = jax.jit(partial(reset_batch, env, batch=1))(reset_key)
    memory, states = algorithm.memory(1), [state]
    for t in range(env.spec.max_steps):
        now, memory = step(states[-1], seen, memory, jax.random.fold_in(key, t))
        seen = now.final
        states.append(now.state)
        if now.done[0]:
            break
    return [jax.tree.map(lambda x: x[0], state) for state in jax.device_get(states)]
