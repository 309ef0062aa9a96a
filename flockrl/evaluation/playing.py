"""Evaluation: whole episodes, greedy by default, as one compiled loop or, on the host, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.devices import spread
from flockrl.core.errors import UsageError, notice, reason
from flockrl.core.types import Actor, Algorithm, Array, EvalResult, PyTree, choose
from flockrl.envs.api import Env, advance_batch, reset_batch
from flockrl.envs.host.batch import HostBatch, words
from flockrl.envs.host.env import Host, HostEnv, words_seed
from flockrl.envs.host.executor import open_executor
from flockrl.evaluation.episodes import Episode, record
from flockrl.rollouts.host import HostActor

Evaluator = Callable[[PyTree, Array], tuple[Any, Any, Any]]
HOST_ENVS = 16
"""Instances of a host environment that play evaluation episodes in parallel."""


MOST_EPISODES = 10**6
"""Episodes of one evaluation: they are played side by side."""


def make_evaluator(algorithm: Algorithm | Actor, env: Env, episodes: int, explore: bool = False) -> Evaluator:
    """A pure function (params, key) -> (returns [episodes, N], lengths [episodes], what the environment measures)."""
    measures: Any = jax.vmap(getattr(env, "measures", lambda state: {}))

    def evaluate(params: PyTree, key: Array) -> tuple[Array, Array, dict[str, Array]]:
        reset_key, key = jax.random.split(key)
        state, observation = spread(reset_batch(env, reset_key, episodes))
        zeros = jnp.zeros((episodes, env.spec.num_agents))
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(measures, state))
        lengths = jnp.zeros(episodes, jnp.int32)
        carry = (0, state, observation, algorithm.memory(episodes), zeros, lengths, nothing)

        def unfinished(carry: tuple[Any, ...]) -> Array:
            return (carry[0] < env.spec.max_steps) & carry[-1].any()

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            t, state, seen, memory, returns, lengths, measured, going = carry
            act_key, env_key = jax.random.split(jax.random.fold_in(key, t))
            action, memory, _ = algorithm.act(params, seen, memory, act_key, explore)
            now = advance_batch(env, env_key, state, seen, action)
            returns = returns + jnp.where(going[:, None], now.reward, 0.0)
            measured = choose(going, measures(now.state), measured)
            return t + 1, now.state, now.final, memory, returns, lengths + going, measured, going & ~now.done

        ended = jax.lax.while_loop(unfinished, step, (*carry, jnp.ones(episodes, bool)))
        return ended[4], ended[5], ended[6]

    return evaluate


def make_player(
    algorithm: Algorithm | Actor, env: Env | Host, episodes: int, explore: bool = False, workers: int | None = None
) -> Evaluator:
    """A function like that of `make_evaluator`, ready to be called, for compiled and host environments."""
    if episodes > MOST_EPISODES:
        raise UsageError(f"episodes must be at most {MOST_EPISODES:,}, not {episodes}.")
    if not isinstance(env, Host):
        return jax.jit(make_evaluator(algorithm, env, episodes, explore))
    host, actor, instances = env, HostActor(algorithm, explore), min(HOST_ENVS, episodes)

    def play(params: PyTree, key: Array) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        executor, _ = open_executor(host, [instances], workers)
        try:
            return *host_episodes(actor, params, HostBatch(executor, 0, instances), key, episodes), {}
        finally:
            executor.close()

    return play


def host_episodes(
    actor: HostActor, params: PyTree, env: HostBatch, key: Array, episodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns [episodes, N] and lengths [episodes]. Instance i plays the episodes i, i + B, i + 2 B, ..."""
    reset_key, key = jax.random.split(key)
    seeds = np.asarray(words(jax.random.split(reset_key, episodes)))
    returns, lengths = np.zeros((episodes, env.spec.num_agents), np.float32), np.zeros(episodes, np.int32)
    mine = np.arange(env.count)
    first: Any = np.ones(env.count, bool)
    memory = actor.memory(env.count)
    seen = env.reset(seeds[mine % episodes], mine < episodes)
    for t in itertools.count():
        going = mine < episodes
        if not going.any():
            return returns, lengths
        place = mine % episodes
        act_key, draws = _chance(key, t, episodes)
        action, memory, _ = actor(params, seen, memory, first, mine < episodes, np.asarray(act_key))
        now = env.step(action, np.asarray(draws)[place], seeds[(mine + env.count) % episodes], going)
        returns[mine[going]] += now.reward[going]
        lengths[mine[going]] += 1
        first, seen = now.done & going, now.observation
        if env.was_cut.any():  # after an error of the environment, its episode is played again from the beginning
            again = place[env.was_cut]
            returns[again], lengths[again] = 0.0, 0
            seen = env.reset(seeds[place], env.was_cut)
        mine = np.where(first & ~env.was_cut, mine + env.count, mine)
    raise AssertionError


@partial(jax.jit, static_argnums=2)
def _chance(key: Array, t: int, episodes: int) -> tuple[Array, Array]:
    act_key, env_key = jax.random.split(jax.random.fold_in(key, t))
    return jax.random.key_data(act_key), words(jax.random.split(env_key, episodes))


def summarize(returns: Any, lengths: Any, measures: Mapping[str, Any] | None = None) -> EvalResult:
    scores = np.asarray(returns)
    means = scores.mean(axis=1)
    figures = {name: np.asarray(values, np.float32) for name, values in (measures or {}).items()}
    return EvalResult(float(means.mean()), float(means.std()), len(means), scores, np.asarray(lengths), figures)


def record_episode(algorithm: Algorithm, env: Env | Host, params: PyTree, key: Array, explore: bool = False) -> Episode:
    """Play one episode. For a host environment, its states are the pictures that it draws, [] where it draws none."""
    if isinstance(env, Host):
        return _record_host(algorithm, env, params, key, explore)
    (episode,) = record(algorithm, env, params, key, 1, explore)
    return episode


def _record_host(algorithm: Algorithm, env: Host, params: PyTree, key: Array, explore: bool) -> Episode:
    instance, actor = env.build(True), HostActor(algorithm, explore)
    frames: list[np.ndarray] = []
    rows, memory, first = [], actor.memory(1), np.ones(1, bool)
    seen = instance.reset(words_seed(np.asarray(words(key))))
    try:
        for t in range(env.spec.max_steps):
            frames += picture(instance) if len(frames) == t else []
            one = jax.tree.map(lambda x: np.asarray(x)[None], seen)
            act_key, draws = _chance(key, t, 1)
            action, memory, _ = actor(params, one, memory, first, np.ones(1, bool), np.asarray(act_key))
            act, before, first = env.form.clip(np.array(action[0])), seen, np.zeros(1, bool)
            seen, reward, terminated, truncated = instance.step(act, words_seed(np.asarray(draws)[0]))
            rows.append((np.array(before.obs), act, np.asarray(reward)))
            over = np.asarray(terminated) | np.asarray(truncated)
            if (over if seen.alive is None else over | ~seen.alive).all():
                frames += picture(instance) if len(frames) == t + 1 else []
                break
    finally:
        instance.close()
    drawn = frames if len(frames) >= len(rows) else []
    return Episode(drawn, *(np.stack(column) for column in zip(*rows, strict=True)))


def picture(team: HostEnv) -> list[np.ndarray]:
    """What the team looks like, [H, W, 3] uint8, or nothing where it draws nothing of that form."""
    try:
        picture = np.asarray(team.render())
    except NotImplementedError:
        notice("The environment has no render of its own, so that what agents see and do is drawn.")
        return []
    except Exception as error:
        notice(f"The environment's own render failed, so that what agents see and do is drawn: {reason(error)}.")
        return []
    return [picture] if picture.ndim == 3 and picture.shape[2] == 3 and picture.dtype == np.uint8 else []
