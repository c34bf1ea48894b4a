"""Rows of resizing images with antialias: each result is a mean of the pixels around its place, weighed by their distance in
pixels of the smaller image. Both dims are products with matrices of weights."""

from __future__ import annotations

from torch import fx

from ..builder import Builder
from ..text import Value
from .creation import ascending
from .functions import Arithmetic
from .table import Family, number, require, result_type

FAMILY = Family()
row = FAMILY.row

# Of the cubic that torch takes where there is antialias.
CUBIC_SLOPE = -0.5
# Pixels that are read for each that weighs something: beyond, torch's loops over those alone take less time.
MAX_READ = 16


def linear(a: Arithmetic, distance: Value) -> Value:
    return a.maximum(a.sub(1, distance), 0)


def cubic(a: Arithmetic, distance: Value) -> Value:
    x, s = distance, CUBIC_SLOPE
    near = a.add(a.mul(a.mul(a.sub(a.mul(x, s + 2), s + 3), x), x), 1)
    far = a.mul(a.sub(a.mul(a.add(a.mul(a.sub(x, 5), x), 8), x), 4), s)
    return a.choose(a.is_("lt", x, 1), near, a.choose(a.is_("lt", x, 2), far, 0))


def weights(b: Builder, node: fx.Node, read: int, made: int, factor: float | None, aligned: bool, dtype: str) -> Value:
    """[made, read]: what each pixel that is read gives to each that is made. Found in f64."""
    require(dtype in ("f32", "f64"), "weights that torch rounds")
    require(isinstance(read, int) and isinstance(made, int), "a symbolic extent")
    if aligned:
        step = (read - 1) / (made - 1) if made > 1 else 0.0
    else:
        step = 1 / number(factor) if factor else read / made
    a, kernel, reach = Arithmetic(b, "f64"), *((cubic, 4) if "bicubic" in node.target._schema.name else (linear, 2))
    require(read <= MAX_READ * reach * max(step, 1.0), "an image so large that most weights are 0")
    center = a.mul(a.add(ascending(b, "f64", (made, 1)), 0.5), step)
    distance = a.abs(a.sub(a.add(ascending(b, "f64", (1, read), 1), 0.5), center))
    weight = kernel(a, a.mul(distance, min(1 / step, 1.0) if step else 1.0))
    return b.cast(a.div(weight, b.reduce("sum", weight, [1], True)), dtype)


def resized(b: Builder, x: Value, rows: Value, columns: Value) -> Value:
    """rows @ x @ columns, for each image."""
    *outer, height, _ = x.shape
    x = b.op("matmul", (x, b.reshape(columns, (*(1 for _ in outer), *columns.shape))), x.dtype, (*outer, height, columns.shape[1]))
    shape = (*outer, rows.shape[0], columns.shape[1])
    return b.op("matmul", (b.reshape(rows, (*(1 for _ in outer), *rows.shape)), x), x.dtype, shape)


@row("_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default")
def upsample(b, node):
    x, (dtype, shape), (aligned, *factors) = b.value(node.args[0]), result_type(node), options_of(node, 2)
    rows, columns = (weights(b, node, *each, aligned, dtype) for each in zip(x.shape[-2:], shape[-2:], factors))
    return resized(b, x, rows, b.permute(columns, (1, 0)))


@row("_upsample_bilinear2d_aa_backward.default", "_upsample_bicubic2d_aa_backward.default")
def upsample_backward(b, node):
    grad, (dtype, shape), (aligned, *factors) = b.value(node.args[0]), result_type(node), options_of(node, 3)
    rows, columns = (weights(b, node, *each, aligned, dtype) for each in zip(shape[-2:], grad.shape[-2:], factors))
    return resized(b, grad, b.permute(rows, (1, 0)), columns)


def options_of(node: fx.Node, first: int) -> tuple:
    """Whether corners are aligned, and the factors of both dims, None where sizes say them."""
    given = (*node.args[first:], None, None)
    return tuple(node.kwargs.get(name, value) for name, value in zip(("align_corners", "scales_h", "scales_w"), given))
