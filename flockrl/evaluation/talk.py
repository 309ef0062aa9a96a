"""Whether messages matter: what they tell of what their sender sees, and what they change in what listeners do.

Silencing a team proves that it relies on messages, not that it could not do without: for that, train one without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.comm.luck import Cut
from flockrl.core.types import Algorithm, Array, Observation, PyTree
from flockrl.envs.api import Env, reset_batch, step_batch

BINS = 8
"""Parts of equal weight that numbers are cut into for mutual information: at most 3 bits can be found."""
STEPS = 64
"""Steps of each environment that are looked at."""


class Listening(NamedTuple):
    """What messages of a team do.

    signalling: [N] bits, mutual information between an agent's messages and its observations. listening: [N] nats, mean
    divergence KL(policy || policy that hears nothing), None for deterministic policies. changed: [N] how far the greedy
    action moves when the agent hears nothing: the part of steps for choices, parts of the range for real actions.
    influence: [N, N] the same as `listening` (or `changed` where there is none), of the agent of the row when it does
    not hear that of the column.
    """

    signalling: np.ndarray
    listening: np.ndarray | None
    changed: np.ndarray
    influence: np.ndarray


def measure_talk(
    algorithm: Algorithm, env: Env, params: PyTree, key: Array, envs: int, distance: Callable[..., Array]
) -> Listening:
    """Play `envs` environments greedily and compare, in every step, with what agents would do if they heard less.

    distance(before, after) -> [B, N] between actions.
    """
    assert algorithm.says is not None
    n = env.spec.num_agents
    each = np.broadcast_to(np.eye(n, dtype=bool)[:, None, :], (n, n, n))
    deaf = np.concatenate([np.ones((1, n, n), bool), each])
    """[1 + N, N, N] links to cut: all, and those from each agent."""

    def compare(params: PyTree, seen: Observation, memory: PyTree, key: Array) -> dict[str, Any]:
        action, _, noted = algorithm.act(params, seen, memory, key, False)
        seeds = noted.get("channel")
        whole = seen._replace(seeds=Cut(seeds, jnp.zeros((envs, n, n), bool)))  # type: ignore[arg-type]

        def apart(cut: Array) -> tuple[Array, Array | None]:
            less = seen._replace(seeds=Cut(seeds, jnp.broadcast_to(cut, (envs, n, n))))  # type: ignore[arg-type]
            moved = distance(action, algorithm.act(params, less, memory, key, False)[0])
            return moved, None if algorithm.kl is None else algorithm.kl(params, params, whole, memory, less)

        moved, further = jax.vmap(apart)(jnp.asarray(deaf))
        changed, kl = moved[0], None if further is None else further[0]
        influence = jnp.moveaxis((moved if further is None else further)[1:], 0, -1)
        assert algorithm.says is not None
        said = algorithm.says(params, whole, memory)
        alive = jnp.ones(seen.obs.shape[:2], bool) if seen.alive is None else seen.alive
        return {"changed": changed, "kl": kl, "influence": influence, "said": said, "obs": seen.obs, "alive": alive}

    def step(carry: Any, key: Array) -> Any:
        state, seen, memory = carry
        act_key, env_key = jax.random.split(key)
        rows = compare(params, seen, memory, act_key)
        action, memory, _ = algorithm.act(params, seen, memory, act_key, False)
        result = step_batch(env, env_key, state, seen, action)
        blank = algorithm.memory(envs)
        memory = jax.tree.map(
            lambda a, b: jnp.where(result.done.reshape(-1, *(1,) * (b.ndim - 1)), a, b), blank, memory
        )
        return (result.state, result.observation, memory), rows

    def run(key: Array) -> Any:
        reset_key, key = jax.random.split(key)
        state, seen = reset_batch(env, reset_key, envs)
        return jax.lax.scan(step, (state, seen, algorithm.memory(envs)), jax.random.split(key, STEPS))[1]

    return _summary(jax.tree.map(np.asarray, jax.jit(run)(key)))


def _summary(rows: dict[str, Any]) -> Listening:
    """Means over steps in which the agent lived. rows: [T, B, N, ...]."""
    alive = rows["alive"].astype(np.float64)
    lived = np.maximum(alive.sum((0, 1)), 1)

    def mean(x: np.ndarray) -> np.ndarray:
        weight = alive.reshape(*alive.shape, *(1,) * (x.ndim - 3))
        return (x * weight).sum((0, 1)) / lived.reshape(-1, *(1,) * (x.ndim - 3))

    signalling = [
        mutual_information(rows["said"][:, :, i][rows["alive"][:, :, i]], rows["obs"][:, :, i][rows["alive"][:, :, i]])
        for i in range(alive.shape[-1])
    ]
    kl = None if rows["kl"] is None else mean(rows["kl"])
    return Listening(np.array(signalling), kl, mean(rows["changed"]), mean(rows["influence"]))


def mutual_information(x: np.ndarray, y: np.ndarray) -> float:
    """Bits that rows of x [S, C] and y [S, D] tell of each other, a lower bound.

    Both are cut into parts of equal weight along their direction of largest variance; from the plug-in estimate that of
    shuffled pairs is taken away, which is what few samples pretend.
    """
    if len(x) < 2:
        return 0.0
    a, b = _parts(x), _parts(y)
    mixed = np.random.default_rng(0).permutation(len(b))
    return max(_plug_in(a, b) - _plug_in(a, b[mixed]), 0.0)


def _parts(x: np.ndarray) -> np.ndarray:
    """[S] the part that each row falls into."""
    rows = x.reshape(len(x), -1).astype(np.float64)
    rows = rows - rows.mean(0)
    line = rows @ np.linalg.eigh(rows.T @ rows)[1][:, -1]
    line = np.round(line, 6)  # what differs by rounding alone is the same
    edges = np.unique(np.quantile(line, np.arange(1, BINS) / BINS))
    return np.searchsorted(edges, line, side="right")


def _plug_in(a: np.ndarray, b: np.ndarray) -> float:
    joint = np.zeros((BINS, BINS))
    np.add.at(joint, (a, b), 1 / len(a))
    product = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    some = joint > 0
    return float((joint[some] * np.log2(joint[some] / product[some])).sum())
