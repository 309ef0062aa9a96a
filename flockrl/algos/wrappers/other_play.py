"""Other-play (Hu et al. 2020, arXiv 2003.02979): while a team learns, agents have names of their own for what is alike.

An environment may tell its symmetries (`symmetries(key)`, see `envs.api`). As an episode begins, each agent draws one,
and sees and acts through it until the episode ends. So the team cannot agree on one of several things that are alike,
and learns to play with partners whom it never met.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory

NAMES = "names_obs", "names_action", "named"
"""Extras of a rollout: what an agent sees by its own names [T, B, N, O], what it does [T, B, N, A], and its action by
its own names [T, B, N]."""


class Named(NamedTuple):
    """What agents remember in practice. obs, action: [B, N, O] and [B, N, A]; drawn: [B] whether they are known."""

    inner: PyTree
    obs: Array
    action: Array
    drawn: Array


def other_play(inner: Algorithm, spec: EnvSpec, env: Any) -> Algorithm:
    """The same learner, whose agents meet each other by names of their own in training."""
    check_other_play(spec, env)
    actor, agents = inner.in_training, spec.num_agents

    def memory(batch: int) -> Named:
        obs, action = (jnp.zeros((batch, agents, size), jnp.int32) for size in (spec.obs_size, spec.action_size))
        return Named(actor.memory(batch), obs, action, jnp.zeros(batch, bool))

    def act(
        params: PyTree, seen: Observation, memory: Named, key: Array, explore: bool
    ) -> tuple[Array, Named, dict[str, Array]]:
        keys = jax.random.split(jax.random.fold_in(key, 4), (len(seen.obs), agents))
        fresh = jax.vmap(jax.vmap(env.symmetries))(keys)
        known = memory.drawn[:, None, None]
        obs, action = jnp.where(known, memory.obs, fresh.obs), jnp.where(known, memory.action, fresh.action)
        named, after, extras = actor.act(params, renamed(seen, obs, action), memory.inner, key, explore)
        played = jnp.take_along_axis(action, named[..., None], -1)[..., 0]
        noted = dict(zip(NAMES, (obs, action, named), strict=True))
        return played, Named(after, obs, action, jnp.ones_like(memory.drawn)), {**extras, **noted}

    def update(state: PyTree, trajectory: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
        extras = dict(trajectory.extras)
        obs, action, named = (extras.pop(name) for name in NAMES)
        now = renamed(trajectory.observation, obs, action)
        following = renamed(trajectory.next_observation, obs, action)
        lesson = trajectory._replace(
            obs=now.obs, avail=now.avail, next_obs=following.obs, next_avail=following.avail, action=named,
            memory=trajectory.memory.inner, extras=extras,
        )  # fmt: skip
        return actor.update(state, lesson, key)

    practice = Algorithm(inner.init, actor.params, act, update, memory, inner.rollout_steps)
    return inner._replace(update=update, practice=practice)


def renamed(seen: Observation, obs: Array, action: Array) -> Observation:
    """What agents see by their own names: obs [..., N, O] and action [..., N, A] say where each number stands."""
    avail = None if seen.avail is None else jnp.take_along_axis(seen.avail, action, -1)
    return seen._replace(obs=jnp.take_along_axis(seen.obs, obs, -1), avail=avail)


def check_other_play(spec: EnvSpec, env: Any) -> None:
    if not hasattr(env, "symmetries"):
        raise UsageError(f"other_play needs an environment that tells its symmetries, and {spec.name} does not.")
    if not spec.discrete or spec.state_size or len(set(spec.actions)) > 1 or len(set(spec.observations)) > 1:
        raise UsageError(
            f"other_play needs agents with equal spaces that choose, and no global state: not {spec.name}."
        )
