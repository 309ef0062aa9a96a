"""A small graph of array operations, which JAX functions are translated to, and ONNX and TorchScript written from.

Operations have ONNX's names and meanings, with shapes and axes as plain attributes. A dimension -k stands for k times
the size of the batch. Equal nodes are one node, and operations on constants are computed when the graph is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError

Shape = tuple[int, ...]


@dataclass(eq=False)
class Value:
    """An array: an input with a `name`, a constant, a parameter, or the result of `op` on `args`.

    A parameter has numbers like a constant, but they may be replaced, so nothing is computed from them here.
    """

    shape: Shape
    dtype: np.dtype
    op: str = ""
    args: tuple[Value, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    constant: np.ndarray | None = None
    parameter: np.ndarray | None = None

    @property
    def numbers(self) -> np.ndarray | None:
        """The numbers of a constant or a parameter; None for other values."""
        return self.constant if self.parameter is None else self.parameter


def _slice(x: np.ndarray, starts: Shape, ends: Shape, axes: Shape, steps: Shape) -> np.ndarray:
    place = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place[axis] = slice(start, end, step)
    return x[tuple(place)]


FOLD: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum, "Pow": np.power,
    "Neg": np.negative, "Abs": np.abs, "Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt, "Tanh": np.tanh,
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not,
    "Where": np.where, "BitwiseAnd": np.bitwise_and, "BitwiseXor": np.bitwise_xor,
    "Div": lambda a, b: a / b if a.dtype.kind == "f" else np.trunc(a / b),
    "Cast": lambda x, to: x.astype(to),
    "Reshape": lambda x, shape: x.reshape(shape),
    "Transpose": lambda x, perm: x.transpose(perm),
    "Slice": _slice,
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Gather": lambda x, index, axis: np.take(x, index, axis),
}  # fmt: skip
"""Operations that are computed immediately when all arguments are constants."""


class Graph:
    """Builds values, each only once."""

    def __init__(self) -> None:
        self._known: dict[Any, Value] = {}

    def constant(self, x: Any, dtype: Any = None) -> Value:
        array = np.asarray(x, dtype, order="C")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = Value(array.shape, array.dtype, constant=array)
        return self._known[key]

    def emit(self, op: str, args: Sequence[Value], shape: Shape, dtype: Any, /, **attrs: Any) -> Value:
        """The value of `op`, with the shape and dtype that it will have."""
        fixed = [x.constant for x in args]
        if op in FOLD and args and all(x is not None for x in fixed) and min(shape, default=0) >= 0:
            with np.errstate(all="ignore"):
                return self.constant(FOLD[op](*fixed, **attrs), dtype)
        key = (op, tuple(map(id, args)), repr(attrs))
        if key not in self._known:
            self._known[key] = Value(tuple(shape), np.dtype(dtype), op, tuple(args), attrs)
        return self._known[key]

    # Operations with rules of their own

    def elementwise(self, op: str, args: Sequence[Value], dtype: Any) -> Value:
        """An operation with numpy's broadcasting."""
        return self.emit(op, args, broadcast([x.shape for x in args]), dtype)

    def cast(self, x: Value, dtype: Any) -> Value:
        dtype = np.dtype(dtype)
        return x if x.dtype == dtype else self.emit("Cast", [x], x.shape, dtype, to=dtype.name)

    def reshape(self, x: Value, shape: Shape) -> Value:
        if x.op == "Reshape":
            x = x.args[0]
        if x.shape == shape:
            return x
        if sum(d < 0 for d in shape) > 1:
            raise UsageError("The policy has an array with the batch on two axes, which cannot be exported.")
        return self.emit("Reshape", [x], shape, x.dtype, shape=tuple(-1 if d < 0 else d for d in shape))

    def expand(self, x: Value, shape: Shape) -> Value:
        """`x` with its axes of size 1 stretched to `shape`."""
        if x.shape == shape:
            return x
        if min(shape, default=0) >= 0 and x.constant is not None:
            return self.constant(np.broadcast_to(x.constant, shape))
        return self.emit("Expand", [x], shape, x.dtype, shape=shape)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        perm = tuple(perm)
        if perm == tuple(range(len(perm))):
            return x
        return self.emit("Transpose", [x], tuple(x.shape[i] for i in perm), x.dtype, perm=perm)

    def slice(self, x: Value, axis: int, start: int, end: int, step: int = 1) -> Value:
        """Entries start, start + step, ... below `end` on an axis that is not the batch."""
        if x.op == "Concat" and x.attrs["axis"] == axis:  # if it lies within one part, slice that part
            begins = np.cumsum([0, *(part.shape[axis] for part in x.args)]).tolist()
            for part, begin in zip(x.args, begins, strict=False):
                if begin <= start and end <= begin + part.shape[axis]:
                    return self.slice(part, axis, start - begin, end - begin, step)
        if x.op == "Pad" and step == 1:  # if it contains no padding, slice the array before padding
            begin, size = x.attrs["pads"][axis], x.args[0].shape[axis]
            alone = not any(w for i, w in enumerate(x.attrs["pads"]) if i % len(x.shape) != axis)
            if alone and begin <= start and end <= begin + size:
                return self.slice(x.args[0], axis, start - begin, end - begin)
        if x.op == "Gather" and x.attrs["axis"] == axis and x.args[1].constant is not None and x.args[1].constant.ndim:
            return self.take(x.args[0], axis, self.constant(x.args[1].constant[start:end:step]))
        if (start, end, step) == (0, x.shape[axis], 1):
            return x
        shape = list(x.shape)
        shape[axis] = max(0, math.ceil((end - start) / step))
        return self.emit(
            "Slice", [x], tuple(shape), x.dtype, starts=(start,), ends=(end,), axes=(axis,), steps=(step,)
        )  # fmt: skip

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.emit("Concat", parts, tuple(shape), parts[0].dtype, axis=axis)

    def where(self, condition: Value, yes: Value, no: Value) -> Value:
        if condition.constant is not None and condition.constant.size == 1:
            chosen = yes if condition.constant.item() else no
            return self.reshape(chosen, (1,) * (len(condition.shape) - len(chosen.shape)) + chosen.shape)
        if yes.dtype == bool:  # onnxruntime chooses between numbers only
            taken = self.elementwise("And", [condition, yes], bool)
            left = self.elementwise("And", [self.elementwise("Not", [condition], bool), no], bool)
            return self.elementwise("Or", [taken, left], bool)
        return self.elementwise("Where", [condition, yes, no], yes.dtype)

    def take(self, x: Value, axis: int, index: Value) -> Value:
        """Entries of one axis; the axes of `index` replace it in the result."""
        places = index.constant
        if places is not None and places.ndim == 1 and len(places) and places.min() >= 0:
            inner = x.args[1].constant if x.op == "Gather" and x.attrs["axis"] == axis else None
            if inner is not None and inner.ndim == 1:
                return self.take(x.args[0], axis, self.constant(inner[places]))
            if np.array_equal(places, np.arange(places[0], places[-1] + 1)):
                return self.slice(x, axis, int(places[0]), int(places[-1]) + 1)
            if x.op == "Concat" and x.attrs["axis"] == axis:
                begin = 0
                for part in x.args:
                    if begin <= places.min() and places.max() < begin + part.shape[axis]:
                        return self.take(part, axis, self.constant(places - begin))
                    begin += part.shape[axis]
        shape = x.shape[:axis] + index.shape + x.shape[axis + 1 :]
        return self.emit("Gather", [x, self.cast(index, np.int64)], shape, x.dtype, axis=axis)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape of an elementwise operation's result."""
    rank = max(map(len, shapes))
    columns = zip(*[(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes], strict=True)
    return tuple(next((d for d in column if d != 1), 1) for column in columns)


def ordered(outputs: Sequence[Value]) -> list[Value]:
    """All values that the outputs need, arguments first."""
    found: dict[int, Value] = {}
    waiting = [(x, False) for x in reversed(outputs)]
    while waiting:
        x, ready = waiting.pop()
        if id(x) in found:
            continue
        if ready:
            found[id(x)] = x
            continue
        waiting.append((x, True))
        waiting += [(arg, False) for arg in reversed(x.args)]
    return list(found.values())
