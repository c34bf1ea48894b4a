"""Rows of reductions and scans."""

from __future__ import annotations

import math
from typing import Callable

from torch import fx

from ..builder import Builder
from ..text import FLOATING, Value
from .creation import ascending
from .normalisation import statistics_dtype
from .table import Family, arg, dims_of, number, operand, require, result_type, result_types, wrap

FAMILY = Family()
row = FAMILY.row


def reduction(name: str):
    def lower(b: Builder, node: fx.Node) -> Value:
        dtype, _ = result_type(node)
        x = operand(b, node.args[0], dtype)
        single = node.target._overloadname in ("default",) and name not in ("amax", "amin")
        dims = None if single else arg(node, 1, "dim")
        keep = False if single else bool(arg(node, 2, "keepdim", False))
        return b.reduce(of_dtype(name, dtype), x, dims_of(dims, len(x.shape)), keep)

    return lower


row("sum.dim_IntList", "sum.default", is_norm=True)(reduction("sum"))
row("mean.dim", "mean.default", is_norm=True)(reduction("mean"))
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
    order = arg(node, 1, "ord" if "linalg" in node.target._schema.name else "p", 2)
    x = operand(b, node.args[0], result_type(node)[0])
    dims = dims_of(arg(node, 2, "dim"), len(x.shape))
    return norm_over(b, x, 2.0 if order is None else float(number(order)), dims, bool(arg(node, 3, "keepdim", False)))


def norm_over(b: Builder, x: Value, order: float, dims: list[int], keep: bool) -> Value:
    if order == 2:
        return b.reduce("norm2", x, dims, keep) if dims else b.pointwise("abs", x)
    size = b.cast(b.pointwise("abs", x), statistics_dtype(x.dtype))
    if math.isinf(order):
        return b.cast(b.reduce("amax" if order > 0 else "amin", size, dims, keep), x.dtype)
    if order == 0:
        size = b.cast(b.pointwise("ne", size, b.full(0, size.dtype), dtype="bool"), size.dtype)
    elif order != 1:
        size = b.pointwise("pow_scalar", size, exponent=order)
    total = b.reduce("sum", size, dims, keep)
    return b.cast(total if order in (0, 1) else b.pointwise("pow_scalar", total, exponent=1 / order), x.dtype)


@row("var.correction", is_norm=True)
def var(b, node):
    x = operand(b, node.args[0], result_type(node)[0])
    correction = node.kwargs.get("correction")
    dims = dims_of(arg(node, 1, "dim"), len(x.shape))
    correction = 1 if correction is None else number(correction)
    require(int(correction) == correction, "a fractional correction")
    return b.reduce("var", x, dims, bool(node.kwargs.get("keepdim", False)), correction=int(correction))


@row("max.default", "min.default")
def extreme_of_all(b, node):
    x = b.value(node.args[0])
    return b.reduce(of_dtype("amax" if "max" in node.target._schema.name else "amin", x.dtype), x, range(len(x.shape)), False)


def of_dtype(name: str, dtype: str) -> str:
    """The reduction of that name; of truths amax and amin are any and all."""
    return {"amax": "any", "amin": "all"}.get(name, name) if dtype == "bool" else name


@row("max.dim", "min.dim")
def extreme(b, node):
    x = b.value(node.args[0])
    dim, keep = wrap(node.args[1], len(x.shape)), bool(arg(node, 2, "keepdim", False))
    if not x.shape:
        return x, b.full(0, "i64")
    names = ("amax", "argmax") if "max" in node.target._schema.name else ("amin", "argmin")
    (_, shape), _ = result_types(node)
    seen = b.cast(x, "i32") if x.dtype == "bool" else x
    return b.reduce(of_dtype(names[0], x.dtype), x, [dim], keep), b.op(names[1], (seen,), "i64", shape, dim=dim, keep_dims=keep)


@row("argmax.default", "argmin.default")
def arg_extreme(b, node):
    x, dim, keep = b.value(node.args[0]), arg(node, 1, "dim"), bool(arg(node, 2, "keepdim", False))
    if dim is None:
        require(not keep, "keepdim over all dims")
        x, dim = b.reshape(x, (math.prod(x.shape),)), 0
    if not x.shape:
        return b.full(0, "i64")
    name = node.target._schema.name.split("::")[1]
    return b.op(name, (x,), *result_type(node), dim=wrap(dim, len(x.shape)), keep_dims=keep)


@row("cumsum.default")
def cumsum(b, node):
    return running(b, node, running_sum)


def running_sum(b: Builder, x: Value) -> Value:
    """Along the last dim."""
    return in_blocks(b, x, "add", 0, lambda x: b.op("cumsum", (x,), x.dtype, x.shape, dim=len(x.shape) - 1))


@row("cumprod.default")
def cumprod(b, node):
    def product(x: Value) -> Value:
        last = len(x.shape) - 1
        seen, _, is_before = all_before(b, x, last)
        return b.reduce("prod", b.pointwise("select", is_before, seen, b.full(1, x.dtype)), [last + 1], False)

    return running(b, node, lambda b, x: in_blocks(b, x, "mul", 1, product))


@row("_cdist_forward.default")
def distances(b, node):
    left, right, order, _ = node.args
    apart, last = difference(b, left, right)
    return b.cast(norm_over(b, apart, float(number(order)), [last], False), result_type(node)[0])


def difference(b: Builder, left: fx.Node, right: fx.Node) -> tuple[Value, int]:
    """[…, P, R, M] of [… P, M] and [… R, M], and the number of its last dim."""
    x, y = b.value(left), b.value(right)
    x = b.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    y = b.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    apart = b.pointwise("sub", x, y)
    return apart, len(apart.shape) - 1


@row("_cdist_backward.default")
def distances_backward(b, node):
    grad, left, right, order, distance = node.args
    order, (dtype, shape) = float(number(order)), result_type(node)
    apart, last = difference(b, left, right)
    grad, distance = (b.reshape(v, (*v.shape, 1)) for v in (b.value(grad), b.value(distance)))
    zero = b.full(0, dtype)
    sign, size = b.pointwise("sign", apart), b.pointwise("abs", apart)
    if order == 0:
        return b.full(0, dtype, shape)
    if order == 1:
        slope = sign
    elif math.isinf(order):
        slope = b.pointwise("select", b.pointwise("eq", size, distance, dtype="bool"), sign, zero)
    else:
        power = b.pointwise("pow_scalar", size, exponent=order - 1)
        if order < 1:
            power = b.pointwise("select", b.pointwise("eq", size, zero, dtype="bool"), zero, power)
        slope = b.pointwise("div", b.pointwise("mul", sign, power), b.pointwise("pow_scalar", distance, exponent=order - 1))
        slope = b.pointwise("select", b.pointwise("eq", distance, zero, dtype="bool"), zero, slope)
    return b.reduce("sum", b.pointwise("mul", grad, slope), [last - 1], False)


# Scans compare each place with all before it: along no longer dims than this. Sums and products are scanned in blocks.
MAX_SCANNED, BLOCK = 128, 16


def all_before(b: Builder, x: Value, dim: int) -> tuple[Value, Value, Value]:
    """x with the dim last and one before it, for the places of results; numbers along the last; where these are not beyond."""
    extent = x.shape[dim]
    require(isinstance(extent, int) and extent <= MAX_SCANNED, "a scan of more than is compared")
    x = b.permute(x, [*(d for d in range(len(x.shape)) if d != dim), dim])
    numbers, results = (ascending(b, "i64", shape, dim) for shape, dim in (((1, extent), 1), ((extent, 1), 0)))
    is_before = b.pointwise("le", numbers, results, dtype="bool")
    return b.reshape(x, (*x.shape[:-1], 1, extent)), numbers, is_before


def scanned(b: Builder, result: Value, dim: int) -> Value:
    """With the dim of results where it was."""
    rank = len(result.shape)
    order = [*range(dim), rank - 1, *range(dim, rank - 1)]
    return b.permute(result, order)


def running(b: Builder, node: fx.Node, scan: Callable[[Builder, Value], Value]) -> Value:
    """The scan along the node's dim, in the dtype of the result; `scan` does that along the last dim."""
    x, (dtype, shape) = operand(b, node.args[0], result_type(node)[0]), result_type(node)
    if not shape:
        return x
    rank, dim = len(shape), wrap(node.args[1], len(shape))
    x = b.permute(b.cast(x, statistics_dtype(dtype)), [*(d for d in range(rank) if d != dim), dim])
    return scanned(b, b.cast(scan(b, x), dtype), dim)


def in_blocks(b: Builder, x: Value, combine: str, neutral: float, scan: Callable[[Value], Value]) -> Value:
    """The scan along the last dim of what combines: of each block for itself, by `scan`, then with all blocks before it, which are
    scanned the same way."""
    *outer, extent = x.shape
    if not isinstance(extent, int) or extent <= 2 * BLOCK:
        return scan(x)
    blocks, last = -(-extent // BLOCK), len(outer)
    whole = padded(b, x, 0, blocks * BLOCK - extent, neutral)
    inside = scan(b.reshape(whole, (*outer, blocks, BLOCK)))
    totals = b.reshape(b.slice(inside, last + 1, BLOCK - 1, BLOCK, 1), (*outer, blocks))
    before = in_blocks(b, b.slice(totals, last, 0, blocks - 1, blocks - 1), combine, neutral, scan)
    before = b.reshape(padded(b, before, 1, 0, neutral), (*outer, blocks, 1))
    return b.slice(b.reshape(b.pointwise(combine, before, inside), whole.shape), last, 0, extent, extent)


def padded(b: Builder, x: Value, low: int, high: int, value: float) -> Value:
    """Along the last dim."""
    if low == high == 0:
        return x
    *outer, extent = x.shape
    none = (0,) * len(outer)
    shape = (*outer, low + extent + high)
    return b.op("pad", (x,), x.dtype, shape, low=(*none, low), high=(*none, high), value=float(value))


@row("logcumsumexp.default")
def logcumsumexp(b, node):
    x, (dtype, shape) = b.value(node.args[0]), result_type(node)
    if not shape:
        return x
    dim = wrap(node.args[1], len(shape))
    seen, _, is_before = all_before(b, b.cast(x, statistics_dtype(dtype)), dim)
    seen = b.pointwise("select", is_before, seen, b.full(-math.inf, seen.dtype))
    return scanned(b, b.cast(b.reduce("logsumexp", seen, [len(shape)], False), dtype), dim)


@row("cummax.default", "cummin.default")
def running_extreme(b, node):
    x, (_, shape) = b.value(node.args[0]), result_types(node)[0]
    require(x.dtype in FLOATING or x.dtype in ("i32", "i64"), "a scan of this dtype")
    if not shape:
        return x, b.full(0, "i64")
    is_max, dim = "max" in node.target._schema.name, wrap(node.args[1], len(shape))
    seen, numbers, is_before = all_before(b, x, dim)
    # The first is before all others, so it stands for what is not.
    first = b.slice(seen, len(shape), 0, 1, 1)
    best = b.reduce("amax" if is_max else "amin", b.pointwise("select", is_before, seen, first), [len(shape)], True)
    is_best = b.pointwise("eq", seen, best, dtype="bool")
    if x.dtype in FLOATING:
        is_best = b.pointwise("bitwise_or", is_best, b.pointwise("is_nan", b.expand(seen, is_best.shape), dtype="bool"))
    place = b.pointwise("select", b.pointwise("bitwise_and", is_before, is_best), numbers, b.full(0, "i64"))
    last = b.reduce("amax", place, [len(shape)], False)
    return scanned(b, b.reshape(best, best.shape[:-1]), dim), scanned(b, last, dim)
