"""Rows of reads and writes by index."""

from __future__ import annotations

import math

from ..builder import Builder, broadcast, dim_of
from ..text import Value
from .table import Family, arg, aten, kept_shape, number, require, result_type, wrap

FAMILY = Family()
row = FAMILY.row


def in_range(b: Builder, indices: Value, extent) -> Value:
    """Indices counted from the end made to count from the start."""
    require(indices.dtype in ("i32", "i64") and isinstance(extent, int), "an index of this kind")
    require(extent > 1, "an index into an extent of 1")  # reads nothing that depends on it, so nothing would check it
    below = b.pointwise("lt", indices, b.full(0, indices.dtype), dtype="bool")
    wrapped = b.pointwise("add", indices, b.full(extent, indices.dtype))
    return b.pointwise("select", below, wrapped, indices)


@row("embedding.default")
def embedding(b, node):
    # padding_idx matters to the gradient alone.
    weight, indices = b.value(node.args[0]), b.value(node.args[1])
    return b.op("embedding", (weight, indices), *result_type(node), padding_idx=number(arg(node, 2, "padding_idx", -1)))


@row("embedding_dense_backward.default")
def embedding_backward(b, node):
    grad, indices, rows, padding, by_frequency = node.args
    require(not by_frequency, "scale_grad_by_freq")
    attributes = {"rows": dim_of(rows), "padding_idx": number(padding)}
    return b.op("embedding_backward", (b.value(grad), b.value(indices)), *result_type(node), **attributes)


@row("index_select.default")
def index_select(b, node):
    x, dim, indices = b.value(node.args[0]), node.args[1], b.value(node.args[2])
    require(len(x.shape) > 0 and len(indices.shape) == 1, "indexing a scalar")
    return b.op("index_select", (x, indices), *result_type(node), dim=wrap(dim, len(x.shape)))


@row("gather.default")
def gather(b, node):
    require(not node.kwargs.get("sparse_grad", False), "sparse_grad")
    x, indices = b.value(node.args[0]), b.value(node.args[2])
    require(len(x.shape) > 0 and len(indices.shape) == len(x.shape), "indexing a scalar")
    return b.op("gather", (x, indices), *result_type(node), dim=wrap(node.args[1], len(x.shape)))


@row("scatter_add.default", "scatter.src")
def scatter(b, node):
    name = "scatter_add" if node.target is aten.scatter_add.default else "scatter"
    x, indices, source = (b.value(node.args[i]) for i in (0, 2, 3))
    require(len(x.shape) > 0 and indices.shape == source.shape, "a source of another shape than its indices")
    return b.op(name, (x, indices, source), *result_type(node), dim=wrap(node.args[1], len(x.shape)))


@row("scatter.value")
def scatter_value(b, node):
    x, indices = b.value(node.args[0]), b.value(node.args[2])
    require(len(x.shape) > 0, "indexing a scalar")
    source = b.full(number(node.args[3]), x.dtype, indices.shape)
    return b.op("scatter", (x, indices, source), *result_type(node), dim=wrap(node.args[1], len(x.shape)))


@row("index_add.default")
def index_add(b, node):
    require(node.kwargs.get("alpha", 1) == 1, "a scaled index_add")
    x, indices, source = (b.value(node.args[i]) for i in (0, 2, 3))
    require(len(x.shape) > 0 and len(indices.shape) == 1, "indexing a scalar")
    return b.op("index_add", (x, indices, source), *result_type(node), dim=wrap(node.args[1], len(x.shape)))


@row("index.Tensor", "_unsafe_index.Tensor")
def index(b, node):
    x = b.value(node.args[0])
    dims = [dim for dim, index in enumerate(node.args[1]) if index is not None]
    require(len(dims) > 0, "indexing by nothing")
    indices = [b.value(node.args[1][dim]) for dim in dims]
    is_checked = node.target is not aten._unsafe_index.Tensor  # as interpolation makes: in range, so 0 where that is all
    indices = [in_range(b, i, x.shape[dim]) if is_checked or x.shape[dim] != 1 else b.full(0, i.dtype, i.shape)
               for i, dim in zip(indices, dims)]
    first = dims[0]
    if dims[-1] - first >= len(dims):  # indices that do not stand side by side put their dims first
        x, first = b.permute(x, [*dims, *(d for d in range(len(x.shape)) if d not in dims)]), 0
    return b.reshape(take_together(b, x, indices, first), result_type(node)[1])


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
    # One index into all of these dims would reach another row where one of several is out of its range.
    require(node.target is aten._unsafe_index_put.default, "checked indices of several dims")
    require(dims[-1] - dim < len(dims), "writing along dims that do not stand side by side")
    before, extents, after = x.shape[:dim], x.shape[dim : dims[-1] + 1], x.shape[dims[-1] + 1 :]
    require(all(isinstance(e, int) for e in extents), "a symbolic extent")
    require(all(i.dtype in ("i32", "i64") for i in indices), "an index of this kind")
    merged = b.cast(indices[0], "i64")
    for index, extent in zip(indices[1:], extents[1:]):
        merged = b.pointwise("add", b.pointwise("mul", merged, b.full(extent, "i64")), b.cast(index, "i64"))
    written = put(b, b.reshape(x, (*before, math.prod(extents), *after)), dim, merged, values, accumulate)
    return b.reshape(written, x.shape)


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
