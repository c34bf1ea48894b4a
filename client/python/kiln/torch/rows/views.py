"""Rows of views, copies and rearrangements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import sympy

from ..builder import Builder, dim_of, meta_of, remainder
from ..tensors import is_empty, relayout
from ..text import Dim, Value, is_dense
from .creation import ascending
from .normalisation import statistics_dtype
from .table import Family, arg, dims_of, kept_shape, number, rank_of, require, result_type, result_types, wrap

FAMILY = Family()
row = FAMILY.row


@row("alias.default", "detach.default", is_view=True)
@row("clone.default", "lift_fresh_copy.default", relayout, is_copy=True, is_recomputed=True)
@row("contiguous.default")
def same(b, node):
    return b.value(node.args[0])


@row("view.default", "_unsafe_view.default", "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", is_view=True)
@row("reshape.default", "flatten.using_ints")
def reshape(b, node):
    return b.reshape(b.value(node.args[0]), result_type(node)[1])


@row("expand.default", is_view=True)
def expand(b, node):
    return b.expand(b.value(node.args[0]), result_type(node)[1])


@row("permute.default", is_view=True)
def permute(b, node):
    return b.permute(b.value(node.args[0]), [wrap(d, rank_of(node)) for d in node.args[1]])


@row("t.default", is_view=True)
def transpose_matrix(b, node):
    return b.permute(b.value(node.args[0]), [1, 0] if rank_of(node) == 2 else list(range(rank_of(node))))


@row("transpose.int", is_view=True)
def transpose(b, node):
    dims = list(range(rank_of(node)))
    if dims:
        first, second = (wrap(d, len(dims)) for d in node.args[1:3])
        dims[first], dims[second] = second, first
    return b.permute(b.value(node.args[0]), dims)


def slice_bounds(extent, start, end, step, elements) -> tuple:
    """torch's start and end, which may be negative, absent or past the end, as 0 ≤ start ≤ end ≤ extent. elements: how many of them
    there are by torch's own account."""
    start = 0 if start is None else dim_of(start)
    end = extent if end is None or end == 2**63 - 1 else dim_of(end)
    if not all(isinstance(each, int) for each in (extent, start, end)):
        start, end = from_front(extent, start), from_front(extent, end)
        if step != 1:
            return start, start + (elements - 1) * step + 1
        # Where torch cuts a bound off at the extent there are fewer.
        require(sympy.expand(end - start - elements) == 0, "a slice that is cut off at a symbolic extent")
        return start, end
    start = min(max(start + extent if start < 0 else start, 0), extent)
    end = min(max(end + extent if end < 0 else end, start), extent)
    return start, end


def from_front(extent, index):
    """An index or bound that may count from the end, as 0 or more; one that is no number is."""
    return index + extent if isinstance(index, int) and index < 0 else index


@row("slice.Tensor", is_view=True)
def slice_tensor(b, node):
    x, dim = b.value(node.args[0]), wrap(arg(node, 1, "dim", 0), rank_of(node))
    step, elements = number(arg(node, 4, "step", 1)), result_type(node)[1][dim]
    start, end = slice_bounds(x.shape[dim], arg(node, 2, "start"), arg(node, 3, "end"), step, elements)
    return b.slice(x, dim, start, end, elements, step)


@row("select.int", is_view=True)
def select_int(b, node):
    x, dim = b.value(node.args[0]), wrap(node.args[1], len(b.value(node.args[0]).shape))
    index = from_front(x.shape[dim], number(node.args[2]))
    return b.reshape(b.slice(x, dim, index, index + 1, 1), result_type(node)[1])


def cut(b: Builder, x: Value, dim: int, extents) -> tuple:
    pieces, start = [], 0
    for extent in extents:
        pieces.append(b.slice(x, dim, start, start + extent, extent))
        start = start + extent
    return tuple(pieces)


@row("split.Tensor", "split_with_sizes.default", is_view=True)
@row("chunk.default", "unsafe_split.Tensor", "unsafe_split_with_sizes.default")
def split(b, node):
    x = b.value(node.args[0])
    dim = wrap(arg(node, 2, "dim", 0), len(x.shape))
    return cut(b, x, dim, [shape[dim] for _, shape in result_types(node)])


@row("unbind.int", is_view=True)
def unbind(b, node):
    x = b.value(node.args[0])
    dim = wrap(arg(node, 1, "dim", 0), len(x.shape))
    types = result_types(node)
    return tuple(b.reshape(p, t[1]) for p, t in zip(cut(b, x, dim, [1] * len(types)), types))


@row("cat.default", is_recomputed=True)
def cat(b, node):
    dtype, shape = result_type(node)
    # One without elements counts by its dtype alone, one of shape (0,) whatever the others' rank.
    parts = [b.cast(b.value(n), dtype) for n in node.args[0] if not is_empty(meta_of(n))]
    return parts[0] if len(parts) == 1 else b.op("concat", parts, dtype, shape, dim=wrap(arg(node, 1, "dim", 0), len(shape)))


@row("stack.default", is_recomputed=True)
def stack(b, node):
    dtype, shape = result_type(node)
    parts = [b.cast(b.value(n), dtype) for n in node.args[0]]
    return b.op("stack", parts, dtype, shape, dim=wrap(arg(node, 1, "dim", 0), len(shape)))


@row("flip.default")
def flip(b, node):
    x = b.value(node.args[0])
    dims = dims_of(node.args[1], len(x.shape)) if node.args[1] else []
    return b.op("flip", (x,), x.dtype, x.shape, dims=tuple(dims)) if dims else x


@row("roll.default", is_recomputed=True)
def roll(b, node):
    x, shifts, dims = b.value(node.args[0]), node.args[1], arg(node, 2, "dims") or ()
    shape = x.shape
    if not dims:  # of all elements in order
        x, dims = b.reshape(x, (math.prod(shape),)), (0,)
    for shift, dim in zip(shifts, dims):
        dim = wrap(dim, len(x.shape))
        extent = x.shape[dim] if x.shape else 1
        first = remainder(-dim_of(shift), extent)
        if first != 0:
            parts = reversed(cut(b, x, dim, [first, extent - first]))
            x = b.op("concat", tuple(parts), x.dtype, x.shape, dim=dim)
    return b.reshape(x, shape)


@row("repeat.default", is_recomputed=True)
def repeat(b, node):
    x, times = b.value(node.args[0]), [dim_of(t) for t in node.args[1]]
    shape = (1,) * (len(times) - len(x.shape)) + x.shape
    x = b.reshape(x, tuple(e for extent in shape for e in (1, extent)))
    x = b.expand(x, tuple(e for t, extent in zip(times, shape) for e in (t, extent)))
    return b.reshape(x, result_type(node)[1])


@row("constant_pad_nd.default", is_recomputed=True)
def constant_pad(b, node):
    x, widths = b.value(node.args[0]), list(map(dim_of, node.args[1]))
    low, high = [0] * len(x.shape), [0] * len(x.shape)
    for i in range(0, len(widths), 2):
        dim = len(x.shape) - 1 - i // 2
        (first, low[dim]), (last, high[dim]) = cut_and_added(widths[i]), cut_and_added(widths[i + 1])
        end = x.shape[dim] - last
        x = b.slice(x, dim, first, end, end - first)
    return padded(b, x, low, high, number(arg(node, 2, "value", 0)))


def padded(b: Builder, x: Value, low, high, value: float) -> Value:
    """With so many elements of the value before x and after it, along each dim."""
    if not any(low) and not any(high):
        return x
    if all(isinstance(width, int) for width in (*low, *high)):
        shape = tuple(before + extent + after for before, extent, after in zip(low, x.shape, high))
        return b.op("pad", (x,), x.dtype, shape, low=tuple(low), high=tuple(high), value=float(value))
    for dim, (before, after) in enumerate(zip(low, high)):
        end = before + x.shape[dim]
        shape = (*x.shape[:dim], end + after, *x.shape[dim + 1 :])
        around = b.full(value, x.dtype, shape)
        x = b.op("slice_scatter", (around, x), x.dtype, shape, dim=dim, start=before, end=end, step=1)
    return x


def cut_and_added(width) -> tuple:
    """By how much a pad's width cuts off, which a negative one does, and by how much it adds."""
    is_cut = width < 0 if isinstance(width, int) else width.is_nonpositive
    require(is_cut or isinstance(width, int) or width.is_nonnegative, "a width that may be negative or not")
    return (-width, 0) if is_cut else (0, width)


@row("slice_scatter.default")
def slice_scatter(b, node):
    x, source = b.value(node.args[0]), b.value(node.args[1])
    dim = wrap(arg(node, 2, "dim", 0), len(x.shape))
    step = number(arg(node, 5, "step", 1))
    start, end = slice_bounds(x.shape[dim], arg(node, 3, "start"), arg(node, 4, "end"), step, source.shape[dim])
    return b.op("slice_scatter", (x, b.cast(source, x.dtype)), x.dtype, x.shape, dim=dim, start=start, end=end, step=step)


@row("slice_backward.default")
def slice_backward(b, node):
    grad, _, dim, start, end, step = node.args
    dtype, shape = result_type(node)
    dim, grad, step = wrap(dim, len(shape)), b.value(grad), number(step)
    start, end = slice_bounds(shape[dim], start, end, step, grad.shape[dim])
    if grad.shape == shape:
        return grad
    zeros = b.full(0, dtype, shape)
    return b.op("slice_scatter", (zeros, grad), dtype, shape, dim=dim, start=start, end=end, step=step)


def with_selected(b: Builder, x: Value, source: Value, dim: int, index) -> Value:
    """x, but for its elements at `index` of a dim."""
    dim = wrap(dim, len(x.shape))
    source, start = b.reshape(b.cast(source, x.dtype), kept_shape(x.shape, dim)), from_front(x.shape[dim], number(index))
    return b.op("slice_scatter", (x, source), x.dtype, x.shape, dim=dim, start=start, end=start + 1, step=1)


@row("select_scatter.default")
def select_scatter(b, node):
    x, source, dim, index = node.args
    return with_selected(b, b.value(x), b.value(source), dim, index)


@row("select_backward.default")
def select_backward(b, node):
    grad, _, dim, index = node.args
    dtype, shape = result_type(node)
    return with_selected(b, b.full(0, dtype, shape), b.value(grad), dim, index)


@row("tril.default", "triu.default", is_recomputed=True)
def triangle(b, node):
    name = node.target._schema.name.split("::")[1]
    x = b.value(node.args[0])
    return b.op(name, (x,), x.dtype, x.shape, diagonal=number(arg(node, 1, "diagonal", 0)))


@dataclass(frozen=True)
class Diagonal:
    """Where the `count` elements of a diagonal lie along `flat`, a tensor with the diagonal's two dims last and as one."""

    flat: Value
    start: Dim
    step: Dim
    count: Dim

    @property
    def dim(self) -> int:
        return len(self.flat.shape) - 1

    @property
    def as_slice(self) -> dict | None:
        """None where the step changes, which a slice's does not."""
        end = self.start + (self.count - 1) * self.step + 1
        return {"start": self.start, "end": end, "step": self.step} if isinstance(self.step, int) else None

    def places(self, b: Builder) -> Value:
        steps = b.pointwise("mul", ascending(b, "i64", (self.count,)), b.extent(self.step, "i64"))
        return b.pointwise("add", steps, b.extent(self.start, "i64"))


def diagonal_of(b: Builder, x: Value, count: Dim, offset: int, first: int, second: int) -> Diagonal:
    rank = len(x.shape)
    first, second = wrap(first, rank), wrap(second, rank)
    rows, columns = x.shape[first], x.shape[second]
    require(count != 0, "an empty diagonal")
    x = b.permute(x, [*(d for d in range(rank) if d not in (first, second)), first, second])
    start = offset if offset >= 0 else -offset * columns
    return Diagonal(b.reshape(x, (*x.shape[:-2], rows * columns)), start, columns + 1, count)


@row("diagonal.default", is_view=True)
def diagonal(b, node):
    offset, first, second = (number(arg(node, i + 1, n, d)) for i, (n, d) in enumerate((("offset", 0), ("dim1", 0), ("dim2", 1))))
    dtype, shape = result_type(node)
    found = diagonal_of(b, b.value(node.args[0]), shape[-1], offset, first, second)
    if found.as_slice is None:
        return b.op("take", (found.flat, found.places(b)), dtype, shape, dim=found.dim)
    return b.slice(found.flat, found.dim, extent=found.count, **found.as_slice)


def with_diagonal(b: Builder, x: Value, source: Value, offset: int, first: int, second: int) -> Value:
    shape, rank, source = x.shape, len(x.shape), b.cast(source, x.dtype)
    first, second = wrap(first, rank), wrap(second, rank)
    found = diagonal_of(b, x, source.shape[-1], offset, first, second)
    flat = found.flat
    if found.as_slice is None:
        flat = b.op("scatter", (flat, b.expand(found.places(b), source.shape), source), x.dtype, flat.shape, dim=found.dim)
    else:
        flat = b.op("slice_scatter", (flat, source), x.dtype, flat.shape, dim=found.dim, **found.as_slice)
    order = [*(d for d in range(rank) if d not in (first, second)), first, second]
    return b.permute(b.reshape(flat, [shape[d] for d in order]), [order.index(d) for d in range(rank)])


@row("diagonal_scatter.default")
def diagonal_scatter(b, node):
    offset, first, second = (number(arg(node, i + 2, n, d)) for i, (n, d) in enumerate((("offset", 0), ("dim1", 0), ("dim2", 1))))
    return with_diagonal(b, b.value(node.args[0]), b.value(node.args[1]), offset, first, second)


@row("diagonal_backward.default")
def diagonal_backward(b, node):
    grad, _, *where = node.args
    return with_diagonal(b, b.full(0, *result_type(node)), b.value(grad), *map(number, where))


@row("unfold.default", is_view=True)
def unfold(b, node):
    x, dim, size, step = b.value(node.args[0]), *map(number, node.args[1:4])
    rank, (_, shape) = len(x.shape), result_type(node)
    require(rank > 0, "windows over a scalar")
    dim = wrap(dim, rank)
    outer = [d for d in range(rank) if d != dim]
    x = b.permute(x, [*outer, dim])
    seen = (*x.shape[:-1], size, shape[dim])
    told = {} if isinstance(shape[dim], int) else {"positions": shape[dim : dim + 1]}
    x = b.view("window", x, seen, kernel=(size,), stride=(step,), dilation=(1,), **told)
    return b.permute(x, [*(outer.index(d) if d != dim else rank for d in range(rank)), rank - 1])


@row("unfold_backward.default")
def unfold_backward(b, node):
    """Each place's sum over the windows that it is in."""
    grad, _, dim, size, step = node.args
    grad, size, step, (dtype, shape) = b.value(grad), number(size), number(step), result_type(node)
    rank, wide = len(shape), statistics_dtype(dtype)
    dim = wrap(dim, rank)
    grad = b.permute(b.cast(grad, wide), [*range(dim + 1), rank, *range(dim + 1, rank)])
    windows = (grad.shape[dim], size)
    places = b.pointwise("add", ascending(b, "i64", (windows[0], 1), step=step), ascending(b, "i64", (1, size), 1))
    read = (math.prod(windows),)
    source = b.reshape(grad, (*shape[:dim], *read, *shape[dim + 1 :]))
    zeros = b.full(0, wide, shape)
    return b.cast(b.op("index_add", (zeros, b.reshape(places, read), source), wide, shape, dim=dim), dtype)


def memory_of(b: Builder, node) -> tuple[Value, list[int]]:
    """The elements of the node's first operand as they lie in memory, and its dims in that order."""
    tensor, x = meta_of(node.args[0]), b.value(node.args[0])
    require(all(isinstance(e, int) for e in (*x.shape, *map(dim_of, tensor.stride()))), "a symbolic extent")
    order = sorted(range(len(x.shape)), key=lambda d: (tensor.stride(d), x.shape[d] == 1), reverse=True)
    seen = b.permute(x, order)
    is_whole = tensor.storage_offset() == 0 and is_dense(seen.shape, [tensor.stride(d) for d in order])
    require(is_whole, "a look at memory that is not all an operand's")
    return b.reshape(seen, (math.prod(x.shape),)), order


def strided_places(b: Builder, node, first: int, count: int) -> Value:
    """Where in memory of `count` elements those lie that sizes and strides name, which the node's arguments say from `first` on."""
    sizes, strides = ([number(n) for n in node.args[i]] for i in (first, first + 1))
    offset = arg(node, first + 2, "storage_offset")
    offset = 0 if offset is None else number(offset)
    require(offset + sum((e - 1) * s for e, s in zip(sizes, strides)) < count, "a look beyond an operand's memory")
    places = b.full(offset, "i64", sizes)
    for dim, step in enumerate(strides):
        places = b.pointwise("add", places, ascending(b, "i64", tuple(sizes), dim, step=step))
    return places


@row("as_strided.default", is_view=True)
def as_strided(b, node):
    memory, _ = memory_of(b, node)
    return b.op("take", (memory, strided_places(b, node, 1, memory.shape[0])), *result_type(node), dim=0)


@row("as_strided_scatter.default")
def as_strided_scatter(b, node):
    memory, order = memory_of(b, node)
    x, places = b.value(node.args[0]), strided_places(b, node, 2, memory.shape[0])
    count = (math.prod(places.shape),)
    source = b.reshape(b.cast(b.value(node.args[1]), memory.dtype), count)
    written = b.op("scatter", (memory, b.reshape(places, count), source), memory.dtype, memory.shape, dim=0)
    written = b.reshape(written, [x.shape[d] for d in order])
    return b.permute(written, [order.index(d) for d in range(len(order))])
