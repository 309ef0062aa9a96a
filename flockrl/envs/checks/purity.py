"""Purity: `reset` and `step` must depend on their arguments alone and change nothing else.

This is judged by tracing twice and comparing the two programs rather than by running eagerly: whatever Python does
that JAX does not see (numpy's random numbers, counters on `self`) differs there, and it takes milliseconds where
running operation by operation takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from flockrl.envs.api import Env
from flockrl.envs.checks.played import close, play
from flockrl.envs.checks.tracing import action_form, trace


def purity(env: Env, episodes: int, seed: int) -> Iterator[str]:
    """Both methods traced twice: the same program must come out and nothing on the object may change."""
    state = trace(env, "reset").out[0]
    for method, args in (("reset", ()), ("step", (state, action_form(env.spec)))):
        before = dict(getattr(env, "__dict__", {}))
        one = trace(env, method, *args).program
        after = dict(getattr(env, "__dict__", {}))
        two = trace(env, method, *args).program
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
    one, two = (jax.tree.leaves(play(env, episodes, seed)[0]) for _ in range(2))
    return all(map(close, one, two))
