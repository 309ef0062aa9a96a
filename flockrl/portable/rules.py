"""Rules for JAX's elementwise primitives.

A rule is a function (lowering, step, arguments) -> the result or a list of results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.portable.graph import Value
from flockrl.portable.lower import RULES, Lowering, Step

Rule = Callable[[Lowering, Step, list[Value]], Any]
WORD = 0xFFFFFFFF
"""The largest 32-bit word, used as a mask where results wrap around."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    def note(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return note


PLAIN = {
    "max": "Max", "min": "Min", "add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "neg": "Neg",
    "div": "Div", "pow": "Pow", "rem": "Mod", "abs": "Abs", "sign": "Sign", "floor": "Floor", "ceil": "Ceil",
    "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh", "logistic": "Sigmoid", "erf": "Erf", "sin": "Sin",
    "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh",
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}  # fmt: skip
BITS = {"and": ("And", "BitwiseAnd"), "or": ("Or", "BitwiseOr"), "xor": ("Xor", "BitwiseXor")}
LIMITS = {"max": "or", "min": "and"}


@rule(*PLAIN)
def plain(low: Lowering, step: Step, args: list[Value]) -> Value:
    if args[0].dtype == bool and step.name in LIMITS:
        return low.graph.elementwise(BITS[LIMITS[step.name]][0], args, bool)
    return wrap(low, step, low.graph.elementwise(PLAIN[step.name], args, step.dtype))


def wrap(low: Lowering, step: Step, x: Value) -> Value:
    """Keep uint32 results, which the graph stores as int64, within 32 bits."""
    if step.dtypes[0] != np.uint32:
        return x
    return low.graph.elementwise("BitwiseAnd", [x, low.graph.constant(WORD, np.int64)], np.int64)


@rule(*BITS)
def bits(low: Lowering, step: Step, args: list[Value]) -> Value:
    return low.graph.elementwise(BITS[step.name][args[0].dtype != bool], args, step.dtype)


@rule("not")
def inverse(low: Lowering, step: Step, args: list[Value]) -> Value:
    return wrap(low, step, low.graph.elementwise("Not" if args[0].dtype == bool else "BitwiseNot", args, step.dtype))


@rule("ne")
def unequal(low: Lowering, step: Step, args: list[Value]) -> Value:
    return low.graph.elementwise("Not", [low.graph.elementwise("Equal", args, bool)], bool)


@rule("shift_right_logical")
def shift(low: Lowering, step: Step, args: list[Value]) -> Value:
    if step.dtypes[0] != np.uint32 or args[1].constant is None:
        raise UsageError("The policy shifts bits in a way that export does not know.")
    return low.graph.elementwise("Div", [args[0], low.graph.constant(2 ** args[1].constant, np.int64)], np.int64)


@rule("bitcast_convert_type")
def bitcast(low: Lowering, step: Step, args: list[Value]) -> Value:
    if args[0].dtype != np.int32 or step.dtypes[0] != np.uint32:
        raise UsageError("The policy reads the bits of its numbers, which export does not know.")
    return wrap(low, step, low.graph.cast(args[0], np.int64))


def _number(low: Lowering, step: Step, x: float) -> Value:
    return low.graph.constant(x, step.dtype)


@rule("square", "integer_pow")
def power(low: Lowering, step: Step, args: list[Value]) -> Value:
    exponent, x = 2 if step.name == "square" else step.same("y"), args[0]
    if exponent not in (-2, -1, 0, 1, 2, 3):
        return low.graph.elementwise("Pow", [x, _number(low, step, exponent)], step.dtype)
    one = _number(low, step, 1)
    result = one if exponent == 0 else x
    for _ in range(abs(exponent) - 1):
        result = low.graph.elementwise("Mul", [result, x], step.dtype)
    return low.graph.elementwise("Div", [one, result], step.dtype) if exponent < 0 else result


@rule("rsqrt")
def inverse_root(low: Lowering, step: Step, args: list[Value]) -> Value:
    root = low.graph.elementwise("Sqrt", args, step.dtype)
    return low.graph.elementwise("Div", [_number(low, step, 1), root], step.dtype)


@rule("log1p")
def log_plus_one(low: Lowering, step: Step, args: list[Value]) -> Value:
    return low.graph.elementwise(
        "Log", [low.graph.elementwise("Add", [args[0], _number(low, step, 1)], step.dtype)], step.dtype
    )


@rule("expm1")
def exp_minus_one(low: Lowering, step: Step, args: list[Value]) -> Value:
    return low.graph.elementwise(
        "Sub", [low.graph.elementwise("Exp", args, step.dtype), _number(low, step, 1)], step.dtype
    )


@rule("exp2")
def exp_of_two(low: Lowering, step: Step, args: list[Value]) -> Value:
    return low.graph.elementwise("Pow", [_number(low, step, 2), args[0]], step.dtype)


@rule("erfc")
def error_rest(low: Lowering, step: Step, args: list[Value]) -> Value:
    return low.graph.elementwise(
        "Sub", [_number(low, step, 1), low.graph.elementwise("Erf", args, step.dtype)], step.dtype
    )


@rule("is_finite")
def finite(low: Lowering, step: Step, args: list[Value]) -> Value:
    size = low.graph.elementwise("Abs", args, args[0].dtype)
    return low.graph.elementwise("Less", [size, low.graph.constant(np.inf, args[0].dtype)], bool)


@rule("clamp")
def clamp(low: Lowering, step: Step, args: list[Value]) -> Value:
    least, x, most = args
    return low.graph.elementwise("Min", [low.graph.elementwise("Max", [x, least], step.dtype), most], step.dtype)


@rule("select_n")
def select(low: Lowering, step: Step, args: list[Value]) -> Value:
    which, *cases = args
    if which.dtype == bool:
        return low.graph.where(which, cases[1], cases[0])
    result = cases[0]
    for i, case in enumerate(cases[1:], 1):
        chosen = low.graph.elementwise("Equal", [which, low.graph.constant(i, which.dtype)], bool)
        result = low.graph.where(chosen, case, result)
    return result


@rule("convert_element_type")
def convert(low: Lowering, step: Step, args: list[Value]) -> Value:
    x = args[0]
    if step.dtype == bool and x.dtype != bool:
        zero = low.graph.constant(0, x.dtype)
        return low.graph.elementwise("Not", [low.graph.elementwise("Equal", [x, zero], bool)], bool)
    return wrap(low, step, low.graph.cast(x, step.dtype))


@rule(
    "stop_gradient", "copy", "copy_p", "device_put", "optimization_barrier", "reduce_precision", "sharding_constraint",
    "pvary",
)  # fmt: skip
def nothing(low: Lowering, step: Step, args: list[Value]) -> list[Value]:
    return args
