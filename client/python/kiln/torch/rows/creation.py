"""Rows of tensors made of numbers."""

from __future__ import annotations

from ..text import DTypeName
from .table import arg, number, result_type, row

CONSTANT = {
    "zeros.default": 0, "ones.default": 1, "new_zeros.default": 0, "new_ones.default": 1,
    "zeros_like.default": 0, "ones_like.default": 1,
    # Uninitialised memory may hold anything: also zeros, which are the same in every process.
    "empty.memory_format": 0, "empty_like.default": 0, "new_empty.default": 0, "empty_permuted.default": 0,
    "new_empty_strided.default": 0, "empty_strided.default": 0,
}  # fmt: skip


def creation(value):
    return lambda b, node: b.full(value, *result_type(node))


for aten_name, filled_with in CONSTANT.items():
    row(aten_name)(creation(filled_with))


@row("full.default", "full_like.default", "fill.Scalar")
def full(b, node):
    return b.full(number(node.args[1]), *result_type(node))


@row("new_full.default")
def new_full(b, node):
    return b.full(number(node.args[2]), *result_type(node))


@row("scalar_tensor.default")
def scalar_tensor(b, node):
    return b.full(number(node.args[0]), *result_type(node))


def iota(b, node, start, step):
    dtype, shape = result_type(node)
    start, step = float(number(start)), float(number(step))
    return b.op("iota", (), dtype, shape, shape=shape, dim=0, start=start, step=step, dtype=DTypeName(dtype))


@row("arange.default")
def arange(b, node):
    return iota(b, node, 0, 1)


@row("arange.start", "arange.start_step")
def arange_start(b, node):
    return iota(b, node, node.args[0], arg(node, 2, "step", 1))
