"""A subgraph's nodes as a graph of torch's own functions: what runs where the program cannot, and what it is checked against.

Its inputs are the subgraph's: those that the program reads. An operand that no program reads, as only its type counts
(zeros_like) or torch asks for it in vain, has a stand-in of its type, made in place.
"""

from __future__ import annotations

import torch
from torch import fx

from .builder import dim_of
from .partition import Subgraph, is_view
from .text import Unsupported

aten = torch.ops.aten


def fallback_graph(graph: fx.Graph, subgraph: Subgraph) -> fx.Graph:
    """forward(*inputs) -> outputs of the subgraph, which is part of `graph`. Raises Unsupported where an extent is not to be had
    of the inputs."""
    fallback = fx.Graph()
    copies = {n: fallback.placeholder(n.name) for n in subgraph.inputs}
    inside = set(subgraph.nodes)
    for node in _wanted(graph, subgraph, inside):
        if _is_size(node) and (place := _place_of(dim_of(node), subgraph.inputs)):
            copies[node] = fallback.call_function(aten.sym_size.int, (copies[place[0]], place[1]))
        elif _belongs(node, inside):
            copies[node] = fallback.node_copy(node, lambda n: copies[n])
        else:
            copies[node] = _stand_in(fallback, node, subgraph.inputs, copies)
    fallback.output(tuple(copies[n] for n in subgraph.outputs))
    return fallback


def _belongs(node: fx.Node, inside: set) -> bool:
    return node in inside or is_view(node) or (node.op == "call_function" and _is_size(node))


def _wanted(graph: fx.Graph, subgraph: Subgraph, inside: set) -> list[fx.Node]:
    """The nodes that outputs need besides the inputs, in the order of the graph."""
    wanted, result, inputs = set(subgraph.outputs), [], set(subgraph.inputs)
    for node in reversed(graph.nodes):
        if node not in wanted or node in inputs:
            continue
        result.append(node)
        if _belongs(node, inside) and not (_is_size(node) and _place_of(dim_of(node), subgraph.inputs)):
            wanted.update(node.all_input_nodes)
    return result[::-1]


def _stand_in(fallback: fx.Graph, node: fx.Node, inputs: list, copies: dict) -> fx.Node:
    """Zeros of the node's type, which nothing depends on but types."""
    tensor = node.meta.get("val")
    if not isinstance(tensor, torch.Tensor):
        raise Unsupported(f"{node.name} is not to be had of the subgraph's inputs")

    def extent(size):
        dim = dim_of(size)
        if isinstance(dim, int):
            return dim
        if (place := _place_of(dim, inputs)) is None:
            raise Unsupported(f"extent {dim} is not to be had of the subgraph's inputs")
        return fallback.call_function(aten.sym_size.int, (copies[place[0]], place[1]))

    sizes, strides = ([extent(e) for e in extents] for extents in (tensor.shape, tensor.stride()))
    options = {"dtype": tensor.dtype, "device": tensor.device}
    memory = fallback.call_function(aten.empty_strided.default, (sizes, strides), options)
    return fallback.call_function(aten.zeros_like.default, (memory,))


def _is_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def _place_of(wanted, tensors: list[fx.Node]) -> tuple[fx.Node, int] | None:
    """The tensor and dim with this extent."""
    for node in tensors:
        for dim, extent in enumerate(node.meta["val"].shape):
            if dim_of(extent) == wanted:
                return node, dim
    return None
