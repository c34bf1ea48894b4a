"""What a row is, and what rows read their nodes' arguments with."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Callable

import sympy
import torch
from torch import fx

from .. import compat
from ..builder import Builder, dim_of, expanded, meta_of, type_of
from ..text import Unsupported, Value

aten = torch.ops.aten

@dataclass(frozen=True)
class Row:
    """All that this package knows of one overload. Who wants to know something of an op asks its row, and keeps no list of ops."""

    # (builder, node) → Value, or a tuple of Values for several results. Raises Unsupported for a use that it cannot say.
    lower: Callable | None
    # torch gives a view of the first argument: subgraphs and steps in torch each make it for themselves (partition.py).
    is_view: bool = False
    # The result is the first argument's elements in other memory or another dtype (joint.py's residual stream).
    is_copy: bool = False
    # A backward computes the result again rather than have it saved: it fuses into its reader (joint.py).
    is_recomputed: bool = False
    # A norm, or a reduction that one is made of: what it reads is saved (joint.py's residual stream).
    is_norm: bool = False
    # Its results but the first are statistics, for a gradient that reads them as torch's kernels give them (norm_statistics.py).
    gives_statistics: bool = False
    reads_statistics: bool = False
    # Nothing is computed: between captures it is worth no program, and is not counted (between.py).
    is_idle: bool = False
    # torch's own function with the choice that the row makes where torch leaves one open, as among equal elements (check.py).
    settled: Callable | None = None


NO_ROW = Row(lower=None)


class Family:
    """The rows of one file. A fact of the family holds for each of its rows that does not say otherwise."""

    def __init__(self, **facts: bool | Callable) -> None:
        self.rows: dict[Callable, Row] = {}
        self.later: dict[str, Row] = {}
        self._facts = facts

    def row(self, *overloads: str | Callable, **facts: bool | Callable):
        """Adds the decorated function as the lowering of each overload, e.g. "add.Tensor"; those that this torch lacks are left
        out. Of aten, or of a namespace that is named: "prims.convert_element_type.default"; where one is not registered yet it
        is known by name. A function of this package stands for itself."""

        def add(lower: Callable) -> Callable:
            row = Row(lower, **{**self._facts, **facts})
            self.later.update({name: row for name in overloads if _is_late(name)})
            for target in filter(None, map(find_overload, overloads)):
                if target in self.rows:
                    raise ValueError(f"{target} has a row already")
                self.rows[target] = row
            return lower

        return add


def entering(table: dict[Callable, Callable]):
    """A decorator by which functions enter the table, each for the overloads that are named; as Family.row takes them."""

    def entry(*overloads: str | Callable):
        def add(function: Callable) -> Callable:
            table.update({target: function for target in map(find_overload, overloads) if target is not None})
            return function

        return add

    return entry


# Of ops that are registered when they are first needed: the primitives that torch decomposes into, and what a library adds.
NAMESPACES = ("prims", "transformers")


def _is_late(overload) -> bool:
    return isinstance(overload, str) and overload.split(".")[0] in NAMESPACES and find_overload(overload) is None


def find_overload(name: str | Callable):
    """What a row says it is for; None where this torch lacks it."""
    if callable(name):
        return name
    first, _, rest = name.partition(".")
    namespace = getattr(torch.ops, first) if first in NAMESPACES else aten
    packet, _, overload = (rest if first in NAMESPACES else name).partition(".")
    return getattr(getattr(namespace, packet, None), overload or "default", None)


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
    """A tensor cast to `dtype`, or a Python number, an extent or what is computed of extents as a number of it."""
    if isinstance(value, fx.Node) and isinstance(meta_of(value), torch.SymInt):
        return b.extent(dim_of(value), dtype)
    if isinstance(value, fx.Node) and isinstance(meta_of(value), torch.SymFloat):
        return b.cast(computed(b, compat.adapter().symbolic_expression(meta_of(value))), dtype)
    if isinstance(value, fx.Node):
        return b.cast(b.value(value), dtype)
    return b.full(number(value), dtype)


_NAMES = {operator.add: "add", operator.mul: "mul", operator.truediv: "div"}


def computed(b: Builder, expression: sympy.Expr) -> Value:
    """What torch computes of extents and is none, in f64."""
    if expression.is_Number:
        return b.full(float(expression), "f64")
    operation = compat.adapter().functions_of_numbers().get(expression.func)
    if operation is None:
        return b.extent(expanded(expression), "f64")
    return functools.reduce(lambda x, y: b.pointwise(_NAMES[operation], x, y), (computed(b, part) for part in expression.args))


def scaled(b: Builder, value: Value, factor: float) -> Value:
    """The value times a number."""
    return value if factor == 1 else b.pointwise("mul", value, b.full(factor, value.dtype))


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
