"""Rules for primitives that move, join and sum the entries of arrays, and for branches and loops."""

from __future__ import annotations

import string

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.portable.graph import Shape, Value
from flockrl.portable.lower import RULES, Lowering, Step, differs, dims
from flockrl.portable.rules import rule, wrap

# Shapes


@rule("broadcast_in_dim")
def spread(low: Lowering, step: Step, args: list[Value]) -> Value:
    shape = [1] * len(step.outs[0])
    for place, size in zip(step.same("broadcast_dimensions"), _aligned(args[0], step.ins[0]), strict=True):
        shape[place] = size
    return low.graph.reshape(args[0], tuple(shape))


def _aligned(x: Value, shape: Shape) -> Shape:
    """The shape of a lazy value, with as many axes as JAX's array has."""
    return (1,) * (len(shape) - len(x.shape)) + x.shape


@rule("reshape", "squeeze", "expand_dims")
def reshape(low: Lowering, step: Step, args: list[Value]) -> Value:
    if step.params.get("dimensions") is not None and step.name == "reshape":
        raise UsageError("The policy uses a transposing reshape, which export does not know.")
    x, shape = args[0], step.outs[0]
    if np.prod(x.shape, dtype=int) == 1:
        return low.graph.reshape(x, (1,) * len(shape))
    if step.name == "squeeze":
        sizes = _aligned(x, step.ins[0])
        return low.graph.reshape(x, tuple(d for i, d in enumerate(sizes) if i not in step.same("dimensions")))
    return low.graph.reshape(low.full(x, step.ins[0]), shape)


@rule("transpose")
def transpose(low: Lowering, step: Step, args: list[Value]) -> Value:
    x = low.graph.reshape(args[0], _aligned(args[0], step.ins[0]))
    return low.graph.transpose(x, step.same("permutation"))


@rule("slice")
def cut(low: Lowering, step: Step, args: list[Value]) -> Value:
    x, sizes = low.graph.reshape(args[0], _aligned(args[0], step.ins[0])), step.ins[0]
    ends = dims(step.params["limit_indices"], step.other["limit_indices"])
    strides = step.same("strides") or (1,) * len(ends)
    for axis, (start, end, stride) in enumerate(zip(step.same("start_indices"), ends, strides, strict=True)):
        if (start, end, stride) == (0, sizes[axis], 1) or x.shape[axis] == 1 != sizes[axis]:
            continue
        if end < 0 or sizes[axis] < 0:
            raise differs("what a slice takes")
        x = low.graph.slice(x, axis, start, end, stride)
    return x


@rule("split")
def split(low: Lowering, step: Step, args: list[Value]) -> list[Value]:
    axis, ends = step.same("axis"), np.cumsum(step.same("sizes")).tolist()
    x = low.full(args[0], step.ins[0])
    return [low.graph.slice(x, axis, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


@rule("concatenate")
def concatenate(low: Lowering, step: Step, args: list[Value]) -> Value:
    parts = [low.full(x, shape) for x, shape in zip(args, step.ins, strict=True)]
    return low.graph.concat(parts, step.same("dimension"))


@rule("stack")
def stack(low: Lowering, step: Step, args: list[Value]) -> Value:
    axis = step.same("axis")
    wider = [(*shape[:axis], 1, *shape[axis:]) for shape in step.ins]
    parts = [low.graph.reshape(low.full(x, shape), wide) for x, shape, wide in zip(args, step.ins, wider, strict=True)]
    return low.graph.concat(parts, axis)


@rule("pad")
def pad(low: Lowering, step: Step, args: list[Value]) -> Value:
    x, widths = low.full(args[0], step.ins[0]), step.same("padding_config")
    if any(between for _, _, between in widths):
        raise UsageError("The policy pads between the entries of an array, which export does not know.")
    for axis, (before, after, _) in enumerate(widths):
        if before < 0 or after < 0:
            x = low.graph.slice(x, axis, max(0, -before), x.shape[axis] + min(0, after))
    before, after = (tuple(max(0, w[i]) for w in widths) for i in (0, 1))
    return padded(low, x, before, after, args[1])


def padded(low: Lowering, x: Value, before: Shape, after: Shape, filling: Value) -> Value:
    if not any(before + after):
        return x
    if any(d < 0 and a + b for d, a, b in zip(x.shape, before, after, strict=True)):
        raise differs("what is padded")
    shape = tuple(d + a + b for d, a, b in zip(x.shape, before, after, strict=True))
    return low.graph.emit("Pad", [x, filling], shape, x.dtype, pads=before + after)


@rule("iota")
def count(low: Lowering, step: Step, args: list[Value]) -> Value:
    axis, shape = step.same("dimension"), step.outs[0]
    if shape[axis] < 0:
        raise differs("the entries of an array")
    return low.graph.constant(
        np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))]), step.dtype
    )


@rule("rev")
def reverse(low: Lowering, step: Step, args: list[Value]) -> Value:
    x = low.full(args[0], step.ins[0])
    for axis in step.same("dimensions"):
        if x.shape[axis] < 0:
            raise differs("the order of an array")
        x = low.graph.take(x, axis, low.graph.constant(np.arange(x.shape[axis])[::-1]))
    return x


# Sums and products

SUMS = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd"}


@rule(*SUMS, "reduce_and", "reduce_or")
def reduce(low: Lowering, step: Step, args: list[Value]) -> Value:
    x, axes = low.full(args[0], step.ins[0]), tuple(step.same("axes"))
    op = SUMS.get(step.name, "ReduceMin" if step.name == "reduce_and" else "ReduceMax")
    if not axes:
        return x
    if any(x.shape[axis] < 0 for axis in axes):
        raise UsageError("The policy mixes the teams of a batch, which cannot be exported.")
    number = low.graph.cast(x, np.int32) if x.dtype == bool else x
    result = low.graph.emit(op, [number], step.outs[0], number.dtype, axes=axes)
    return low.graph.cast(wrap(low, step, result), step.dtype)


@rule("argmax", "argmin")
def best(low: Lowering, step: Step, args: list[Value]) -> Value:
    x, (axis,) = low.full(args[0], step.ins[0]), step.same("axes")
    x = low.graph.cast(x, np.int32) if x.dtype == bool else x
    op = "ArgMax" if step.name == "argmax" else "ArgMin"
    return low.graph.cast(low.graph.emit(op, [x], step.outs[0], np.int64, axis=axis), step.dtype)


@rule("cumsum")
def running_sum(low: Lowering, step: Step, args: list[Value]) -> Value:
    x, axis = low.full(args[0], step.ins[0]), step.same("axis")
    return low.graph.emit("CumSum", [x], x.shape, x.dtype, axis=axis, reverse=int(step.same("reverse")))


@rule("dot_general")
def product(low: Lowering, step: Step, args: list[Value]) -> Value:
    ((left_sum, right_sum), (left_batch, right_batch)) = step.same("dimension_numbers")
    left, right = (low.full(x, shape) for x, shape in zip(args, step.ins, strict=True))
    left, right = (low.graph.cast(x, step.dtype) for x in (left, right))
    rank = len(left.shape)
    if not left_batch and tuple(left_sum) == (rank - 1,) and len(right.shape) == 2:
        if tuple(right_sum) == (1,):
            right = low.graph.transpose(right, (1, 0))
        source = left.args[0] if left.op == "Reshape" and left.args[0].shape[-1:] == left.shape[-1:] else left
        if source.shape:  # a product of rows is a product along the last axis: the reshape to rows is not needed
            made = low.graph.emit("MatMul", [source, right], (*source.shape[:-1], right.shape[1]), step.dtype)
            return low.graph.reshape(made, step.outs[0])
    letters = iter(string.ascii_lowercase)
    names: list[list[str]] = [[""] * len(left.shape), [""] * len(right.shape)]
    for a, b in [*zip(left_batch, right_batch, strict=True), *zip(left_sum, right_sum, strict=True)]:
        names[0][a] = names[1][b] = next(letters)
    names = [[name or next(letters) for name in operand] for operand in names]
    kept = [names[0][i] for i in left_batch]
    kept += [name for i, name in enumerate(names[0]) if i not in (*left_batch, *left_sum)]
    kept += [name for i, name in enumerate(names[1]) if i not in (*right_batch, *right_sum)]
    equation = f"{''.join(names[0])},{''.join(names[1])}->{''.join(kept)}"
    return low.graph.emit("Einsum", [left, right], step.outs[0], step.dtype, equation=equation)


# Loops

RULES["scan"] = Lowering.scan


@rule("cond")
def branch(low: Lowering, step: Step, args: list[Value]) -> list[Value]:
    """All branches are computed, and one is chosen."""
    which, *rest = args
    pairs = zip(step.params["branches"], step.other["branches"], strict=True)
    cases = [low.walk(one, two, rest) for one, two in pairs]
    results = []
    for column in zip(*cases, strict=True):
        result = column[0]
        for i, case in enumerate(column[1:], 1):
            chosen = low.graph.elementwise("Equal", [which, low.graph.constant(i, which.dtype)], bool)
            result = low.graph.where(chosen, case, result)
        results.append(result)
    return results
