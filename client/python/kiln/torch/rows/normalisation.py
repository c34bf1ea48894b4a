"""Rows of normalisation, softmax and losses."""

from __future__ import annotations

import math

from ..builder import Builder, dim_of
from ..text import DTYPES, Value
from .table import Family, arg, aten, number, operand, rank_of, require, result_type, result_types, wrap

FAMILY = Family()
row = FAMILY.row


def norm(b: Builder, name: str, node, operands: tuple, **attributes) -> tuple:
    """A norm with its mean and reciprocal deviation: f32 for halves in Kiln, what torch says of them after a cast."""
    (dtype, shape), *statistics = result_types(node)
    x, *parameters = operands
    wide = common_dtype(x, *parameters)
    kept = [(statistics_dtype(wide), shape) for _, shape in statistics]
    y, *values = b.ops(name, (b.cast(x, wide), *parameters), [(wide, shape), *kept], **attributes)
    return b.cast(y, dtype), *(b.cast(value, said) for value, (said, _) in zip(values, statistics))


def common_dtype(x: Value, *parameters: Value | None) -> str:
    """What a norm is computed in: its weights may be wider than what they weigh, as under autocast."""
    return next((p.dtype for p in parameters if p is not None), x.dtype)


def statistics_dtype(dtype: str) -> str:
    return "f32" if dtype in ("f16", "bf16") else dtype


@row("native_layer_norm.default", is_norm=True, gives_statistics=True)
def layer_norm(b, node):
    x, shape, weight, bias, eps = node.args
    operands = (b.value(x), b.optional(weight), b.optional(bias))
    return norm(b, "layer_norm", node, operands, normalized_rank=len(shape), eps=float(number(eps)))


@row("native_layer_norm_backward.default", reads_statistics=True)
def layer_norm_backward(b, node):
    grad, x, shape, mean, rstd, weight, _, _ = node.args
    grad, x, mean, rstd, weight = *(b.value(v) for v in (grad, x, mean, rstd)), b.optional(weight)
    wide, full_shape = common_dtype(x, weight), x.shape
    statistics = (b.cast(value, statistics_dtype(wide)) for value in (mean, rstd))
    operands = (b.cast(grad, wide), b.cast(x, wide), *statistics, weight)
    parameter = (wide, full_shape[len(full_shape) - len(shape) :])
    of_x, *of_parameters = b.ops("layer_norm_backward", operands, [(wide, full_shape), parameter, parameter], normalized_rank=len(shape))
    return b.cast(of_x, x.dtype), *of_parameters


@row("native_group_norm.default", is_norm=True, gives_statistics=True)
def group_norm(b, node):
    x, weight, bias, _, _, _, groups, eps = node.args
    operands = (b.value(x), b.optional(weight), b.optional(bias))
    return norm(b, "group_norm", node, operands, groups=number(groups), eps=float(number(eps)))


@row("native_group_norm_backward.default", reads_statistics=True)
def group_norm_backward(b, node):
    grad, x, mean, rstd, weight, images, channels, _, groups, _ = node.args
    images, channels, groups = dim_of(images), number(channels), number(groups)
    x, weight = b.value(x), b.optional(weight)
    wide, grouped = statistics_dtype(x.dtype), (images, groups, channels // groups, math.prod(x.shape[2:]))
    require(0 not in x.shape, "a gradient of nothing")
    grad, in_groups = (b.reshape(b.cast(v, wide), grouped) for v in (b.value(grad), x))
    mean, rstd = (b.reshape(b.cast(b.value(v), wide), (images, groups, 1, 1)) for v in (mean, rstd))
    along = b.pointwise("mul", grad, b.pointwise("mul", b.pointwise("sub", in_groups, mean), rstd))
    dtype = common_dtype(x, weight)
    parameters = [b.cast(b.reshape(b.reduce("sum", v, [0, 3], False), (channels,)), dtype) for v in (along, grad)]
    if weight is not None:
        grad = b.pointwise("mul", grad, b.reshape(b.cast(weight, wide), (1, groups, grouped[2], 1)))
    # A group is a layer whose weights are in the gradient already.
    types = [(wide, grouped), (wide, grouped[2:]), (wide, grouped[2:])]
    of_x, *_ = b.ops("layer_norm_backward", (grad, in_groups, mean, rstd, None), types, normalized_rank=2)
    return b.cast(b.reshape(of_x, x.shape), x.dtype), *parameters


def norm_dims(x: Value, dim: int) -> list[int]:
    return [d for d in range(len(x.shape)) if d != wrap(dim, len(x.shape))]


@row("_weight_norm_interface.default", is_norm=True)
def weight_norm(b, node):
    direction, length = b.value(node.args[0]), b.value(node.args[1])
    dtypes = [dtype for dtype, _ in result_types(node)]
    wide = statistics_dtype(direction.dtype)
    v = b.cast(direction, wide)
    norms = b.reduce("norm2", v, norm_dims(v, arg(node, 2, "dim", 0)), True)
    weight = b.pointwise("mul", v, b.pointwise("div", b.cast(length, wide), norms))
    return b.cast(weight, dtypes[0]), b.cast(norms, dtypes[1])


@row("_weight_norm_interface_backward.default")
def weight_norm_backward(b, node):
    grad, direction, length, norms = (b.value(v) for v in node.args[:4])
    wide = statistics_dtype(direction.dtype)
    g, v, size, norm = (b.cast(value, wide) for value in (grad, direction, length, norms))
    along = b.pointwise("div", b.reduce("sum", b.pointwise("mul", g, v), norm_dims(v, node.args[4]), True), norm)
    across = b.pointwise("sub", g, b.pointwise("mul", v, b.pointwise("div", along, norm)))
    of_direction = b.pointwise("mul", across, b.pointwise("div", size, norm))
    return b.cast(of_direction, direction.dtype), b.cast(along, length.dtype)


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
