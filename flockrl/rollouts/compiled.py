"""Rollouts in compiled environments: a policy acts in B environments for T steps, as one scan."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from flockrl.core.types import Algorithm, Array, Observation, PyTree, Trajectory, choose
from flockrl.envs.api import Env, reset_batch, step_batch

ASKS = 0xA5C
"""What tells the keys of questions to the environment from those of acting."""


class Actors(NamedTuple):
    """B environments between two rollouts: states, observations, and the policy's memory.

    first: [B] whether an episode begins here. returns: [B, N] and lengths: [B] of the unfinished episodes so far.
    """

    env: PyTree
    observation: Observation
    memory: PyTree
    first: Array
    returns: Array
    lengths: Array


class Episodes(NamedTuple):
    """Sums over the episodes that ended in a rollout: their number, returns [N], lengths."""

    number: Array
    returns: Array
    lengths: Array


def start(algorithm: Algorithm, env: Env, key: Array, batch: int) -> Actors:
    """B environments at the beginning of their first episode."""
    state, observation = reset_batch(env, key, batch)
    zeros = jnp.zeros((batch, env.spec.num_agents))
    return Actors(
        state, observation, algorithm.memory(batch), jnp.ones(batch, bool), zeros, jnp.zeros(batch, jnp.int32)
    )


def scan_rollout(
    algorithm: Algorithm, params: PyTree, env: Env, actors: Actors, key: Array
) -> tuple[Actors, Trajectory, Episodes]:
    """Take `algorithm.rollout_steps` steps in every environment, with exploration."""

    def step(carry: tuple[Actors, Episodes], keys: Array) -> tuple[tuple[Actors, Episodes], Trajectory]:
        (now, ended), (act_key, env_key) = carry, keys
        seen = now.observation
        action, memory, extras = algorithm.act(params, seen, now.memory, act_key, True)
        if algorithm.asks is not None:
            ask = partial(algorithm.asks, env)
            asked = jax.vmap(ask)(now.env, action, jax.random.split(jax.random.fold_in(act_key, ASKS), len(action)))
            extras = {**extras, **asked}
        result = step_batch(env, env_key, now.env, seen, action)
        returns, lengths = now.returns + result.reward, now.lengths + 1
        ended = Episodes(
            ended.number + result.done,
            ended.returns + jnp.where(result.done[:, None], returns, 0.0),
            ended.lengths + jnp.where(result.done, lengths, 0),
        )
        going = ~result.done
        memory = choose(result.done, algorithm.memory(len(going)), memory)
        row = Trajectory(
            obs=seen.obs, avail=seen.avail, state=seen.state, alive=seen.alive,
            action=action, reward=result.reward, terminated=result.terminated, truncated=result.truncated,
            next_obs=result.final.obs, next_avail=result.final.avail, next_state=result.final.state,
            neighbours=seen.neighbours, next_neighbours=result.final.neighbours,
            next_alive=result.left, first=now.first, extras=extras,
        )  # fmt: skip
        after = Actors(result.state, result.observation, memory, result.done, returns * going[:, None], lengths * going)
        return (after, ended), row

    # Keys are split before the loop and sums are taken after it, to keep the loop short.
    keys = jax.random.split(key, (algorithm.rollout_steps, 2))
    none = Episodes(jnp.zeros_like(actors.lengths), jnp.zeros_like(actors.returns), jnp.zeros_like(actors.lengths))
    (after, ended), trajectory = jax.lax.scan(step, (actors, none), keys)
    return after, trajectory._replace(memory=actors.memory), jax.tree.map(lambda x: x.sum(0), ended)
