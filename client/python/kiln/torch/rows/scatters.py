"""Rows of writes by index that are put together of several of Kiln's: what is written is counted, so that every index is
checked and a place that nothing was written to keeps its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import fx

from ..builder import Builder, meta_of
from ..text import FLOATING, Value
from .creation import ascending
from .indexing import first_part, in_line, in_range, places_among, put
from .normalisation import statistics_dtype
from .reductions import running_sum
from .sorting import elements_at, order_of
from .table import Family, arg, number, operand, require, result_type, wrap
from .views import padded

FAMILY = Family()
row = FAMILY.row

# Where a result is compared with all that may be written to it: comparisons for each element that is read or written.
MAX_COMPARISONS = 64


@row("scatter_reduce.two")
def scatter_reduce(b, node):
    x, dim, indices, source, reduction = node.args[:5]
    x, indices, source = (in_line(b, b.value(v)) for v in (x, indices, source))
    includes = bool(arg(node, 5, "include_self", True))
    require(len(indices.shape) == len(x.shape) == len(source.shape), "indices of another rank")
    result = reduced(b, node, x, wrap(dim, len(x.shape)), indices, first_part(b, source, indices.shape), reduction, includes)
    return b.reshape(result, result_type(node)[1])


@row("scatter.reduce", "scatter.value_reduce")
def scatter_with(b, node):
    x, dim, indices, source = node.args[:4]
    x, indices = (in_line(b, b.value(v)) for v in (x, indices))
    source = in_line(b, b.value(source)) if isinstance(source, fx.Node) else b.full(number(source), x.dtype, indices.shape)
    require(len(indices.shape) == len(x.shape) == len(source.shape), "indices of another rank")
    reduction = {"add": "sum", "multiply": "prod"}[node.kwargs["reduce"]]
    result = reduced(b, node, x, wrap(dim, len(x.shape)), indices, first_part(b, source, indices.shape), reduction, True)
    return b.reshape(result, result_type(node)[1])


@row("index_reduce.default")
def index_reduce(b, node):
    x, dim, indices, source, reduction = node.args[:5]
    x, indices, source = (in_line(b, b.value(v)) for v in (x, indices, source))
    require(len(source.shape) == len(x.shape), "a source of another rank")
    dim = wrap(dim, len(x.shape))
    column = b.reshape(indices, (*(1 for _ in x.shape[:dim]), *indices.shape, *(1 for _ in x.shape[dim + 1 :])))
    indices = b.expand(column, source.shape)
    result = reduced(b, node, x, dim, indices, source, reduction, bool(node.kwargs.get("include_self", True)))
    return b.reshape(result, result_type(node)[1])


def reduced(b: Builder, node: fx.Node, x: Value, dim: int, indices: Value, source: Value, reduction: str, includes: bool) -> Value:
    """x with the reduction of what is written to each of its places, and of what was there if that is included."""
    if x.dtype == "bool":
        require(reduction != "mean", "a mean of truths")
        x, source, reduction = b.cast(x, "i32"), b.cast(source, "i32"), {"sum": "amax", "prod": "amin"}.get(reduction, reduction)
        return b.cast(reduced(b, node, x, dim, indices, source, reduction, includes), "bool")
    if reduction in ("amax", "amin"):
        return extreme(b, node, x, dim, indices, source, reduction == "amax", includes)
    ones = b.full(1, "i64", indices.shape)
    count = b.op("scatter_add", (b.full(0, "i64", x.shape), indices, ones), "i64", x.shape, dim=dim)
    is_written = b.pointwise("gt", count, b.full(0, "i64"), dtype="bool")
    if reduction == "prod":
        values = products(b, x, dim, indices, source)
        return b.pointwise("select", is_written, b.pointwise("mul", x, values) if includes else values, x)
    wide = statistics_dtype(x.dtype)
    own = b.cast(x, wide)
    base = own if includes else b.pointwise("select", is_written, b.full(0, wide), own)
    result = b.op("scatter_add", (base, indices, b.cast(source, wide)), wide, x.shape, dim=dim)
    if reduction == "mean":
        count = b.pointwise("add", count, b.full(1, "i64")) if includes else count
        count = b.pointwise("maximum", count, b.full(1, "i64"))
        result = b.pointwise("div" if x.dtype in FLOATING else "floor_div", result, b.cast(count, wide))
    return b.cast(result, x.dtype)


def extreme(b: Builder, node: fx.Node, x: Value, dim: int, indices: Value, source: Value, is_max: bool, includes: bool) -> Value:
    """What is written in order leaves the last, which is the largest, or NaN."""
    key = b.pointwise("neg", source) if not is_max and source.dtype in FLOATING else source
    order = order_of(b, node, key, dim, not is_max and key is source)
    indices, source = elements_at(b, indices, order, dim), elements_at(b, source, order, dim)
    written = b.op("scatter", (x, indices, source), x.dtype, x.shape, dim=dim)
    return b.pointwise("maximum" if is_max else "minimum", x, written) if includes else written


def products(b: Builder, x: Value, dim: int, indices: Value, source: Value) -> Value:
    """By a comparison of each place along the dim with each index: no op writes so that a product stays."""
    extent, count = x.shape[dim], indices.shape[dim]
    require(all(isinstance(e, int) for e in (*x.shape, *indices.shape)), "a symbolic extent")
    require(min(extent, count) <= MAX_COMPARISONS, "more places and indices than are compared with each other")
    outer = x.shape[:dim] + x.shape[dim + 1 :]
    require(indices.shape[:dim] + indices.shape[dim + 1 :] == outer, "indices of a part of the places")
    require(count > 0, "nothing to write")
    along = [d for d in range(len(x.shape)) if d != dim] + [dim]
    indices, source = (b.reshape(b.permute(v, along), (*outer, 1, count)) for v in (indices, source))
    is_here = b.pointwise("eq", indices, ascending(b, indices.dtype, (extent, 1)), dtype="bool")
    values = b.reduce("prod", b.pointwise("select", is_here, source, b.full(1, source.dtype)), [len(outer) + 1], False)
    return b.permute(values, [along.index(d) for d in range(len(x.shape))])


@row("replication_pad1d_backward.default", "replication_pad2d_backward.default", "replication_pad3d_backward.default")
def replication_pad_backward(b, node):
    """Each element of the gradient goes to the one that it was a copy of."""
    grad, padding, (dtype, shape) = b.value(node.args[0]), [number(p) for p in node.args[2]], result_type(node)
    grad = b.cast(grad, statistics_dtype(dtype))
    for dim, low in zip(reversed(range(len(shape))), padding[::2]):
        extents = (grad.shape[dim], shape[dim])
        places = ascending(b, "i64", extents[:1], start=-low)
        places = b.pointwise("minimum", b.pointwise("maximum", places, b.full(0, "i64")), b.extent(extents[1] - 1, "i64"))
        whole = (*grad.shape[:dim], extents[1], *grad.shape[dim + 1 :])
        grad = b.op("index_add", (b.full(0, grad.dtype, whole), places, grad), grad.dtype, whole, dim=dim)
    return b.cast(grad, dtype)


@row("put.default")
def put_flat(b, node):
    x, indices, source = (b.value(v) for v in node.args[:3])
    flat = b.reshape(x, (math.prod(x.shape),))
    indices = in_range(b, indices, flat.shape[0])
    return b.reshape(put(b, flat, 0, indices, b.cast(source, x.dtype), bool(arg(node, 3, "accumulate", False))), x.shape)


@row("take.default")
def take_flat(b, node):
    x, indices = (b.value(v) for v in node.args[:2])
    flat = b.reshape(x, (math.prod(x.shape),))
    return b.op("take", (flat, in_range(b, indices, flat.shape[0])), *result_type(node), dim=0)


@row("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(b, node):
    x, indices = (in_line(b, b.value(node.args[i])) for i in (0, 2))
    dim, (dtype, shape) = wrap(node.args[1], len(x.shape)), result_type(node)
    return b.reshape(put(b, x, dim, in_range(b, indices, x.shape[dim]), operand(b, node.args[3], dtype), False), shape)


@row("index_copy.default")
def index_copy(b, node):
    x, indices, source = (in_line(b, b.value(node.args[i])) for i in (0, 2, 3))
    require(len(source.shape) == len(x.shape), "a source of another rank")
    return b.reshape(put(b, x, wrap(node.args[1], len(x.shape)), indices, source, False), result_type(node)[1])


def places_of(b: Builder, mask: Value, shape: tuple) -> tuple[Value, Value]:
    """The mask over a shape as one dim, and how many of its elements are true before each."""
    count = math.prod(shape)
    mask = b.reshape(b.expand(mask, shape), (count,))
    numbers = b.cast(mask, "i64")
    return mask, b.pointwise("sub", running_sum(b, numbers), numbers)


@row("masked_scatter.default")
def masked_scatter(b, node):
    x, mask, source = (b.value(v) for v in node.args[:3])
    dtype, shape = result_type(node)
    mask, places = places_of(b, mask, shape)
    available = math.prod(source.shape)
    places = b.pointwise("select", mask, places, b.full(0, "i64"))
    taken = b.op("take", (b.reshape(source, (available,)), places), dtype, mask.shape, dim=0)
    return b.reshape(b.pointwise("select", mask, taken, b.reshape(b.expand(x, shape), mask.shape)), shape)


@row("masked_scatter_backward.default")
def masked_scatter_backward(b, node):
    grad, mask = (b.value(v) for v in node.args[:2])
    dtype, shape = result_type(node)
    mask, places = places_of(b, mask, grad.shape)
    available = math.prod(shape)
    places = b.pointwise("select", mask, places, b.full(0, "i64"))
    given = b.pointwise("select", mask, b.reshape(grad, mask.shape), b.full(0, dtype))
    return b.reshape(b.op("scatter_add", (b.full(0, dtype, (available,)), places, given), dtype, (available,), dim=0), shape)


@dataclass(frozen=True)
class Segments:
    """Segments of rows, one after another, and two more: of the rows before the first, and of those after the last. `sums` and
    `within` leave these two out, and `spread` adds them."""

    number: Value  # each row's
    lengths: Value
    count: int

    @staticmethod
    def of(b: Builder, rows: int, lengths: fx.Node | None, offsets: fx.Node | None, is_checked: bool) -> Segments:
        if lengths is None:
            bounds = b.cast(b.value(offsets), "i64")
            count = bounds.shape[0] - 1
            sizes = b.pointwise("sub", b.slice(bounds, 0, 1, count + 1, count), b.slice(bounds, 0, 0, count, count))
        else:
            sizes = b.cast(b.value(lengths), "i64")
            (count,) = sizes.shape
            bounds = b.op("concat", (b.full(0, "i64", (1,)), running_sum(b, sizes)), "i64", (count + 1,), dim=0)
        number = places_among(b, bounds, ascending(b, "i64", (rows,)), True)
        if lengths is not None and is_checked:
            number = b.pointwise("add", number, beyond_if_wrong(b, sizes, rows))
        return Segments(number, sizes, count)

    def along(self, b: Builder, value: Value, rank: int) -> Value:
        """A number of each segment, for rows of this rank."""
        return b.reshape(value, (self.count, *(1 for _ in range(rank - 1))))

    def sums(self, b: Builder, x: Value) -> Value:
        shape = (self.count + 2, *x.shape[1:])
        total = b.op("index_add", (b.full(0, x.dtype, shape), self.number, x), x.dtype, shape, dim=0)
        return self.within(b, total)

    def within(self, b: Builder, value: Value) -> Value:
        return b.slice(value, 0, 1, self.count + 1, self.count)

    def spread(self, b: Builder, value: Value) -> Value:
        """For each row its segment's; 0 for rows of none."""
        none = (0,) * (len(value.shape) - 1)
        value = padded(b, value, (1, *none), (1, *none), 0)
        return b.op("take", (value, self.number), value.dtype, (*self.number.shape, *value.shape[1:]), dim=0)


def beyond_if_wrong(b: Builder, lengths: Value, rows: int) -> Value:
    """0 where lengths are none below 0 and add up to the rows; else so much that it is no segment's number."""
    total, least = (b.reduce(name, lengths, [0], False) for name in ("sum", "amin"))
    apart = b.pointwise("abs", b.pointwise("sub", total, b.full(rows, "i64")))
    below = b.pointwise("maximum", b.pointwise("neg", least), b.full(0, "i64"))
    is_wrong = b.pointwise("sign", b.pointwise("add", apart, below))
    return b.pointwise("mul", is_wrong, b.full(lengths.shape[0] + 2, "i64"))


def read_segments(b: Builder, x: Value, reduction: str, lengths, offsets, axis: int, is_checked: bool) -> Segments:
    require(x.dtype in FLOATING and reduction in ("sum", "mean", "max", "min"), "products of segments")
    given = meta_of(offsets if lengths is None else lengths)
    require(axis == 0 and given.dim() == 1 and all(isinstance(n, int) for n in (*given.shape, x.shape[0])), "segments of this kind")
    return Segments.of(b, x.shape[0], lengths, offsets, is_checked)


@row("segment_reduce.default")
def segment_reduce(b, node):
    x, reduction, (dtype, shape) = b.value(node.args[0]), node.args[1], result_type(node)
    lengths, indices, offsets, initial = (node.kwargs.get(name) for name in ("lengths", "indices", "offsets", "initial"))
    require(indices is None, "segments of this kind")
    segments = read_segments(b, x, reduction, lengths, offsets, node.kwargs.get("axis", 0), not node.kwargs.get("unsafe", False))
    if reduction in ("max", "min"):
        is_max = reduction == "max"
        first = float(number((-math.inf if is_max else math.inf) if initial is None else initial))
        number_of_row = b.expand(b.reshape(segments.number, (x.shape[0], *(1 for _ in shape[1:]))), x.shape)
        first = b.full(first, dtype, (segments.count + 2, *shape[1:]))
        return segments.within(b, extreme(b, node, first, 0, number_of_row, x, is_max, True))
    wide = statistics_dtype(dtype)
    total = segments.sums(b, b.cast(x, wide))
    if initial is not None:
        total = b.pointwise("add", total, b.full(number(initial), wide))
    if reduction == "mean":
        sizes = segments.along(b, b.cast(segments.lengths, wide), len(shape))
        if initial is not None:
            sizes = b.pointwise("maximum", sizes, b.full(1, wide))
        total = b.pointwise("div", total, sizes)
    return b.cast(total, dtype)


@row("_segment_reduce_backward.default")
def segment_reduce_backward(b, node):
    grad, out, x = (b.value(v) for v in node.args[:3])
    reduction, (dtype, _) = node.args[3], result_type(node)
    lengths, offsets = (node.kwargs.get(name) for name in ("lengths", "offsets"))
    segments = read_segments(b, x, reduction, lengths, offsets, node.kwargs.get("axis", 0), False)
    wide = statistics_dtype(dtype)
    grad = b.cast(grad, wide)
    if reduction == "mean":
        grad = b.pointwise("div", grad, segments.along(b, b.cast(segments.lengths, wide), len(x.shape)))
    of_row = segments.spread(b, grad)
    if reduction in ("sum", "mean"):
        return b.cast(of_row, dtype)
    is_chosen = b.pointwise("eq", x, segments.spread(b, out), dtype="bool")
    is_chosen = b.pointwise("logical_or", is_chosen, b.pointwise("is_nan", x, dtype="bool"), dtype="bool")
    often = segments.spread(b, segments.sums(b, b.cast(is_chosen, wide)))
    # As torch does, which shares out only what is above 0.
    share = b.pointwise("select", b.pointwise("gt", of_row, b.full(0, wide), dtype="bool"), b.pointwise("div", of_row, often), of_row)
    return b.cast(b.pointwise("select", is_chosen, share, b.full(0, wide)), dtype)


@row("histc.default")
def histc(b, node):
    """How many elements are in each of equal bins, of which the last has both its ends; NaN is in none."""
    x, (dtype, (bins,)) = b.value(node.args[0]), result_type(node)
    low, high = (number(arg(node, i, name, 0)) for i, name in ((2, "min"), (3, "max")))
    require(low < high, "a range that the data say, which torch looks at")
    require(dtype in ("f32", "f64") and isinstance(bins, int), "bins of this kind")
    x = b.reshape(x, (math.prod(x.shape),))
    is_in = b.pointwise("bitwise_and", b.pointwise("ge", x, b.full(low, dtype), dtype="bool"),
                        b.pointwise("le", x, b.full(high, dtype), dtype="bool"))  # fmt: skip
    inside = b.pointwise("select", is_in, x, b.full(low, dtype))
    place = b.pointwise("mul", b.pointwise("sub", inside, b.full(low, dtype)), b.full(bins, dtype))
    place = b.cast(b.pointwise("div", place, b.full(high - low, dtype)), "i64")
    place = b.pointwise("minimum", b.pointwise("maximum", place, b.full(0, "i64")), b.full(bins - 1, "i64"))
    return b.op("scatter_add", (b.full(0, dtype, (bins,)), place, b.cast(is_in, dtype)), dtype, (bins,), dim=0)
