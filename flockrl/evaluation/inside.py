"""One episode with what goes on inside of the team: what else it might have done, what it says, who listens to whom,
what it expects to earn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.wrappers.measured import distance
from flockrl.comm.luck import Cut
from flockrl.core.actions import clip_action
from flockrl.core.lives import learning_weight
from flockrl.core.types import Algorithm, Array, Observation, PyTree, Trajectory
from flockrl.envs.api import Env, advance_batch, reset_batch
from flockrl.envs.host.batch import words
from flockrl.envs.host.env import Host, words_seed
from flockrl.evaluation.episodes import Episode
from flockrl.evaluation.playing import picture

DRAWS = 256
"""Draws of the policy from which the chances of its actions are counted."""
MAPS = 8
"""Rounds, and maps of attention in each, that are kept."""


class Inside(NamedTuple):
    """A step from inside. seen: what the team saw, [1, N, ...]. draws: [DRAWS, N(, W)] what it does when it explores.
    said: [N, C] messages before any channel, influence: [N, N] how far the policy of the agent of the row moves, as KL
    or as a distance of actions, when it does not hear that of the column; both None where agents do not talk.
    attention: [R, M, N, N] as of `Algorithm.attends`: the mean over heads and, where there are several, each; or None
    where listeners do not weigh. value: [N] as of `Critic`, NaN for agents that nobody values and where no return is
    running, None where there is no critic or it was not asked."""

    seen: Observation
    draws: np.ndarray
    said: np.ndarray | None
    influence: np.ndarray | None
    attention: np.ndarray | None = None
    value: np.ndarray | None = None


class Acted(NamedTuple):
    """action: [1, N(, W)], what the team remembers after it, what it noted, and the step from inside."""

    action: Array
    memory: PyTree
    noted: Mapping[str, Array]
    draws: Array
    said: Array | None = None
    influence: Array | None = None
    attention: Array | None = None


class Turn(NamedTuple):
    """A step of one team, with an axis [1, ...] in front of all but `action`, as the environment took it, and `reward`.
    follows: what was seen after it."""

    seen: Observation
    acted: Acted
    action: Any
    reward: Any
    follows: Observation
    terminated: Any
    truncated: Any


def look_inside(
    algorithm: Algorithm, env: Env | Host, params: PyTree, key: Array, explore: bool = False, limit: int | None = None,
    values: Callable[[Trajectory], Array] | None = None, agents: int | None = None,
) -> tuple[Episode, list[Inside]]:  # fmt: skip
    """The episode that `playing.record_episode` plays with this key, of at most `limit` steps, and its steps.

    values: what the critic says along a trajectory, [T, 1, N]; agents: how many of them attention is kept of.
    """
    steps = min(env.spec.max_steps, limit or env.spec.max_steps)
    act = jax.jit(partial(_act, algorithm, env, explore))
    play: Any = _on_host if isinstance(env, Host) else _compiled
    states: list[Any] = []
    rows, inside, turns = [], [], []
    for turn in play(env, partial(act, params), algorithm.memory(1), key, steps, states):
        acted = turn.acted
        rows.append((np.array(turn.seen.obs[0]), np.array(turn.action), np.array(turn.reward)))
        maps = None if acted.attention is None else acted.attention[..., :agents, :agents]
        found = jax.device_get((acted.draws, acted.said, acted.influence, maps))
        inside.append(Inside(jax.device_get(turn.seen), *found))
        if values is not None:
            turns.append(jax.device_get(turn._replace(acted=(acted.action, acted.noted))))
    if values is not None:
        trajectory = _trajectory(turns, algorithm.memory(1))
        value, known = np.asarray(jax.jit(values)(trajectory)), learning_weight(env.spec, trajectory.alive)
        value = value if known is None else np.where(known > 0, value, np.nan)
        inside = [step._replace(value=value[t, 0]) for t, step in enumerate(inside)]
    drawn = states if not isinstance(env, Host) or len(states) >= len(rows) else []
    return Episode(drawn, *(np.stack(column) for column in zip(*rows, strict=True))), inside


def _trajectory(turns: list[Any], memory: PyTree) -> Trajectory:
    """An episode [T, 1, ...] as learners read it."""
    whole = jax.tree.map(lambda *x: np.stack(x), *turns)
    seen, follows, (action, noted) = whole.seen, whole.follows, whole.acted
    return Trajectory(
        seen.obs, action, whole.reward[:, None], whole.terminated, whole.truncated, follows.obs,
        np.arange(len(turns))[:, None] == 0, seen.avail, seen.state, seen.alive, follows.avail, follows.state,
        seen.neighbours, follows.neighbours, follows.alive, memory, noted,
    )  # fmt: skip


def _act(
    algorithm: Algorithm, env: Any, explore: bool, params: PyTree, seen: Observation, memory: PyTree, key: Array
) -> Acted:
    """One action of a team, with a look inside. seen: [1, N, ...]."""
    action, after, noted = algorithm.act(params, seen, memory, key, explore)
    many = jax.tree.map(lambda x: jnp.repeat(x, DRAWS, 0), (seen, memory))
    draws = algorithm.act(params, many[0], many[1], jax.random.fold_in(key, 1), True)[0]
    if algorithm.says is None:
        return Acted(action, after, noted, draws)
    n, seeds = env.spec.num_agents, noted.get("channel")

    def hearing(cut: Array) -> Observation:
        return seen._replace(seeds=Cut(seeds, cut[None]))  # type: ignore[arg-type]

    whole = hearing(jnp.zeros((n, n), bool))

    def moved(sender: Array) -> Array:
        less = hearing(jnp.broadcast_to(jnp.arange(n) == sender, (n, n)))
        if algorithm.kl is not None:
            return algorithm.kl(params, params, whole, memory, less)[0]
        other = algorithm.act(params, less, memory, key, explore)[0]
        return distance(env.spec, action, other)[0]

    influence = jax.vmap(moved)(jnp.arange(n)).T
    maps = None
    if algorithm.attends is not None:
        heads = algorithm.attends(params, whole, memory)[0]
        mean = heads.mean(1, keepdims=True)
        maps = (mean if heads.shape[1] == 1 else jnp.concatenate([mean, heads], 1))[:MAPS, :MAPS]
    return Acted(action, after, noted, draws, algorithm.says(params, whole, memory)[0], influence, maps)


Played = Iterator[Turn]


def _compiled(env: Any, act: Any, memory: PyTree, key: Array, steps: int, states: list[Any]) -> Played:
    """With the keys of `episodes.record`."""
    reset_key, key = jax.random.split(key)
    advance = jax.jit(partial(advance_batch, env))
    state, seen = jax.jit(partial(reset_batch, env, batch=1))(reset_key)
    states.append(_first(state))
    for t in range(steps):
        act_key, env_key = jax.random.split(jax.random.fold_in(key, t))
        acted = act(seen, memory, act_key)
        now = advance(env_key, state, seen, acted.action)
        action = clip_action(env.spec, acted.action)[0]
        yield Turn(seen, acted, action, now.reward[0], now.final, now.terminated, now.truncated)
        state, seen, memory = now.state, now.final, acted.memory
        states.append(_first(state))
        if bool(now.done[0]):
            return


def _first(state: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[0], jax.device_get(state))


def _on_host(env: Host, act: Any, memory: PyTree, key: Array, steps: int, frames: list[Any]) -> Played:
    """With the keys of `playing.record_episode`; the states are pictures."""
    team = env.build(True)
    try:
        seen = team.reset(words_seed(np.asarray(words(key))))
        for t in range(steps):
            frames += picture(team) if len(frames) == t else []
            act_key, env_key = jax.random.split(jax.random.fold_in(key, t))
            one = jax.tree.map(lambda x: np.asarray(x)[None].copy(), seen)
            acted = act(one, memory, act_key)
            action = env.form.clip(np.array(acted.action[0]))
            draws = np.asarray(words(jax.random.split(env_key, 1)))
            seen, reward, terminated, truncated = team.step(action, words_seed(draws[0]))
            follows, *ends = jax.tree.map(lambda x: np.asarray(x)[None].copy(), (seen, terminated, truncated))
            yield Turn(one, acted, action, reward, follows, *ends)
            memory = acted.memory
            over = np.asarray(terminated) | np.asarray(truncated)
            if (over if seen.alive is None else over | ~seen.alive).all():
                frames += picture(team)
                return
    finally:
        team.close()
