"""Agents that learn alone and average their policies now and then (local SGD, McMahan et al. 2017; gossip)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.coordination.consensus import laplacian, metropolis
from flockrl.coordination.graphs import links
from flockrl.core.errors import UsageError
from flockrl.core.groups import make_groups, parse_share
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, PyTree, Trajectory

POLICIES = "actor", "q"
"""Networks that act, one for each agent. Critics stay an agent's own: each is in units of its own returns."""


def averaged(algorithm: Algorithm, spec: EnvSpec, config: Any) -> Algorithm:
    """The same learner where agents of one kind begin alike and average what they learned; as it is where `share` does
    not ask for that.

        p_i <- p_i + sum_j w_ij (p_j - p_i)        every K updates, with Metropolis weights

    Where all are linked, that is the mean. Optimisers are not averaged.
    """
    how = parse_share(getattr(config, "share", "none"))[1]
    if how is None:
        return algorithm
    if not hasattr(config, "hidden"):
        raise UsageError("share=average averages networks, and this learner has none: use all, groups or none.")
    if len(make_groups(spec, config.share)) != spec.num_agents:
        raise UsageError("share=average needs a network for each agent.")
    first, mixing = _matrices(spec, how.topology)

    def init(key: Array) -> PyTree:
        return _mix(algorithm.init(key), first)

    def update(state: PyTree, trajectory: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
        state, metrics = algorithm.update(state, trajectory, key)
        count = state.iterations if hasattr(state, "iterations") else state.updates
        return _mix(state, jnp.where(count % how.every == 0, mixing, np.eye(len(mixing)))), metrics

    return algorithm._replace(init=init, update=update)


def _matrices(spec: EnvSpec, topology: str) -> tuple[np.ndarray, np.ndarray]:
    """[N, N] that gives each agent the parameters of the first of its kind, and that averages within kinds."""
    n = spec.num_agents
    first, mixing = np.zeros((n, n), np.float32), np.zeros((n, n), np.float32)
    for kind in dict.fromkeys(spec.groups):
        own = [i for i in range(n) if spec.groups[i] == kind]
        forms = {(spec.observations[i].size, str(spec.actions[i])) for i in own}
        if len(forms) > 1:
            names = ", ".join(spec.agents[i] for i in own)
            raise UsageError(f"share=average is between agents of like spaces, and {names} have unlike ones.")
        first[own, own[0]] = 1.0
        weights = metropolis(links(topology, len(own))) if len(own) > 1 else np.zeros((1, 1))
        mixing[np.ix_(own, own)] = np.eye(len(own)) - laplacian(weights)
    return first, mixing


def _mix(state: PyTree, matrix: Any) -> PyTree:
    """The state with every agent's policy made of those of all agents by this matrix [N, N]."""

    def nets(tree: PyTree) -> PyTree:
        return {name: _mixed(own, matrix) if name in POLICIES else own for name, own in tree.items()}

    if hasattr(state, "learned"):
        learned = state.learned
        return state._replace(learned=learned._replace(params=nets(learned.params), targets=nets(learned.targets)))
    return state._replace(params=nets(state.params))


def _mixed(own: tuple[PyTree, ...], matrix: Any) -> tuple[PyTree, ...]:
    """Networks of N agents; those that no weight joins may have unlike forms, and are left as they are."""
    leaves, structures = zip(*(jax.tree.flatten(net) for net in own), strict=True)
    shapes = [[leaf.shape for leaf in one] for one in leaves]
    found = []
    for i, structure in enumerate(structures):
        alike = [j for j in range(len(own)) if structures[j] == structure and shapes[j] == shapes[i]]
        rows = [sum(matrix[i, j] * leaves[j][k] for j in alike) for k in range(len(leaves[i]))]
        found.append(jax.tree.unflatten(structure, rows))
    return tuple(found)
