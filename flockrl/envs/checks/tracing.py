"""Methods of an environment as JAX traces them, and errors in them as one sentence."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, NamedTuple

import jax

from flockrl.core.errors import UsageError
from flockrl.core.types import EnvSpec
from flockrl.envs.api import Env

HINTS: dict[type[Exception], str] = {
    jax.errors.TracerBoolConversionError: "decide by jnp.where or jax.lax.cond instead of if, while, and, or",
    jax.errors.ConcretizationTypeError: "values are unknown while JAX compiles, so stay with jax.numpy throughout",
    jax.errors.TracerArrayConversionError: "use jax.numpy instead of numpy for what depends on state, action or key",
    jax.errors.UnexpectedTracerError: "keep what changes in the state that is passed around, not on self",
}


def name_of(env: Any) -> str:
    """What errors call the environment: the name in its spec, or that of its class."""
    spec = getattr(env, "spec", None)
    if isinstance(spec, EnvSpec):
        return spec.name
    return env.__name__ if isinstance(env, type) else type(env).__name__


class Traced(NamedTuple):
    """A method as JAX sees it: its program and the shapes of what it returns."""

    program: Any
    out: Any


def trace(env: Env, method: str, *args: Any) -> Traced:
    """Trace a method, or say in one sentence why it cannot be."""
    function = plain(getattr(env, method))
    try:
        return Traced(*jax.make_jaxpr(function, return_shape=True)(jax.random.key(0), *args))
    except Exception as error:
        raise UsageError(explain(env, f"{method} cannot be compiled", error)) from error


def plain(function: Any) -> Any:
    """A new function that does the same without `jax.jit`: a cache would hide what a second trace does differently.
    (Bound methods of one object are equal, so JAX may take a second one for the first.)"""
    if not hasattr(function, "lower") or not hasattr(function, "__wrapped__"):
        return lambda *args: function(*args)
    inner, owner = function.__wrapped__, getattr(function, "__self__", None)
    return lambda *args: inner(*args) if owner is None else inner(owner, *args)


def explain(env: Env, what: str, error: Exception) -> str:
    """What failed, where in the user's file, and what to do about it, in one sentence."""
    ours = ("site-packages", str(Path(__file__).parents[1] / "api.py"), str(Path(__file__).parent))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not any(part in f.filename for part in ours)]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    hint = next((text for kind, text in HINTS.items() if isinstance(error, kind)), "")
    first = str(error).strip().split("\n")[0].rstrip(".:")
    reason = hint or (f"{type(error).__name__}: {first}" if first else type(error).__name__)
    return f"{name_of(env)}: {what}{place}: {reason}."


def action_form(spec: EnvSpec, *batch: int) -> jax.ShapeDtypeStruct:
    """The form of a team's action: [N] int32 or [N, W] float32."""
    return jax.ShapeDtypeStruct((*batch, *spec.action_shape), spec.action_dtype)
