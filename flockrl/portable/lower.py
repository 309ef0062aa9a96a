"""From a JAX function to a `Graph`: one rule for each primitive, so that any network can be translated.

The function is traced at two batch sizes. Where the two programs differ in a dimension, that dimension grows with the
batch; where they differ in anything else, the function cannot be exported for any batch size.

Broadcasts are lazy: an axis of a `Value` may have size 1 where JAX's array is longer, and is stretched (`full`) only
for operations that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

from flockrl.core.errors import UsageError
from flockrl.portable.graph import Graph, Shape, Value

RULES: dict[str, Callable[[Lowering, Step, list[Value]], Any]] = {}
"""The rule for each primitive; `rules`, `arrays` and `windows` fill it."""
BATCHES = 7, 11
"""The two batch sizes; primes, so that other dimensions are hardly mistaken for multiples of the batch."""
UNROLL = 256
"""The longest loop that is unrolled."""
INSIDE = {"jaxpr", "call_jaxpr", "fun_jaxpr"}
"""Parameters that hold the inner program of a primitive which only calls it."""


class Step(NamedTuple):
    """One equation: its primitive, its parameters at both batch sizes, and the shapes of its arguments and results."""

    name: str
    params: dict[str, Any]
    other: dict[str, Any]
    ins: list[Shape]
    outs: list[Shape]
    dtypes: list[Any]

    @property
    def dtype(self) -> np.dtype:
        """The graph's dtype of the first result."""
        return stored(self.dtypes[0])

    def same(self, name: str) -> Any:
        """A parameter that must not depend on the batch size."""
        if self.params[name] != self.other[name]:
            raise differs(f"{name} of {self.name}")
        return self.params[name]


def lower(function: Callable[..., Any], shapes: Sequence[Any], graph: Graph, inputs: Sequence[Value]) -> list[Value]:
    """Values of the function's results. shapes: (shape, dtype) of each argument with None for the batch."""
    programs = []
    for batch in BATCHES:
        args = [jax.ShapeDtypeStruct([batch if d is None else d for d in s], dtype) for s, dtype in shapes]
        programs.append(jax.make_jaxpr(function)(*args))
    one, two = programs
    walker = Lowering(graph)
    outs = walker.walk(one, two, inputs)
    sizes = [dims(a.aval.shape, b.aval.shape) for a, b in zip(one.jaxpr.outvars, two.jaxpr.outvars, strict=True)]
    return [walker.full(x, size) for x, size in zip(outs, sizes, strict=True)]


class Lowering:
    """Walks through both programs together."""

    def __init__(self, graph: Graph):
        self.graph = graph

    def scan(self, step: Step, args: list[Value]) -> list[Value]:
        """Unroll a loop."""
        length, fixed, carried = (step.same(name) for name in ("length", "num_consts", "num_carry"))
        if length > UNROLL:
            raise UsageError(f"The policy has a loop of {length} steps, and export writes out {UNROLL} at most.")
        programs = closed(step.params["jaxpr"]), closed(step.other["jaxpr"])
        consts, carry, rows = args[:fixed], args[fixed : fixed + carried], args[fixed + carried :]
        rows = [self.full(x, shape) for x, shape in zip(rows, step.ins[fixed + carried :], strict=True)]
        outs: list[list[Value]] = []
        for i in reversed(range(length)) if step.same("reverse") else range(length):
            now = [self.graph.reshape(self.graph.slice(x, 0, i, i + 1), x.shape[1:]) for x in rows]
            results = self.walk(*programs, [*consts, *carry, *now])
            carry = results[:carried]
            outs.append(results[carried:])
        if step.same("reverse"):
            outs.reverse()
        shapes = step.outs[carried:]
        stacked = [
            self.graph.concat([self.full(x, (1, *shape[1:])) for x in column], 0)
            for column, shape in zip(zip(*outs, strict=True), shapes, strict=True)
        ]
        return [*carry, *stacked]

    def full(self, x: Value, shape: Shape) -> Value:
        """`x` with all of its axes stretched to `shape`."""
        return self.graph.expand(self.graph.reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape), shape)

    def walk(self, one: Any, two: Any, args: Sequence[Value]) -> list[Value]:
        """Results of a closed jaxpr (given at both batch sizes). Equations that no result needs are skipped."""
        known: dict[Any, Value] = {}
        for var, a, b in zip(one.jaxpr.constvars, one.consts, two.consts, strict=True):
            if not np.array_equal(a, b):
                raise differs("a constant in it")
            known[var] = self.graph.constant(a, stored(var.aval.dtype))
        known.update(zip(one.jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Value:
            kind: Any = atom.aval
            return self.graph.constant(atom.val, stored(kind.dtype)) if isinstance(atom, Literal) else known[atom]

        if len(one.jaxpr.eqns) != len(two.jaxpr.eqns):
            raise differs("its number of operations")
        live = _live(one.jaxpr)
        for eqn, other in zip(one.jaxpr.eqns, two.jaxpr.eqns, strict=True):
            if id(eqn) not in live:
                continue
            name = eqn.primitive.name
            if name != other.primitive.name:
                raise differs("its operations")
            for a, b in zip(eqn.invars, other.invars, strict=True):
                if isinstance(a, Literal) and not np.array_equal(a.val, b.val, equal_nan=True):
                    raise differs("a number in it")
            if not (name in RULES or INSIDE & eqn.params.keys()):
                raise UsageError(f"The policy uses the JAX operation {name!r}, which export does not know.")
            step = Step(
                name, eqn.params, other.params,
                [dims(a.aval.shape, b.aval.shape) for a, b in zip(eqn.invars, other.invars, strict=True)],
                [dims(a.aval.shape, b.aval.shape) for a, b in zip(eqn.outvars, other.outvars, strict=True)],
                [v.aval.dtype for v in eqn.outvars],
            )  # fmt: skip
            results = self.apply(step, [read(atom) for atom in eqn.invars])
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in one.jaxpr.outvars]

    def apply(self, step: Step, args: list[Value]) -> list[Value]:
        if step.name not in RULES:  # a call, such as of a function under jit
            name = next(iter(INSIDE & step.params.keys()))
            return self.walk(closed(step.params[name]), closed(step.other[name]), args)
        result = RULES[step.name](self, step, args)
        return result if isinstance(result, list) else [result]


def _live(jaxpr: Any) -> set[int]:
    """Equations that some result of the program depends on."""
    needed = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    live = set()
    for eqn in reversed(jaxpr.eqns):
        if any(v in needed for v in eqn.outvars):
            live.add(id(eqn))
            needed.update(v for v in eqn.invars if not isinstance(v, Literal))
    return live


def closed(jaxpr: Any) -> Any:
    """A jaxpr as a closed one."""
    if hasattr(jaxpr, "consts"):
        return jaxpr
    from jax.extend.core import ClosedJaxpr

    return ClosedJaxpr(jaxpr, ())


def dims(one: Sequence[int], two: Sequence[int]) -> Shape:
    """The graph's shape from the shapes at both batch sizes."""
    if len(one) != len(two):
        raise differs("the number of an array's axes")
    return tuple(dim(a, b) for a, b in zip(one, two, strict=True))


def dim(one: int, two: int) -> int:
    first, second = BATCHES
    if one == two:
        return int(one)
    if one * second != two * first or one % first:
        raise differs("the size of an array in a way that is no multiple of it")
    return -(one // first)


def differs(what: str) -> UsageError:
    return UsageError(f"The policy cannot be exported for any batch size: the batch size changes {what}.")


def stored(dtype: Any) -> np.dtype:
    """The graph's dtype for a JAX dtype: uint32 becomes int64, the others stay."""
    dtype = np.dtype(dtype)
    if dtype.name == "uint32":
        return np.dtype(np.int64)
    if dtype.name not in ("float32", "float64", "int32", "int64", "bool", "uint8"):
        raise UsageError(f"The policy computes with {dtype.name}, which export does not know: use float32.")
    return dtype
