"""Mean field: agents that see the mean of what their neighbours did last (Yang et al. 2018, arXiv 1802.05438).

    Q_i(o_i, a_i, m_i),   m_i = 1/|N_i| sum_{j in N_i} code(a_j of the step before)

So a learner of one agent and its mean field stands for one of all pairs, whatever their number: with two agents, m_i is
the other's action, which is the pairwise formula. The neighbours are those of `EnvSpec.graph`, else those whom an
observation names, else all others; dead ones do not count. At the beginning of an episode nobody has done anything, and
m_i is zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.random import Source
from flockrl.core.types import Algorithm, Array, Box, Critic, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.nets.actions import ActionCode


def with_mean_actions(spec: EnvSpec) -> EnvSpec:
    """The spec of agents that see A more numbers each: the mean of their neighbours' actions."""
    if spec.sight.pictures:
        raise UsageError(f"Agents of {spec.name} see pictures, beside which a mean field does not fit: use numbers.")
    size, more = spec.obs_size, spec.action_size
    boxes = (Box((size + more,)),) * spec.num_agents
    entities = tuple(own.more(size, more) for own in spec.entities)
    return dataclasses.replace(spec, observations=boxes, entities=entities)


def mean_field(algorithm: Algorithm, spec: EnvSpec) -> Algorithm:
    """A learner for `with_mean_actions(spec)` as one for `spec`. Its memory holds the codes [B, N, A] of the last
    actions beside the learner's own."""
    code, mean = ActionCode(spec), _mean_of_neighbours(spec)

    def look(seen: Observation, last: Array) -> Observation:
        return seen._replace(obs=jnp.concatenate([seen.obs, mean(seen, last)], -1))

    def act(params: PyTree, seen: Observation, memory: PyTree, key: Source, explore: bool) -> tuple[Array, PyTree, Any]:
        own, last = memory
        action, own, extras = algorithm.act(params, look(seen, last), own, key, explore)  # type: ignore[arg-type]
        return action, (own, code.encode(action)), extras

    def along(trajectory: Trajectory) -> Trajectory:
        own, last = trajectory.memory
        codes = code.encode(trajectory.action)
        before = jnp.concatenate([last[None], codes[:-1]])
        before = jnp.where(trajectory.first[..., None, None], 0.0, before)
        seen = look(trajectory.observation, before).obs
        follows = look(trajectory.next_observation, codes).obs
        return trajectory._replace(obs=seen, next_obs=follows, memory=own)

    def update(state: PyTree, trajectory: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
        return algorithm.update(state, along(trajectory), key)

    def memory(batch: int) -> PyTree:
        return algorithm.memory(batch), jnp.zeros((batch, spec.num_agents, spec.action_size))

    def kl(old: PyTree, new: PyTree, seen: Observation, memory: PyTree, other: Observation | None = None) -> Array:
        assert algorithm.kl is not None
        own, last = memory
        return algorithm.kl(old, new, look(seen, last), own, None if other is None else look(other, last))

    def inside(found: Any) -> Any:
        """What goes on in agents, by a function of params, observation and memory."""
        return found and (lambda params, seen, memory: found(params, look(seen, memory[1]), memory[0]))

    def critic(inner: Critic) -> Critic:
        return Critic(inner.params, lambda params, trajectory: inner.values(params, along(trajectory)))

    return algorithm._replace(
        act=act, update=update, memory=memory, kl=algorithm.kl and kl, says=inside(algorithm.says),
        attends=inside(algorithm.attends), critic=algorithm.critic and critic(algorithm.critic),
    )  # fmt: skip


def _mean_of_neighbours(spec: EnvSpec) -> Any:
    """(what the team sees, codes [..., N, A]) -> [..., N, A] the mean over each agent's neighbours."""
    n = spec.num_agents
    most = max(map(len, spec.graph), default=0)
    places = np.array([[*near, *[n] * (most - len(near))] for near in spec.graph], int)

    def alive(seen: Observation, codes: Array) -> Array:
        there = jnp.ones(codes.shape[:-1]) if seen.alive is None else seen.alive.astype(codes.dtype)
        return there[..., None]

    def by_graph(seen: Observation, codes: Array) -> Array:
        there = alive(seen, codes)
        table = jnp.concatenate([codes * there, there], -1)
        table = jnp.concatenate([table, jnp.zeros_like(table[..., :1, :])], -2)  # nobody, where one has fewer
        sums: Any = sum(table[..., places[:, k], :] for k in range(most))
        return sums[..., :-1] / jnp.maximum(sums[..., -1:], 1.0)

    def by_sight(seen: Observation, codes: Array) -> Array:
        assert seen.neighbours is not None
        there = alive(seen, codes)
        near = seen.neighbours * (1.0 - np.eye(n, dtype=np.float32))
        return near @ (codes * there) / jnp.maximum(near @ there, 1.0)

    def everyone(seen: Observation, codes: Array) -> Array:
        there = alive(seen, codes)
        own = codes * there
        others = (own.sum(-2, keepdims=True) - own), (there.sum(-2, keepdims=True) - there)
        return others[0] / jnp.maximum(others[1], 1.0)

    return by_graph if spec.graph else by_sight if spec.neighbours else everyone
