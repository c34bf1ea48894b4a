"""Rows of reductions and scans."""

from __future__ import annotations

import math

from torch import fx

from ..builder import Builder
from ..text import Value
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
        return b.reduce(name, x, dims_of(dims, len(x.shape)), keep)

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
    require(arg(node, 1, "ord" if "linalg" in node.target._schema.name else "p", 2) in (2, 2.0, None), "a norm other than 2")
    x = operand(b, node.args[0], result_type(node)[0])
    dims = dims_of(arg(node, 2, "dim"), len(x.shape))
    return b.reduce("norm2", x, dims, bool(arg(node, 3, "keepdim", False))) if dims else b.pointwise("abs", x)


@row("var.correction", is_norm=True)
def var(b, node):
    x = operand(b, node.args[0], result_type(node)[0])
    correction = node.kwargs.get("correction")
    dims = dims_of(arg(node, 1, "dim"), len(x.shape))
    correction = 1 if correction is None else number(correction)
    require(int(correction) == correction, "a fractional correction")
    return b.reduce("var", x, dims, bool(node.kwargs.get("keepdim", False)), correction=int(correction))


@row("max.dim", "min.dim")
def extreme(b, node):
    x = b.value(node.args[0])
    dim, keep = wrap(node.args[1], len(x.shape)), bool(arg(node, 2, "keepdim", False))
    require(len(x.shape) > 0, "an extreme of a scalar")
    names = ("amax", "argmax") if "max" in node.target._schema.name else ("amin", "argmin")
    (_, shape), _ = result_types(node)
    return b.reduce(names[0], x, [dim], keep), b.op(names[1], (x,), "i64", shape, dim=dim, keep_dims=keep)


@row("argmax.default", "argmin.default")
def arg_extreme(b, node):
    x, dim, keep = b.value(node.args[0]), arg(node, 1, "dim"), bool(arg(node, 2, "keepdim", False))
    if dim is None:
        require(not keep, "keepdim over all dims")
        x, dim = b.reshape(x, (math.prod(x.shape),)), 0
    require(len(x.shape) > 0, "an extreme of a scalar")
    name = node.target._schema.name.split("::")[1]
    return b.op(name, (x,), *result_type(node), dim=wrap(dim, len(x.shape)), keep_dims=keep)


@row("cumsum.default")
def cumsum(b, node):
    x = operand(b, node.args[0], result_type(node)[0])
    require(len(x.shape) > 0, "a scan of a scalar")
    return b.op("cumsum", (x,), x.dtype, x.shape, dim=wrap(node.args[1], len(x.shape)))
