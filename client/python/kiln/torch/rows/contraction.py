"""Rows of matrix products and of attention."""

from __future__ import annotations

import math

import torch
from torch import fx

from ..._reasons import Reason
from ..attend import attend, attend_backward, attention_of_scores, attention_scores
from ..fused_attention import fused_attention, fused_attention_backward
from ..builder import Builder, meta_of, type_of
from ..text import Value
from .normalisation import statistics_dtype
from .table import Family, arg, aten, number, require, result_type, result_types

FAMILY = Family()
row = FAMILY.row


@row("mm.default", "bmm.default")
def matmul(b, node):
    return b.op("matmul", [b.value(a) for a in node.args[:2]], *result_type(node))


@row("mv.default")
def mv(b, node):
    matrix, vector = (b.value(a) for a in node.args[:2])
    column = b.reshape(vector, (*vector.shape, 1))
    dtype, shape = result_type(node)
    return b.reshape(b.op("matmul", (matrix, column), dtype, (*shape, 1)), shape)


@row("_int_mm.default")
def int_mm(b, node):
    dtype, shape = result_type(node)
    return b.op("matmul", [b.cast(b.value(a), dtype) for a in node.args[:2]], dtype, shape)


@row("_weight_int8pack_mm.default")
def weight_only_mm(b, node):
    dtype, shape = result_type(node)
    x, weight, scales = (b.cast(b.value(a), dtype) for a in node.args[:3])
    product = b.op("matmul", (x, b.permute(weight, (1, 0))), dtype, shape)
    return b.pointwise("mul", product, scales)


@row("_weight_int4pack_mm_for_cpu.default")
def packed_weight_mm(b, node):
    require(False, "weights that torch has packed for this processor, in an order of its own")


@row("addmm.default", "baddbmm.default")
def addmm(b, node):
    scales = {name: number(node.kwargs.get(name, 1)) for name in ("alpha", "beta")}
    if not meta_of(node).is_floating_point():  # eager's errors, and its rounding, are eager's
        limits = torch.iinfo(meta_of(node).dtype)
        is_held = all(s == int(s) and limits.min <= s <= limits.max for s in scales.values())
        require(is_held, Reason("a factor that the dtype does not hold", is_semantic=True))
    scales = {name: float(scale) for name, scale in scales.items()}
    return b.op("addmm", [b.value(a) for a in node.args[:3]], *result_type(node), **scales)






@row("addbmm.default")
def addbmm(b, node):
    """The sum of products of a batch is one product: the batch and what is summed are one dim."""
    base, left, right = (b.value(a) for a in node.args[:3])
    (batch, rows, depth), columns = left.shape, right.shape[2]
    require(meta_of(node).is_floating_point(), "integers")
    left = b.reshape(b.permute(left, (1, 0, 2)), (rows, batch * depth))
    scales = {name: float(number(node.kwargs.get(name, 1))) for name in ("alpha", "beta")}
    return b.op("addmm", (base, left, b.reshape(right, (batch * depth, columns))), *result_type(node), **scales)


def of_ended_groups(left, right, offs=None, *rest, **options):
    """torch leaves what is in no group as it finds the memory; here it is zero."""
    out = aten._grouped_mm.default(left, right, offs, *rest, **options)
    if offs is not None and left.dim() + right.dim() == 5:
        out.narrow(left.dim() - 2, int(offs[-1]), out.shape[left.dim() - 2] - int(offs[-1])).zero_()
    return out


def grouped_matmul(b: Builder, left: Value, right: Value, ends: Value, dtype: str, shape) -> Value:
    return b.op("grouped_matmul", (left, right, ends), dtype, shape)


@row("_grouped_mm.default", settled=of_ended_groups)
def grouped_mm(b, node):
    left, right = (b.value(a) for a in node.args[:2])
    ends, bias = (b.optional(arg(node, 2 + i, name)) for i, name in enumerate(("offs", "bias")))
    require(bias is None, "a bias, which torch has no kernel for")
    dtype, shape = result_type(node)
    if ends is None:
        return b.op("matmul", (left, right), dtype, shape)
    if len(left.shape) == 2:
        return grouped_matmul(b, left, right, ends, dtype, shape)
    transposed = grouped_matmul(b, b.permute(right, (1, 0)), b.permute(left, (0, 2, 1)), ends, dtype, shape[::-1])
    return b.permute(transposed, (1, 0))


@row("transformers.grouped_mm_fallback.default")
def experts(b, node):
    return grouped_matmul(b, *(b.value(a) for a in node.args[:3]), *result_type(node))


@row("transformers.grouped_mm_fallback_backward.default")
def experts_backward(b, node):
    x, weight, ends, grad = (b.value(a) for a in node.args[:4])
    of_x, of_weight = result_types(node)
    return (
        grouped_matmul(b, grad, b.permute(weight, (0, 2, 1)), ends, *of_x),
        grouped_matmul(b, b.permute(x, (1, 0)), grad, ends, *of_weight),
    )


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


@row(attend, fused_attention)
def attention_of_a_function(b, node):
    scale, causal = node.args[4:6]
    return b.ops("attention", list(map(b.optional, node.args[:4])), result_types(node), causal=causal, scale=scale)


@row(attend_backward, fused_attention_backward)
def attention_backward_of_a_function(b, node):
    scale, causal = node.args[7:9]
    return b.ops("attention_backward", list(map(b.optional, node.args[:7])), result_types(node), causal=causal, scale=scale)


@row(attention_scores)
def scores_of_a_function(b, node):
    query, key, scale = node.args
    return b.op("attention_scores", (b.value(query), b.value(key)), *result_type(node), scale=scale)


@row(attention_of_scores)
def attention_of_scores_of_a_function(b, node):
    scores, value, causal = node.args
    return b.ops("attention_of_scores", (b.value(scores), b.value(value)), result_types(node), causal=causal)


@row("_trilinear.default")
def trilinear(b, node):
    dtype, _ = result_type(node)
    wide = statistics_dtype(dtype)
    factors = []
    for i in range(3):
        x = b.cast(b.value(node.args[i]), wide)
        for dim in sorted(node.args[3 + i]):
            x = b.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))
        factors.append(x)
    product = b.pointwise("mul", b.pointwise("mul", factors[0], factors[1]), factors[2])
    return b.cast(b.reduce("sum", product, list(node.args[6]), False), dtype)
