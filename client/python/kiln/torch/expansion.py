"""Nodes that no row says, put together from ops that rows do say: torch's own decompositions, where all of one is Kiln's.

A node keeps the place in the graph that it had. Its pieces stand before its users, and know what they came from, so that a
fallback, and the check of a program's first run, call the op itself: its values, its errors, and its strides are torch's.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass

import torch
from torch import fx

from . import compat
from .builder import dims_of, strides_of
from .distributions import DISTRIBUTIONS
from .encoder_layers import LAYERS
from .fractional_pools import POOLS
from .nodes import is_number
from .partition import Partition, gives_nothing, is_free, is_view, partition, why_not
from .pieces import Whole
from .place import Place
from .rows import NO_ROW, row_of
from .tensors import elements_of, relayout, tensors_in

# Nodes of a decomposition that is worth a place in the graph.
MAX_PIECES = 200
# Decompositions kept for nodes that are alike.
MAX_KEPT = 1024
# Elements of a piece, in times of the node's own: what fuses may be larger than what is there in the end.
MAX_GROWTH = 64
# What is never taken apart. Of these torch's kernels compute something else than its decompositions: other statistics, or
# sums for a backward that is a kernel, too.
WHOLE = ("batch_norm", "instance_norm", "scaled_dot_product", "convolution")
# What this package itself says in other ops: op, and the function that does the same.
OWN_RULES = {**{function: function for function in DISTRIBUTIONS}, **LAYERS, **POOLS}


def first_partition(graph: fx.Graph, place: Place) -> Partition:
    """The graph's partition, after what can be said in pieces is in pieces."""
    plan = partition(graph, None, place)
    left = [n for n, why in plan.reasons.items() if n.op == "call_function" and not is_free(n) and not why.is_semantic]
    return partition(graph, None, place) if any([_expand(n, place) for n in left]) else plan


def _expand(node: fx.Node, place: Place) -> bool:
    """Puts the node's pieces in its place. False, and the graph is as it was, where they are not to be had."""
    pieces = pieces_of(node)
    if pieces is None or any(not is_of_nobody(n) and why_not(n, place) is not None for n in pieces.calls):
        return False
    _splice(node, node.all_input_nodes, pieces)
    return True


def is_of_nobody(node: fx.Node) -> bool:
    return gives_nothing(node) or is_number(node)


def pieces_of(node: fx.Node) -> Pieces | None:
    """What torch takes the node apart into; None where it does not, or not for these types."""
    if not is_said_in_others(node.target):
        return None
    operands = node.all_input_nodes
    if any(not _is_known(n) for n in (node, *operands)):
        return None
    if _has_several(node) and any(user.target is not operator.getitem for user in node.users):
        return None
    return _traced(node, operands)


def is_said_in_others(op) -> bool:
    """Whether the op does what other ops do, and nothing else: a function of this package, or one that torch can take apart."""
    if op in OWN_RULES:
        return True
    schema = getattr(op, "_schema", None)
    if schema is None or schema.is_mutable or any(name in schema.name for name in WHOLE):
        return False
    if any(result.alias_info is not None for result in schema.returns):  # a view, which costs nothing
        return False
    return op in compat.adapter().decompositions() and not compat.adapter().draws_random_numbers(op)


def _has_several(node: fx.Node) -> bool:
    return not isinstance(node.meta["val"], torch.Tensor)


def _is_known(node: fx.Node) -> bool:
    """Whether it is tensors that have strides, and nothing else."""
    value = node.meta.get("val")
    values = [value] if isinstance(value, torch.Tensor) else value
    return isinstance(values, (tuple, list)) and all(isinstance(v, torch.Tensor) and v.layout is torch.strided for v in values)


# ---- tracing


@dataclass
class Pieces:
    graph: fx.Graph
    results: list[fx.Node]

    @property
    def calls(self) -> list[fx.Node]:
        return [n for n in self.graph.nodes if n.op == "call_function"]


_kept: dict[tuple, Pieces | None] = {}


def _traced(node: fx.Node, operands: list[fx.Node]) -> Pieces | None:
    """The node's decomposition, with a placeholder for each operand; None where it does not fit this type."""
    rule = OWN_RULES.get(node.target) or compat.adapter().decompositions()[node.target]
    places = {n: i for i, n in enumerate(operands)}
    arguments = fx.map_arg((node.args, node.kwargs), lambda n: _Place(places[n]))
    if not all(map(_has_known_extents, tensors_in([n.meta["val"] for n in (node, *operands)]))):
        return _trace(node, rule, arguments, operands)
    key = (node.target, repr(arguments), *(_type_key(n.meta["val"]) for n in operands))
    if key not in _kept:
        while len(_kept) >= MAX_KEPT:
            _kept.pop(next(iter(_kept)), None)
        _kept[key] = _trace(node, rule, arguments, operands)
    return _kept[key]


@dataclass(frozen=True)
class _Place:
    """Stands for an operand among arguments."""

    index: int


def _has_known_extents(tensor: torch.Tensor) -> bool:
    return all(type(e) is int for e in (*tensor.shape, *tensor.stride()))


def _type_key(value) -> tuple:
    return tuple((t.dtype, t.device, tuple(t.shape), t.stride()) for t in tensors_in(value))


def _trace(node: fx.Node, rule, arguments: tuple, operands: list[fx.Node]) -> Pieces | None:
    def decomposed(*tensors):
        positional, named = _with_tensors(arguments, tensors)
        result = rule(*positional, **named)
        return tuple(result) if isinstance(result, (tuple, list)) else result  # not of a named type

    try:
        traced = compat.adapter().trace_pieces(decomposed, [n.meta["val"] for n in operands], table_of_pieces())
    except Exception:  # noqa: BLE001: a decomposition that does not know such arguments leaves the node as it is
        return None
    graph = traced.graph
    (output,) = graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    expected = list(tensors_in(node.meta["val"]))
    if graph.find_nodes(op="get_attr") or len(graph.nodes) > MAX_PIECES or len(results) != len(expected):
        return None
    elements = sum(elements_of(t) for n in (node, *operands) for t in tensors_in(n.meta["val"]))
    if any(elements_of(t) > MAX_GROWTH * elements for n in graph.nodes for t in tensors_in(n.meta.get("val"))):
        return None
    if not all(isinstance(r, fx.Node) and _is_of_type(r.meta["val"], e) for r, e in zip(results, expected)):
        return None
    pieces = Pieces(graph, list(results))
    if all(map(_has_known_extents, expected)) or not any(_is_laid_out_anew(r, e, pieces) for r, e in zip(results, expected)):
        return pieces
    return None  # strides that are not known are no arguments of a copy


@functools.cache
def table_of_pieces() -> dict:
    """Decompositions of what no row says."""
    return {op: rule for op, rule in compat.adapter().decompositions().items() if row_of(op) is NO_ROW}


def _is_of_type(value: torch.Tensor, expected: torch.Tensor) -> bool:
    return (value.dtype, dims_of(value), value.device) == (expected.dtype, dims_of(expected), expected.device)


def _is_laid_out_anew(result: fx.Node, value: torch.Tensor, pieces: Pieces) -> bool:
    """Whether what the pieces give is no tensor of its own, or has other strides than the op gives."""
    is_own = result in pieces.calls and pieces.results.count(result) == 1 and not is_view(result)
    return not is_own or strides_of(result.meta["val"]) != strides_of(value)


def _with_tensors(value, tensors):
    if isinstance(value, _Place):
        return tensors[value.index]
    if isinstance(value, (tuple, list)):
        return type(value)(_with_tensors(v, tensors) for v in value)
    if isinstance(value, dict):
        return {name: _with_tensors(v, tensors) for name, v in value.items()}
    return value


# ---- replacing


def _splice(node: fx.Node, operands: list[fx.Node], pieces: Pieces) -> None:
    copies = dict(zip(pieces.graph.find_nodes(op="placeholder"), operands))
    values = list(tensors_in(node.meta["val"]))
    whole = Whole(node.target, node.args, node.kwargs, node.meta["val"], operands)
    with node.graph.inserting_before(node):
        for piece in pieces.calls:
            copies[piece] = node.graph.node_copy(piece, lambda n: copies[n])
            whole.add(copies[piece])
        for result, value in zip(pieces.results, values):
            is_anew = _is_laid_out_anew(result, value, pieces)
            whole.results.append(_made(node.graph, copies[result], value, whole, is_anew))
    for user in list(node.users) if whole.several else ():
        user.replace_all_uses_with(whole.results[user.args[1]])
        node.graph.erase_node(user)
    if not whole.several:
        node.replace_all_uses_with(whole.results[0])
    node.graph.erase_node(node)
    whole.erase_unread()


def _made(graph: fx.Graph, result: fx.Node, value: torch.Tensor, whole: Whole, is_anew: bool) -> fx.Node:
    """The result as a tensor of its own with the strides that the op gives."""
    if is_anew:
        result = graph.call_function(relayout, (result, value.stride()))
        whole.add(result)
    result.meta["val"] = value
    return result
