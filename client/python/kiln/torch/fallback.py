"""A subgraph's nodes as a graph of torch's own functions: what runs where the program cannot, and what it is checked against.

It is called with what the subgraph is: the inputs that the program reads, then sizes. An operand that no program reads, as only
its type counts (zeros_like) or torch asks for it in vain, has a stand-in of its type, made in place; its extents, as all sizes
that the arguments say, are computed of those.
"""

from __future__ import annotations

import functools
import operator

import sympy
import torch
from torch import fx

from .binding import functions, given
from .builder import dim_of, dims_of, is_alike, strides_of
from .nodes import is_number, makes_memory
from .partition import Subgraph, is_view
from .pieces import Whole, whole_of
from .text import Unsupported, as_polynomial

aten = torch.ops.aten


def fallback_graph(graph: fx.Graph, subgraph: Subgraph) -> fx.Graph:
    """forward(*inputs, *sizes) -> outputs of the subgraph, which is part of `graph`. Raises Unsupported where an extent is not to
    be had of the arguments."""
    fallback = fx.Graph()
    copies = {n: fallback.placeholder(n.name) for n in (*subgraph.inputs, *subgraph.sizes)}
    sizes = _Sizes(fallback, subgraph, list(copies.values()))
    inside = set(subgraph.nodes)
    for node in _wanted(graph, subgraph, inside, sizes):
        if sizes.say(node):
            copies[node] = sizes.of(dim_of(node))
        elif (whole := _whole_in(node, inside)) is not None:
            copies[node] = _result_of(fallback, node, whole, copies)
        elif _belongs(node, inside):
            copies[node] = fallback.node_copy(node, lambda n: copies[n])
        else:
            copies[node] = _stand_in(fallback, node, sizes)
    fallback.output(tuple(copies[n] for n in subgraph.outputs))
    _reuse_memory(fallback)
    return fallback


def _reuse_memory(fallback: fx.Graph) -> None:
    """Has ops write where an operand lies that nothing else reads. Bits are the same; fresh memory takes longer than the arithmetic."""
    for node in fallback.nodes:
        changing = _changing(node.target)
        if changing is not None and _is_done_with(node.args[0]) and is_alike(node.args[0], node):
            node.target = changing


@functools.cache
def _changing(op):
    """Of a pointwise op of torch, the one that changes its first operand; None where there is none."""
    schema = getattr(op, "_schema", None)
    if schema is None or torch.Tag.pointwise not in op.tags:
        return None
    namespace, name = schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), f"{name}_", None)
    return getattr(packet, schema.overload_name or "default", None)


def _is_done_with(value) -> bool:
    """Whether the value is what an op made in memory of its own for one reader alone."""
    is_for_one = isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor) and len(value.users) == 1
    return is_for_one and makes_memory(value.target)


def _whole_in(node: fx.Node, inside: set) -> Whole | None:
    """What the node is a result of, where all of that is inside."""
    whole = whole_of(node)
    is_whole = whole is not None and node in whole.results and all(n in inside or is_view(n) for n in whole.pieces)
    return whole if is_whole else None


def _result_of(fallback: fx.Graph, node: fx.Node, whole: Whole, copies: dict) -> fx.Node:
    if whole not in copies:
        arguments, keywords = fx.map_arg((whole.args, whole.kwargs), lambda n: copies[n])
        copies[whole] = fallback.call_function(whole.target, arguments, keywords)
    return fallback.call_function(operator.getitem, (copies[whole], whole.results.index(node))) if whole.several else copies[whole]


class _Sizes:
    """Computes sizes in the fallback, of its arguments."""

    def __init__(self, fallback: fx.Graph, subgraph: Subgraph, arguments: list[fx.Node]) -> None:
        self._fallback, self._subgraph, self._arguments = fallback, subgraph, arguments

    def has(self, dim) -> bool:
        return isinstance(dim, int) or (as_polynomial(dim).is_polynomial() and self._subgraph.binding.says(dim))

    def say(self, node: fx.Node) -> bool:
        """Whether the node is a size that the arguments say."""
        return isinstance(node.meta.get("val"), torch.SymInt) and self.has(dim_of(node))

    def of(self, dim):
        """A node, or the number that it is. Raises Unsupported where the arguments do not say it."""
        if isinstance(dim, int):
            return dim
        if not self.has(dim):
            raise Unsupported(f"extent {dim} is not to be had of the subgraph's inputs")
        return self._value(self._subgraph.binding.of(dim))

    def _value(self, expression: sympy.Expr):
        if expression.is_Number:
            return int(expression) if expression.is_Integer else float(expression)
        if expression.is_Symbol:
            return self._read(expression)
        if expression.is_Pow:
            base, power = expression.args
            parts, operation = [self._value(base)] * int(power), operator.mul
        else:
            parts, operation = list(map(self._value, expression.args)), functions()[expression.func]
        if len(parts) == 1:
            return self._fallback.call_function(operation, tuple(parts))
        return functools.reduce(lambda a, b: self._fallback.call_function(operation, (a, b)), parts)

    def _read(self, number: sympy.Symbol) -> fx.Node:
        sources = self._subgraph.binding.sources
        (source,) = (source for i, source in enumerate(sources) if given(i) == number)
        argument = self._arguments[source.argument]
        reader = {"extent": aten.sym_size.int, "stride": aten.sym_stride.int}.get(source.kind)
        return argument if reader is None else self._fallback.call_function(reader, (argument, source.dim))


def _belongs(node: fx.Node, inside: set) -> bool:
    return node in inside or is_view(node) or (node.op == "call_function" and is_number(node))


def _wanted(graph: fx.Graph, subgraph: Subgraph, inside: set, sizes: _Sizes) -> list[fx.Node]:
    """The nodes that outputs need besides the inputs, in the order of the graph."""
    wanted, result, arguments = set(subgraph.outputs), [], {*subgraph.inputs, *subgraph.sizes}
    for node in reversed(graph.nodes):
        if node not in wanted or node in arguments:
            continue
        result.append(node)
        if _belongs(node, inside) and not sizes.say(node):
            whole = _whole_in(node, inside)
            wanted.update(node.all_input_nodes if whole is None else whole.operands)
    return result[::-1]


def _stand_in(fallback: fx.Graph, node: fx.Node, sizes: _Sizes) -> fx.Node:
    """Zeros of the node's type, which nothing depends on but types."""
    tensor = node.meta.get("val")
    if not isinstance(tensor, torch.Tensor):
        raise Unsupported(f"{node.name} is not to be had of the subgraph's inputs")
    shape, strides = ([sizes.of(d) for d in dims] for dims in (dims_of(tensor), strides_of(tensor)))
    options = {"dtype": tensor.dtype, "device": tensor.device}
    memory = fallback.call_function(aten.empty_strided.default, (shape, strides), options)
    return fallback.call_function(aten.zeros_like.default, (memory,))
