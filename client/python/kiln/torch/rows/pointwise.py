"""Rows of ops on single elements."""

from __future__ import annotations

import torch
from torch import fx

from ..builder import Builder, meta_of, type_of
from ..text import DTYPES, FLOATING, Value
from .table import Family, arg, aten, number, operand, require, result_type, scaled

FAMILY = Family(is_recomputed=True)
row = FAMILY.row

UNARY_FLOATING = {
    "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "reciprocal": "reciprocal", "sin": "sin", "cos": "cos", "tanh": "tanh", "erf": "erf", "sigmoid": "sigmoid",
    "silu": "silu", "mish": "mish", "hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid",
}  # fmt: skip
UNARY = {"neg": "neg", "abs": "abs", "sign": "sign", "bitwise_not": "bitwise_not"}
ROUNDING = {"floor": "floor", "ceil": "ceil", "round": "round", "trunc": "trunc"}
PREDICATES = {"isnan": "is_nan", "isinf": "is_inf", "logical_not": "logical_not"}


def unary(name: str):
    def lower(b: Builder, node: fx.Node) -> Value:
        dtype, _ = result_type(node)
        return b.pointwise(name, operand(b, node.args[0], dtype))

    return lower


def rounding(name: str):
    def lower(b: Builder, node: fx.Node) -> Value:
        x = b.value(node.args[0])
        return b.pointwise(name, x) if x.dtype in FLOATING else x

    return lower


def predicate(name: str):
    def lower(b: Builder, node: fx.Node) -> Value:
        x = b.value(node.args[0])
        if x.dtype not in FLOATING and name != "logical_not":
            return b.full(False, "bool", x.shape)
        return b.pointwise(name, x, dtype="bool")

    return lower


for aten_name, kiln_name in (UNARY_FLOATING | UNARY).items():
    row(f"{aten_name}.default")(unary(kiln_name))
for aten_name, kiln_name in ROUNDING.items():
    row(f"{aten_name}.default")(rounding(kiln_name))
for aten_name, kiln_name in PREDICATES.items():
    row(f"{aten_name}.default")(predicate(kiln_name))

@row("relu.default")
def relu(b, node):
    x = b.value(node.args[0])
    return b.pointwise("relu", x) if x.dtype in FLOATING else b.pointwise("maximum", x, b.full(0, x.dtype))


BINARY = {
    "div": "div", "true_divide": "div", "remainder": "remainder", "fmod": "fmod", "atan2": "atan2",
    "minimum": "minimum", "maximum": "maximum", "floor_divide": "floor_div",
    "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor",
}  # fmt: skip
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
BOOLEAN_ARITHMETIC = {"add": "bitwise_or", "mul": "bitwise_and"}


def binary(name: str):
    def lower(b: Builder, node: fx.Node) -> Value:
        dtype, _ = result_type(node)
        left, right = node.args[:2]
        op = BOOLEAN_ARITHMETIC.get(name, name) if dtype == "bool" else name
        return b.pointwise(op, operand(b, left, dtype), operand(b, right, dtype))

    return lower


def comparison(name: str):
    def lower(b: Builder, node: fx.Node) -> Value:
        dtype = promoted(*node.args[:2])
        return b.pointwise(name, operand(b, node.args[0], dtype), operand(b, node.args[1], dtype), dtype="bool")

    return lower


def promoted(left, right) -> str:
    """The dtype in which torch compares the two."""
    meta = [meta_of(a) if isinstance(a, fx.Node) else number(a) for a in (left, right)]
    dtype = DTYPES.get(torch.result_type(*meta))
    require(dtype is not None, "a comparison in another dtype")
    return dtype


def logical(name: str):
    def lower(b: Builder, node: fx.Node) -> Value:
        return b.pointwise(name, operand(b, node.args[0], "bool"), operand(b, node.args[1], "bool"))

    return lower


for aten_name, kiln_name in BINARY.items():
    row(f"{aten_name}.Tensor", f"{aten_name}.Scalar", f"{aten_name}.default")(binary(kiln_name))
row("mul.Tensor", "mul.Scalar")(binary("mul"))
for aten_name in COMPARISONS:
    row(f"{aten_name}.Tensor", f"{aten_name}.Scalar")(comparison(aten_name))
for aten_name in LOGICAL:
    row(f"{aten_name}.default")(logical(aten_name))


@row("__rshift__.Scalar", "bitwise_right_shift.Tensor_Scalar")
def right_shift(b, node):
    dtype, _ = result_type(node)
    by = number(node.args[1])
    require(dtype == type_of(meta_of(node.args[0]))[0], "a shift in another dtype")
    require(0 <= by and 2**by <= torch.iinfo(meta_of(node).dtype).max, "a shift by all bits")
    return b.pointwise("floor_div", b.value(node.args[0]), b.full(2**by, dtype))


@row("__lshift__.Scalar", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Tensor", "bitwise_left_shift.Tensor")
def left_shift(b, node):
    x, by, bits = shift_of(b, node)
    return shifted(b, by, x, "mul", bits, b.full(0, x.dtype))


@row("__rshift__.Tensor", "bitwise_right_shift.Tensor")
def right_shift_by_each(b, node):
    x, by, bits = shift_of(b, node)
    sign = b.cast(b.pointwise("lt", x, b.full(0, x.dtype), dtype="bool"), x.dtype)
    return shifted(b, by, x, "floor_div", bits, b.pointwise("sub", b.full(0, x.dtype), sign))


def shift_of(b: Builder, node: fx.Node) -> tuple[Value, Value, int]:
    """What is shifted, by how much, and its dtype's bits."""
    dtype, _ = result_type(node)
    require(dtype not in FLOATING and dtype != "bool", "a shift of numbers that are not whole")
    return operand(b, node.args[0], dtype), operand(b, node.args[1], dtype), torch.iinfo(meta_of(node).dtype).bits


def shifted(b: Builder, by: Value, x: Value, op: str, bits: int, beyond: Value) -> Value:
    """A power of two after the other, for each bit of `by` that is set; `beyond` for shifts that are no places of the dtype."""
    is_beyond = b.pointwise("ge", by, b.full(bits, by.dtype), dtype="bool")
    is_beyond = b.pointwise("bitwise_or", is_beyond, b.pointwise("lt", by, b.full(0, by.dtype), dtype="bool"))
    for places in (1 << k for k in range((bits - 1).bit_length())):
        is_set = b.pointwise("ne", b.pointwise("bitwise_and", by, b.full(places, by.dtype)), b.full(0, by.dtype), dtype="bool")
        x = b.pointwise("select", is_set, b.pointwise(op, x, b.full(2**places, x.dtype)), x)
    return b.pointwise("select", is_beyond, beyond, x)


def add_scaled(b: Builder, name: str, left, right, alpha, dtype: str) -> Value:
    """left ± alpha * right"""
    right = scaled(b, operand(b, right, dtype), number(alpha))
    op = BOOLEAN_ARITHMETIC.get(name, name) if dtype == "bool" else name
    return b.pointwise(op, operand(b, left, dtype), right)


@row("add.Tensor", "add.Scalar")
def add(b, node):
    return add_scaled(b, "add", node.args[0], node.args[1], arg(node, 2, "alpha", 1), result_type(node)[0])


@row("sub.Tensor", "sub.Scalar")
def sub(b, node):
    return add_scaled(b, "sub", node.args[0], node.args[1], arg(node, 2, "alpha", 1), result_type(node)[0])


@row("rsub.Tensor", "rsub.Scalar")
def rsub(b, node):
    # other - alpha * self
    return add_scaled(b, "sub", node.args[1], node.args[0], arg(node, 2, "alpha", 1), result_type(node)[0])


@row("div.Tensor_mode", "div.Scalar_mode")
def div_mode(b, node):
    dtype, _ = result_type(node)
    mode = node.kwargs.get("rounding_mode")
    left, right = (operand(b, a, dtype) for a in node.args[:2])
    if mode == "floor":
        return b.pointwise("floor_div", left, right)
    if dtype not in FLOATING:
        require(mode == "trunc" and dtype != "bool", f"integer division with rounding_mode {mode}")
        return b.pointwise("floor_div", b.pointwise("sub", left, b.pointwise("fmod", left, right)), right)
    quotient = b.pointwise("div", left, right)
    return b.pointwise("trunc", quotient) if mode == "trunc" else quotient


@row("pow.Tensor_Scalar")
def pow_scalar(b, node):
    dtype, _ = result_type(node)
    x, exponent = operand(b, node.args[0], dtype), number(node.args[1])
    if dtype in FLOATING:
        return b.pointwise("pow_scalar", x, exponent=float(exponent))
    require(dtype != "bool" and 1 <= exponent < 64, "an integer power of this size")
    result, power = None, x
    while exponent:
        if exponent & 1:
            result = power if result is None else b.pointwise("mul", result, power)
        exponent >>= 1
        power = b.pointwise("mul", power, power) if exponent else power
    return result


@row("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(b, node):
    dtype, _ = result_type(node)
    require(dtype in FLOATING, "an integer power")
    return b.pointwise("pow", operand(b, node.args[0], dtype), operand(b, node.args[1], dtype))


@row("clamp.default", "clamp_min.default", "clamp_max.default", "hardtanh.default")
def clamp(b, node):
    dtype, _ = result_type(node)
    low, high = arg(node, 1, "min"), arg(node, 2, "max")
    if node.target is getattr(aten.clamp_max, "default"):
        low, high = None, arg(node, 1, "max")
    if node.target is aten.hardtanh.default:
        low, high = arg(node, 1, "min_val", -1.0), arg(node, 2, "max_val", 1.0)
    x = operand(b, node.args[0], dtype)
    if any(isinstance(bound, fx.Node) for bound in (low, high)):
        return between(b, x, low, high)
    bounds = {name: float(number(v)) for name, v in (("min", low), ("max", high)) if v is not None}
    return b.pointwise("clamp", x, **bounds)


def between(b: Builder, x: Value, low, high) -> Value:
    """x, but no less than one bound and no more than the other, where they are given: tensors, numbers or extents."""
    if low is not None:
        x = b.pointwise("maximum", x, operand(b, low, x.dtype))
    return x if high is None else b.pointwise("minimum", x, operand(b, high, x.dtype))


@row("clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor")
def clamp_tensor(b, node):
    low, high = arg(node, 1, "min"), arg(node, 2, "max")
    if node.target is aten.clamp_max.Tensor:
        low, high = None, arg(node, 1, "max")
    return between(b, operand(b, node.args[0], result_type(node)[0]), low, high)


@row("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(b, node):
    dtype, _ = result_type(node)
    condition = b.value(node.args[0])
    require(condition.dtype == "bool", "a condition that is not bool")
    return b.pointwise("select", condition, operand(b, node.args[1], dtype), operand(b, node.args[2], dtype))


@row("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b, node):
    dtype, shape = result_type(node)
    filled = b.pointwise("select", b.value(node.args[1]), operand(b, node.args[2], dtype), b.value(node.args[0]))
    return filled if filled.shape == shape else b.expand(filled, shape)


@row("_to_copy.default", is_copy=True)
@row("prims.convert_element_type.default", is_recomputed=False)
def to_copy(b, node):
    dtype, _ = result_type(node)
    return b.cast(b.value(node.args[0]), dtype)


@row("copy.default", is_recomputed=False)
def copy(b, node):
    dtype, shape = result_type(node)
    return b.expand(b.cast(b.value(node.args[1]), dtype), shape)


@row("addcmul.default", "addcdiv.default")
def add_of_two(b, node):
    dtype, _ = result_type(node)
    base, x, y = (operand(b, n, dtype) for n in node.args[:3])
    both = b.pointwise("div" if node.target is aten.addcdiv.default else "mul", x, y)
    return b.pointwise("add", base, scaled(b, both, number(arg(node, 3, "value", 1))))


@row("prims.fma.default")
def fma(b, node):
    dtype, _ = result_type(node)
    require(dtype in FLOATING, "integers")
    x, y, z = (operand(b, n, dtype) for n in node.args[:3])
    return b.pointwise("add", b.pointwise("mul", x, y), z)


@row("lerp.Scalar", "lerp.Tensor")
def lerp(b, node):
    dtype, _ = result_type(node)
    start, end = (operand(b, n, dtype) for n in node.args[:2])
    weight, way = operand(b, node.args[2], dtype), b.pointwise("sub", end, start)
    from_start = b.pointwise("add", start, b.pointwise("mul", weight, way))
    rest = b.pointwise("sub", b.full(1, dtype), weight)
    from_end = b.pointwise("sub", end, b.pointwise("mul", way, rest))
    if not isinstance(node.args[2], fx.Node):
        return from_start if abs(node.args[2]) < 0.5 else from_end
    is_near = b.pointwise("lt", b.pointwise("abs", weight), b.full(0.5, dtype))
    return b.pointwise("select", is_near, from_start, from_end)


@row("leaky_relu.default")
def leaky_relu(b, node):
    return b.pointwise("leaky_relu", b.value(node.args[0]), slope=float(number(arg(node, 1, "negative_slope", 0.01))))


@row("elu.default")
def elu(b, node):
    require(arg(node, 2, "scale", 1) == 1 and arg(node, 3, "input_scale", 1) == 1, "a scaled elu")
    return b.pointwise("elu", b.value(node.args[0]), alpha=float(number(arg(node, 1, "alpha", 1))))


@row("softplus.default")
def softplus(b, node):
    beta, threshold = (float(number(arg(node, i, n, d))) for i, n, d in ((1, "beta", 1), (2, "threshold", 20)))
    return b.pointwise("softplus", b.value(node.args[0]), beta=beta, threshold=threshold)


@row("gelu.default")
def gelu(b, node):
    return b.pointwise("gelu", b.value(node.args[0]), approximate=node.kwargs.get("approximate", "none"))


@row("native_dropout_backward.default")
def dropout_apply(b, node):
    # x * mask * scale: also the forward, once the mask is drawn (dropout.py).
    x, mask, scale = node.args
    return b.op("dropout_apply", (b.value(x), b.value(mask)), *result_type(node), scale=float(number(scale)))
