"""Builds one Kiln graph from fx nodes: what the rows of the op table (rows/) are written with.

A Builder walks from the nodes it is asked for to their operands. Nodes that `belongs` accepts are imported through their
row; all others become inputs, in the order in which they are met. A tensor without elements is neither: nothing of it is
read, so the graph makes its own.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Callable, Mapping, Sequence

import sympy
import torch
from torch import fx

from . import compat
from .tensors import is_empty
from .text import DTYPES, FLOATING, Dim, DTypeName, TextWriter, Unsupported, Value, expanded, is_dense


def dim_of(extent) -> Dim:
    """A size from fx metadata as an int or a polynomial over symbols."""
    if isinstance(extent, fx.Node):
        extent = extent.meta.get("val")
    if isinstance(extent, int) and not isinstance(extent, bool):
        return extent
    if isinstance(extent, torch.SymInt):
        return expanded(compat.adapter().symbolic_expression(extent))
    raise Unsupported(f"{extent!r} is no extent")


def floor_quotient(over: Dim, under: Dim) -> Dim:
    is_known = isinstance(over, int) and isinstance(under, int)
    return over // under if is_known else expanded(compat.adapter().floor_quotient(over, under))


def remainder(over: Dim, under: Dim) -> Dim:
    """0 or more, and less than `under`."""
    is_known = isinstance(over, int) and isinstance(under, int)
    return over % under if is_known else expanded(compat.adapter().remainder(over, under))


def dims_of(tensor: torch.Tensor) -> tuple[Dim, ...]:
    return tuple(map(dim_of, tensor.shape))


def strides_of(tensor: torch.Tensor) -> tuple[Dim, ...]:
    """As dims, of a tensor with elements; of one without, nothing reads them."""
    return tuple(s if isinstance(s, int) else expanded(compat.adapter().stride_expression(s)) for s in tensor.stride())


def meta_of(node: fx.Node):
    value = node.meta.get("val")
    if value is None:
        raise Unsupported(f"{node.name} has no metadata")
    return value


def type_of(tensor) -> tuple[str, tuple[Dim, ...]]:
    """(dtype, shape) of a fake tensor, when Kiln knows such tensors."""
    if not isinstance(tensor, torch.Tensor):
        raise Unsupported(f"a value of type {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise Unsupported(f"layout {tensor.layout}")
    if tensor.is_neg() or tensor.is_conj():  # torch's lazy sign: the memory holds something else
        raise Unsupported("a view with the negative or the conjugate bit")
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise Unsupported(f"dtype {tensor.dtype}")
    return dtype, dims_of(tensor)


def layout_of(node: fx.Node) -> tuple:
    """(dtype, shape, strides) of the node's tensor."""
    tensor = meta_of(node)
    return *type_of(tensor), strides_of(tensor)


def is_alike(node: fx.Node, other: fx.Node) -> bool:
    """Whether the nodes' tensors are of one dtype and device, and lie alike."""
    a, b = node.meta.get("val"), other.meta.get("val")
    are_tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return are_tensors and (a.dtype, a.device, dims_of(a), strides_of(a)) == (b.dtype, b.device, dims_of(b), strides_of(b))


def broadcast(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(next((d for d in dims if d != 1), 1) for dims in zip(*padded))


class Builder:
    def __init__(self, rows: dict, belongs: Callable[[fx.Node], bool], packed: Mapping = MappingProxyType({})) -> None:
        """packed: how inputs lie that are not as their nodes say (panels.py)."""
        self.writer = TextWriter()
        self.inputs: list[fx.Node] = []
        self.parts: dict[str, tuple] = {}  # of values that are stacks along their last dim, by name: what they were made of
        self._rows = rows
        self._belongs = belongs
        self._packed = packed
        self._values: dict[fx.Node, Value | tuple] = {}
        self._constants: dict[tuple, Value] = {}

    # --- fx nodes to values

    def value(self, node: fx.Node) -> Value:
        """The value of a tensor node, imported or taken in as an input when it is new."""
        result = self._result(node)
        if not isinstance(result, Value):
            raise Unsupported(f"{node.name} has several results")
        return result

    def optional(self, node: fx.Node | None) -> Value | None:
        return None if node is None else self.value(node)

    def _result(self, node: fx.Node):
        if node not in self._values:
            self._import_all(node)
        return self._values[node]

    def _import_all(self, wanted: fx.Node) -> None:
        """Imports `wanted` and what it needs, operands first; chains may be thousands long, so without recursion."""
        stack = [wanted]
        while stack:
            node = stack[-1]
            if node in self._values:
                stack.pop()
                continue
            missing = []
            if self._belongs(node) and not _is_empty(node):
                missing = [n for n in tensor_operands(node) if n not in self._values]
            if missing:
                stack.extend(reversed(missing))
                continue
            self._values[node] = self._import(node)
            stack.pop()

    def _import(self, node: fx.Node):
        if _is_empty(node):
            return self.full(0, *type_of(node.meta["val"]))
        if not self._belongs(node):
            return self._add_input(node)
        result = self._rows[node.target].lower(self, node)
        if isinstance(result, Value):
            return self._as_torch_says(result, node.meta.get("val"))
        return tuple(map(self._as_torch_says, result, meta_of(node)))

    def _as_torch_says(self, value: Value | None, tensor) -> Value | None:
        """The value in the shape that torch gives it, which may rest on a guard of torch's that two extents of symbols are equal:
        then that is a guard of the graph, too."""
        if value is None or not isinstance(tensor, torch.Tensor) or all(isinstance(extent, int) for extent in value.shape):
            return value
        shape = dims_of(tensor)
        return self.reshape(value, shape) if len(shape) == len(value.shape) else value

    def _add_input(self, node: fx.Node) -> Value:
        tensor = meta_of(node)
        dtype, shape = type_of(tensor)
        self.inputs.append(node)
        if (panels := self._packed.get(node)) is not None:
            return panels.value(self, self.writer.input(*panels.layout(dtype)))
        return self.writer.input(dtype, shape, strides_of(tensor))

    def results(self, node: fx.Node) -> tuple:
        """All results of a node with several."""
        result = self._result(node)
        return result if isinstance(result, tuple) else (result,)

    # --- nodes of the Kiln graph

    def op(self, name: str, operands: Sequence[Value | None], dtype: str, shape, /, **attributes) -> Value:
        """One node with one result of the given type."""
        (result,) = self.writer.node(name, operands, attributes)
        return Value(result, dtype, tuple(shape), result)

    def ops(self, name: str, operands: Sequence[Value | None], types: Sequence[tuple], /, **attributes) -> tuple:
        """One node with several results; types are (dtype, shape)."""
        names = self.writer.node(name, operands, attributes, results=len(types))
        return tuple(Value(n, dtype, tuple(shape), n) for n, (dtype, shape) in zip(names, types))

    def view(self, name: str, operand: Value, shape, /, **attributes) -> Value:
        (result,) = self.writer.node(name, (operand,), attributes)
        return Value(result, operand.dtype, tuple(shape), operand.root)

    def full(self, number, dtype: str, shape=()) -> Value:
        if dtype not in FLOATING and not (-(2**63) <= number < 2**63 and float(number) == number):
            raise Unsupported(f"constant {number} has no exact form")
        key = (repr(number), dtype, tuple(shape))
        if key not in self._constants:
            attributes = {"shape": tuple(shape), "value": float(number), "dtype": DTypeName(dtype)}
            self._constants[key] = self.op("full", (), dtype, shape, **attributes)
        return self._constants[key]

    def extent(self, extent: Dim, dtype: str) -> Value:
        """An extent as a number of a dtype."""
        if isinstance(extent, int):
            return self.full(extent, dtype)
        return self.op("extent", (), dtype, (), value=extent, dtype=DTypeName(dtype))

    def cast(self, value: Value, dtype: str) -> Value:
        if value.dtype == dtype:
            return value
        return self.op("cast", (value,), dtype, value.shape, dtype=DTypeName(dtype))

    def pointwise(self, name: str, *values: Value, dtype: str | None = None, **attributes) -> Value:
        """An op over broadcast operands; its result has the last operand's dtype unless said."""
        shape = broadcast(*(v.shape for v in values))
        return self.op(name, values, dtype or values[-1].dtype, shape, **attributes)

    def reshape(self, value: Value, shape) -> Value:
        if tuple(shape) == value.shape:
            return value
        return self.view("reshape", value, shape, shape=tuple(shape))

    def permute(self, value: Value, dims: Sequence[int]) -> Value:
        if list(dims) == list(range(len(dims))):
            return value
        return self.view("permute", value, [value.shape[d] for d in dims], dims=tuple(dims))

    def expand(self, value: Value, shape) -> Value:
        shape = tuple(shape)
        value = self.reshape(value, (1,) * (len(shape) - len(value.shape)) + value.shape)
        return value if value.shape == shape else self.view("expand", value, shape, shape=shape)

    def slice(self, value: Value, dim: int, start: Dim, end: Dim, extent: Dim, step: int = 1) -> Value:
        """Elements start, start + step, … before end along dim; `extent` of them."""
        if start == 0 and step == 1 and end == value.shape[dim]:
            return value
        shape = value.shape[:dim] + (extent,) + value.shape[dim + 1 :]
        return self.view("slice", value, shape, dim=dim, start=start, end=end, step=step)

    def reduce(self, name: str, value: Value, dims: Sequence[int], keep: bool, **attributes) -> Value:
        """Over no dims, of a scalar, it is the value but for a variance; callers say a norm otherwise."""
        dims = sorted(dims)
        if not dims and name != "var":
            return value
        kept = [(1 if d in dims else e) for d, e in enumerate(value.shape) if keep or d not in dims]
        return self.op(name, (value,), value.dtype, kept, dims=tuple(dims), keep_dims=keep, **attributes)

    # --- outputs

    def output(self, node: fx.Node) -> None:
        """Makes the node an output with the strides that torch would give it; an input is copied, as torch's copies are."""
        value = self.value(node)
        if value.root.startswith("%in"):
            value = self.op("cast", (value,), value.dtype, value.shape, dtype=DTypeName(value.dtype))
        self.writer.output(value, strides_of(meta_of(node)))


def tensor_operands(node: fx.Node) -> list[fx.Node]:
    """Operands that are tensors with elements (or tuples of tensors), not sizes."""
    sizes = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
    return [n for n in node.all_input_nodes if not isinstance(n.meta.get("val"), sizes) and not _is_empty(n)]


def _is_empty(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and is_empty(value)


def dense_strides(shape) -> tuple:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step = step * extent
    return tuple(reversed(strides))


__all__ = ["Builder", "broadcast", "dense_strides", "dim_of", "expanded", "floor_quotient", "is_alike", "is_dense", "meta_of", "remainder",
           "tensor_operands", "type_of"]  # fmt: skip
