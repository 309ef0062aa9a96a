"""The conformance kit: does an environment keep the contract that training relies on?

    from flockrl.envs import check
    check(MyEnv())

`check` raises a `UsageError` with one sentence about the first thing that is wrong; `problems` lists
them. The stages build on each other, so a stage is reached only when those before it are clean: the
spec, then what `reset` and `step` return (by tracing alone, nothing is compiled), then whether they are
pure, then the numbers in a few random episodes, which are played by one compiled program.

Purity is judged by tracing twice and comparing the two programs rather than by running eagerly:
whatever Python does behind JAX's back (numpy's random numbers, counters on `self`) shows up there, and
it takes milliseconds where running op by op takes seconds.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.actions import action_bounds
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation, PyTree
from flockrl.envs.api import Env, reset_batch, step_batch
from flockrl.envs.checks import host as host_checks
from flockrl.envs.host.env import Host

LONGEST = 1000
"""Episodes are played for this many steps at most; whether longer ones ever end is not judged."""
REPEATED = 10
"""So many steps must come out the same when episodes are played again from the same keys."""
TOLERANCE = 1e-4
"""By how much numbers may miss a bound, and repeated ones each other, relative to their size."""

HINTS: dict[type[Exception], str] = {
    jax.errors.TracerBoolConversionError: "decide by jnp.where or jax.lax.cond instead of if, while, and, or",
    jax.errors.ConcretizationTypeError: "values are unknown while JAX compiles, so stay with jax.numpy throughout",
    jax.errors.TracerArrayConversionError: "use jax.numpy instead of numpy for what depends on state, action or key",
    jax.errors.UnexpectedTracerError: "keep what changes in the state that is passed around, not on self",
}


def check(env: Env | Host, episodes: int = 3, seed: int = 0) -> None:
    """Raise a `UsageError` about the first breach of the contract, or return quietly."""
    for sentence in _find(env, episodes, seed):
        raise UsageError(sentence)


def problems(env: Env | Host, episodes: int = 3, seed: int = 0) -> list[str]:
    """What the first stage that finds anything wrong has to say, one sentence each; empty when all is well."""
    found: list[str] = []
    try:
        found.extend(_find(env, episodes, seed))
    except UsageError as error:
        found.append(str(error))
    return found


def _find(env: Env | Host, episodes: int, seed: int) -> Iterator[str]:
    """The findings of the first stage that has any. Raises when the environment's own code fails."""
    if isinstance(env, Host):
        for stage in (lambda: _spec(env.spec), lambda: host_checks.find(env, episodes, seed)):
            found = [f"{env.spec.name}: {sentence}" for sentence in stage()]
            yield from found
            if found:
                return
        return
    name = _name(env)
    stages: tuple[Callable[[], Iterator[str]], ...] = (
        lambda: _interface(env),
        lambda: _spec(env.spec),
        lambda: _returns(env),
        lambda: _purity(env, episodes, seed),
        lambda: _maps(env),
        lambda: _numbers(env.spec, *_play(env, episodes, seed)),
    )
    for stage in stages:
        clean = True
        for sentence in stage():
            clean = False
            yield f"{name}: {sentence}"
        if not clean:
            return


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    if isinstance(spec, EnvSpec):
        return spec.name
    return env.__name__ if isinstance(env, type) else type(env).__name__


# --- the object and its spec


def _interface(env: Any) -> Iterator[str]:
    if isinstance(env, type):
        yield f"an environment object was expected, not the class, so write {env.__name__}()."
        return
    spec = getattr(env, "spec", None)
    if not isinstance(spec, EnvSpec):
        yield f"the environment's spec must be an EnvSpec, not {type(spec).__name__}."
    for method in ("reset", "step"):
        if not callable(getattr(env, method, None)):
            yield f"the environment has no method {method}."


def _spec(spec: EnvSpec) -> Iterator[str]:
    if len(set(spec.agents)) != spec.num_agents:
        yield f"agents must have names of their own, not {', '.join(spec.agents)}."
    if not _whole(spec.max_steps, 1):
        yield f"spec.max_steps must be a whole number of at least 1, not {spec.max_steps!r}."
    if not _whole(spec.state_size, 0):
        yield f"spec.state_size must be a whole number of at least 0, not {spec.state_size!r}."
    kinds: dict[int, int] = {}
    for i, (agent, seen, acts) in enumerate(zip(spec.agents, spec.observations, spec.actions, strict=True)):
        if not isinstance(seen, Box):
            yield f"agent {agent!r}: its entry in spec.observations must be a Box, not {type(seen).__name__}."
        elif text := _box(seen):
            yield f"agent {agent!r}: its observation space {text}."
        if isinstance(acts, Discrete) and not _whole(acts.n, 1):
            yield f"agent {agent!r}: Discrete needs a whole number of at least 1 action, not {acts.n!r}."
        if isinstance(acts, Box) and (text := _box(acts)):
            yield f"agent {agent!r}: its action space {text}."
        first = kinds.setdefault(spec.groups[i], i)
        if (seen, acts) != (spec.observations[first], spec.actions[first]):
            yield (
                f"agents {spec.agents[first]!r} and {agent!r} are both in group {spec.groups[i]}, "
                "but agents of one group must have equal spaces."
            )


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def _box(space: Box) -> str:
    """What is wrong with a Box, or nothing."""
    if not isinstance(space.shape, tuple) or not all(_whole(size, 1) for size in space.shape):
        return f"must have a tuple of positive sizes as its shape, not {space.shape!r}"
    low, high = np.asarray(space.low, float), np.asarray(space.high, float)
    for word, bound in (("low", low), ("high", high)):
        if bound.shape not in ((), (space.size,)):
            return f"must have one number or {space.size} as {word}, not {bound.size}"
    return "" if (low <= high).all() else f"must have low <= high, not {space.low} and {space.high}"


# --- what reset and step return, by tracing


class Traced(NamedTuple):
    """A method as JAX sees it: its program and the shapes of what it returns."""

    program: Any
    out: Any


def _trace(env: Env, method: str, *args: Any) -> Traced:
    """Trace a method, or say in one sentence why it cannot be."""
    function = _plain(getattr(env, method))
    try:
        return Traced(*jax.make_jaxpr(function, return_shape=True)(jax.random.key(0), *args))
    except Exception as error:
        raise UsageError(_explain(env, f"{method} cannot be compiled", error)) from error


def _plain(function: Any) -> Any:
    """The function inside `jax.jit`, whose cache would hide what a second trace does differently."""
    if not hasattr(function, "lower") or not hasattr(function, "__wrapped__"):
        return function
    inner, owner = function.__wrapped__, getattr(function, "__self__", None)
    return inner if owner is None else lambda *args: inner(owner, *args)


def _explain(env: Env, what: str, error: Exception) -> str:
    """What failed, where in the user's file, and what to do about it, in one sentence."""
    ours = ("site-packages", str(Path(__file__).with_name("base.py")), __file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not any(part in f.filename for part in ours)]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    hint = next((text for kind, text in HINTS.items() if isinstance(error, kind)), "")
    first = str(error).strip().split("\n")[0].rstrip(".:")
    reason = hint or (f"{type(error).__name__}: {first}" if first else type(error).__name__)
    return f"{_name(env)}: {what}{place}: {reason}."


def _action(spec: EnvSpec, *batch: int) -> jax.ShapeDtypeStruct:
    """The shape of a team's action: [N] int32 or [N, A] float32."""
    shape = (*batch, spec.num_agents) if spec.discrete else (*batch, spec.num_agents, spec.action_size)
    return jax.ShapeDtypeStruct(shape, jnp.int32 if spec.discrete else jnp.float32)


def _returns(env: Env) -> Iterator[str]:
    spec = env.spec
    start = _trace(env, "reset").out
    if not _is_result(start, 2):
        yield f"reset must return (state, Observation), not {_form(start)}."
        return
    state, first = start
    yield from _observation("reset", spec, first)
    after = _trace(env, "step", state, _action(spec)).out
    if not _is_result(after, 5):
        yield f"step must return (state, Observation, reward, terminated, truncated), not {_form(after)}."
        return
    new_state, then, reward, terminated, truncated = after
    yield from _observation("step", spec, then)
    for field in ("avail", "state", "alive"):
        a, b = (getattr(observation, field) for observation in (first, then))
        if (a is None) != (b is None):
            with_it, without = ("reset", "step") if b is None else ("step", "reset")
            yield f"{with_it} gives {field} but {without} leaves it out, and both must do the same."
    yield from _array("step", "reward", reward, jnp.floating, (spec.num_agents,))
    for field, flag in (("terminated", terminated), ("truncated", truncated)):
        if getattr(flag, "shape", None) != () or flag.dtype != jnp.bool_:
            yield from _array("step", field, flag, jnp.bool_, (spec.num_agents,), " or one bool for all")
    yield from _same_state(state, new_state)


def _maps(env: Env) -> Iterator[str]:
    """The way training uses an environment: mapped over several, with automatic resets."""

    def both(key: Array, action: Array) -> PyTree:
        return step_batch(env, key, *reset_batch(env, key, 2), action)

    try:
        jax.eval_shape(both, jax.random.key(0), _action(env.spec, 2))
    except Exception as error:
        what = "reset and step cannot be mapped over environments by jax.vmap"
        raise UsageError(_explain(env, what, error)) from error
    yield from ()


def _is_result(out: Any, length: int) -> bool:
    return isinstance(out, tuple) and len(out) == length and isinstance(out[1], Observation)


def _form(out: Any) -> str:
    """(Observation, dict) and the like."""
    if type(out) is not tuple:
        return type(out).__name__
    names = ["array" if isinstance(part, jax.ShapeDtypeStruct) else type(part).__name__ for part in out]
    return f"({', '.join(names)})"


def _observation(method: str, spec: EnvSpec, seen: Observation) -> Iterator[str]:
    n = spec.num_agents
    yield from _array(method, "obs", seen.obs, spec.observations[0].dtype, (n, spec.obs_size))
    if seen.avail is not None:
        if not spec.discrete:
            yield f"{method} gives avail, but only discrete actions can be masked, so leave it None."
        yield from _array(method, "avail", seen.avail, jnp.bool_, (n, spec.action_size))
    if seen.alive is not None:
        yield from _array(method, "alive", seen.alive, jnp.bool_, (n,))
    if seen.state is not None and not spec.state_size:
        yield f"{method} gives a global state, but spec.state_size is 0."
    elif seen.state is not None:
        yield from _array(method, "state", seen.state, jnp.floating, (spec.state_size,))
    elif spec.state_size:
        yield f"{method} gives no global state, but spec.state_size is {spec.state_size}."


def _array(method: str, field: str, value: Any, dtype: Any, shape: tuple[int, ...], also: str = "") -> Iterator[str]:
    """Whether a field is an array of that dtype (or kind of dtype) and shape."""
    wanted = "float32" if dtype is jnp.floating else jnp.dtype(dtype).name
    text = f"but expected {wanted} of shape {list(shape)}{also}"
    if not isinstance(value, jax.ShapeDtypeStruct):
        yield f"{method} gives {type(value).__name__} for {field}, {text}."
    elif value.shape != shape or not jnp.issubdtype(value.dtype, dtype):
        yield f"{method} gives {field} as {_type(value)}, {text}."


def _type(value: Any) -> str:
    return f"{value.dtype} of shape {list(value.shape)}"


def _same_state(before: PyTree, after: PyTree) -> Iterator[str]:
    """The state must keep its form, since it is carried through a compiled loop."""
    old, new = (dict(jax.tree_util.tree_leaves_with_path(tree)) for tree in (before, after))
    for path in [*old, *(path for path in new if path not in old)]:
        label = f"state{jax.tree_util.keystr(path)}"
        if path not in new:
            yield f"{label} is there after reset but gone after step."
        elif path not in old:
            yield f"{label} is there after step but not after reset."
        elif _type(old[path]) != _type(new[path]):
            yield f"{label} is {_type(old[path])} after reset but {_type(new[path])} after step."
    forms = [str(jax.tree.structure(tree)) for tree in (before, after)]
    if old.keys() == new.keys() and forms[0] != forms[1]:
        yield f"the state is {_form(before)} after reset but {_form(after)} after step."


# --- purity


def _purity(env: Env, episodes: int, seed: int) -> Iterator[str]:
    """Both methods traced twice: the same program must come out and nothing on the object may change."""
    state = _trace(env, "reset").out[0]
    for method, args in (("reset", ()), ("step", (state, _action(env.spec)))):
        before = dict(getattr(env, "__dict__", {}))
        one = _trace(env, method, *args).program
        after = dict(getattr(env, "__dict__", {}))
        two = _trace(env, method, *args).program
        changed = [name for name in after if not _unchanged(before.get(name), after[name])]
        if changed:
            yield f"{method} changes the environment's attribute {changed[0]!r}, which belongs into the state."
        elif not _same_program(one, two) and not _same_outcome(env, episodes, seed):
            given = "key" if method == "reset" else "key, state and action"
            yield (
                f"{method} gives different results for the same {given}, "
                "so draw what is random by jax.random from the key and keep what changes in the state."
            )


def _unchanged(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, int | float | str) and a == b)


def _same_program(a: Any, b: Any) -> bool:
    """Equal texts (but for addresses of Python objects) and equal constants."""
    texts = [re.sub(r"0x[0-9a-f]+", "", str(program)) for program in (a, b)]
    return texts[0] == texts[1] and all(map(np.array_equal, a.consts, b.consts))


def _same_outcome(env: Env, episodes: int, seed: int) -> bool:
    """Programs may differ in words alone, so episodes played by both decide."""
    one, two = (jax.tree.leaves(_play(env, episodes, seed)[0]) for _ in range(2))
    return all(map(_close, one, two))


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the first steps are the same; later ones may drift apart by rounding on some hardware."""
    return np.allclose(a[:REPEATED], b[:REPEATED], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


# --- the numbers in random episodes


class Record(NamedTuple):
    """Episodes as played, past their ends. seen: an Observation of arrays [T + 1, B, ...] from reset on;
    the rest: [T, B, N]."""

    seen: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def _play(env: Env, episodes: int, seed: int) -> tuple[Record, Record]:
    """The same episodes, twice."""
    spec, reset, step = env.spec, _plain(env.reset), _plain(env.step)
    steps = min(spec.max_steps, LONGEST)

    def move(carry: tuple[PyTree, Observation], draw: tuple[Array, Array]) -> tuple[Any, Any]:
        key, noise = draw
        state, then, reward, *flags = step(key, carry[0], _random_action(spec, carry[1], noise))
        return (state, then), (then, reward, *(jnp.broadcast_to(flag, reward.shape) for flag in flags))

    def episode(key: Array, keys: Array, noise: Array) -> Record:
        state, first = reset(key)
        _, (rest, *outcome) = jax.lax.scan(move, (state, first), (keys, noise))
        return Record(jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest), *outcome)

    # What takes time here is compiling, so chance comes from the host and the compiler is told to hurry.
    rng = np.random.default_rng(seed)
    noise = rng.random((episodes, steps, spec.num_agents, spec.action_size), np.float32)
    draws = (_keys(rng, episodes), _keys(rng, episodes, steps), noise)
    hurry = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else {}
    play = jax.jit(jax.vmap(episode, out_axes=1), compiler_options=hurry)
    try:
        one, two = (jax.tree.map(np.asarray, play(*draws)) for _ in range(2))
    except Exception as error:
        raise UsageError(_explain(env, "an episode could not be played", error)) from error
    return one, two


def _keys(rng: np.random.Generator, *shape: int) -> Array:
    """Independent keys without a compiled `split`."""
    words = jax.random.key_data(jax.random.key(0)).size
    return jax.random.wrap_key_data(jnp.asarray(rng.integers(0, 2**32, (*shape, words), np.uint32)))


def _random_action(spec: EnvSpec, seen: Observation, noise: Array) -> Array:
    """Any legal action of every agent, [N] or [N, A], from uniform noise [N, A]."""
    if not spec.discrete:
        low, high = action_bounds(spec)
        low = np.where(np.isinf(low), np.minimum(high, 1) - 2, low)
        high = np.where(np.isinf(high), np.maximum(low, -1) + 2, high)
        return low + noise * (high - low)
    legal = spec.own_actions if seen.avail is None else seen.avail & spec.own_actions
    return jnp.argmax(jnp.where(legal, noise, -1.0), axis=-1).astype(jnp.int32)


def _numbers(spec: EnvSpec, record: Record, again: Record) -> Iterator[str]:
    alive = record.seen.alive
    if alive is None:
        alive = np.ones((len(record.reward) + 1, *record.reward.shape[1:]), bool)
    over = (record.terminated | record.truncated) & alive[:-1]
    done = (over | ~alive[1:]).all(axis=-1)
    ended = np.logical_or.accumulate(done, axis=0)
    running = np.concatenate([np.ones_like(done[:1]), ~ended])
    """[T + 1, B]: whether the episode went on from there."""
    seen = np.concatenate([running[:1], running[:-1]])
    """[T + 1, B]: whether the observation belongs to the episode, its last one included."""
    for a, b in zip(jax.tree.leaves(record), jax.tree.leaves(again), strict=True):
        if not _close(a, b):
            yield "an episode played twice from the same key comes out differently, so more than the key decides."
            return
    yield from _finite(spec, record, seen)
    yield from _bounds(spec, record.seen.obs, seen[..., None] & alive)
    # An agent that was cut off is still asked what it would have done next; one that terminated is not.
    acts = seen[..., None] & alive
    acts[1:] &= ~(record.terminated & alive[:-1])
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
    if at := _first(~(avail & spec.own_actions).any(axis=-1) & acts):
        yield f"agent {spec.agents[at[2]]!r}: avail {_when(at[0])} has no legal action, but expected at least one."
    if at := _first(avail & ~spec.own_actions & acts[..., None]):
        t, _, i, k = at
        yield f"agent {spec.agents[i]!r}: avail {_when(t)} allows action {k}, but it has {spec.actions[i].size}."


def _lives(spec: EnvSpec, record: Record, alive: np.ndarray, over: np.ndarray, running: np.ndarray) -> Iterator[str]:
    """An agent whose life ends says so once, by terminated or truncated, and is dead from then on."""
    going = running[1:, :, None]
    if not alive[0].any(axis=-1).all():
        yield "no agent is alive after reset."
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
