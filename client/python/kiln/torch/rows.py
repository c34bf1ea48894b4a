"""The op table of the importer: how each aten overload is said in Kiln's ops (docs/ops.md). To cover one more, add a row.

A row is a function (builder, node) → Value, or a tuple of Values for several results. It raises Unsupported for a use it
cannot say; that node then stays in torch. Rows compute in the dtype that torch's type promotion chose, which is the
node's own: operands are cast to it first. Copies and contiguity have no meaning in a graph without layouts: such ops
give their operand.
"""

from __future__ import annotations

import math
import operator

import torch
from torch import fx

from .builder import Builder, broadcast, dim_of, meta_of, type_of
from .text import DTYPES, FLOATING, DTypeName, Unsupported, Value

aten = torch.ops.aten

ROWS: dict = {operator.getitem: lambda b, n: b.results(n.args[0])[n.args[1]]}


def row(*overloads):
    """Registers a function under each overload, e.g. "add.Tensor"; those that this torch lacks are left out. Of aten, or
    of the primitives that torch decomposes into: "prims.convert_element_type"."""

    def register(function):
        for name in overloads:
            namespace = torch.ops.prims if name.startswith("prims.") else aten
            packet, _, overload = name.removeprefix("prims.").partition(".")
            target = getattr(getattr(namespace, packet, None), overload or "default", None)
            if target is not None:
                ROWS[target] = function
        return function

    return register


# ---- reading arguments


def arg(node: fx.Node, index: int, name: str, default=None):
    """The argument at `index`, or by name, or the default."""
    return node.args[index] if index < len(node.args) else node.kwargs.get(name, default)


def result_type(node: fx.Node) -> tuple:
    """(dtype, shape) of the node's only result."""
    return type_of(meta_of(node))


def result_types(node: fx.Node) -> list[tuple]:
    return [type_of(t) for t in meta_of(node)]


def number(value):
    """A Python number, and nothing symbolic."""
    if isinstance(value, (bool, int, float)):
        return value
    raise Unsupported(f"{value!r} is no constant")


def operand(b: Builder, value, dtype: str) -> Value:
    """A tensor cast to `dtype`, or a Python number as a constant of it."""
    if isinstance(value, fx.Node):
        return b.cast(b.value(value), dtype)
    return b.full(number(value), dtype)


def wrap(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


def rank_of(node: fx.Node) -> int:
    return len(meta_of(node).shape)


def dims_of(value, rank: int) -> list[int]:
    """A dims argument (None, int or list; empty means all) as indices from 0."""
    if value is None or value == []:
        return list(range(rank))
    return sorted({wrap(d, rank) for d in ([value] if isinstance(value, int) else value)}) if rank else []


def require(condition: bool, why: str) -> None:
    if not condition:
        raise Unsupported(why)


def kept_shape(shape, dim: int) -> tuple:
    return shape[:dim] + (1,) + shape[dim + 1 :]


# ---- pointwise

UNARY_FLOATING = {
    "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "reciprocal": "reciprocal", "sin": "sin", "cos": "cos", "tanh": "tanh", "erf": "erf", "sigmoid": "sigmoid",
    "silu": "silu", "mish": "mish", "hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid",
}  # fmt: skip
UNARY = {"neg": "neg", "abs": "abs", "sign": "sign", "relu": "relu", "bitwise_not": "bitwise_not"}
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

BINARY = {
    "div": "div", "remainder": "remainder", "fmod": "fmod", "atan2": "atan2",
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


def add_scaled(b: Builder, name: str, left, right, alpha, dtype: str) -> Value:
    """left ± alpha * right"""
    right = operand(b, right, dtype)
    if alpha != 1:
        right = b.pointwise("mul", right, b.full(number(alpha), dtype))
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
    require(dtype in FLOATING, f"integer division with rounding_mode {mode}")
    quotient = b.pointwise("div", left, right)
    return b.pointwise("trunc", quotient) if mode == "trunc" else quotient


@row("pow.Tensor_Scalar")
def pow_scalar(b, node):
    dtype, _ = result_type(node)
    x, exponent = operand(b, node.args[0], dtype), number(node.args[1])
    if dtype in FLOATING:
        return b.pointwise("pow_scalar", x, exponent=float(exponent))
    require(exponent == 2, "an integer power other than 2")
    return b.pointwise("mul", x, x)


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
    bounds = {name: float(number(v)) for name, v in (("min", low), ("max", high)) if v is not None}
    return b.pointwise("clamp", operand(b, node.args[0], dtype), **bounds)


@row("clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor")
def clamp_tensor(b, node):
    dtype, _ = result_type(node)
    result = operand(b, node.args[0], dtype)
    low, high = arg(node, 1, "min"), arg(node, 2, "max")
    if node.target is aten.clamp_max.Tensor:
        low, high = None, arg(node, 1, "max")
    if low is not None:
        result = b.pointwise("maximum", result, operand(b, low, dtype))
    return result if high is None else b.pointwise("minimum", result, operand(b, high, dtype))


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


@row("_to_copy.default", "prims.convert_element_type.default")
def to_copy(b, node):
    dtype, _ = result_type(node)
    return b.cast(b.value(node.args[0]), dtype)


@row("copy.default")
def copy(b, node):
    dtype, shape = result_type(node)
    return b.expand(b.cast(b.value(node.args[1]), dtype), shape)


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


@row("gelu_backward.default")
def gelu_backward(b, node):
    grad, x = (b.value(a) for a in node.args[:2])
    return b.pointwise("gelu_backward", grad, x, approximate=node.kwargs.get("approximate", "none"))


@row("silu_backward.default", "tanh_backward.default", "sigmoid_backward.default")
def activation_backward(b, node):
    return b.pointwise(node.target._schema.name.split("::")[1], b.value(node.args[0]), b.value(node.args[1]))


@row("threshold_backward.default")
def threshold_backward(b, node):
    grad, x, threshold = b.value(node.args[0]), b.value(node.args[1]), number(node.args[2])
    if threshold == 0:
        return b.pointwise("relu_backward", grad, x)
    below = b.pointwise("le", x, b.full(threshold, x.dtype), dtype="bool")
    return b.pointwise("select", below, b.full(0, grad.dtype), grad)


@row("native_dropout_backward.default")
def dropout_apply(b, node):
    # x * mask * scale: also the forward, once the mask is drawn (dropout.py).
    x, mask, scale = node.args
    return b.op("dropout_apply", (b.value(x), b.value(mask)), *result_type(node), scale=float(number(scale)))


# ---- views and copies


@row("alias.default", "detach.default", "clone.default", "contiguous.default", "lift_fresh_copy.default")
def same(b, node):
    return b.value(node.args[0])


@row("view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "squeeze.default",
     "squeeze.dim", "squeeze.dims", "flatten.using_ints")  # fmt: skip
def reshape(b, node):
    return b.reshape(b.value(node.args[0]), result_type(node)[1])


@row("expand.default")
def expand(b, node):
    return b.expand(b.value(node.args[0]), result_type(node)[1])


@row("permute.default")
def permute(b, node):
    return b.permute(b.value(node.args[0]), [wrap(d, rank_of(node)) for d in node.args[1]])


@row("t.default")
def transpose_matrix(b, node):
    return b.permute(b.value(node.args[0]), [1, 0] if rank_of(node) == 2 else list(range(rank_of(node))))


@row("transpose.int")
def transpose(b, node):
    dims = list(range(rank_of(node)))
    if dims:
        first, second = (wrap(d, len(dims)) for d in node.args[1:3])
        dims[first], dims[second] = second, first
    return b.permute(b.value(node.args[0]), dims)


def slice_bounds(extent, start, end) -> tuple:
    """torch's start and end, which may be negative, absent or past the end, as 0 ≤ start ≤ end ≤ extent."""
    start = 0 if start is None else dim_of(start)
    end = extent if end is None or end == 2**63 - 1 else dim_of(end)
    if not isinstance(extent, int):
        require(start == 0 and end == extent, "a slice of a symbolic extent")
        return start, end
    require(isinstance(start, int) and isinstance(end, int), "a symbolic slice")
    start = min(max(start + extent if start < 0 else start, 0), extent)
    end = min(max(end + extent if end < 0 else end, start), extent)
    return start, end


@row("slice.Tensor")
def slice_tensor(b, node):
    x, dim = b.value(node.args[0]), wrap(arg(node, 1, "dim", 0), rank_of(node))
    start, end = slice_bounds(x.shape[dim], arg(node, 2, "start"), arg(node, 3, "end"))
    return b.slice(x, dim, start, end, result_type(node)[1][dim], number(arg(node, 4, "step", 1)))


@row("select.int")
def select_int(b, node):
    x, dim = b.value(node.args[0]), wrap(node.args[1], len(b.value(node.args[0]).shape))
    index = number(node.args[2])
    if index < 0:
        require(isinstance(x.shape[dim], int), "a negative index into a symbolic extent")
        index += x.shape[dim]
    return b.reshape(b.slice(x, dim, index, index + 1, 1), result_type(node)[1])


def cut(b: Builder, x: Value, dim: int, extents) -> tuple:
    pieces, start = [], 0
    for extent in extents:
        pieces.append(b.slice(x, dim, start, start + extent, extent))
        start = start + extent
    return tuple(pieces)


@row("split.Tensor", "split_with_sizes.default", "chunk.default")
def split(b, node):
    x = b.value(node.args[0])
    dim = wrap(arg(node, 2, "dim", 0), len(x.shape))
    return cut(b, x, dim, [shape[dim] for _, shape in result_types(node)])


@row("unbind.int")
def unbind(b, node):
    x = b.value(node.args[0])
    dim = wrap(arg(node, 1, "dim", 0), len(x.shape))
    types = result_types(node)
    return tuple(b.reshape(p, t[1]) for p, t in zip(cut(b, x, dim, [1] * len(types)), types))


@row("cat.default")
def cat(b, node):
    dtype, shape = result_type(node)
    parts = [b.cast(b.value(n), dtype) for n in node.args[0]]
    require(all(len(p.shape) == len(shape) for p in parts), "a part of another rank")
    return parts[0] if len(parts) == 1 else b.op("concat", parts, dtype, shape, dim=wrap(arg(node, 1, "dim", 0), len(shape)))


@row("stack.default")
def stack(b, node):
    dtype, shape = result_type(node)
    parts = [b.cast(b.value(n), dtype) for n in node.args[0]]
    return b.op("stack", parts, dtype, shape, dim=wrap(arg(node, 1, "dim", 0), len(shape)))


@row("flip.default")
def flip(b, node):
    x = b.value(node.args[0])
    dims = dims_of(node.args[1], len(x.shape)) if node.args[1] else []
    return b.op("flip", (x,), x.dtype, x.shape, dims=tuple(dims)) if dims else x


@row("repeat.default")
def repeat(b, node):
    x, times = b.value(node.args[0]), [dim_of(t) for t in node.args[1]]
    shape = (1,) * (len(times) - len(x.shape)) + x.shape
    x = b.reshape(x, tuple(e for extent in shape for e in (1, extent)))
    x = b.expand(x, tuple(e for t, extent in zip(times, shape) for e in (t, extent)))
    return b.reshape(x, result_type(node)[1])


@row("constant_pad_nd.default")
def constant_pad(b, node):
    x, widths = b.value(node.args[0]), [number(w) for w in node.args[1]]
    low, high = [0] * len(x.shape), [0] * len(x.shape)
    for i in range(0, len(widths), 2):
        dim = len(x.shape) - 1 - i // 2
        low[dim], high[dim] = widths[i], widths[i + 1]
        if min(widths[i], widths[i + 1]) < 0:  # a negative width cuts
            require(isinstance(x.shape[dim], int), "cutting a symbolic extent")
            start, end = max(-low[dim], 0), x.shape[dim] - max(-high[dim], 0)
            x = b.slice(x, dim, start, end, end - start)
    low, high = ([max(w, 0) for w in ws] for ws in (low, high))
    if not any(low) and not any(high):
        return x
    value = float(number(arg(node, 2, "value", 0)))
    return b.op("pad", (x,), *result_type(node), low=tuple(low), high=tuple(high), value=value)


@row("slice_scatter.default")
def slice_scatter(b, node):
    x, source = b.value(node.args[0]), b.value(node.args[1])
    dim = wrap(arg(node, 2, "dim", 0), len(x.shape))
    start, end = slice_bounds(x.shape[dim], arg(node, 3, "start"), arg(node, 4, "end"))
    step = number(arg(node, 5, "step", 1))
    return b.op("slice_scatter", (x, b.cast(source, x.dtype)), x.dtype, x.shape, dim=dim, start=start, end=end, step=step)


@row("slice_backward.default")
def slice_backward(b, node):
    grad, _, dim, start, end, step = node.args
    dtype, shape = result_type(node)
    dim, grad = wrap(dim, len(shape)), b.value(grad)
    start, end = slice_bounds(shape[dim], start, end)
    if grad.shape == shape:
        return grad
    zeros = b.full(0, dtype, shape)
    return b.op("slice_scatter", (zeros, grad), dtype, shape, dim=dim, start=start, end=end, step=number(step))


@row("select_backward.default")
def select_backward(b, node):
    dtype, shape = result_type(node)
    dim, index = wrap(node.args[2], len(shape)), number(node.args[3])
    require(isinstance(shape[dim], int), "a symbolic extent")
    source = b.reshape(b.value(node.args[0]), kept_shape(shape, dim))
    start = index % shape[dim]
    attributes = {"dim": dim, "start": start, "end": start + 1, "step": 1}
    return b.op("slice_scatter", (b.full(0, dtype, shape), source), dtype, shape, **attributes)


@row("tril.default", "triu.default")
def triangle(b, node):
    name = node.target._schema.name.split("::")[1]
    x = b.value(node.args[0])
    return b.op(name, (x,), x.dtype, x.shape, diagonal=number(arg(node, 1, "diagonal", 0)))


# ---- creation

CONSTANT = {
    "zeros.default": 0, "ones.default": 1, "new_zeros.default": 0, "new_ones.default": 1,
    "zeros_like.default": 0, "ones_like.default": 1,
    # Uninitialised memory may hold anything: also zeros, which are the same in every process.
    "empty.memory_format": 0, "empty_like.default": 0, "new_empty.default": 0, "empty_permuted.default": 0,
    "new_empty_strided.default": 0, "empty_strided.default": 0,
}  # fmt: skip


def creation(value):
    return lambda b, node: b.full(value, *result_type(node))


for aten_name, filled_with in CONSTANT.items():
    row(aten_name)(creation(filled_with))


@row("full.default", "full_like.default", "fill.Scalar")
def full(b, node):
    return b.full(number(node.args[1]), *result_type(node))


@row("new_full.default")
def new_full(b, node):
    return b.full(number(node.args[2]), *result_type(node))


@row("scalar_tensor.default")
def scalar_tensor(b, node):
    return b.full(number(node.args[0]), *result_type(node))


def iota(b, node, start, step):
    dtype, shape = result_type(node)
    start, step = float(number(start)), float(number(step))
    return b.op("iota", (), dtype, shape, shape=shape, dim=0, start=start, step=step, dtype=DTypeName(dtype))


@row("arange.default")
def arange(b, node):
    return iota(b, node, 0, 1)


@row("arange.start", "arange.start_step")
def arange_start(b, node):
    return iota(b, node, node.args[0], arg(node, 2, "step", 1))


# ---- reductions and scans


def reduction(name: str):
    def lower(b: Builder, node: fx.Node) -> Value:
        dtype, _ = result_type(node)
        x = operand(b, node.args[0], dtype)
        single = node.target._overloadname in ("default",) and name not in ("amax", "amin")
        dims = None if single else arg(node, 1, "dim")
        keep = False if single else bool(arg(node, 2, "keepdim", False))
        return b.reduce(name, x, dims_of(dims, len(x.shape)), keep)

    return lower


row("sum.dim_IntList", "sum.default")(reduction("sum"))
row("mean.dim", "mean.default")(reduction("mean"))
row("prod.dim_int", "prod.default")(reduction("prod"))
row("amax.default")(reduction("amax"))
row("amin.default")(reduction("amin"))
row("any.dim", "any.dims", "any.default")(reduction("any"))
row("all.dim", "all.dims", "all.default")(reduction("all"))


@row("logsumexp.default")
def logsumexp(b, node):
    x = operand(b, node.args[0], result_type(node)[0])
    return b.reduce("logsumexp", x, dims_of(node.args[1], len(x.shape)), bool(arg(node, 2, "keepdim", False)))


@row("linalg_vector_norm.default", "norm.ScalarOpt_dim")
def norm(b, node):
    require(arg(node, 1, "ord" if "linalg" in node.target._schema.name else "p", 2) in (2, 2.0, None), "a norm other than 2")
    x = operand(b, node.args[0], result_type(node)[0])
    return b.reduce("norm2", x, dims_of(arg(node, 2, "dim"), len(x.shape)), bool(arg(node, 3, "keepdim", False)))


@row("var.correction")
def var(b, node):
    x = operand(b, node.args[0], result_type(node)[0])
    correction = node.kwargs.get("correction")
    dims = dims_of(arg(node, 1, "dim"), len(x.shape))
    correction = 1 if correction is None else number(correction)
    require(int(correction) == correction, "a fractional correction")
    return b.reduce("var", x, dims, bool(node.kwargs.get("keepdim", False)), correction=int(correction))


@row("max.dim", "min.dim")
def extreme(b, node):
    x = b.value(node.args[0])
    dim, keep = wrap(node.args[1], len(x.shape)), bool(arg(node, 2, "keepdim", False))
    require(len(x.shape) > 0, "an extreme of a scalar")
    names = ("amax", "argmax") if "max" in node.target._schema.name else ("amin", "argmin")
    (_, shape), _ = result_types(node)
    return b.reduce(names[0], x, [dim], keep), b.op(names[1], (x,), "i64", shape, dim=dim, keep_dims=keep)


@row("argmax.default", "argmin.default")
def arg_extreme(b, node):
    x, dim, keep = b.value(node.args[0]), arg(node, 1, "dim"), bool(arg(node, 2, "keepdim", False))
    if dim is None:
        require(not keep, "keepdim over all dims")
        x, dim = b.reshape(x, (math.prod(x.shape),)), 0
    require(len(x.shape) > 0, "an extreme of a scalar")
    name = node.target._schema.name.split("::")[1]
    return b.op(name, (x,), *result_type(node), dim=wrap(dim, len(x.shape)), keep_dims=keep)


@row("cumsum.default")
def cumsum(b, node):
    x = operand(b, node.args[0], result_type(node)[0])
    require(len(x.shape) > 0, "a scan of a scalar")
    return b.op("cumsum", (x,), x.dtype, x.shape, dim=wrap(node.args[1], len(x.shape)))


# ---- contraction


@row("mm.default", "bmm.default")
def matmul(b, node):
    return b.op("matmul", [b.value(a) for a in node.args[:2]], *result_type(node))


@row("mv.default")
def mv(b, node):
    matrix, vector = (b.value(a) for a in node.args[:2])
    column = b.reshape(vector, (*vector.shape, 1))
    dtype, shape = result_type(node)
    return b.reshape(b.op("matmul", (matrix, column), dtype, (*shape, 1)), shape)


@row("addmm.default", "baddbmm.default")
def addmm(b, node):
    scales = {name: float(number(node.kwargs.get(name, 1))) for name in ("alpha", "beta")}
    return b.op("addmm", [b.value(a) for a in node.args[:3]], *result_type(node), **scales)


# ---- indexing


def in_range(b: Builder, indices: Value, extent) -> Value:
    """Indices counted from the end made to count from the start."""
    require(indices.dtype in ("i32", "i64") and isinstance(extent, int), "an index of this kind")
    require(extent > 1, "an index into an extent of 1")  # reads nothing that depends on it, so nothing would check it
    below = b.pointwise("lt", indices, b.full(0, indices.dtype), dtype="bool")
    wrapped = b.pointwise("add", indices, b.full(extent, indices.dtype))
    return b.pointwise("select", below, wrapped, indices)


@row("embedding.default")
def embedding(b, node):
    # padding_idx matters to the gradient alone.
    weight, indices = b.value(node.args[0]), b.value(node.args[1])
    return b.op("embedding", (weight, indices), *result_type(node), padding_idx=number(arg(node, 2, "padding_idx", -1)))


@row("embedding_dense_backward.default")
def embedding_backward(b, node):
    grad, indices, rows, padding, by_frequency = node.args
    require(not by_frequency, "scale_grad_by_freq")
    attributes = {"rows": dim_of(rows), "padding_idx": number(padding)}
    return b.op("embedding_backward", (b.value(grad), b.value(indices)), *result_type(node), **attributes)


@row("index_select.default")
def index_select(b, node):
    x, dim, indices = b.value(node.args[0]), node.args[1], b.value(node.args[2])
    require(len(x.shape) > 0 and len(indices.shape) == 1, "indexing a scalar")
    return b.op("index_select", (x, indices), *result_type(node), dim=wrap(dim, len(x.shape)))


@row("gather.default")
def gather(b, node):
    require(not node.kwargs.get("sparse_grad", False), "sparse_grad")
    x, indices = b.value(node.args[0]), b.value(node.args[2])
    require(len(x.shape) > 0 and len(indices.shape) == len(x.shape), "indexing a scalar")
    return b.op("gather", (x, indices), *result_type(node), dim=wrap(node.args[1], len(x.shape)))


@row("scatter_add.default", "scatter.src")
def scatter(b, node):
    name = "scatter_add" if node.target is aten.scatter_add.default else "scatter"
    x, indices, source = (b.value(node.args[i]) for i in (0, 2, 3))
    require(len(x.shape) > 0 and indices.shape == source.shape, "a source of another shape than its indices")
    return b.op(name, (x, indices, source), *result_type(node), dim=wrap(node.args[1], len(x.shape)))


@row("scatter.value")
def scatter_value(b, node):
    x, indices = b.value(node.args[0]), b.value(node.args[2])
    require(len(x.shape) > 0, "indexing a scalar")
    source = b.full(number(node.args[3]), x.dtype, indices.shape)
    return b.op("scatter", (x, indices, source), *result_type(node), dim=wrap(node.args[1], len(x.shape)))


@row("index_add.default")
def index_add(b, node):
    require(node.kwargs.get("alpha", 1) == 1, "a scaled index_add")
    x, indices, source = (b.value(node.args[i]) for i in (0, 2, 3))
    require(len(x.shape) > 0 and len(indices.shape) == 1, "indexing a scalar")
    return b.op("index_add", (x, indices, source), *result_type(node), dim=wrap(node.args[1], len(x.shape)))


@row("index.Tensor", "_unsafe_index.Tensor")
def index(b, node):
    x = b.value(node.args[0])
    dims = [dim for dim, index in enumerate(node.args[1]) if index is not None]
    require(len(dims) > 0, "indexing by nothing")
    indices = [b.value(node.args[1][dim]) for dim in dims]
    is_checked = node.target is not aten._unsafe_index.Tensor  # as interpolation makes: in range, so 0 where that is all
    indices = [in_range(b, i, x.shape[dim]) if is_checked or x.shape[dim] != 1 else b.full(0, i.dtype, i.shape)
               for i, dim in zip(indices, dims)]
    first = dims[0]
    if dims[-1] - first >= len(dims):  # indices that do not stand side by side put their dims first
        x, first = b.permute(x, [*dims, *(d for d in range(len(x.shape)) if d not in dims)]), 0
    return b.reshape(take_together(b, x, indices, first), result_type(node)[1])


def take_together(b: Builder, x: Value, indices: list[Value], dim: int) -> Value:
    """x[…, i[p], j[p], …] for all p, the indices' common shape flattened: rows by the first index, then, of each row, what
    the others choose. These compose into one access; no rows are ever made."""
    shape = broadcast(*(i.shape for i in indices))
    count = math.prod(shape)
    indices = [b.reshape(b.expand(i, shape), (count,)) for i in indices]
    x = b.op("take", (x, indices[0]), x.dtype, (*x.shape[:dim], count, *x.shape[dim + 1 :]), dim=dim)
    for index in indices[1:]:
        chosen = kept_shape(x.shape, dim + 1)
        column = b.reshape(index, (*(1 for _ in x.shape[:dim]), count, *(1 for _ in x.shape[dim + 1 :])))
        x = b.op("gather", (x, b.expand(column, chosen)), x.dtype, chosen, dim=dim + 1)
        x = b.reshape(x, (*chosen[: dim + 1], *chosen[dim + 2 :]))
    return x


@row("index_put.default", "_unsafe_index_put.default")
def index_put(b, node):
    x, values, accumulate = b.value(node.args[0]), b.value(node.args[2]), bool(arg(node, 3, "accumulate", False))
    dims = [dim for dim, index in enumerate(node.args[1]) if index is not None]
    require(len(dims) == 1, "writing along several dims")
    dim, indices = dims[0], b.value(node.args[1][dims[0]])
    if indices.dtype == "bool":
        require(dim == 0 and math.prod(values.shape) == 1 and not accumulate, "several values at the places of a mask")
        mask = b.reshape(indices, indices.shape + (1,) * (len(x.shape) - len(indices.shape)))
        return b.pointwise("select", mask, b.reshape(values, ()), x)
    indices = in_range(b, indices, x.shape[dim])
    source = b.expand(values, x.shape[:dim] + indices.shape + x.shape[dim + 1 :])
    if accumulate:
        return b.op("index_add", (x, indices, source), *result_type(node), dim=dim)
    # Of several values for one place any may win in torch; here the last.
    before, count, after = x.shape[:dim], math.prod(indices.shape), x.shape[dim + 1 :]
    rows = b.reshape(indices, (*(1 for _ in before), count, *(1 for _ in after)))
    shape = (*before, count, *after)
    return b.op("scatter", (x, b.expand(rows, shape), b.reshape(source, shape)), *result_type(node), dim=dim)


# ---- normalisation, softmax, losses


@row("native_layer_norm.default")
def layer_norm(b, node):
    x, shape, weight, bias, eps = node.args
    operands = (b.value(x), b.optional(weight), b.optional(bias))
    return b.ops("layer_norm", operands, result_types(node), normalized_rank=len(shape), eps=float(number(eps)))


@row("native_layer_norm_backward.default")
def layer_norm_backward(b, node):
    grad, x, shape, mean, rstd, weight, _, _ = node.args
    operands = (*(b.value(v) for v in (grad, x, mean, rstd)), b.optional(weight))
    dtype, full_shape = operands[1].dtype, operands[1].shape
    parameter = (dtype, full_shape[len(full_shape) - len(shape) :])
    types = [(dtype, full_shape), parameter, parameter]
    return b.ops("layer_norm_backward", operands, types, normalized_rank=len(shape))


@row("native_group_norm.default")
def group_norm(b, node):
    x, weight, bias, _, _, _, groups, eps = node.args
    operands = (b.value(x), b.optional(weight), b.optional(bias))
    return b.ops("group_norm", operands, result_types(node), groups=number(groups), eps=float(number(eps)))


@row("_native_batch_norm_legit_no_training.default")
def batch_norm(b, node):
    x, weight, bias, mean, variance, _, eps = node.args
    operands = (b.value(x), b.optional(weight), b.optional(bias), b.value(mean), b.value(variance))
    dtype, shape = result_types(node)[0]
    # The saved statistics of inference are empty and nobody reads them.
    return (b.op("batch_norm", operands, dtype, shape, eps=float(number(eps))),)


@row("_softmax.default", "_log_softmax.default")
def softmax(b, node):
    require(not node.args[2], "half_to_float")
    x = b.value(node.args[0])
    return softmax_over(b, node.target._schema.name.split("::")[1].lstrip("_"), (x,), node.args[1])


def softmax_over(b: Builder, name: str, operands: tuple, dim: int) -> Value:
    x = operands[0]
    require(len(x.shape) > 0, "softmax of a scalar")
    return b.op(name, operands, x.dtype, x.shape, dim=wrap(dim, len(x.shape)))


@row("_safe_softmax.default")
def safe_softmax(b, node):
    # Rows of nothing but -inf, all keys masked, give zeros instead of NaN.
    x = operand(b, node.args[0], result_type(node)[0])
    probabilities = softmax_over(b, "softmax", (x,), node.args[1])
    highest = b.reduce("amax", x, [wrap(node.args[1], len(x.shape))], True)
    masked = b.pointwise("eq", highest, b.full(-math.inf, x.dtype), dtype="bool")
    return b.pointwise("select", masked, b.full(0, x.dtype), probabilities)


@row("_softmax_backward_data.default", "_log_softmax_backward_data.default")
def softmax_backward(b, node):
    grad, out, dim, input_dtype = node.args
    require(DTYPES.get(input_dtype) == result_type(node)[0], "a gradient of another dtype")
    name = "softmax_backward" if node.target is aten._softmax_backward_data.default else "log_softmax_backward"
    return softmax_over(b, name, (b.value(grad), b.value(out)), dim)


REDUCTIONS = ("none", "mean", "sum")


def loss_attributes(weight, reduction_number, ignore_index) -> dict:
    require(weight is None, "a weight per class")
    return {"reduction": REDUCTIONS[reduction_number], "ignore_index": number(ignore_index)}


@row("nll_loss_forward.default")
def nll_loss(b, node):
    log_probs, target, weight, reduction_number, ignore_index = node.args
    require(rank_of(log_probs) == 2, "one sample without a batch")
    attributes = loss_attributes(weight, reduction_number, ignore_index)
    return b.ops("nll_loss", (b.value(log_probs), b.value(target)), result_types(node), **attributes)


@row("nll_loss_backward.default")
def nll_loss_backward(b, node):
    grad, log_probs, target, weight, reduction_number, ignore_index, total_weight = node.args
    require(rank_of(log_probs) == 2, "one sample without a batch")
    attributes = loss_attributes(weight, reduction_number, ignore_index)
    operands = [b.value(v) for v in (grad, log_probs, target, total_weight)]
    return b.op("nll_loss_backward", operands, *result_type(node), **attributes)


@row("mse_loss.default")
def mse_loss(b, node):
    left, right = (b.value(a) for a in node.args[:2])
    return b.op("mse_loss", (left, right), *result_type(node), reduction=REDUCTIONS[arg(node, 2, "reduction", 1)])


# ---- attention


def attention_attributes(b: Builder, node: fx.Node, query: fx.Node, first_option: int) -> tuple:
    """(bias, attributes); the options begin at argument `first_option`."""
    require(number(arg(node, first_option, "dropout_p", 0)) == 0, "attention with dropout")
    bias = b.optional(node.kwargs.get("attn_mask"))
    if bias is not None and bias.dtype == "bool":
        dtype, _ = type_of(meta_of(query))
        bias = b.pointwise("select", bias, b.full(0, dtype), b.full(-math.inf, dtype))
    scale = node.kwargs.get("scale")
    head_dim = meta_of(query).shape[-1]
    require(scale is not None or isinstance(head_dim, int), "a symbolic head dim")
    attributes = {
        "causal": bool(arg(node, first_option + 1, "is_causal", False)),
        "scale": float(1 / math.sqrt(head_dim) if scale is None else number(scale)),
    }
    return bias, attributes


@row("_scaled_dot_product_flash_attention_for_cpu.default")
def attention(b, node):
    bias, attributes = attention_attributes(b, node, node.args[0], 3)
    operands = [*(b.value(a) for a in node.args[:3]), bias]
    return b.ops("attention", operands, result_types(node), **attributes)


@row("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def attention_backward(b, node):
    bias, attributes = attention_attributes(b, node, node.args[1], 6)
    operands = [*(b.value(a) for a in node.args[:6]), bias]
    return b.ops("attention_backward", operands, result_types(node), **attributes)
