"""A `Graph` as a TorchScript model: its operations are run in torch and traced."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flockrl.core.errors import UsageError, install
from flockrl.portable.graph import Shape, Value, ordered

BATCHES = 3, 2
"""The batch size that is traced, and another one at which the trace must give the same results."""


def write_torchscript(path: Path, inputs: Sequence[Value], outputs: Mapping[str, Value]) -> None:
    """Write the model: a function of the inputs in order, which returns the outputs in order as a tuple."""
    try:
        import torch
    except ImportError as error:
        raise UsageError(f"Export to TorchScript needs torch: {install('torchscript')}.") from error
    module = _module(torch, inputs, outputs)
    examples, others = (_examples(torch, inputs, batch) for batch in BATCHES)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch.jit warns that it is no longer recommended
        model = torch.jit.trace(module, examples, check_trace=False)
        for want, got in zip(module(*others), model(*others), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)
        torch.jit.save(model, str(path))


def _examples(torch: Any, inputs: Sequence[Value], batch: int) -> tuple[Any, ...]:
    sizes = [[batch if d < 0 else d for d in x.shape] for x in inputs]
    return tuple(torch.full(s, 0.5).to(getattr(torch, x.dtype.name)) for s, x in zip(sizes, inputs, strict=True))


def _module(torch: Any, inputs: Sequence[Value], outputs: Mapping[str, Value]) -> Any:
    """The graph as a torch module, which computes its values in order."""
    values, table = ordered(list(outputs.values())), _table(torch)
    names = {id(x): f"c{i}" for i, x in enumerate(values) if x.numbers is not None}
    unknown = {x.op for x in values if x.op} - table.keys() - {"Expand"}
    if unknown:
        raise UsageError(f"The policy uses {', '.join(sorted(unknown))}, which has no counterpart in TorchScript.")

    class Team(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for x in values:
                if x.numbers is not None:
                    self.register_buffer(names[id(x)], torch.tensor(x.numbers))

        def forward(self, *given: Any) -> tuple[Any, ...]:
            known = {id(x): value for x, value in zip(inputs, given, strict=True)}
            batch = given[0].size(0)
            for x in values:
                if x.numbers is not None:
                    known[id(x)] = getattr(self, names[id(x)])
                elif x.op == "Expand":
                    known[id(x)] = known[id(x.args[0])].expand([d if d >= 0 else -d * batch for d in x.attrs["shape"]])
                elif x.op:
                    known[id(x)] = table[x.op](*(known[id(arg)] for arg in x.args), **x.attrs)
            return tuple(known[id(x)] for x in outputs.values())

    return Team().eval()


def _table(torch: Any) -> dict[str, Callable[..., Any]]:
    """The torch function for each operation of the graph."""

    def divide(a: Any, b: Any) -> Any:
        return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")

    def pick(x: Any, starts: Shape, ends: Shape, axes: Shape, steps: Shape) -> Any:
        place = [slice(None)] * x.dim()
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            place[axis] = slice(start, end, step)
        return x[tuple(place)]

    def pad(x: Any, filling: Any, pads: Shape) -> Any:
        half = len(pads) // 2
        widths = [w for i in reversed(range(half)) for w in (pads[i], pads[half + i])]
        if x.dtype == torch.bool:
            return torch.nn.functional.pad(x.to(torch.uint8), widths, value=int(filling)).to(torch.bool)
        return torch.nn.functional.pad(x, widths, value=filling.item())

    def add_up(x: Any, axis: int, reverse: int) -> Any:
        total = torch.cumsum(x.flip(axis) if reverse else x, axis).to(x.dtype)
        return total.flip(axis) if reverse else total

    def gather(x: Any, index: Any, axis: int) -> Any:
        flat = torch.index_select(x, axis, index.reshape(-1))
        return flat.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])

    def convolve(x: Any, kernel: Any, strides: Shape, dilations: Shape, group: int) -> Any:
        function = getattr(torch.nn.functional, f"conv{x.dim() - 2}d")
        return function(x, kernel, stride=strides, dilation=dilations, groups=group)

    def product(x: Any, axes: Shape) -> Any:
        for axis in sorted(axes, reverse=True):
            x = torch.prod(x, axis, dtype=x.dtype)
        return x

    names = {
        "Add": "add", "Sub": "sub", "Mul": "mul", "Pow": "pow", "Mod": "fmod", "Max": "maximum", "Min": "minimum",
        "Neg": "neg", "Abs": "abs", "Sign": "sign", "Floor": "floor", "Ceil": "ceil", "Exp": "exp", "Log": "log",
        "Sqrt": "sqrt", "Tanh": "tanh", "Sigmoid": "sigmoid", "Erf": "erf", "Sin": "sin", "Cos": "cos", "Tan": "tan",
        "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Equal": "eq", "Less": "lt",
        "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge", "And": "logical_and", "Or": "logical_or",
        "Xor": "logical_xor", "Not": "logical_not", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
        "BitwiseXor": "bitwise_xor", "BitwiseNot": "bitwise_not", "Where": "where", "MatMul": "matmul",
    }  # fmt: skip
    return {
        **{op: getattr(torch, name) for op, name in names.items()},
        "Div": divide, "Slice": pick, "Pad": pad, "CumSum": add_up, "Gather": gather, "Conv": convolve,
        "Cast": lambda x, to: x.to(getattr(torch, to)),
        "Reshape": lambda x, shape: x.reshape(shape),
        "Transpose": lambda x, perm: x.permute(perm),
        "Concat": lambda *parts, axis: torch.cat(parts, axis),
        "GatherElements": lambda x, index, axis: torch.gather(x, axis, index),
        "Einsum": lambda a, b, equation: torch.einsum(equation, a, b),
        "ReduceSum": lambda x, axes: torch.sum(x, axes, dtype=x.dtype),
        "ReduceMax": lambda x, axes: torch.amax(x, axes), "ReduceMin": lambda x, axes: torch.amin(x, axes),
        "ReduceProd": product,
        "ArgMax": lambda x, axis: torch.argmax(x, axis), "ArgMin": lambda x, axis: torch.argmin(x, axis),
    }  # fmt: skip
