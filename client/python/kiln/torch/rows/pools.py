"""Rows of pools: what is said of the windows that slide over the last dims."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import fx

from ..builder import Builder, expanded, floor_quotient
from ..text import FLOATING, Dim, Value
from .creation import ascending
from .normalisation import statistics_dtype
from .table import Family, arg, number, require, result_type, result_types
from .views import padded

# A place that no plane has, which f64 holds.
BEYOND = 2**52

FAMILY = Family()
row = FAMILY.row


def rank_of_windows(node: fx.Node) -> int:
    return 3 if "3d" in node.target._schema.name else 2


def per_dim(numbers, rank: int) -> tuple:
    """One number, or a list of one, says the same of each dim."""
    numbers = [numbers] if isinstance(numbers, int) else list(numbers)
    return tuple(number(n) for n in (numbers * rank if len(numbers) == 1 else numbers))


@dataclass(frozen=True)
class Windows:
    """Windows over the last dims, one number a dim each: extents of what they slide over, of the kernel and of the positions."""

    extents: tuple
    kernel: tuple
    stride: tuple
    padding: tuple
    dilation: tuple
    positions: tuple
    reaches_beyond: bool  # the last window may end after the padding, as where positions are rounded up

    @staticmethod
    def of(node: fx.Node, x, y, kernel, stride, padding, dilation=1, reaches_beyond=False) -> Windows:
        """Of a pool's operand of shape x and result of shape y, or of its gradient."""
        rank = rank_of_windows(node)
        extents, positions = tuple(x[-rank:]), tuple(y[-rank:])
        require(all(is_some(n) for n in (*extents, *positions)), "windows over nothing")
        kernel = per_dim(kernel, rank)
        padding, dilation = per_dim(padding, rank), per_dim(dilation, rank)
        return Windows(extents, kernel, per_dim(stride, rank) if stride else kernel, padding, dilation, positions, bool(reaches_beyond))

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def dims(self):
        return zip(self.extents, self.kernel, self.stride, self.padding, self.dilation, self.positions)

    @property
    def is_known(self) -> bool:
        return all(isinstance(n, int) for n in (*self.extents, *self.positions))

    def clipped(self) -> Windows:
        """Without the kernel's first and last places that see no element from any position: a kernel may be far larger than
        what it slides over."""
        if not self.is_known:
            return self
        kernel, padding = [], []
        for e, k, s, p, d, o in self.dims:
            first, last = max(0, p - (o - 1) * s) // d, min(k - 1, (e - 1 + p) // d)
            kernel.append(last - first + 1)
            padding.append(p - first * d)
        return replace(self, kernel=tuple(kernel), padding=tuple(padding))

    def over(self, b: Builder, x: Value, outside: float) -> Value:
        """[outer…, kernel…, positions…] of the clipped windows: what each sees, and `outside` where that is no element."""
        w, outer = self.clipped(), x.shape[: len(x.shape) - self.rank]
        ends = [(o - 1) * s + d * (k - 1) + 1 for _, k, s, _, d, o in w.dims]
        high = w.padding
        if w.is_known:
            high = [max(0, end - e - p) for end, e, p in zip(ends, w.extents, w.padding)]
        elif w.reaches_beyond:  # by less than a window
            high = [d * (k - 1) for k, d in zip(w.kernel, w.dilation)]
        none = (0,) * len(outer)
        x = padded(b, x, (*none, *w.padding), (*none, *high), outside)
        if w.reaches_beyond and not w.is_known:
            for dim, end in enumerate(ends, len(outer)):
                x = b.slice(x, dim, 0, end, end)
        attributes = {"kernel": w.kernel, "stride": w.stride, "dilation": w.dilation}
        if not w.is_known:
            attributes["positions"] = w.positions
        return b.view("window", x, (*outer, *w.kernel, *w.positions), **attributes)

    def reduce(self, b: Builder, name: str, seen: Value) -> Value:
        first = len(seen.shape) - 2 * self.rank
        return b.reduce(name, seen, range(first, first + self.rank), False)


def is_some(extent) -> bool:
    return not isinstance(extent, int) or extent > 0


# ---- averages


def counts(b: Builder, w: Windows, includes_padding: bool, override, dtype: str) -> Value:
    """By how much each window's sum is divided."""
    if override is not None:
        return b.full(number(override), dtype)
    margin = w.padding if includes_padding else (0,) * w.rank
    extents = tuple(e + 2 * m for e, m in zip(w.extents, margin))
    padding = tuple(p - m for p, m in zip(w.padding, margin))
    of_ones = replace(w, extents=extents, padding=padding)
    stays_inside = not w.reaches_beyond
    if w.is_known:
        stays_inside = all((o - 1) * s + k <= e for o, s, k, e in zip(w.positions, w.stride, w.kernel, extents))
    if not any(padding) and stays_inside:
        return b.full(math.prod(w.kernel), dtype)
    return of_ones.reduce(b, "sum", of_ones.over(b, b.full(1, dtype, extents), 0))


@row("avg_pool2d.default", "avg_pool3d.default")
def average(b, node):
    x, kernel = b.value(node.args[0]), node.args[1]
    dtype, shape = result_type(node)
    w = Windows.of(node, x.shape, shape, kernel, arg(node, 2, "stride"), arg(node, 3, "padding", 0),
                   reaches_beyond=arg(node, 4, "ceil_mode", False))  # fmt: skip
    wide = b.cast(x, statistics_dtype(dtype))
    divisor = counts(b, w, arg(node, 5, "count_include_pad", True), arg(node, 6, "divisor_override"), wide.dtype)
    total = w.reduce(b, "sum", w.over(b, wide, 0))
    if dtype not in FLOATING:  # towards 0
        rest = b.pointwise("fmod", total, divisor)
        return b.pointwise("floor_div", b.pointwise("sub", total, rest), divisor)
    return b.cast(b.pointwise("div", total, divisor), dtype)


@row("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def average_backward(b, node):
    grad, x, kernel, stride, padding, ceil_mode, includes_padding, override = node.args
    grad, (dtype, shape) = b.value(grad), result_type(node)
    w = Windows.of(node, shape, grad.shape, kernel, stride, padding, reaches_beyond=ceil_mode)
    wide = b.cast(grad, statistics_dtype(dtype))
    return b.cast(spread(b, w, b.pointwise("div", wide, counts(b, w, includes_padding, override, wide.dtype))), dtype)


def spread(b: Builder, w: Windows, shares: Value) -> Value:
    """Each element's sum of the shares of the windows that see it: windows of stride 1 over the shares, apart by the stride."""
    w, outer = w.clipped(), len(shares.shape) - w.rank
    low, high = [0] * outer, [0] * outer
    for d, (e, k, s, p, _, o) in enumerate(w.dims):
        reach = (o - 1) * s + 1
        if s > 1 and o != 1:
            shape = (*shares.shape[: outer + d], reach, *shares.shape[outer + d + 1 :])
            zeros = b.full(0, shares.dtype, shape)
            shares = b.op("slice_scatter", (zeros, shares), shares.dtype, shape, dim=outer + d, start=0, end=reach, step=s)
        low.append(k - 1 - p)
        high.append(expanded(e + p - reach))
    ones = (1,) * w.rank
    extents = tuple(e + k - 1 for e, k in zip(w.extents, w.kernel))
    seen = Windows(extents, w.kernel, ones, (0,) * w.rank, ones, w.extents, False)
    return seen.reduce(b, "sum", seen.over(b, padded(b, shares, low, high, 0), 0))


def seen_by_parts(b: Builder, x: Value, parts: tuple, outside: float) -> tuple[Value, list[int]]:
    """x, whose last dims are apart into parts: each part's elements along a dim of its own, and `outside` where it has fewer than
    another; and these dims. Part i of n begins at the element ⌊i e / n⌋ of e and ends before ⌈(i + 1) e / n⌉."""
    first, dims = len(x.shape) - len(parts), []
    for i, count in enumerate(parts):
        dim, extent = first + 2 * i, x.shape[first + 2 * i]
        require(is_some(extent) and is_some(count), "parts of nothing")
        dims.append(dim + 1)
        before, after = x.shape[:dim], x.shape[dim + 1 :]
        if (size := whole_quotient(extent, count)) is not None:
            x = b.reshape(x, (*before, count, size, *after))
            continue
        if (times := whole_quotient(count, extent)) is not None:  # each element is a part several times
            x = b.expand(b.reshape(x, (*before, extent, 1, *after)), (*before, extent, times, *after))
            x = b.reshape(x, (*before, count, 1, *after))
            continue
        longest = longest_part(extent, count)
        shape = (*before, count, longest, *after)
        places, is_inside = places_of_parts(b, extent, count, longest)
        places = b.pointwise("minimum", places, b.extent(extent - 1, "i64"))
        taken = (*x.shape[:dim], count * longest, *x.shape[dim + 1 :])
        x = b.op("take", (x, b.reshape(places, (count * longest,))), x.dtype, taken, dim=dim)
        is_inside = b.reshape(is_inside, (count, longest, *(1 for _ in shape[dim + 2 :])))
        x = b.pointwise("select", is_inside, b.reshape(x, shape), b.full(outside, x.dtype))
    return x, dims


def whole_quotient(over: Dim, under: Dim) -> Dim | None:
    """None where it is not known to be a whole number."""
    quotient = floor_quotient(over, under)
    return quotient if expanded(quotient * under) == over else None


def longest_part(extent: Dim, count: Dim) -> Dim:
    """How many elements the longest part has, or one more where that depends on symbols."""
    if isinstance(extent, int) and isinstance(count, int):
        return max(-(-(part + 1) * extent // count) - part * extent // count for part in range(count))
    return floor_quotient(extent + count - 1, count) + 1


def places_of_parts(b: Builder, extent: Dim, count: Dim, longest: Dim) -> tuple[Value, Value]:
    """The elements that parts are made of, [part, element]; and which of them belong to their part."""
    part = ascending(b, "i64", (count, 1))
    begin = b.pointwise("floor_div", b.pointwise("mul", part, b.extent(extent, "i64")), b.extent(count, "i64"))
    until = b.pointwise("add", b.pointwise("mul", part, b.extent(extent, "i64")), b.extent(extent + count - 1, "i64"))
    end = b.pointwise("floor_div", until, b.extent(count, "i64"))
    places = b.pointwise("add", begin, ascending(b, "i64", (1, longest), dim=1))
    return places, b.pointwise("lt", places, end, dtype="bool")


def sizes_of_parts(b: Builder, extents: tuple, parts: tuple, dtype: str) -> Value:
    """How many elements each part has."""
    ones, dims = seen_by_parts(b, b.full(1, dtype, extents), parts, 0)
    return b.reduce("sum", ones, dims, False)


@row("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_average(b, node):
    x, (dtype, shape) = b.value(node.args[0]), result_type(node)
    rank = rank_of_windows(node)
    seen, dims = seen_by_parts(b, b.cast(x, statistics_dtype(dtype)), shape[-rank:], 0)
    total, size = b.reduce("sum", seen, dims, False), sizes_of_parts(b, x.shape[-rank:], shape[-rank:], seen.dtype)
    return b.cast(b.pointwise("div", total, size), dtype)


@row("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def adaptive_average_backward(b, node):
    # The parts that have an element are to the elements as these are to the parts.
    grad, (dtype, shape) = b.value(node.args[0]), result_type(node)
    rank = rank_of_windows(node)
    wide = b.cast(grad, statistics_dtype(dtype))
    share = b.pointwise("div", wide, sizes_of_parts(b, shape[-rank:], grad.shape[-rank:], wide.dtype))
    seen, dims = seen_by_parts(b, share, shape[-rank:], 0)
    return b.cast(b.reduce("sum", seen, dims, False), dtype)


# ---- maxima


@row("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def maximum(b, node):
    x = b.value(node.args[0])
    (dtype, shape), (_, _) = result_types(node)
    require(dtype not in ("i8", "u8", "i16", "i32", "i64"), "windows of integers")
    w = Windows.of(node, x.shape, shape, node.args[1], arg(node, 2, "stride"), arg(node, 3, "padding", 0), arg(node, 4, "dilation", 1),
                   arg(node, 5, "ceil_mode", False))  # fmt: skip
    seen = w.over(b, x, -math.inf)
    highest = w.reduce(b, "amax", seen)
    return highest, first_place(b, w, seen, highest)


def first_place(b: Builder, w: Windows, seen: Value, highest: Value) -> Value:
    """Where in its plane each window's highest element is, or the first of several: the least of the places that hold it."""
    nowhere = beyond(w.extents)
    places = w.over(b, places_in(b, w.extents), nowhere)
    outer = highest.shape[: len(highest.shape) - w.rank]
    against = b.reshape(highest, (*outer, *(1 for _ in w.kernel), *w.positions))
    return w.reduce(b, "amin", places_that_hold(b, seen, against, places, nowhere))


def places_in(b: Builder, extents: tuple) -> Value:
    """The number of each place of a plane."""
    return b.reshape(ascending(b, "i64", (math.prod(extents),)), extents)


def beyond(extents: tuple) -> int:
    """A place that a plane does not have."""
    elements = math.prod(extents)
    return elements if isinstance(elements, int) else BEYOND


def places_that_hold(b: Builder, seen: Value, against: Value, places: Value, none: int) -> Value:
    """The places of what is as high as `against`, or NaN; `none` for all else."""
    is_there = b.pointwise("eq", seen, against, dtype="bool")
    is_nan = b.pointwise("ne", seen, seen, dtype="bool")
    found = b.pointwise("logical_or", is_there, is_nan, dtype="bool")
    return b.pointwise("select", found, b.expand(places, seen.shape), b.full(none, "i64"))


@row("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_maximum(b, node):
    x, ((dtype, shape), _), rank = b.value(node.args[0]), result_types(node), rank_of_windows(node)
    require(dtype in FLOATING, "windows of integers")
    extents, parts = x.shape[-rank:], shape[-rank:]
    seen, dims = seen_by_parts(b, x, parts, -math.inf)
    highest, nowhere = b.reduce("amax", seen, dims, True), beyond(extents)
    places, _ = seen_by_parts(b, places_in(b, extents), parts, nowhere)
    place = b.reduce("amin", places_that_hold(b, seen, highest, places, nowhere), dims, False)
    return b.reshape(highest, shape), place


@row("max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default",
     "adaptive_max_pool2d_backward.default", "adaptive_max_pool3d_backward.default")  # fmt: skip
def maximum_backward(b, node):
    grad, indices = node.args[0], node.args[-1]
    (dtype, shape), rank = result_type(node), rank_of_windows(node)
    require(all(is_some(n) for n in shape), "windows over nothing")
    planes, elements = math.prod(shape[:-rank]), math.prod(shape[-rank:])
    require(elements != 1, "an index into an extent of 1")
    grad, indices = (b.reshape(v, (planes, math.prod(v.shape[-rank:]))) for v in (b.value(grad), b.value(indices)))
    zeros = b.full(0, dtype, (planes, elements))
    return b.reshape(b.op("scatter_add", (zeros, indices, grad), dtype, (planes, elements), dim=1), shape)
