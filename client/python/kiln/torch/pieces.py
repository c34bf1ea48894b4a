"""What the pieces of a node that was taken apart (expansion.py) know of it."""

from __future__ import annotations

import operator
import types
from dataclasses import dataclass, field
from typing import Callable

from torch import fx

from .nodes import is_number
from .pairs import each_in_pairs, in_pairs

_KEY = "kiln_whole"


@dataclass(eq=False)
class Whole:
    """The node that pieces stand for."""

    target: Callable
    args: tuple
    kwargs: dict
    value: object  # its meta["val"]
    operands: list[fx.Node]
    nodes: list[fx.Node] = field(default_factory=list)  # all its pieces, and the numbers that they are made with
    results: list[fx.Node] = field(default_factory=list)

    def add(self, node: fx.Node) -> None:
        self.nodes.append(node)
        if not is_number(node):
            node.meta[_KEY] = self

    @property
    def pieces(self) -> list[fx.Node]:
        """Without numbers, which are no side's; the last is a result."""
        return [node for node in self.nodes if not is_number(node)]

    @property
    def several(self) -> bool:
        """Whether its results are pieces of a tuple."""
        return isinstance(self.value, (tuple, list))

    def erase_unread(self) -> None:
        for node in reversed(self.nodes):
            if not node.users:
                node.graph.erase_node(node)
                self.nodes.remove(node)

    def put_back(self) -> fx.Node:
        """The node in place of its pieces, which are erased."""
        graph, replaced = self.nodes[0].graph, {}
        with graph.inserting_after(self.nodes[-1]):
            node = graph.call_function(self.target, self.args, self.kwargs)
        node.meta["val"] = self.value
        for i, result in enumerate(self.results):
            if result in self.nodes:
                replaced[result] = self._part(node, i) if self.several else node
                result.replace_all_uses_with(replaced[result])
        for piece in reversed(self.nodes):
            graph.erase_node(piece)
        self.nodes.clear()
        for other in {whole_of(n) for n in graph.nodes} - {None}:
            other.args, other.kwargs = fx.map_arg((other.args, other.kwargs), lambda n: replaced.get(n, n))
            other.operands = [replaced.get(n, n) for n in other.operands]
        return node

    def _part(self, node: fx.Node, index: int) -> fx.Node:
        with node.graph.inserting_after(node):
            part = node.graph.call_function(operator.getitem, (node, index))
        part.meta["val"] = self.value[index]
        return part


def whole_of(node: fx.Node) -> Whole | None:
    return node.meta.get(_KEY)


def is_counted(node: fx.Node) -> bool:
    """Whether the node counts: pieces count as the one node that they stand for. A piece of a tuple, which may come last, is free."""
    whole = whole_of(node)
    return whole is None or node is next(n for n in reversed(whole.pieces) if n.target is not operator.getitem)


def name_of(node: fx.Node) -> str:
    """What the node is called where nodes are counted."""
    whole = whole_of(node)
    if node.target in (in_pairs, each_in_pairs):
        return str(node.args[0])
    target = node.target if whole is None else whole.target
    return f"kiln.{target.__name__}" if isinstance(target, types.FunctionType) else str(target)


def put_together(reasons: dict) -> dict:
    """Why nodes stay in torch, where a node of which a piece cannot be had is put back and stays as a whole."""
    result = {}
    for node, why in reasons.items():
        whole = whole_of(node)
        if whole is None:
            result[node] = why
        elif whole.nodes:
            result[whole.put_back()] = why
    return result
