"""Measures of what emerges in a swarm, as functions of positions, headings and work. Environments report them in
evaluation; they take recorded episodes as well."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from flockrl.core.types import Array


def order(velocity: Array) -> Array:
    """How far all move in one direction: the length of the mean unit velocity, from 0 to 1. velocity: [..., N, 2]."""
    length = jnp.sqrt((velocity**2).sum(-1, keepdims=True))
    unit = velocity / jnp.maximum(length, 1e-9)
    return jnp.sqrt((unit.mean(-2) ** 2).sum(-1))


def offsets(pos: Array, side: float | None = None) -> Array:
    """[..., N, N, 2] ways from each agent to each other one, the shortest on a torus of width `side`. pos: [..., N,
    2]."""
    way = pos[..., None, :, :] - pos[..., :, None, :]
    return way if side is None else way - side * jnp.round(way / side)


def apart(pos: Array, side: float | None = None) -> Array:
    """[..., N, N] how far agents at pos [..., N, 2] are from each other."""
    return jnp.sqrt((offsets(pos, side) ** 2).sum(-1))


def clusters(pos: Array, radius: float, side: float | None = None) -> Array:
    """[N] for each agent the smallest number of an agent that it is linked to through others within `radius`: agents
    with the same number are one cluster. pos: [N, 2]."""
    n = pos.shape[0]
    near = (offsets(pos, side) ** 2).sum(-1) <= radius**2

    def spread(pair: tuple[Array, Array]) -> tuple[Array, Array]:
        label = jnp.where(near, pair[1], n).min(1)
        return pair[1], jnp.minimum(label, label[label])

    start = jnp.arange(n)
    return jax.lax.while_loop(lambda pair: (pair[0] != pair[1]).any(), spread, spread((start, start)))[1]


def clustering(pos: Array, radius: float, side: float | None = None) -> Array:
    """The share of agents in the largest cluster, from 1 / N to 1. pos: [N, 2]."""
    label = clusters(pos, radius, side)
    return (label[:, None] == label).sum(1).max() / len(label)


def coverage(visited: Array) -> Array:
    """The share of cells that were visited. visited: [..., cells] bool."""
    return visited.mean(-1)


def division_of_labour(work: Array) -> Array:
    """How far agents specialise: the mutual information between agent and task over the entropy of tasks, from 0 (all
    do the same) to 1 (each task has agents of its own). work: [..., N, tasks] amounts; 0 where nothing or one task was
    done.
    """
    total = jnp.maximum(work.sum((-1, -2), keepdims=True), 1e-9)
    joint = work / total
    agent, task = joint.sum(-1, keepdims=True), joint.sum(-2, keepdims=True)
    ratio = joint / jnp.maximum(agent * task, 1e-12)
    information = (joint * jnp.log(jnp.where(joint > 0, ratio, 1.0))).sum((-1, -2))
    entropy = -(task * jnp.log(jnp.where(task > 0, task, 1.0))).sum((-1, -2))
    return jnp.where(entropy > 1e-9, information / jnp.maximum(entropy, 1e-9), 0.0)


def mutual_information(actions: Array, count: int) -> Array:
    """Mean mutual information (bits) between the actions of two agents, over all pairs. actions: [T, N] from 0 to
    count - 1. The estimate from T samples is too high by about (count - 1)² / (2 T ln 2)."""
    t, n = actions.shape
    one = (actions[..., None] == jnp.arange(count)).astype(jnp.float32)
    joint = jnp.einsum("tia,tjb->ijab", one, one) / t
    single = one.mean(0)
    product = single[:, None, :, None] * single[None, :, None, :]
    terms = joint * jnp.log2(jnp.where(joint > 0, joint / jnp.maximum(product, 1e-12), 1.0))
    pairs = terms.sum((-1, -2))
    return (pairs.sum() - jnp.trace(pairs)) / max(n * (n - 1), 1)
