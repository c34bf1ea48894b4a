"""Rows of order: sorting, and elements chosen by their place in it.

Elements that are equal keep their order, but for topk on the CPU, which chooses as torch does. NaN is above all numbers. Where
torch leaves open which of several equal elements is named, `settled` is torch's own function with the choice that the row makes.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from ..builder import Builder, floor_quotient, meta_of
from ..text import FLOATING, Value
from .creation import ascending
from .reductions import running_maximum
from .table import Family, arg, aten, kept_shape, number, require, result_types, wrap

FAMILY = Family()
row = FAMILY.row

# Where the CPU's kernel for sorting takes less time than comparing all elements with each other.
MAX_COMPARED = 64
# Elements that are compared with each other where no kernel sorts.
MAX_COMPARED_ELSEWHERE = 128


def ranks(b: Builder, x: Value, descending: bool) -> Value:
    """How many elements along the last dim come before each: equal ones, where they stand before it."""
    count = x.shape[-1]
    mine, others = b.reshape(x, (*x.shape, 1)), b.reshape(x, (*x.shape[:-1], 1, count))
    places, other_places = (ascending(b, "i64", shape, dim) for shape, dim in (((count, 1), 0), ((1, count), 1)))
    is_before = b.pointwise("lt", other_places, places, dtype="bool")
    at_most, at_least = ("ge", "le") if descending else ("le", "ge")
    reaches = b.pointwise(at_most, others, mine, dtype="bool")
    if x.dtype in FLOATING:
        # A comparison with NaN is false: it says what follows, not what comes before.
        first, last = (others, mine) if descending else (mine, others)
        reaches = b.pointwise("bitwise_or", reaches, b.pointwise("is_nan", first, dtype="bool"))
        passes = b.pointwise("logical_not", b.pointwise(at_least, others, mine, dtype="bool"))
        is_number = b.pointwise("logical_not", b.pointwise("is_nan", last, dtype="bool"))
        passes = b.pointwise("bitwise_and", passes, is_number)
    else:
        passes = b.pointwise("gt" if descending else "lt", others, mine, dtype="bool")
    comes_first = b.pointwise("select", is_before, reaches, passes)
    return b.reduce("sum", b.cast(comes_first, "i64"), [len(x.shape)], False)


def has_kernel_for(node: fx.Node) -> bool:
    return meta_of(node.args[0]).device.type == "cpu"


def order_of(b: Builder, node: fx.Node, x: Value, dim: int, descending: bool) -> Value:
    """The places of the elements along a dim, in order: of few by comparing all of them, which every device does."""
    extent, rank, has_kernel = x.shape[dim], len(x.shape), has_kernel_for(node)
    if not isinstance(extent, int) or extent > (MAX_COMPARED if has_kernel else MAX_COMPARED_ELSEWHERE):
        require(has_kernel, "sorting so many elements on another device than the CPU: its kernel is the CPU's")
        return b.op("argsort", (x,), "i64", x.shape, dim=dim, descending=descending)
    along = [*(d for d in range(rank) if d != dim), dim]
    x = b.permute(x, along)
    places = ascending(b, "i64", x.shape, rank - 1)
    order = b.op("scatter", (b.full(0, "i64", x.shape), ranks(b, x, descending), places), "i64", x.shape, dim=rank - 1)
    return b.permute(order, [along.index(d) for d in range(rank)])


def elements_at(b: Builder, x: Value, order: Value, dim: int) -> Value:
    return b.op("gather", (x, order), x.dtype, order.shape, dim=dim)


def stable_sort(x, dim=-1, descending=False):
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


@row("sort.default", settled=stable_sort)
@row("sort.stable")
def sort(b, node):
    x, is_stable = b.value(node.args[0]), node.target is aten.sort.stable
    dim, descending = (arg(node, i + is_stable, name, usual) for i, name, usual in ((1, "dim", -1), (2, "descending", False)))
    if not x.shape:
        return x, b.full(0, "i64")
    dim = wrap(dim, len(x.shape))
    order = order_of(b, node, x, dim, bool(descending))
    return elements_at(b, x, order, dim), order


def settled_topk(x, k, dim=-1, largest=True, sorted=True):
    if x.device.type == "cpu":
        return aten.topk.default(x, k, dim, largest, sorted)
    return tuple(t.narrow(dim, 0, k).contiguous() if x.dim() else t for t in stable_sort(x, dim, largest))


@row("topk.default", settled=settled_topk)
def topk(b, node):
    x, (_, (_, shape)) = b.value(node.args[0]), result_types(node)
    if not x.shape:
        return x, b.full(0, "i64")
    dim, largest = wrap(arg(node, 2, "dim", -1), len(x.shape)), bool(arg(node, 3, "largest", True))
    if has_kernel_for(node):
        is_sorted = bool(arg(node, 4, "sorted", True))
        order = b.op("topk", (x,), "i64", shape, dim=dim, k=shape[dim], descending=largest, sorted=is_sorted)
    else:
        order = b.slice(order_of(b, node, x, dim, largest), dim, 0, shape[dim], shape[dim])
    return elements_at(b, x, order, dim), order


def chosen_along(b: Builder, x: Value, order: Value, dim: int, shape: tuple) -> tuple[Value, Value]:
    """The elements at one place of each row, and these."""
    return b.reshape(elements_at(b, x, order, dim), shape), b.reshape(order, shape)


def first_of_kthvalue(x, k, dim=-1, keepdim=False):
    if not x.dim():
        return aten.kthvalue.default(x, k, dim, keepdim)
    return _at_one_place(x, stable_sort(x, dim)[1].narrow(dim, k - 1, 1), dim, keepdim)


def _at_one_place(x, order, dim, keepdim):
    values = x.gather(dim, order)
    return (values, order.contiguous()) if keepdim else (values.squeeze(dim), order.squeeze(dim).contiguous())


@row("kthvalue.default", settled=first_of_kthvalue)
def kthvalue(b, node):
    x, k, (_, (_, shape)) = b.value(node.args[0]), number(node.args[1]), result_types(node)
    if not x.shape:
        return x, b.full(0, "i64")
    dim = wrap(arg(node, 2, "dim", -1), len(x.shape))
    return chosen_along(b, x, b.slice(order_of(b, node, x, dim, False), dim, k - 1, k, 1), dim, shape)


def first_of_median(median):
    def settled(x, dim, keepdim=False):
        if not x.dim():
            return median(x, dim, keepdim)
        values, order = stable_sort(x, dim)
        count = (values == values).sum(dim, keepdim=True)
        middle = (count - 1).clamp(min=0) // 2
        if median is aten.median.dim:
            middle = torch.where(count < x.shape[dim], count, middle)
        return _at_one_place(x, order.gather(dim, middle), dim, keepdim)

    return settled


@row("median.dim", settled=first_of_median(aten.median.dim))
@row("nanmedian.dim", settled=first_of_median(aten.nanmedian.dim))
def median(b, node):
    x, (_, (_, shape)) = b.value(node.args[0]), result_types(node)
    if not x.shape:
        return x, b.full(0, "i64")
    return median_along(b, node, x, wrap(node.args[1], len(x.shape)), node.target is aten.median.dim, shape)


@row("median.default", "nanmedian.default")
def median_of_all(b, node):
    x = b.value(node.args[0])
    x = b.reshape(x, (math.prod(x.shape),))
    return median_along(b, node, x, 0, node.target is aten.median.default, ())[0]


def median_along(b: Builder, node: fx.Node, x: Value, dim: int, sees_nan: bool, shape: tuple) -> tuple[Value, Value]:
    """The lower of two in the middle; the first NaN where one is seen, else of the numbers alone."""
    order, extent = order_of(b, node, x, dim, False), x.shape[dim]
    if x.dtype not in FLOATING:
        middle = floor_quotient(extent - 1, 2)
        return chosen_along(b, x, b.slice(order, dim, middle, middle + 1, 1), dim, shape)
    is_number = b.pointwise("logical_not", b.pointwise("is_nan", x, dtype="bool"))
    count = b.reduce("sum", b.cast(is_number, "i64"), [dim], True)
    last = b.pointwise("maximum", b.pointwise("sub", count, b.full(1, "i64")), b.full(0, "i64"))
    middle = b.pointwise("floor_div", last, b.full(2, "i64"))
    if sees_nan:
        middle = b.pointwise("select", b.pointwise("lt", count, b.extent(extent, "i64"), dtype="bool"), count, middle)
    return chosen_along(b, x, b.op("gather", (order, middle), "i64", middle.shape, dim=dim), dim, shape)


def last_of_mode(x, dim=-1, keepdim=False):
    if not x.dim():
        return aten.mode.default(x, dim, keepdim)
    x = x.movedim(dim, -1)
    ordered, places = stable_sort(x)[0], torch.arange(x.shape[-1], device=x.device)
    begins = torch.where(ordered != ordered.roll(1, -1), places, 0).cummax(-1)[0]
    values = ordered.gather(-1, (places - begins).argmax(-1, keepdim=True))
    places = torch.where(x == values, places, 0).amax(-1, keepdim=True)
    return tuple(t.movedim(-1, dim).contiguous() if keepdim else t.squeeze(-1) for t in (values, places))


def run_lengths(b: Builder, ordered: Value, places: Value) -> Value:
    """How many elements equal to each stand right before it along the last dim, which is ordered."""
    before = b.op("take", (ordered, b.pointwise("maximum", b.pointwise("sub", places, b.full(1, "i64")), b.full(0, "i64"))),
                  ordered.dtype, ordered.shape, dim=len(ordered.shape) - 1)  # fmt: skip
    is_first = b.pointwise("ne", ordered, before, dtype="bool")
    begins = b.pointwise("select", is_first, places, b.full(0, "i64"))
    return b.pointwise("sub", places, running_maximum(b, begins))


@row("mode.default", settled=last_of_mode)
def mode(b, node):
    """The most frequent element, the smallest of several such, and the last place where it is; NaN is equal to nothing, where
    torch's result depends on how they stand."""
    x, (_, (_, shape)) = b.value(node.args[0]), result_types(node)
    if not x.shape:
        return x, b.full(0, "i64")
    rank, dim = len(x.shape), wrap(arg(node, 1, "dim", -1), len(x.shape))
    x = b.permute(x, [*(d for d in range(rank) if d != dim), dim])
    ordered = elements_at(b, x, order_of(b, node, x, rank - 1, False), rank - 1)
    places = ascending(b, "i64", x.shape[-1:])
    lengths, one = run_lengths(b, ordered, places), kept_shape(x.shape, rank - 1)
    last = b.op("argmax", (lengths,), "i64", one, dim=rank - 1, keep_dims=True)
    value = elements_at(b, ordered, last, rank - 1)
    place = b.pointwise("select", b.pointwise("eq", x, value, dtype="bool"), places, b.full(0, "i64"))
    return b.reshape(value, shape), b.reshape(b.reduce("amax", place, [rank - 1], False), shape)
