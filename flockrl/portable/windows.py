"""Rules for look-ups and windows: gathers, slices, convolutions, pooling."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.portable.arrays import padded
from flockrl.portable.graph import Value
from flockrl.portable.lower import Lowering, Step, differs, dims
from flockrl.portable.rules import rule

WINDOW = 64
"""The most entries of a pooling window: its entries are unrolled."""


@rule("gather")
def gather(low: Lowering, step: Step, args: list[Value]) -> Value:
    """x[:, i], x[i, j], and the like: whole slices at looked-up places; or one entry per row (take_along_axis)."""
    graph, numbers = low.graph, step.params["dimension_numbers"]
    x, index = low.full(args[0], step.ins[0]), low.full(args[1], step.ins[1])
    sizes = dims(step.params["slice_sizes"], step.other["slice_sizes"])
    looked, rows = numbers.start_index_map, tuple(getattr(numbers, "operand_batching_dims", ()))
    whole = [axis for axis in range(len(sizes)) if axis not in looked and axis not in rows]
    usual = set(looked) | set(rows) == set(numbers.collapsed_slice_dims) | set(rows)
    if not usual or any(sizes[axis] != x.shape[axis] for axis in whole) or any(x.shape[axis] < 0 for axis in looked):
        raise UsageError("The policy looks up parts of an array in a way that export does not know.")
    limits = [x.shape[axis] for axis in looked]
    index, valid = _bounded(low, graph.cast(index, np.int64), limits, step)
    places = tuple(i for i in range(len(step.outs[0])) if i not in numbers.offset_dims)
    if rows:
        result = _along(low, x, index, numbers, rows, step)
    elif len(looked) == 1 and places == tuple(range(looked[0], looked[0] + len(places))):
        result = graph.take(x, looked[0], graph.reshape(index, index.shape[:-1]))
    else:
        front = graph.transpose(x, [*looked, *whole])
        kept = front.shape[len(looked) :]
        if len(looked) > 1:  # merge several axes into one
            front = graph.reshape(front, (math.prod(limits), *kept))
            steps = np.cumprod([1, *limits[:0:-1]])[::-1]
            index = graph.elementwise("Mul", [index, graph.constant(steps, np.int64)], np.int64)
            index = graph.emit("ReduceSum", [index], index.shape[:-1], np.int64, axes=(len(index.shape) - 1,))
        else:
            index = graph.reshape(index, index.shape[:-1])
        result = graph.take(front, 0, index)
        order = [*places, *numbers.offset_dims]
        result = graph.transpose(result, np.argsort(order).tolist())
    if valid is None:
        return result
    shape = [1] * len(result.shape)
    for i, place in enumerate(places):
        shape[place] = valid.shape[i]
    filling = step.params["fill_value"]
    if filling is None:
        filling = np.nan if result.dtype.kind == "f" else True if result.dtype == bool else np.iinfo(result.dtype).min
    return graph.where(graph.reshape(valid, tuple(shape)), result, graph.constant(filling, result.dtype))


def _bounded(low: Lowering, index: Value, limits: list[int], step: Step) -> tuple[Value, Value | None]:
    """Indices moved inside the array, and which of them were inside before (None when that does not matter)."""
    graph, mode = low.graph, getattr(step.params["mode"], "name", str(step.params["mode"]))
    highest = graph.constant(np.array(limits) - 1, np.int64)
    if index.constant is not None and ((index.constant >= 0) & (index.constant < limits)).all():
        return index, None
    if "PROMISE" in mode:
        return index, None
    zero = graph.constant(0, np.int64)
    inside = graph.elementwise("Min", [graph.elementwise("Max", [index, zero], np.int64), highest], np.int64)
    if "CLIP" in mode:
        return inside, None
    agrees = graph.cast(graph.elementwise("Equal", [inside, index], bool), np.int32)
    valid = graph.emit("ReduceMin", [agrees], index.shape[:-1], np.int32, axes=(len(index.shape) - 1,))
    return inside, graph.cast(valid, bool)


def _along(low: Lowering, x: Value, index: Value, numbers: Any, rows: tuple[int, ...], step: Step) -> Value:
    """One entry of an axis in every row."""
    graph, axis = low.graph, numbers.start_index_map[0]
    order = tuple(numbers.start_indices_batching_dims)
    if (
        len(numbers.start_index_map) > 1
        or len(rows) != len(x.shape) - 1
        or order != tuple(range(len(rows) + 1))[: len(rows)]
    ):
        raise UsageError("The policy looks up entries of rows in a way that export does not know.")
    front = graph.transpose(x, [*rows, axis])
    index = graph.reshape(index, (*front.shape[:-1], math.prod(index.shape[len(rows) : -1])))
    made = graph.emit("GatherElements", [front, index], index.shape, x.dtype, axis=len(rows))
    return graph.reshape(made, step.outs[0])


@rule("dynamic_slice")
def window(low: Lowering, step: Step, args: list[Value]) -> Value:
    """A part of an array whose start is given by other arrays; it is moved inside if it would reach beyond the end."""
    x, starts = low.full(args[0], step.ins[0]), args[1:]
    sizes = dims(step.params["slice_sizes"], step.other["slice_sizes"])
    for axis, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        if size == x.shape[axis]:
            continue
        if x.shape[axis] < 0:
            raise differs("what a slice takes")
        limits = (low.graph.constant(i, np.int64) for i in (0, x.shape[axis] - size))
        first = low.graph.cast(start, np.int64)
        for op, limit in zip(("Max", "Min"), limits, strict=True):
            first = low.graph.elementwise(op, [first, limit], np.int64)
        places = low.graph.elementwise("Add", [first, low.graph.constant(np.arange(size))], np.int64)
        x = low.graph.take(x, axis, places)
    return x


@rule("conv_general_dilated")
def convolution(low: Lowering, step: Step, args: list[Value]) -> Value:
    left, right, out = step.same("dimension_numbers")
    if step.same("batch_group_count") != 1 or set(step.same("lhs_dilation")) - {1}:
        raise UsageError("The policy uses a transposed convolution, which export does not know.")
    x, kernel = (low.full(a, shape) for a, shape in zip(args, step.ins, strict=True))
    x, kernel = low.graph.transpose(x, left), low.graph.transpose(kernel, right)
    pads = step.same("padding")
    before, after = ((0, 0, *(pair[i] for pair in pads)) for i in (0, 1))
    x = padded(low, x, before, after, low.graph.constant(0, x.dtype))
    shape = tuple(step.outs[0][i] for i in out)
    made = low.graph.emit(
        "Conv", [x, kernel], shape, step.dtype, strides=tuple(step.same("window_strides")),
        dilations=tuple(step.same("rhs_dilation")), group=step.same("feature_group_count"),
    )  # fmt: skip
    return low.graph.transpose(made, np.argsort(out).tolist())


@rule("reduce_window_max", "reduce_window_sum")
def pool(low: Lowering, step: Step, args: list[Value]) -> Value:
    """A maximum or sum over windows, computed one window entry at a time."""
    window, strides = step.same("window_dimensions"), step.same("window_strides")
    if math.prod(window) > WINDOW or set(step.same("base_dilation")) | set(step.same("window_dilation")) != {1}:
        raise UsageError(f"The policy pools over more than {WINDOW} entries or with gaps, which export does not know.")
    largest = step.name == "reduce_window_max"
    before, after = (tuple(pair[i] for pair in step.same("padding")) for i in (0, 1))
    filling = low.graph.constant(-np.inf if largest else 0, step.dtype)
    x = padded(low, low.full(args[0], step.ins[0]), before, after, filling)
    result: Value | None = None
    for offset in itertools.product(*map(range, window)):
        part = x
        for axis, (start, stride, size) in enumerate(zip(offset, strides, step.outs[0], strict=True)):
            if x.shape[axis] < 0:
                if window[axis] != 1 or stride != 1:
                    raise differs("what is pooled")
                continue
            part = low.graph.slice(part, axis, start, start + stride * (size - 1) + 1, stride)
        result = (
            part if result is None else low.graph.elementwise("Max" if largest else "Add", [result, part], step.dtype)
        )
    assert result is not None
    return result
