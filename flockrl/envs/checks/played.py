"""The numbers in random episodes of a compiled environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.actions import action_bounds
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, EnvSpec, Observation, PyTree
from flockrl.data.choices import choices
from flockrl.envs.api import Env, ends
from flockrl.envs.checks.masks import unusable
from flockrl.envs.checks.tracing import explain, plain

LONGEST = 1000
"""Episodes are played for this many steps at most; whether longer ones ever end is not judged."""
REPEATED = 10
"""So many steps must come out the same when episodes are played again from the same keys."""
TOLERANCE = 1e-4
"""By how much numbers may miss a bound, and repeated ones each other, relative to their size."""


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the first steps are the same; later ones may drift apart by rounding on some hardware."""
    return np.allclose(a[:REPEATED], b[:REPEATED], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


class Record(NamedTuple):
    """Episodes as played, past their ends. seen: an Observation of arrays [T + 1, B, ...] from reset on;
    done: [T, B]; the rest: [T, B, N]."""

    seen: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    done: np.ndarray


def play(env: Env, episodes: int, seed: int) -> tuple[Record, Record]:
    """The same episodes, twice."""
    spec, reset, step = env.spec, plain(env.reset), plain(env.step)
    steps = min(spec.max_steps, LONGEST)

    def move(carry: tuple[PyTree, Observation], draw: tuple[Array, Array]) -> tuple[Any, Any]:
        key, noise = draw
        state, then, reward, terminated, truncated = step(key, carry[0], _random_action(spec, carry[1], noise))
        done = ends(spec, carry[1].alive, terminated, truncated, then.alive)[2]
        flags = (jnp.broadcast_to(flag, reward.shape) for flag in (terminated, truncated))
        return (state, then), (then, reward, *flags, done)

    def episode(key: Array, keys: Array, noise: Array) -> Record:
        state, first = reset(key)
        _, (rest, *outcome) = jax.lax.scan(move, (state, first), (keys, noise))
        return Record(jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest), *outcome)

    # What takes time here is compiling, so chance comes from the host and the compiler is told to hurry.
    rng = np.random.default_rng(seed)
    noise = rng.random((episodes, steps, spec.num_agents, spec.action_size), np.float32)
    draws = (_keys(rng, episodes), _keys(rng, episodes, steps), noise)
    hurry = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else {}
    run = jax.jit(jax.vmap(episode, out_axes=1), compiler_options=hurry)
    try:
        one, two = (jax.tree.map(np.asarray, run(*draws)) for _ in range(2))
    except Exception as error:
        raise UsageError(explain(env, "an episode could not be played", error)) from error
    return one, two


def _keys(rng: np.random.Generator, *shape: int) -> Array:
    """Independent keys without a compiled `split`."""
    words = jax.random.key_data(jax.random.key(0)).size
    return jax.random.wrap_key_data(jnp.asarray(rng.integers(0, 2**32, (*shape, words), np.uint32)))


def _random_action(spec: EnvSpec, seen: Observation, noise: Array) -> Array:
    """Any legal action of every agent, [N] or [N, W], from uniform noise [N, A]."""
    legal = spec.own_actions if seen.avail is None else seen.avail & spec.own_actions
    liked = jnp.where(legal, noise, -1.0)
    if spec.discrete:
        return liked.argmax(-1).astype(jnp.int32)
    low, high = action_bounds(spec)
    low = np.where(np.isinf(low), np.minimum(high, 1) - 2, low)
    high = np.where(np.isinf(high), np.maximum(low, -1) + 2, high)
    action = low + noise[:, : spec.action_width] * (high - low)
    for choice in choices(spec.actions):
        number = liked[choice.agent, choice.start : choice.stop].argmax()
        action = action.at[choice.agent, choice.entry].set(number.astype(action.dtype))
    return action


def numbers(spec: EnvSpec, record: Record, again: Record) -> Iterator[str]:
    """What is wrong with the numbers of episodes that were played twice, one sentence each."""
    alive = record.seen.alive
    if alive is None:
        alive = np.ones((len(record.reward) + 1, *record.reward.shape[1:]), bool)
    over = (record.terminated | record.truncated) & alive[:-1]
    ended = np.logical_or.accumulate(record.done, axis=0)
    running = np.concatenate([np.ones_like(ended[:1]), ~ended])
    """[T + 1, B]: whether the episode went on from there."""
    seen = np.concatenate([running[:1], running[:-1]])
    """[T + 1, B]: whether the observation belongs to the episode, its last one included."""
    for a, b in zip(jax.tree.leaves(record), jax.tree.leaves(again), strict=True):
        if not close(a, b):
            yield "an episode played twice from the same key comes out differently, so more than the key decides."
            return
    yield from _finite(spec, record, seen)
    yield from _bounds(spec, record.seen.obs, seen[..., None] & alive)
    # An agent that was cut off is still asked what it would have done next; one that terminated is not.
    acts = seen[..., None] & alive
    acts[1:] &= ~(record.terminated & alive[:-1]) | spec.respawn
    if record.seen.avail is not None:
        yield from _legal(spec, record.seen.avail, acts)
    yield from _lives(spec, record, alive, over, running)
    if spec.max_steps <= LONGEST and not ended[-1].all():
        yield f"an episode was still going on after spec.max_steps = {spec.max_steps} steps."


def _when(t: int) -> str:
    return f"after step {t}" if t else "after reset"


def _first(mask: np.ndarray) -> list[int] | None:
    """Where a mask [T, ...] is first true."""
    return [int(i) for i in np.argwhere(mask)[0]] if mask.any() else None


def _finite(spec: EnvSpec, record: Record, seen: np.ndarray) -> Iterator[str]:
    obs, state, reward = record.seen.obs, record.seen.state, record.reward
    if at := _first(~np.isfinite(obs) & seen[..., None, None]):
        t, _, i, k = at
        yield f"agent {spec.agents[i]!r}: obs[{k}] {_when(t)} is {obs[tuple(at)]:g}, but expected a finite number."
    if state is not None and (at := _first(~np.isfinite(state) & seen[..., None])):
        yield f"the global state[{at[2]}] {_when(at[0])} is {state[tuple(at)]:g}, but expected a finite number."
    if at := _first(~np.isfinite(reward) & seen[1:, :, None]):
        t, _, i = at
        yield f"agent {spec.agents[i]!r}: reward of step {t + 1} is {reward[t, at[1], i]:g}, but expected a finite one."


def _bounds(spec: EnvSpec, obs: np.ndarray, lives: np.ndarray) -> Iterator[str]:
    """obs: [T + 1, B, N, O]; lives: [T + 1, B, N]. What the dead see does not matter."""
    for i, (agent, space) in enumerate(zip(spec.agents, spec.observations, strict=True)):
        own, padding = np.split(obs[:, :, i], [space.size], axis=-1)
        low, high = np.asarray(space.low), np.asarray(space.high)
        slack = TOLERANCE * np.maximum(1, np.abs(own))
        if at := _first(((own < low - slack) | (own > high + slack)) & lives[:, :, i, None]):
            t, _, k = at
            a, b = (np.broadcast_to(bound, space.size)[k] for bound in (low, high))
            yield f"agent {agent!r}: obs[{k}] {_when(t)} is {own[tuple(at)]:g}, but its space says {a:g} to {b:g}."
        if at := _first((padding != 0) & lives[:, :, i, None]):
            t, _, k = at
            yield (
                f"agent {agent!r}: obs[{space.size + k}] {_when(t)} is {padding[tuple(at)]:g}, "
                f"but beyond its {space.size} numbers expected zeros."
            )


def _legal(spec: EnvSpec, avail: np.ndarray, acts: np.ndarray) -> Iterator[str]:
    """avail: [T + 1, B, N, A]; acts: [T + 1, B, N], where an agent has to choose."""
    for (t, _, i), text in unusable(spec, avail, acts):
        yield f"agent {spec.agents[i]!r}: avail {_when(t)} has {text}."
    if at := _first(avail & ~spec.own_actions & acts[..., None]):
        t, _, i, k = at
        yield f"agent {spec.agents[i]!r}: avail {_when(t)} allows action {k}, but it has {spec.actions[i].size}."


def _lives(spec: EnvSpec, record: Record, alive: np.ndarray, over: np.ndarray, running: np.ndarray) -> Iterator[str]:
    """An agent whose life ends says so once, by terminated or truncated, and stays dead unless it respawns."""
    going = running[1:, :, None] & (not spec.respawn)
    if not alive[0].any(axis=-1).all() and not spec.respawn:
        yield "no agent is alive after reset; where agents come later, spec.respawn must be true."
    gone = np.logical_or.accumulate(over, axis=0)
    if at := _first(gone & alive[1:] & going):
        t, _, i = at
        if record.seen.alive is None:
            missing = "and the others went on, so reset and step must give alive"
        else:
            missing = f"but alive {_when(t + 1)} says it lives"
        word = "terminated" if record.terminated[: t + 1, at[1], i].any() else "truncated"
        yield f"agent {spec.agents[i]!r}: it was {word} by step {t + 1} {missing}."
    if at := _first(alive[:-1] & ~alive[1:] & ~over & running[:-1, :, None]):
        t, _, i = at
        yield f"agent {spec.agents[i]!r}: alive ends with step {t + 1}, but neither terminated nor truncated says so."
