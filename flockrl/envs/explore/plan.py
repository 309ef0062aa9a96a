"""Shortest ways to success in environments without chance, by breadth-first search."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

CHUNK = 1 << 14
"""Places that are looked at together."""


def shortest(env: Any, cells: int, actions: int) -> np.ndarray:
    """[L, N] joint actions that lead from the start to success in the fewest steps.

    env: has `cell(state)`, the number of a state from 0 to cells - 1, the time apart, and its states have `t` and
    `success`. It must begin always alike and know no chance, and success must be possible.
    """
    joint = np.array(list(itertools.product(range(actions), repeat=env.spec.num_agents)), np.int32)
    key = jax.random.key(0)

    @jax.jit
    def expand(states: Any) -> tuple[Any, Any]:
        """All successors of places [C], [C, J], and their numbers."""
        after = jax.vmap(lambda s: jax.vmap(lambda a: env.step(key, s._replace(t=jnp.int32(0)), a)[0])(joint))(states)
        return after, jax.vmap(jax.vmap(env.cell))(after)

    seen, ways = np.zeros(cells, bool), []
    with jax.ensure_compile_time_eval():  # also where a policy that needs the plan is being traced
        start = env.reset(key)[0]
        seen[np.asarray(env.cell(start))] = True
        places = jax.tree.map(lambda x: np.asarray(x)[None], start)
        while len(places.t):
            places, parents = _next_places(expand, places, seen)
            ways.append(parents)
            done = np.flatnonzero(places.success)
            if len(done):
                return _walked(ways, int(done[0]), joint)
    raise ValueError(f"{env.spec.name} cannot be solved.")


def _next_places(expand: Callable[[Any], tuple[Any, Any]], places: Any, seen: np.ndarray) -> tuple[Any, np.ndarray]:
    """The places one step further that nobody has seen, which are then `seen`, and where they come from: the number of
    the place before times that of joint actions, plus the joint action."""
    found, parents = [], []
    for first in range(0, len(places.t), CHUNK):
        some = [x[first : first + CHUNK] for x in places]
        padded = [np.concatenate([x, np.repeat(x[:1], CHUNK - len(x), 0)]) for x in some]
        after, cell = jax.tree.map(np.asarray, expand(type(places)(*padded)))
        numbers = cell[: len(some[0])].reshape(-1)
        new = np.flatnonzero(~seen[numbers])
        new = new[np.unique(numbers[new], return_index=True)[1]]
        seen[numbers[new]] = True
        found.append([x.reshape(-1, *x.shape[2:])[new] for x in after])
        parents.append(first * cell.shape[1] + new)
    return type(places)(*(np.concatenate(parts) for parts in zip(*found, strict=True))), np.concatenate(parents)


def _walked(ways: list[np.ndarray], last: int, joint: np.ndarray) -> np.ndarray:
    """The joint actions that lead to number `last` of the last generation."""
    chosen = []
    for parents in reversed(ways):
        last, action = divmod(int(parents[last]), len(joint))
        chosen.append(joint[action])
    return np.stack(chosen[::-1])
