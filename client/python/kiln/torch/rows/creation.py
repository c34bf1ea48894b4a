"""Rows of tensors made of numbers, and of the number that Python makes of a tensor."""

from __future__ import annotations

from ..builder import Builder
from ..text import DTypeName, Unsupported, Value
from .table import Family, arg, number, operand, result_type

FAMILY = Family(is_recomputed=True)
row = FAMILY.row


@row("zeros.default", "new_zeros.default", "zeros_like.default", "_efficientzerotensor.default")
def zeros(b, node):
    return b.full(0, *result_type(node))


@row("ones.default", "new_ones.default", "ones_like.default")
def ones(b, node):
    return b.full(1, *result_type(node))


@row("empty.memory_format", "empty_like.default", "new_empty.default", "empty_permuted.default", "new_empty_strided.default",
     "empty_strided.default", is_idle=True)  # fmt: skip
def empty(b, node):
    # Uninitialised memory may hold anything: also zeros, which are the same in every process.
    return b.full(0, *result_type(node))


@row("_local_scalar_dense.default", is_recomputed=False, is_idle=True)
def item(b, node):
    raise Unsupported("a number that Python reads")


@row("fill.Scalar", is_recomputed=False)
@row("full.default", "full_like.default")
def full(b, node):
    return b.full(number(node.args[1]), *result_type(node))


@row("fill.Tensor", is_recomputed=False)
def fill(b, node):
    dtype, shape = result_type(node)
    return b.expand(b.cast(b.value(node.args[1]), dtype), shape)


@row("new_full.default")
def new_full(b, node):
    return b.full(number(node.args[2]), *result_type(node))


@row("scalar_tensor.default")
def scalar_tensor(b, node):
    return operand(b, node.args[0], result_type(node)[0])


def ascending(b: Builder, dtype: str, shape: tuple, dim: int = 0, start=0, step=1) -> Value:
    """start, start + step, … along a dim."""
    attributes = {"start": float(number(start)), "step": float(number(step)), "dtype": DTypeName(dtype)}
    return b.op("iota", (), dtype, shape, shape=shape, dim=dim, **attributes)


@row("arange.default")
def arange(b, node):
    return ascending(b, *result_type(node))


@row("arange.start", "arange.start_step")
def arange_start(b, node):
    return ascending(b, *result_type(node), start=node.args[0], step=arg(node, 2, "step", 1))
