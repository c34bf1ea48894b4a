"""Rows of reads and writes by index."""

from __future__ import annotations

import math

from torch import fx

from ..builder import Builder, broadcast, dim_of
from ..text import Value
from .table import Family, arg, aten, kept_shape, number, require, result_type, scaled, wrap

FAMILY = Family()
row = FAMILY.row


def in_range(b: Builder, indices: Value, extent) -> Value:
    """Indices counted from the end made to count from the start."""
    require(indices.dtype in ("i32", "i64"), "an index of this kind")
    below = b.pointwise("lt", indices, b.full(0, indices.dtype), dtype="bool")
    wrapped = b.pointwise("add", indices, b.extent(extent, indices.dtype))
    return b.pointwise("select", below, wrapped, indices)


def in_line(b: Builder, value: Value) -> Value:
    """A scalar as the one element of a dim."""
    return value if value.shape else b.reshape(value, (1,))


@row("embedding.default")
def embedding(b, node):
    # padding_idx matters to the gradient alone.
    weight, indices = b.value(node.args[0]), b.value(node.args[1])
    return b.op("embedding", (weight, indices), *result_type(node), padding_idx=number(arg(node, 2, "padding_idx", -1)))


@row("embedding_dense_backward.default")
def embedding_backward(b, node):
    grad, indices, rows, padding, by_frequency = node.args
    grad, indices, rows = b.value(grad), b.value(indices), dim_of(rows)
    if by_frequency:
        often = b.cast(b.op("take", (times_of(b, indices, rows), indices), "i64", indices.shape, dim=0), grad.dtype)
        grad = b.pointwise("div", grad, b.reshape(often, (*often.shape, 1)))
    return b.op("embedding_backward", (grad, indices), *result_type(node), rows=rows, padding_idx=number(padding))


def times_of(b: Builder, indices: Value, rows) -> Value:
    """How often each of so many rows is named."""
    indices = b.reshape(indices, (math.prod(indices.shape),))
    return b.op("index_add", (b.full(0, "i64", (rows,)), indices, b.full(1, "i64", indices.shape)), "i64", (rows,), dim=0)


@row("index_select.default")
def index_select(b, node):
    x, indices = (in_line(b, b.value(node.args[i])) for i in (0, 2))
    dtype, shape = result_type(node)
    dim = wrap(node.args[1], len(x.shape))
    chosen = (*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :])
    return b.reshape(b.op("index_select", (x, indices), dtype, chosen, dim=dim), shape)


@row("gather.default")
def gather(b, node):
    require(not node.kwargs.get("sparse_grad", False), "sparse_grad")
    x, indices = (in_line(b, b.value(node.args[i])) for i in (0, 2))
    require(len(indices.shape) == len(x.shape), "indices of another rank")
    dtype, shape = result_type(node)
    return b.reshape(b.op("gather", (x, indices), dtype, indices.shape, dim=wrap(node.args[1], len(x.shape))), shape)


def first_part(b: Builder, source: Value, shape: tuple) -> Value:
    """The elements of the source that indices of this shape belong to."""
    for dim, extent in enumerate(shape):
        source = b.slice(source, dim, 0, extent, extent)
    return source


@row("scatter_add.default", "scatter.src")
def scatter(b, node):
    name = "scatter_add" if node.target is aten.scatter_add.default else "scatter"
    x, indices, source = (in_line(b, b.value(node.args[i])) for i in (0, 2, 3))
    require(len(indices.shape) == len(source.shape) == len(x.shape), "indices of another rank")
    operands = (x, indices, first_part(b, source, indices.shape))
    dtype, shape = result_type(node)
    return b.reshape(b.op(name, operands, dtype, x.shape, dim=wrap(node.args[1], len(x.shape))), shape)


@row("scatter.value")
def scatter_value(b, node):
    x, indices = (in_line(b, b.value(node.args[i])) for i in (0, 2))
    source = b.full(number(node.args[3]), x.dtype, indices.shape)
    dtype, shape = result_type(node)
    return b.reshape(b.op("scatter", (x, indices, source), dtype, x.shape, dim=wrap(node.args[1], len(x.shape))), shape)


@row("index_add.default")
def index_add(b, node):
    x, indices, source = (in_line(b, b.value(node.args[i])) for i in (0, 2, 3))
    require(len(source.shape) == len(x.shape), "a source of another rank")
    source = scaled(b, source, number(node.kwargs.get("alpha", 1)))
    dtype, shape = result_type(node)
    return b.reshape(b.op("index_add", (x, indices, source), dtype, x.shape, dim=wrap(node.args[1], len(x.shape))), shape)


@row("index.Tensor", "_unsafe_index.Tensor")
def index(b, node):
    x = b.value(node.args[0])
    dims = [dim for dim, index in enumerate(node.args[1]) if index is not None]
    require(len(dims) > 0, "indexing by nothing")
    indices = [b.value(node.args[1][dim]) for dim in dims]
    is_checked = node.target is not aten._unsafe_index.Tensor  # as interpolation makes: in range, so 0 where that is all
    if is_checked and 1 < len(dims) == dims[-1] - dims[0] + 1:
        return b.reshape(take_merged(b, x, indices, dims[0]), result_type(node)[1])
    indices = [in_range(b, i, x.shape[dim]) if is_checked or x.shape[dim] != 1 else b.full(0, i.dtype, i.shape)
               for i, dim in zip(indices, dims)]
    first = dims[0]
    if dims[-1] - first >= len(dims):  # indices that do not stand side by side put their dims first
        x, first = b.permute(x, [*dims, *(d for d in range(len(x.shape)) if d not in dims)]), 0
    return b.reshape(take_together(b, x, indices, first), result_type(node)[1])


def take_merged(b: Builder, x: Value, indices: list[Value], dim: int) -> Value:
    """x[…, i[p], j[p], …] for all p, as one read of the elements of these dims in order. Whatever is computed from an index
    that may be wrong is no larger than the indices, wherever a graph is cut."""
    shape = broadcast(*(i.shape for i in indices))
    extents, after = x.shape[dim : dim + len(indices)], x.shape[dim + len(indices) :]
    merged = b.reshape(b.expand(merge(b, indices, extents, True), shape), (math.prod(shape),))
    elements = b.reshape(x, (*x.shape[:dim], math.prod(extents), *after))
    return b.op("take", (elements, merged), x.dtype, (*x.shape[:dim], math.prod(shape), *after), dim=dim)


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
    require(len(dims) > 0, "writing at nothing")
    dim, indices = dims[0], [b.value(node.args[1][dim]) for dim in dims]
    if indices[0].dtype == "bool":
        require(dims == [0] and math.prod(values.shape) == 1 and not accumulate, "several values at the places of a mask")
        mask = b.reshape(indices[0], indices[0].shape + (1,) * (len(x.shape) - len(indices[0].shape)))
        return b.pointwise("select", mask, b.cast(b.reshape(values, ()), x.dtype), x)
    if len(dims) == 1:
        return put(b, x, dim, in_range(b, indices[0], x.shape[dim]), values, accumulate)
    order = list(range(len(x.shape)))
    if dims[-1] - dim >= len(dims):  # indices that do not stand side by side have their dims first
        order, dim = [*dims, *(d for d in order if d not in dims)], 0
    x = b.permute(x, order)
    extents = x.shape[dim : dim + len(dims)]
    merged = merge(b, indices, extents, node.target is not aten._unsafe_index_put.default)
    elements = b.reshape(x, (*x.shape[:dim], math.prod(extents), *x.shape[dim + len(dims) :]))
    written = b.reshape(put(b, elements, dim, merged, values, accumulate), x.shape)
    return b.permute(written, [order.index(d) for d in range(len(order))])


def merge(b: Builder, indices: list[Value], extents: tuple, is_checked: bool) -> Value:
    """Indices of several dims as one into all of their elements in order; beyond all of these where one is out of its range.
    No mask chooses that: a kernel that a mask comes to from another is tried with masks that no index made."""
    require(all(i.dtype in ("i32", "i64") for i in indices), "an index of this kind")
    merged, beyond = None, b.extent(math.prod(extents), "i64")
    for index, extent in zip(indices, extents):
        index = b.cast(index, "i64")
        if is_checked:
            index = in_range(b, index, extent)
            nearest = b.pointwise("minimum", b.pointwise("maximum", index, b.full(0, "i64")), b.extent(extent - 1, "i64"))
            is_outside = b.pointwise("abs", b.pointwise("sign", b.pointwise("sub", index, nearest)))
            index = b.pointwise("add", nearest, b.pointwise("mul", is_outside, beyond))
        merged = index if merged is None else b.pointwise("add", b.pointwise("mul", merged, b.extent(extent, "i64")), index)
    return merged


def put(b: Builder, x: Value, dim: int, indices: Value, values: Value, accumulate: bool) -> Value:
    """x with values at indices along a dim, whose place the indices' dims take in the values' shape."""
    before, count, after = x.shape[:dim], math.prod(indices.shape), x.shape[dim + 1 :]
    source = b.expand(values, before + indices.shape + after)
    if accumulate:
        return b.op("index_add", (x, indices, source), x.dtype, x.shape, dim=dim)
    # Of several values for one place any may win in torch; here the last.
    rows = b.reshape(indices, (*(1 for _ in before), count, *(1 for _ in after)))
    shape = (*before, count, *after)
    return b.op("scatter", (x, b.expand(rows, shape), b.reshape(source, shape)), x.dtype, x.shape, dim=dim)


@row("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(b, node):
    is_right = bool(node.kwargs.get("right", False)) or node.kwargs.get("side") == "right"
    return place_among(b, node, b.value(node.args[0]), node.args[1], is_right, b.optional(node.kwargs.get("sorter")))


@row("bucketize.Tensor", "bucketize.Scalar")
def bucketize(b, node):
    return place_among(b, node, b.value(node.args[1]), node.args[0], bool(node.kwargs.get("right", False)))


def place_among(b: Builder, node, ordered: Value, values, is_right: bool, order: Value | None = None) -> Value:
    dtype, shape = result_type(node)
    values = b.value(values) if isinstance(values, fx.Node) else b.full(number(values), ordered.dtype)
    require(values.dtype == ordered.dtype and len(ordered.shape) > 0, "values of another dtype")
    if len(ordered.shape) == 1:
        values = b.reshape(values, (math.prod(shape),))
    return b.cast(b.reshape(places_among(b, ordered, values, is_right, order), shape), dtype)


# As many as a row of a changing extent may need: tensors have at most 2 to the power of 40 elements.
MOST_HALVINGS = 41


def places_among(b: Builder, ordered: Value, values: Value, is_right: bool, order: Value | None = None) -> Value:
    """How many of the elements along the last dim, which are ordered or have an order, lie before each value, by halving: of one
    row for a row of values, else row by row. NaN lies after all."""
    extent, flat = ordered.shape[-1], len(ordered.shape) == 1
    low, high = b.full(0, "i64", values.shape), b.expand(b.extent(extent, "i64"), values.shape)
    for _ in range(extent.bit_length() if isinstance(extent, int) else MOST_HALVINGS):
        middle = b.pointwise("floor_div", b.pointwise("add", low, high), b.full(2, "i64"))
        place = b.pointwise("minimum", middle, b.extent(extent - 1, "i64"))
        if order is not None:
            place = b.op("take" if flat else "gather", (order, place), "i64", values.shape, dim=len(ordered.shape) - 1)
        found = b.op("take" if flat else "gather", (ordered, place), ordered.dtype, values.shape, dim=len(ordered.shape) - 1)
        is_after = b.pointwise("gt" if is_right else "ge", found, values, dtype="bool")
        is_open = b.pointwise("lt", low, high, dtype="bool")
        goes_up = b.pointwise("bitwise_and", is_open, b.pointwise("logical_not", is_after))
        goes_down = b.pointwise("bitwise_and", is_open, is_after)
        low = b.pointwise("select", goes_up, b.pointwise("add", middle, b.full(1, "i64")), low)
        high = b.pointwise("select", goes_down, middle, high)
    return low
