"""Rows of reductions and scans."""

from __future__ import annotations

import math
from typing import Callable

from torch import fx

from ..builder import Builder
from ..text import FLOATING, Dim, Value
from .creation import ascending
from .normalisation import statistics_dtype
from .table import Family, arg, dims_of, number, operand, require, result_type, result_types, scaled, wrap

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
row("all.dim", "all.dims", "all.default", "_is_all_true.default")(reduction("all"))


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
    keep = bool(node.kwargs.get("keepdim", False))
    if int(correction) == correction:
        return b.reduce("var", x, dims, keep, correction=int(correction))
    count = math.prod(x.shape[d] for d in dims)
    require(isinstance(count, int) and count > correction, "a fractional correction of this count")
    mean_square = b.reduce("var", b.cast(x, statistics_dtype(x.dtype)), dims, keep, correction=0)
    return b.cast(scaled(b, mean_square, count / (count - correction)), x.dtype)


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
    return in_blocks(b, x, by(b, "add"), 0, lambda x: b.op("cumsum", (x,), x.dtype, x.shape, dim=len(x.shape) - 1))


@row("cumprod.default")
def cumprod(b, node):
    return running(b, node, lambda b, x: in_blocks(b, x, by(b, "mul"), 1, lambda x: reduced_before(b, x, "prod", 1)))


def by(b: Builder, name: str) -> Callable[[Value, Value], Value]:
    return lambda left, right: b.pointwise(name, left, right)


def running_maximum(b: Builder, x: Value) -> Value:
    """Along the last dim."""
    lowest = -math.inf if x.dtype in FLOATING else LOWEST[x.dtype]
    return in_blocks(b, x, by(b, "maximum"), lowest, lambda x: reduced_before(b, x, "amax", lowest))


def reduced_before(b: Builder, x: Value, name: str, neutral: float) -> Value:
    """The reduction of all up to each place along the last dim, by comparing places."""
    last = len(x.shape) - 1
    extent = x.shape[last]
    require(isinstance(extent, int), "a scan along a symbolic extent")
    numbers, results = (ascending(b, "i64", shape, dim) for shape, dim in (((1, extent), 1), ((extent, 1), 0)))
    is_before = b.pointwise("le", numbers, results, dtype="bool")
    seen = b.reshape(x, (*x.shape[:-1], 1, extent))
    return b.reduce(name, b.pointwise("select", is_before, seen, b.full(neutral, x.dtype)), [last + 1], False)


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
    apart, last = difference(b, left, right)
    grad, distance = (b.reshape(v, (*v.shape, 1)) for v in (b.value(grad), b.value(distance)))
    return b.reduce("sum", b.pointwise("mul", grad, slope(b, apart, distance, float(number(order)))), [last - 1], False)


def slope(b: Builder, apart: Value, distance: Value, order: float) -> Value:
    """How a distance changes with each element of what is apart; not at all where it is 0."""
    zero = b.full(0, apart.dtype)
    sign, size = b.pointwise("sign", apart), b.pointwise("abs", apart)
    if order == 0:
        return b.full(0, apart.dtype, apart.shape)
    if order == 1:
        return sign
    if math.isinf(order):
        return b.pointwise("select", b.pointwise("eq", size, distance, dtype="bool"), sign, zero)
    power = b.pointwise("pow_scalar", size, exponent=order - 1)
    if order < 1:
        power = b.pointwise("select", b.pointwise("eq", size, zero, dtype="bool"), zero, power)
    change = b.pointwise("div", b.pointwise("mul", sign, power), b.pointwise("pow_scalar", distance, exponent=order - 1))
    return b.pointwise("select", b.pointwise("eq", distance, zero, dtype="bool"), zero, change)


@row("_pdist_forward.default")
def pair_distances(b, node):
    """Pair k of n rows is row i and a later one: i is found by the k at which each i begins, a parabola."""
    x, order, (dtype, pairs) = b.value(node.args[0]), float(number(arg(node, 1, "p", 2))), result_type(node)
    rows = x.shape[0]
    half = b.pointwise("sub", b.extent(rows, "f64"), b.full(0.5, "f64"))
    under = b.pointwise("sub", b.pointwise("mul", half, half), ascending(b, "f64", pairs, start=1, step=2))
    first = b.cast(b.pointwise("sub", half, b.pointwise("sqrt", under)), "i64")
    second = b.pointwise("add", b.pointwise("sub", ascending(b, "i64", pairs), begin_of_pairs(b, first, rows)), first)
    second = b.pointwise("add", second, b.full(1, "i64"))
    left, right = (b.op("take", (x, places), dtype, (*pairs, x.shape[1]), dim=0) for places in (first, second))
    return norm_over(b, b.pointwise("sub", left, right), order, [1], False)


def begin_of_pairs(b: Builder, row: Value, rows: Dim) -> Value:
    """The number of a row's first pair with a later one."""
    others = b.pointwise("sub", b.extent(2 * rows - 1, "i64"), row)
    return b.pointwise("floor_div", b.pointwise("mul", row, others), b.full(2, "i64"))


@row("_pdist_backward.default")
def pair_distances_backward(b, node):
    """A row's gradient is of its pairs with all others; with itself it has none, and its distance is 0 apart."""
    grad, x, distance = (b.value(node.args[i]) for i in (0, 1, 3))
    rows, width = x.shape
    one, other = (ascending(b, "i64", (rows, rows), dim) for dim in (0, 1))
    first, second = b.pointwise("minimum", one, other), b.pointwise("maximum", one, other)
    pair = b.pointwise("add", begin_of_pairs(b, first, rows), b.pointwise("sub", b.pointwise("sub", second, first), b.full(1, "i64")))
    pair = b.pointwise("maximum", pair, b.full(0, "i64"))
    grad, distance = (b.reshape(b.op("take", (v, pair), v.dtype, (rows, rows), dim=0), (rows, rows, 1)) for v in (grad, distance))
    apart = b.pointwise("sub", b.reshape(x, (rows, 1, width)), b.reshape(x, (1, rows, width)))
    return b.reduce("sum", b.pointwise("mul", grad, slope(b, apart, distance, float(number(node.args[2])))), [1], False)


# Scans are made in blocks, of which each compares all its places.
BLOCK = 16
LOWEST = {"i32": -(2**31), "i64": -(2**63)}


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


def in_blocks(b: Builder, x: Value, combine: Callable[[Value, Value], Value], neutral: float, scan: Callable[[Value], Value]) -> Value:
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
    return b.slice(b.reshape(combine(before, inside), whole.shape), last, 0, extent, extent)


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
    def both(left: Value, right: Value) -> Value:
        high = b.pointwise("maximum", left, right)
        apart = b.pointwise("neg", b.pointwise("abs", b.pointwise("sub", left, right)))
        total = b.pointwise("add", high, b.pointwise("log1p", b.pointwise("exp", apart)))
        is_infinite = b.pointwise("is_inf", high, dtype="bool")
        return b.pointwise("select", is_infinite, high, total)

    def scan(b: Builder, x: Value) -> Value:
        return in_blocks(b, x, both, -math.inf, lambda x: reduced_before(b, x, "logsumexp", -math.inf))

    return running(b, node, scan)


@row("cummax.default", "cummin.default")
def running_extreme_and_place(b, node):
    """The place is the last at which an element was as far as any before it."""
    x, ((dtype, shape), _) = b.value(node.args[0]), result_types(node)
    if not shape:
        return x, b.full(0, "i64")
    require(dtype == "bool" or dtype in FLOATING or dtype in LOWEST, "a scan of this dtype")
    is_max, rank, dim = "max" in node.target._schema.name, len(shape), wrap(node.args[1], len(shape))
    x = b.permute(b.cast(x, "i32") if dtype == "bool" else x, [*(d for d in range(rank) if d != dim), dim])
    turned = "neg" if x.dtype in FLOATING else "bitwise_not"  # which no number of a dtype lacks, and which turns their order
    best = running_maximum(b, x) if is_max else b.pointwise(turned, running_maximum(b, b.pointwise(turned, x)))
    is_best = b.pointwise("eq", x, best, dtype="bool")
    if x.dtype in FLOATING:
        is_best = b.pointwise("bitwise_or", is_best, b.pointwise("is_nan", x, dtype="bool"))
    places = b.pointwise("select", is_best, ascending(b, "i64", x.shape[-1:]), b.full(0, "i64"))
    return scanned(b, b.cast(best, dtype), dim), scanned(b, running_maximum(b, places), dim)
