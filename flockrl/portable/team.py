"""A trained team as a graph: what goes in, what comes out, and the numbers that it needs from chance."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.actions import clip_action
from flockrl.core.groups import Group, merge
from flockrl.core.random import Tape
from flockrl.core.types import Actor, Algorithm, Array, EnvSpec, Observation, PyTree
from flockrl.portable import windows  # noqa: F401 - importing the rules of all primitives registers them
from flockrl.portable.graph import Graph, Shape, Value, ordered
from flockrl.portable.lower import lower, stored
from flockrl.portable.narrow import narrow


class Portable(NamedTuple):
    """How a team acts, as a graph.

    spec: of the agents that it moves. inputs: obs, mask, each memory, noise [B, N, K], as far as there are such.
    outputs: by name. parameters: the policy's, in the order of their tree's leaves. columns: for each draw of the
    program its first column in the noise, None when nothing depends on it.
    """

    spec: EnvSpec
    inputs: list[Value]
    outputs: dict[str, Value]
    parameters: list[Value]
    columns: list[int | None]


def trace(
    policy: Algorithm | Actor, params: PyTree, spec: EnvSpec, groups: Sequence[Group], which: int | None
) -> Portable:
    """The acting of a whole team, or of number `which` of its groups, as a graph."""
    acting = _Acting(policy, spec, groups, which)
    leaves, structure = jax.tree.flatten(params)
    arrays = [np.asarray(leaf) for leaf in leaves]
    # Flags decide what is done at all: they are constants.
    parameters = [
        Value(x.shape, stored(x.dtype), constant=x) if x.dtype == bool else Value(x.shape, stored(x.dtype), parameter=x)
        for x in arrays
    ]
    inputs = [Value((-1, *shape), np.dtype(dtype), name=name) for name, (shape, dtype) in acting.inputs.items()]
    shapes: list[Any] = [((None, *shape), dtype) for shape, dtype in acting.inputs.values()]
    tape = Tape(1)
    ones = [jax.ShapeDtypeStruct((1, *shape), dtype) for shape, dtype in acting.inputs.values()]
    jax.eval_shape(lambda params, *given: acting(params, given, tape), params, *ones)
    draws = [(len(agents), count) for agents, count in tape.asked]
    names: list[str] = []

    def function(*given: Array) -> list[Array]:
        own, numbers = given[: len(inputs)], given[len(inputs) : len(inputs) + len(draws)]
        restored = jax.tree.unflatten(structure, given[len(inputs) + len(draws) :])
        results = acting(restored, own, Tape(own[0].shape[0], numbers))
        names[:] = results
        return list(results.values())

    shapes += [((None, *draw), "float32") for draw in draws]
    shapes += [(x.shape, x.dtype) for x in arrays]
    # Once to learn which draws matter (a policy whose warm-up is over no longer acts at random), then for good.
    blanks = [Value((-1, *draw), np.dtype(np.float32), name="draw") for draw in draws]
    used = {id(x) for x in ordered(lower(function, shapes, Graph(), [*inputs, *blanks, *parameters]))}
    live = [id(x) in used for x in blanks]
    graph = Graph()
    columns = _columns(spec.num_agents, tape.asked, live)
    noise, numbers = _deal(graph, acting.agents, tape.asked, columns)
    values = lower(function, shapes, graph, [*inputs, *numbers, *parameters])
    outputs = {name: acting.own(graph, x, name) for name, x in zip(names, values, strict=True)}
    return Portable(acting.spec, [*inputs, *noise], outputs, parameters, columns)


def _columns(total: int, asked: Sequence[tuple[tuple[int, ...], int]], live: Sequence[bool]) -> list[int | None]:
    """Where each draw that matters begins in the noise. Every agent reads its columns from the first on."""
    used, columns = [0] * total, []
    for (agents, count), alive in zip(asked, live, strict=True):
        first = max(used[i] for i in agents)
        columns.append(first if alive else None)
        for i in agents if alive else ():
            used[i] = first + count
    return columns


def _deal(
    graph: Graph, own: Sequence[int], asked: Sequence[tuple[tuple[int, ...], int]], columns: Sequence[int | None]
) -> tuple[list[Value], list[Value]]:
    """The input `noise` [B, n, K] (none when K is 0), and each draw's part of it.

    own: the agents that are in the graph; the numbers of others are 0.
    """
    columns = [first if set(agents) & set(own) else None for (agents, _), first in zip(asked, columns, strict=True)]
    ends = [first + count for (_, count), first in zip(asked, columns, strict=True) if first is not None]
    noise = Value((-1, len(own), max(ends, default=0)), np.dtype(np.float32), name="noise")
    parts = []
    for (agents, count), first in zip(asked, columns, strict=True):
        zero = graph.constant(np.zeros((1, 1, count), np.float32))
        if first is None:
            parts.append(graph.expand(zero, (-1, len(agents), count)))
            continue
        part = graph.slice(noise, 2, first, first + count)
        if tuple(agents) != tuple(own):
            place = [own.index(i) if i in own else len(own) for i in agents]
            part = graph.take(graph.concat([part, graph.expand(zero, (-1, 1, count))], 1), 1, graph.constant(place))
        parts.append(part)
    return ([noise] if ends else []), parts


class _Acting:
    """The function that is exported. With `which` the team around that group sees zeros and is cut away."""

    def __init__(self, policy: Algorithm | Actor, spec: EnvSpec, groups: Sequence[Group], which: int | None):
        self.policy, self.team, self.groups = policy, spec, groups
        self.which = which if len(groups) > 1 else None
        self.agents = tuple(range(spec.num_agents)) if self.which is None else groups[self.which].agents
        self.spec = dataclasses.replace(spec.part(self.agents), whole=None)
        leaves, self.structure = jax.tree.flatten(policy.memory(1))
        self.shapes = shapes = [tuple(leaf.shape[1:]) for leaf in leaves]
        self.apart = len(leaves) == len(groups)
        """Whether every group has a memory of its own; else one has a row for each agent and action dimension."""
        n = len(self.agents)
        if self.which is not None:
            shapes = [shapes[self.which]] if self.apart else [(n, self.spec.action_size) for _ in leaves]
        self.inputs: dict[str, tuple[Shape, str]] = {"obs": ((n, self.spec.obs_size), self.spec.observations[0].dtype)}
        if spec.discrete:
            self.inputs["mask"] = ((n, self.spec.action_size), "bool")
        self.inputs |= {f"memory_{i}": (shape, "float32") for i, shape in enumerate(shapes)}

    def __call__(self, params: PyTree, given: Sequence[Array], tape: Tape) -> dict[str, Array]:
        """Results of the whole team by name, and the memories that are given. given: the inputs in order."""
        values = dict(zip(self.inputs, given, strict=True))
        mask = values.get("mask")
        seen = Observation(
            self._team_wide(values["obs"], self.team.obs_size),
            None if mask is None else self._team_wide(mask, self.team.action_size),
        )
        memory = self._memories([values[name] for name in values if name.startswith("memory")], len(given[0]))
        action, _, _ = self.policy.act(params, seen, memory, tape, False)  # type: ignore[arg-type]
        raw, after, extras = self.policy.act(params, seen, memory, tape, True)  # type: ignore[arg-type]
        results = {"action": clip_action(self.team, action), "sampled": clip_action(self.team, raw)}
        if not self.team.discrete:
            results["raw"] = raw
        leaves = jax.tree.leaves(after)
        if self.which is not None and self.apart:
            leaves = [leaves[self.which]]
        return {**results, **extras, **{f"next_memory_{i}": leaf for i, leaf in enumerate(leaves)}}

    def _team_wide(self, x: Array, size: int) -> Array:
        """[B, n, ...] of this graph's agents as [B, N, size] of the team."""
        if self.which is None:
            return x
        parts = [
            x if i == self.which else jnp.zeros((len(x), group.size, x.shape[-1]), x.dtype)
            for i, group in enumerate(self.groups)
        ]
        return merge(parts, self.groups, 1, size)

    def own(self, graph: Graph, x: Value, name: str) -> Value:
        """This graph's agents' part of a result [B, N] or [B, N, A] of the team."""
        if self.which is None or (name.startswith("next_memory") and self.apart):
            return x
        x = narrow(graph, x, 1, self.agents)
        return x if len(x.shape) == 2 else graph.slice(x, 2, 0, self.spec.action_size)

    def _memories(self, given: Sequence[Array], batch: int) -> PyTree:
        if self.which is None:
            return jax.tree.unflatten(self.structure, given)
        if not self.apart:
            return jax.tree.unflatten(self.structure, [self._team_wide(x, self.team.action_size) for x in given])
        leaves = [jnp.zeros((batch, *shape)) for shape in self.shapes]
        leaves[self.which] = given[0]
        return jax.tree.unflatten(self.structure, leaves)
