"""What `reset` and `step` return: fields, shapes and types, found by tracing alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, EnvSpec, Observation, PyTree
from flockrl.envs.api import Env, reset_batch, step_batch
from flockrl.envs.checks.tracing import action_form, explain, trace


def returns(env: Env) -> Iterator[str]:
    """What is wrong with the results of `reset` and `step`, one sentence each."""
    spec = env.spec
    start = trace(env, "reset").out
    if not _is_result(start, 2):
        yield f"reset must return (state, Observation), not {_form(start)}."
        return
    state, first = start
    yield from _observation("reset", spec, first)
    after = trace(env, "step", state, action_form(spec)).out
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


def maps(env: Env) -> Iterator[str]:
    """The way training uses an environment: mapped over several, with automatic resets."""

    def both(key: Array, action: Array) -> PyTree:
        return step_batch(env, key, *reset_batch(env, key, 2), action)

    try:
        jax.eval_shape(both, jax.random.key(0), action_form(env.spec, 2))
    except Exception as error:
        what = "reset and step cannot be mapped over environments by jax.vmap"
        raise UsageError(explain(env, what, error)) from error
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
        if not spec.maskable:
            yield f"{method} gives avail, but only discrete actions can be masked, so leave it None."
        yield from _array(method, "avail", seen.avail, jnp.bool_, (n, spec.action_size))
    if seen.alive is not None:
        yield from _array(method, "alive", seen.alive, jnp.bool_, (n,))
    elif spec.respawn:
        yield f"{method} leaves out alive, but spec.respawn says that agents die and come back."
    if seen.neighbours is not None:
        yield from _array(method, "neighbours", seen.neighbours, jnp.bool_, (n, n))
    if (seen.neighbours is not None) != spec.neighbours:
        does = "leaves out" if spec.neighbours else "gives"
        yield f"{method} {does} neighbours, but spec.neighbours is {spec.neighbours}."
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
