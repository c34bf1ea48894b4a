"""Rows of embeddings that are summed, averaged or compared bag by bag."""

from __future__ import annotations

import math

import torch

from ..builder import Builder
from ..text import Value
from .creation import ascending
from .indexing import places_among
from .normalisation import statistics_dtype
from .scatters import MAX_COMPARISONS
from .table import Family, arg, aten, require, result_type, result_types

FAMILY = Family()
row = FAMILY.row

SUM, MEAN, MAX = range(3)


def without_bare_memory(bag):
    """torch's function, whose last results are nothing but memory where sums need none."""

    def settled(*arguments, **keywords):
        out, bag_of, sizes, chosen = bag(*arguments, **keywords)
        is_sum = (arguments[4] if len(arguments) > 4 else keywords.get("mode", SUM)) == SUM
        return (out, bag_of, torch.zeros_like(sizes), torch.zeros_like(chosen)) if is_sum else (out, bag_of, sizes, chosen)

    return settled


def bag_of_each(b: Builder, indices: Value, offsets: Value) -> Value:
    """The bag that each index is in: the last that does not begin after it."""
    (count,) = indices.shape
    places = ascending(b, offsets.dtype, (count,))
    begun = places_among(b, offsets, places, True)
    return b.cast(b.pointwise("sub", begun, b.full(1, "i64")), offsets.dtype)


def counts(b: Builder, indices: Value, padding: int) -> Value:
    """Which indices count: all but the padding."""
    return b.pointwise("ne", indices, b.full(padding, indices.dtype), dtype="bool")


def column(b: Builder, value: Value) -> Value:
    return b.reshape(value, (*value.shape, 1))


@row("_embedding_bag.default", settled=without_bare_memory(aten._embedding_bag.default))
@row("_embedding_bag_forward_only.default", settled=without_bare_memory(aten._embedding_bag_forward_only.default))
def embedding_bag(b, node):
    weight, indices, offsets, _, mode, _, scales, _, padding = arguments_of(node)
    weight, indices, offsets, scales = b.value(weight), b.value(indices), b.value(offsets), b.optional(scales)
    (dtype, (bags, width)), bag_type, size_type, choice_type = result_types(node)
    require(indices.dtype == offsets.dtype and len(indices.shape) == 1, "indices of this kind")
    require(0 not in (*indices.shape, bags, width), "bags of nothing")
    bag_of, is_counted = bag_of_each(b, indices, offsets), counts(b, indices, padding)
    rows = b.op("take", (weight, indices), dtype, (*indices.shape, width), dim=0)
    zeros = b.full(0, offsets.dtype, (bags,))
    size = b.op("index_add", (zeros, bag_of, b.cast(is_counted, offsets.dtype)), offsets.dtype, (bags,), dim=0)
    chosen = b.full(0, *choice_type)
    if mode == MAX:
        out, chosen = largest_in_bags(b, rows, indices, bag_of, is_counted, size)
    else:
        out = sums_of_bags(b, rows, bag_of, is_counted, scales, bags, None if mode == SUM else size)
    sizes = b.full(0, *size_type) if mode == SUM else size
    if mode == MEAN:
        chosen = sizes
    return out, bag_of if bag_type[1] != (0,) else b.full(0, *bag_type), sizes, chosen


def arguments_of(node) -> tuple:
    """All arguments, given by position or by name, or as the schema has them."""
    return tuple(arg(node, i, a.name, a.default_value) for i, a in enumerate(node.target._schema.arguments))


def sums_of_bags(b: Builder, rows: Value, bag_of: Value, is_counted: Value, scales: Value | None, bags,
                 size: Value | None) -> Value:  # fmt: skip
    """The bags' sums, or their means where sizes are given; of an empty bag zeros."""
    wide = statistics_dtype(rows.dtype)
    given = b.pointwise("select", column(b, is_counted), b.cast(rows, wide), b.full(0, wide))
    if scales is not None:
        given = b.pointwise("mul", given, column(b, b.cast(scales, wide)))
    shape = (bags, rows.shape[1])
    out = b.op("index_add", (b.full(0, wide, shape), bag_of, given), wide, shape, dim=0)
    if size is not None:
        out = b.pointwise("div", out, column(b, b.cast(at_least_one(b, size), wide)))
    return b.cast(out, rows.dtype)


def at_least_one(b: Builder, size: Value) -> Value:
    return b.pointwise("maximum", size, b.full(1, size.dtype))


def largest_in_bags(b: Builder, rows: Value, indices: Value, bag_of: Value, is_counted: Value,
                    size: Value) -> tuple[Value, Value]:  # fmt: skip
    """Of each bag and feature the largest element, and the index that it is at; of an empty bag zeros."""
    (bags,), (count, _) = size.shape, rows.shape
    require(min(bags, count) <= MAX_COMPARISONS, "more bags and indices than are compared with each other")
    is_here = b.pointwise("eq", bag_of, ascending(b, bag_of.dtype, (bags, 1)), dtype="bool")
    is_here = b.reshape(b.pointwise("bitwise_and", is_here, is_counted), (bags, 1, count))
    rows = b.permute(rows, [1, 0])
    best = b.reduce("amax", b.pointwise("select", is_here, rows, b.full(-math.inf, rows.dtype)), [2], True)
    is_best = b.pointwise("bitwise_and", is_here, b.pointwise("eq", rows, best, dtype="bool"))
    place = b.pointwise("select", is_best, ascending(b, "i64", (count,)), b.full(count - 1, "i64"))
    place = b.reduce("amin", place, [2], False)
    is_empty = column(b, b.pointwise("eq", size, b.full(0, size.dtype), dtype="bool"))
    chosen = b.op("take", (indices, place), indices.dtype, place.shape, dim=0)
    best = b.reshape(best, place.shape)
    return tuple(b.pointwise("select", is_empty, b.full(0, v.dtype), v) for v in (best, chosen))


@row("_embedding_bag_backward.default")
def embedding_bag_backward(b, node):
    grad, indices, offsets, _, size, chosen, _, by_frequency, mode, is_sparse, scales, padding = arguments_of(node)
    require(not is_sparse, "a sparse gradient")
    bag_of = None if mode == MAX else bag_of_each(b, b.value(indices), b.value(offsets))
    return gradient(b, node, grad, indices, bag_of, size, chosen, by_frequency, mode, scales, padding)


@row("_embedding_bag_dense_backward.default")
def embedding_bag_dense_backward(b, node):
    grad, indices, bag_of, size, chosen, _, by_frequency, mode, scales, padding = arguments_of(node)
    bag_of = None if mode == MAX else b.value(bag_of)
    return gradient(b, node, grad, indices, bag_of, size, chosen, by_frequency, mode, scales, padding)


def gradient(b: Builder, node, grad, indices, bag_of, size, chosen, by_frequency: bool, mode: int, scales, padding: int) -> Value:
    require(not by_frequency, "bags by frequency, for which torch takes other indices' frequencies")
    grad, indices, scales = b.value(grad), b.value(indices), b.optional(scales)
    dtype, shape = result_type(node)
    require(grad.dtype == dtype and 0 not in (*indices.shape, *grad.shape), "a gradient of this kind")
    wide = statistics_dtype(dtype)
    zeros, grad = b.full(0, wide, shape), b.cast(grad, wide)
    if mode == MAX:
        is_empty = column(b, b.pointwise("eq", b.value(size), b.full(0, indices.dtype), dtype="bool"))
        given = b.pointwise("select", is_empty, b.full(0, wide), grad)
        return b.cast(b.op("scatter_add", (zeros, b.value(chosen), given), wide, shape, dim=0), dtype)
    if mode == MEAN:
        grad = b.pointwise("div", grad, column(b, b.cast(at_least_one(b, b.value(size)), wide)))
    given = b.op("take", (grad, bag_of), wide, (*indices.shape, shape[1]), dim=0)
    factor = b.cast(counts(b, indices, padding), wide)
    if scales is not None:
        factor = b.pointwise("mul", factor, b.cast(scales, wide))
    given = b.pointwise("mul", given, column(b, factor))
    return b.cast(b.op("index_add", (zeros, indices, given), wide, shape, dim=0), dtype)


@row("_embedding_bag_per_sample_weights_backward.default")
def scales_backward(b, node):
    grad, weight, indices, offsets, _, mode, padding = arguments_of(node)
    require(mode == SUM, "scales of other bags than sums")
    grad, weight, indices = b.value(grad), b.value(weight), b.value(indices)
    bag_of = bag_of_each(b, indices, b.value(offsets))
    dtype, (count,) = result_type(node)
    wide, width = statistics_dtype(dtype), grad.shape[1]
    given = b.op("take", (grad, bag_of), grad.dtype, (count, width), dim=0)
    rows = b.op("take", (weight, indices), weight.dtype, (count, width), dim=0)
    products = b.reduce("sum", b.pointwise("mul", b.cast(given, wide), b.cast(rows, wide)), [1], False)
    return b.cast(b.pointwise("select", counts(b, indices, padding), products, b.full(0, wide)), dtype)
