"""A trained team as a graph: what goes in, what comes out, and the numbers that it needs from chance."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.comm.luck import Inbox
from flockrl.core.actions import clip_action
from flockrl.core.errors import UsageError
from flockrl.core.groups import Group, interleave
from flockrl.core.random import Tape
from flockrl.core.types import Actor, Algorithm, Array, EnvSpec, Observation, PyTree
from flockrl.portable import windows  # noqa: F401 - importing the rules of all primitives registers them
from flockrl.portable.alone import Alone
from flockrl.portable.graph import Graph, Shape, Value, ordered
from flockrl.portable.lower import lower, stored
from flockrl.portable.model import TOLD
from flockrl.portable.narrow import narrow

JOINS = 4
"""How many joins of agents after one another a choice of agents can be moved past: policies have two or three."""


class Portable(NamedTuple):
    """How a team acts, as a graph.

    spec: of the agents that it moves. inputs: obs, mask, alive, neighbours, inbox, peers, each memory, noise [B, N, K],
    as far as there are such.
    outputs: by name. parameters: the policy's, in the order of their tree's leaves. columns: for each draw of the
    program its first column in the noise, None when nothing depends on it. memory: what each memory holds when an
    episode begins, for one team, in the order of the inputs.
    """

    spec: EnvSpec
    inputs: list[Value]
    outputs: dict[str, Value]
    parameters: list[Value]
    columns: list[int | None]
    memory: list[np.ndarray]


def trace(
    policy: Algorithm | Actor | Alone, params: PyTree, spec: EnvSpec, groups: Sequence[Group], which: int | None
) -> Portable:
    """The acting of a whole team (one agent that runs apart included), or of number `which` of its groups, as a
    graph."""
    acting = _Acting(policy, spec, groups, which)
    leaves, structure = jax.tree.flatten(params)
    arrays = [np.asarray(leaf) for leaf in leaves]
    # Flags decide what is done at all: they are constants.
    parameters = [
        Value(x.shape, stored(x.dtype), constant=x) if x.dtype == bool else Value(x.shape, stored(x.dtype), parameter=x)
        for x in arrays
    ]
    forms = [*acting.inputs.values(), *acting.others.values()]
    inputs = [_input(name, form) for name, form in acting.inputs.items()]
    others = [_input("others", form) for form in acting.others.values()]
    tape = Tape(1)
    ones = [jax.ShapeDtypeStruct((1, *shape), dtype) for shape, dtype in forms]
    jax.eval_shape(lambda params, *given: acting(params, given, tape), params, *ones)
    draws = [(len(agents), count) for agents, count in tape.asked]
    names: list[str] = []

    def function(*given: Array) -> list[Array]:
        own, numbers = given[: len(forms)], given[len(forms) : len(forms) + len(draws)]
        restored = jax.tree.unflatten(structure, given[len(forms) + len(draws) :])
        results = acting(restored, own, Tape(own[0].shape[0], numbers))
        names[:] = results
        return list(results.values())

    shapes: list[Any] = [((None, *shape), dtype) for shape, dtype in forms]
    shapes += [((None, *draw), "float32") for draw in draws]
    shapes += [(x.shape, x.dtype) for x in arrays]
    # Once to learn which draws matter (a policy whose warm-up is over no longer acts at random), then for good.
    blanks = [Value((-1, *draw), np.dtype(np.float32), name="draw") for draw in draws]
    used = {id(x) for x in ordered(lower(function, shapes, Graph(), [*inputs, *others, *blanks, *parameters]))}
    live = [id(x) in used for x in blanks]
    graph = Graph()
    columns = _columns(spec.num_agents, tape.asked, live)
    noise, numbers = _deal(graph, acting.agents, tape.asked, columns)
    values = lower(function, shapes, graph, [*inputs, *others, *numbers, *parameters])
    results = [acting.own(graph, x, name) for name, x in zip(names, values, strict=True)]
    part = acting.rest or acting.apart
    outputs = dict(zip(names, _narrowed(graph, results) if part else results, strict=True))
    for x in outputs.values():
        x.shape = tuple(map(int, x.shape))  # JAX writes some sizes as numbers of NumPy, which ONNX and JSON do not take
    kept = acting.needed(inputs, others, outputs)
    inputs, outputs, memory = acting.pick(inputs, outputs, kept)
    return Portable(acting.spec, [*inputs, *noise], outputs, parameters, columns, memory)


def _narrowed(graph: Graph, outputs: Sequence[Value]) -> list[Value]:
    """The same values where entries of an axis are chosen as early as possible, so that nothing else is computed."""
    outputs = list(outputs)
    for _ in range(JOINS):
        new: dict[int, Value] = {}
        for x in ordered(outputs):
            args = [new[id(arg)] for arg in x.args]
            chosen = _chosen(x)
            if chosen is not None:
                new[id(x)] = _choose(graph, args[0], *chosen)
            else:
                new[id(x)] = graph.emit(x.op, args, x.shape, x.dtype, **x.attrs) if args else x
        outputs = [new[id(x)] for x in outputs]
    return outputs


def _choose(graph: Graph, x: Value, axis: int, places: Sequence[int]) -> Value:
    """The entries `places` of an axis; of parts that are joined along it, only those that have some of them."""
    if x.shape[axis] == 1:
        return x if len(places) == 1 else graph.take(x, axis, graph.constant(list(places)))
    if x.op != "Concat" or x.attrs["axis"] != axis:
        return narrow(graph, x, axis, places)
    sizes = [part.shape[axis] for part in x.args]
    owner, begin = np.repeat(np.arange(len(sizes)), sizes), np.cumsum([0, *sizes])
    parts = [
        _choose(graph, x.args[i], axis, [place - int(begin[i]) for place in run])
        for i, run in itertools.groupby(places, lambda place: int(owner[place]))
    ]
    return graph.concat(parts, axis)


def _chosen(x: Value) -> tuple[int, Sequence[int]] | None:
    """The axis and its entries that a value takes from its argument, or None when it does something else."""
    if x.op == "Gather":
        places = x.args[1].constant
        return None if places is None or places.ndim != 1 else (x.attrs["axis"], places.tolist())
    if x.op == "Slice":
        (start,), (end,), (axis,), (step,) = (x.attrs[name] for name in ("starts", "ends", "axes", "steps"))
        return axis, range(start, end, step)
    return None


def _input(name: str, form: tuple[Shape, np.dtype]) -> Value:
    return Value((-1, *form[0]), stored(form[1]), name=name)


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
    """The function that is exported: how a team acts. What agents are told of each other (`TOLD`) is an input where it
    changes anything.

    inputs: shape (without the batch) and dtype of what goes in, by name. With `which` these are of one group, and
    `others` are the same of the rest of the team: what they see, and their rows of memories [B, N, ...] that have a
    row for each agent. Any other memory is an input as a whole. A group can stand alone when nothing that it does
    depends on `others`.
    """

    def __init__(self, policy: Algorithm | Actor | Alone, spec: EnvSpec, groups: Sequence[Group], which: int | None):
        self.policy, self.team, self.apart = policy, spec, isinstance(policy, Alone)
        self.inbox = policy.inbox if isinstance(policy, Alone) else None
        everybody = tuple(range(spec.num_agents))
        self.agents = everybody if which is None else tuple(groups[which].agents)
        self.rest = tuple(i for i in everybody if i not in self.agents)
        self.spec = dataclasses.replace(spec.part(self.agents), whole=None)
        leaves, self.structure = jax.tree.flatten(policy.memory(1))
        self.start = [_first_row(leaf) for leaf in leaves]
        """What one team remembers when an episode begins."""
        self.rows = [bool(self.rest) and x.shape[:1] == (spec.num_agents,) for x in self.start]
        """Whether each memory is cut into the rows of this group and those of others."""
        self.inputs = self._forms(self.agents, self.spec)
        self.others = self._forms(self.rest, self.team) if self.rest else {}
        for i, cut in enumerate(self.rows):
            if self.rest and not cut:
                del self.others[f"memory_{i}"]

    def _forms(self, agents: Sequence[int], sizes: EnvSpec) -> dict[str, tuple[Shape, np.dtype]]:
        """What these agents see and remember, with the observation and action sizes of a spec."""
        n = len(agents)
        forms: dict[str, tuple[Shape, np.dtype]] = {}
        forms["obs"] = (n, sizes.obs_size), np.dtype(self.team.observations[0].dtype)
        if sizes.maskable:
            forms["mask"] = (n, sizes.action_size), np.dtype(bool)
        if not self.rest:
            forms |= self._told(n)
        for i, (x, cut) in enumerate(zip(self.start, self.rows, strict=True)):
            forms[f"memory_{i}"] = ((n, *x.shape[1:]) if cut else x.shape), x.dtype
        return forms

    def _told(self, n: int) -> dict[str, tuple[Shape, np.dtype]]:
        """What agents are told of each other."""
        if self.inbox is not None:
            return {"inbox": (self.inbox, np.dtype(np.float32)), "peers": ((self.inbox[1],), np.dtype(bool))}
        forms: dict[str, tuple[Shape, np.dtype]] = {"alive": ((n,), np.dtype(bool))}
        return forms | ({"neighbours": ((n, n), np.dtype(bool))} if self.team.neighbours else {})

    def __call__(self, params: PyTree, given: Sequence[Array], tape: Tape) -> dict[str, Array]:
        """Results of the whole team by name, memories included. given: the inputs, then the others', in order."""
        own = dict(zip(self.inputs, given, strict=False))
        others = dict(zip(self.others, given[len(own) :], strict=True))
        seen = Observation(
            self._join(own["obs"], others.get("obs"), self.team.obs_size), self._mask(own, others),
            alive=own.get("alive"), neighbours=own.get("neighbours"),
            seeds=Inbox(own["inbox"], own["peers"]) if "inbox" in own else None,  # type: ignore[arg-type]
        )  # fmt: skip
        names = [f"memory_{i}" for i in range(len(self.start))]
        leaves = [self._join(own[name], others.get(name)) for name in names]
        memory = jax.tree.unflatten(self.structure, leaves)
        action, _, _ = self.policy.act(params, seen, memory, tape, False)  # type: ignore[arg-type]
        raw, after, extras = self.policy.act(params, seen, memory, tape, True)  # type: ignore[arg-type]
        results = {"action": clip_action(self.team, action), "sampled": clip_action(self.team, raw)}
        if not self.spec.discrete:
            results["raw"] = raw
        following = zip(names, jax.tree.leaves(after), strict=True)
        results |= {name: x for name, x in extras.items() if name != "messages"}  # counts are for those who train
        return {**results, **{f"next_{name}": leaf for name, leaf in following}}

    def _mask(self, own: dict[str, Array], others: dict[str, Array]) -> Array | None:
        """The team's mask [B, N, A], where there is one; real actions are never masked."""
        if not self.team.maskable:
            return None
        mask = own.get("mask")
        if mask is None:
            mask = jnp.ones((len(own["obs"]), len(self.agents), self.spec.action_size), bool)
        return self._join(mask, others.get("mask"), self.team.action_size)

    def _join(self, own: Array, others: Array | None, size: int | None = None) -> Array:
        """Rows of this graph's agents [B, n, ...] and of the others [B, m, ...] as rows of the team [B, N, ...].

        With `size`, the last axis of `own` is padded to it.
        """
        if others is None:
            return own
        if size is not None:
            own = jnp.pad(own, ((0, 0), (0, 0), (0, size - own.shape[-1])))
        return interleave([own, others], [self.agents, self.rest], 1)

    # Results of the team -> results of this graph's agents

    def own(self, graph: Graph, x: Value, name: str) -> Value:
        """This graph's agents' part of a result of the team."""
        if not self.rest:
            return x
        memory = name.removeprefix("next_memory_")
        if memory != name and not self.rows[int(memory)]:
            return x
        x = narrow(graph, x, 1, self.agents)
        if name not in ("action", "sampled", "raw") or self.team.discrete:
            return x
        if not self.spec.discrete:
            return graph.slice(x, 2, 0, self.spec.action_width)
        return graph.cast(graph.reshape(graph.slice(x, 2, 0, 1), (-1, len(self.agents))), np.int32)

    def needed(self, inputs: Sequence[Value], others: Sequence[Value], outputs: dict[str, Value]) -> list[int]:
        """The numbers of the memories that this graph's agents need: all of a team's, or those that a group or an
        agent that runs apart reads."""
        if not self.rest and not self.apart:
            return list(range(len(self.start)))
        memories = {int(x.name.removeprefix("memory_")): x for x in inputs if x.name.startswith("memory_")}
        kept: set[int] = set()
        while True:
            wanted = [x for name, x in outputs.items() if not name.startswith("next_memory_")]
            used = {id(x) for x in ordered([*wanted, *(outputs[f"next_memory_{i}"] for i in sorted(kept))])}
            more = {i for i, x in memories.items() if id(x) in used}
            if more <= kept:
                break
            kept |= more
        if any(id(x) in used for x in others):
            names = ", ".join(self.spec.agents)
            raise UsageError(
                f"What {names} do depends on what others see or remember: export the whole team, not group by group."
            )
        return sorted(kept)

    def pick(
        self, inputs: Sequence[Value], outputs: dict[str, Value], kept: Sequence[int]
    ) -> tuple[list[Value], dict[str, Value], list[np.ndarray]]:
        """The inputs and outputs with the `kept` memories alone, numbered from 0, and what these hold at first."""
        named = {x.name: x for x in inputs}
        used = {id(x) for x in ordered(list(outputs.values()))}
        chosen = [x for x in inputs if not x.name.startswith("memory_") and (x.name not in TOLD or id(x) in used)]
        results = {name: x for name, x in outputs.items() if not name.startswith("next_memory_")}
        begin = []
        for number, i in enumerate(kept):
            named[f"memory_{i}"].name = f"memory_{number}"
            chosen.append(named[f"memory_{i}"])
            results[f"next_memory_{number}"] = outputs[f"next_memory_{i}"]
            begin.append(self.start[i][list(self.agents)] if self.rows[i] else self.start[i])
        return chosen, results, [x.astype(stored(x.dtype)) for x in begin]


def _first_row(leaf: Any) -> np.ndarray:
    """One team's part of a memory [1, ...]."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise UsageError("The policy remembers a random key, which export does not know: keep its jax.random.key_data.")
    return np.asarray(leaf)[0]
