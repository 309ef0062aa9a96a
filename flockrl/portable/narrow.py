"""Compute only some entries of an axis of a result: with this, the policy of one group is exported alone."""

from __future__ import annotations

from collections.abc import Sequence

from flockrl.portable.graph import FOLD, Graph, Value

ELEMENTWISE = (FOLD.keys() - {"Reshape", "Transpose", "Slice", "Concat", "Gather"}) | {
    "Sigmoid", "Sin", "Cos", "Floor", "Erf", "BitwiseOr", "Xor", "Mod",
}  # fmt: skip


def narrow(graph: Graph, x: Value, axis: int, places: Sequence[int]) -> Value:
    """The entries `places` of `axis`. They are chosen as early as possible, before every operation that allows it."""
    axis, places = axis % len(x.shape), list(places)
    if x.shape[axis] == 1 or places == list(range(x.shape[axis])):
        return x
    shape = (*x.shape[:axis], len(places), *x.shape[axis + 1 :])
    if x.op in ELEMENTWISE:
        back = axis - len(x.shape)
        args = [narrow(graph, arg, back, places) if len(arg.shape) >= -back else arg for arg in x.args]
        return graph.emit(x.op, args, shape, x.dtype, **x.attrs)
    if x.op in ("Gather", "Concat", "Slice"):
        return _chosen(graph, x, axis, places)
    below = _below(x, axis)
    if below is None:
        return graph.take(x, axis, graph.constant(places))
    args = [narrow(graph, x.args[0], below, places), *x.args[1:]]
    if x.op == "Reshape":
        return graph.reshape(args[0], shape)
    attrs = {**x.attrs, "shape": shape} if x.op == "Expand" else x.attrs
    return graph.emit(x.op, args, shape, x.dtype, **attrs)


def _chosen(graph: Graph, x: Value, axis: int, places: list[int]) -> Value:
    """`narrow` for operations that themselves choose or join entries."""
    source, along = x.args[0], x.attrs.get("axis", axis)
    if x.op == "Gather" and along <= axis < along + len(x.args[1].shape):
        return graph.take(source, along, narrow(graph, x.args[1], axis - along, places))
    if x.op == "Concat" and axis != along:
        return graph.concat([narrow(graph, part, axis, places) for part in x.args], along)
    if x.op == "Slice" and axis not in x.attrs["axes"]:
        (start,), (end,), (other,), (step,) = (x.attrs[name] for name in ("starts", "ends", "axes", "steps"))
        return graph.slice(narrow(graph, source, axis, places), other, start, end, step)
    return graph.take(x, axis, graph.constant(places))


def _below(x: Value, axis: int) -> int | None:
    """The axis of the argument that became `axis` unchanged, or None."""
    if x.op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ArgMax", "ArgMin"):
        gone = x.attrs.get("axes") or (x.attrs["axis"],)
        return [i for i in range(len(x.args[0].shape)) if i not in gone][axis]
    if x.op == "Transpose":
        return x.attrs["perm"][axis]
    if x.op == "Expand":
        return axis
    if x.op == "CumSum":
        return axis if x.attrs["axis"] != axis else None
    if x.op == "Pad":
        width = len(x.shape)
        return axis if not x.attrs["pads"][axis] and not x.attrs["pads"][axis + width] else None
    if x.op == "Reshape":  # one that only adds or removes axes of size 1
        before, after = ([i for i, d in enumerate(shape) if d != 1] for shape in (x.args[0].shape, x.shape))
        if [x.args[0].shape[i] for i in before] == [x.shape[i] for i in after]:
            return before[after.index(axis)]
    return None
