"""The op table itself, and what rows read their nodes' arguments with."""

from __future__ import annotations

import operator

import torch
from torch import fx

from ..builder import Builder, meta_of, type_of
from ..text import Unsupported, Value

aten = torch.ops.aten

ROWS: dict = {operator.getitem: lambda b, n: b.results(n.args[0])[n.args[1]]}


def row(*overloads):
    """Registers a function under each overload, e.g. "add.Tensor"; those that this torch lacks are left out. Of aten, or
    of the primitives that torch decomposes into: "prims.convert_element_type"."""

    def register(function):
        for name in overloads:
            namespace = torch.ops.prims if name.startswith("prims.") else aten
            packet, _, overload = name.removeprefix("prims.").partition(".")
            target = getattr(getattr(namespace, packet, None), overload or "default", None)
            if target is not None:
                ROWS[target] = function
        return function

    return register


# ---- reading arguments


def arg(node: fx.Node, index: int, name: str, default=None):
    """The argument at `index`, or by name, or the default."""
    return node.args[index] if index < len(node.args) else node.kwargs.get(name, default)


def result_type(node: fx.Node) -> tuple:
    """(dtype, shape) of the node's only result."""
    return type_of(meta_of(node))


def result_types(node: fx.Node) -> list[tuple]:
    return [type_of(t) for t in meta_of(node)]


def number(value):
    """A Python number, and nothing symbolic."""
    if isinstance(value, (bool, int, float)):
        return value
    raise Unsupported(f"{value!r} is no constant")


def operand(b: Builder, value, dtype: str) -> Value:
    """A tensor cast to `dtype`, or a Python number as a constant of it."""
    if isinstance(value, fx.Node):
        return b.cast(b.value(value), dtype)
    return b.full(number(value), dtype)


def wrap(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


def rank_of(node: fx.Node) -> int:
    return len(meta_of(node).shape)


def dims_of(value, rank: int) -> list[int]:
    """A dims argument (None, int or list; empty means all) as indices from 0."""
    if value is None or value == []:
        return list(range(rank))
    return sorted({wrap(d, rank) for d in ([value] if isinstance(value, int) else value)}) if rank else []


def require(condition: bool, why: str) -> None:
    if not condition:
        raise Unsupported(why)


def kept_shape(shape, dim: int) -> tuple:
    return shape[:dim] + (1,) + shape[dim + 1 :]
