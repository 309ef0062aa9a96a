"""A `Graph` as an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError, install
from flockrl.portable.graph import Shape, Value, ordered

OPSET, IR = 18, 8
"""Versions of operators and file format: onnxruntime 1.14 and everything newer reads them."""
TYPES = {"float32": 1, "uint8": 2, "int32": 6, "int64": 7, "bool": 9, "float64": 11}
"""ONNX's numbers of the dtypes."""
LARGEST = 2_000_000_000
"""The most bytes of a model's constants: the file format allows 2 GB."""
AS_INPUTS = {
    "Reshape": ("shape",), "Slice": ("starts", "ends", "axes", "steps"), "ReduceSum": ("axes",), "CumSum": ("axis",),
    "ReduceMax": ("axes",), "ReduceMin": ("axes",), "ReduceProd": ("axes",),
}  # fmt: skip
"""Attributes of the graph that are inputs in ONNX."""
MORE: dict[str, dict[str, Any]] = {
    "ReduceSum": {"keepdims": 0}, "ReduceMax": {"keepdims": 0}, "ReduceMin": {"keepdims": 0},
    "ReduceProd": {"keepdims": 0}, "ArgMax": {"keepdims": 0}, "ArgMin": {"keepdims": 0}, "Mod": {"fmod": 1},
}  # fmt: skip
"""Attributes that ONNX needs in addition."""


def write_onnx(path: Path, inputs: Sequence[Value], outputs: Mapping[str, Value]) -> None:
    """Write the model. The first input's first axis is the batch."""
    try:
        import onnx
    except ImportError as error:
        raise UsageError(f"Export to ONNX needs onnx: {install('export')}.") from error
    model = _Writer(onnx, inputs, outputs).model()
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


class _Writer:
    def __init__(self, onnx: Any, inputs: Sequence[Value], outputs: Mapping[str, Value]):
        self.onnx, self.inputs, self.outputs = onnx, inputs, outputs
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.names: dict[int, str] = {id(x): x.name for x in inputs}
        self.sizes: dict[Shape, str] = {}

    def model(self) -> Any:
        helper = self.onnx.helper
        values = ordered(list(self.outputs.values()))
        size = sum(x.numbers.nbytes for x in values if x.numbers is not None)
        if size > LARGEST:
            raise UsageError(f"The policy has {size / 1e9:.1f} GB of numbers, and an ONNX file holds 2 GB at most.")
        for number, x in enumerate(values):
            if id(x) not in self.names:
                self.names[id(x)] = self.node(x, f"v{number}")
        for name, x in self.outputs.items():
            self.nodes.append(helper.make_node("Identity", [self.names[id(x)]], [name]))
        graph = helper.make_graph(
            self.nodes, "team", [self.info(x.name, x) for x in self.inputs],
            [self.info(name, x) for name, x in self.outputs.items()], list(self.constants.values()),
        )  # fmt: skip
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, producer_name="flockrl", opset_imports=opsets, ir_version=IR)

    def info(self, name: str, x: Value) -> Any:
        shape = ["batch" if d < 0 else d for d in x.shape]
        return self.onnx.helper.make_tensor_value_info(name, TYPES[x.dtype.name], shape)

    def constant(self, array: Any, name: str) -> str:
        self.constants[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def whole(self, numbers: Any) -> str:
        """Whole numbers as a constant."""
        array = np.array(numbers, np.int64)
        name = "n" + "_".join(map(str, np.atleast_1d(array))) + ("" if array.ndim else "s")
        return name if name in self.constants else self.constant(array, name)

    def add(self, op: str, args: list[str], name: str, **attrs: Any) -> str:
        self.nodes.append(self.onnx.helper.make_node(op, args, [name], **attrs))
        return name

    def node(self, x: Value, name: str) -> str:
        if x.numbers is not None:
            return self.constant(x.numbers, name)
        args, attrs = [self.names[id(arg)] for arg in x.args], dict(x.attrs)
        if x.op == "Expand":
            return self.add("Expand", [*args, self.size(attrs["shape"])], name)
        if x.op == "Pad":
            return self.add("Pad", [args[0], self.whole(attrs["pads"]), args[1]], name)
        if x.op == "Cast":
            return self.add("Cast", args, name, to=TYPES[attrs["to"]])
        if x.op == "CumSum":
            return self.add("CumSum", [*args, self.whole(attrs["axis"])], name, reverse=attrs["reverse"])
        args += [self.whole(attrs.pop(key)) for key in AS_INPUTS.get(x.op, ())]
        return self.add(x.op, args, name, **attrs, **MORE.get(x.op, {}))

    def size(self, shape: Shape) -> str:
        """A shape as a node; dimensions of the batch are computed from the first input."""
        if shape not in self.sizes:
            parts, number = [], len(self.sizes)
            for i, d in enumerate(shape):
                if d >= 0:
                    parts.append(self.whole([d]))
                    continue
                if "batch" not in self.names.values():
                    self.names[-1] = self.add("Shape", [self.inputs[0].name], "batch", start=0, end=1)
                parts.append(self.add("Mul", ["batch", self.whole([-d])], f"s{number}_{i}"))
            self.sizes[shape] = self.add("Concat", parts, f"s{number}", axis=0)
        return self.sizes[shape]
