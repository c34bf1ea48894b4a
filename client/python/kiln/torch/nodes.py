"""Nodes put into a graph with what their values are."""

from __future__ import annotations

import operator
from typing import Callable

import torch
from torch import fx


def node_of(graph: fx.Graph, target: Callable, arguments: tuple, value, **keywords) -> fx.Node:
    node = graph.call_function(target, arguments, keywords)
    node.meta["val"] = value
    return node


def applied(graph: fx.Graph, target: Callable, node: fx.Node, *arguments) -> fx.Node:
    """What the target makes of the node's value."""
    return node_of(graph, target, (node, *arguments), target(node.meta["val"], *arguments))


def piece_of(graph: fx.Graph, node: fx.Node, index: int) -> fx.Node:
    return node_of(graph, operator.getitem, (node, index), node.meta["val"][index])


def named_arguments(node: fx.Node) -> dict:
    """Those that the node has, by the names of its op's schema."""
    return dict(zip((a.name for a in node.target._schema.arguments), node.args)) | node.kwargs


def all_arguments(node: fx.Node) -> dict:
    """As named_arguments, with the schema's defaults of those that it has not."""
    given = named_arguments(node)
    return {a.name: given.get(a.name, a.default_value) for a in node.target._schema.arguments}


def is_number(node: fx.Node) -> bool:
    """Whether the node gives a size, or what is computed of sizes, and no tensor."""
    return isinstance(node.meta.get("val"), (int, torch.SymInt, torch.SymFloat, torch.SymBool))


def gives_view(target: Callable) -> bool:
    """Whether torch's op gives a view of an operand, and writes to none."""
    returns = getattr(getattr(target, "_schema", None), "returns", ())
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def makes_memory(target: Callable) -> bool:
    """Whether torch's op gives its result memory of its own in any case. Its schema alone does not tell: that of _unsafe_view is as
    mm's is. So only what is pointwise or of torch's core counts, and not what torch says may give an operand."""
    tags = getattr(target, "tags", ())
    is_known = torch.Tag.pointwise in tags or torch.Tag.core in tags
    return is_known and torch.Tag.maybe_aliasing_or_mutating not in tags and not gives_view(target)


__all__ = ["all_arguments", "applied", "gives_view", "is_number", "makes_memory", "named_arguments", "node_of", "piece_of"]
