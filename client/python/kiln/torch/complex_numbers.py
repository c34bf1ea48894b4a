"""Puts pairs of real numbers in place of complex tensors: Kiln has no complex dtypes.

A node that a rule says (rows/complex_rules.py) becomes real nodes: views, and all that is linear, are torch's same op on pairs, of
one dim more; what mixes the parts is in_pairs or each_in_pairs (pairs.py), which have rows, and in torch are the op itself. No complex
tensor is left between such nodes. What stays in torch, as Fourier transforms do, and whoever the graph is called by, gives and is
given views of pairs.
"""

from __future__ import annotations

import contextlib
from typing import Callable

import torch
from torch import fx

from .expansion import pieces_of
from .nodes import gives_view, node_of, piece_of
from .pairs import as_complex, as_pairs
from .place import place_of
from .rows.complex_rules import RULES
from .tensors import relayout, tensors_in
from .text import Unsupported

aten = torch.ops.aten


_CROSSINGS = (as_pairs, as_complex)


def put_pairs(graph: fx.Graph) -> None:
    """In place of complex tensors between all nodes that rules say."""
    nodes = [n for n in graph.nodes if n.op == "call_function" and _is_complex(n, *n.all_input_nodes)]
    if nodes:
        writer = PairsWriter(graph)
        for node in nodes:
            writer.rewrite(node)
        writer.erase_unread()


def _is_complex(*nodes: fx.Node) -> bool:
    return any(t.is_complex() for n in nodes for t in tensors_in(n.meta.get("val")))


def _mode_of(graph: fx.Graph):
    """The one in which torch finds out what nodes give, without data."""
    tensors = (t for n in graph.nodes for t in tensors_in(n.meta.get("val")))
    return next((t.fake_mode for t in tensors if hasattr(t, "fake_mode")), contextlib.nullcontext())


class PairsWriter:
    """Makes the nodes that stand for others, before each of them: what rules are written with."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._mode, self._device = _mode_of(graph), place_of(graph).device
        self._pairs: dict[fx.Node, fx.Node] = {}  # of complex nodes
        self._made: dict[fx.Node, fx.Node | None] = {}  # with the node that was rewritten when it was made
        self._at: fx.Node | None = None

    def rewrite(self, node: fx.Node) -> None:
        """Leaves the node as it is where no rule says it, or all that torch takes it apart into."""
        if node.target is as_complex:
            self._pairs[node] = node.args[0]
        if node.target in _CROSSINGS:
            return
        self._at = node
        try:
            with self._graph.inserting_before(node), torch.no_grad():
                self._by_rule(node) if node.target in RULES else self._in_pieces(node)
        except Exception:  # noqa: BLE001: what no rule foresaw stays in torch, and what was made for it has no readers
            return

    def erase_unread(self) -> None:
        for node in reversed(self._graph.nodes):
            if node in self._made and not node.users:
                self._graph.erase_node(node)

    def _by_rule(self, node: fx.Node) -> None:
        result = RULES[node.target](self, node)
        is_own = self._made.get(result) is node and result.target is not as_pairs
        if not is_own and not gives_view(node.target):
            result = self.call(aten.clone.default, result)
        if isinstance(node.meta["val"], torch.Tensor):
            return self._give(node, {node: self._in_place_of(node.meta["val"], result)})
        pieces = {piece: self._keep(piece_of(self._graph, result, piece.args[1])) for piece in node.users}
        self._give(node, {piece: self._in_place_of(piece.meta["val"], pairs) for piece, pairs in pieces.items()})

    def _in_pieces(self, node: fx.Node) -> None:
        pieces = pieces_of(node)
        if pieces is None or any(_is_complex(n, *n.all_input_nodes) and n.target not in RULES for n in pieces.calls):
            return
        copies = dict(zip(pieces.graph.find_nodes(op="placeholder"), node.all_input_nodes))
        for piece in pieces.calls:
            copies[piece] = self.call(piece.target, *fx.map_arg(piece.args, copies.get), **fx.map_arg(piece.kwargs, copies.get))
        made, results = [copies[n] for n in pieces.calls], [copies[n] for n in pieces.results]
        for i, value in enumerate(tensors_in(node.meta["val"])):
            if results[i].meta["val"].stride() != value.stride():
                results[i] = self.call(relayout, results[i], value.stride())
                made.append(results[i])
        is_one = isinstance(node.meta["val"], torch.Tensor)
        self._give(node, {node: results[0]} if is_one else {piece: results[piece.args[1]] for piece in node.users})
        for piece in made:
            if _is_complex(piece, *piece.all_input_nodes):
                self.rewrite(piece)

    def _give(self, node: fx.Node, others: dict[fx.Node, fx.Node]) -> None:
        """The readers of the node, or of pieces of it, what stands for these."""
        for old, new in others.items():
            old.replace_all_uses_with(new)
        for old in (*(piece for piece in others if piece is not node), node):
            self._graph.erase_node(old)
            self._made.pop(old, None)

    def _in_place_of(self, value: torch.Tensor, result: fx.Node) -> fx.Node:
        """What a reader of the value is given: the result, or a complex view of it."""
        expected = as_pairs(value) if value.is_complex() else value
        result = self._laid_out(result, expected)
        if not value.is_complex():
            return result
        view = self._keep(node_of(self._graph, as_complex, (result,), value.resolve_conj()))
        self._pairs[view] = result
        return view

    def _laid_out(self, result: fx.Node, expected: torch.Tensor) -> fx.Node:
        """The result with the strides that torch's has, where it is one of its own and these are known."""
        value = result.meta["val"]
        known = all(type(n) is int for t in (value, expected) for n in (*t.shape, *t.stride()))
        if (value.dtype, value.device) != (expected.dtype, expected.device) or (known and value.shape != expected.shape):
            raise Unsupported("a rule gives another type")
        if result not in self._made or not known or gives_view(result.target) or value.stride() == expected.stride():
            return result
        return self.call(relayout, result, expected.stride())

    def _keep(self, node: fx.Node) -> fx.Node:
        self._made[node] = self._at
        return node

    # ---- for rules

    def call(self, target: Callable, *arguments, **keywords) -> fx.Node:
        """A node, which has what torch says that it gives."""
        values, named = fx.map_arg((arguments, keywords), lambda n: n.meta["val"])
        with self._mode:
            value = target(*values, **named)
        node = self._graph.call_function(target, arguments, keywords)
        node.meta["val"] = value
        return self._keep(node)

    def pairs(self, operand, dtype: torch.dtype) -> fx.Node:
        """Those of a complex or a real node or of a number, with parts of this dtype."""
        if not isinstance(operand, fx.Node):
            parts = [self.call(aten.scalar_tensor.default, float(v), dtype=dtype, device=self._device)
                     for v in (operand.real, operand.imag)]  # fmt: skip
            return self.call(aten.stack.default, parts)
        is_complex = operand.meta["val"].is_complex()
        result = self._pairs_of(operand) if is_complex else operand
        if result.meta["val"].dtype != dtype:
            result = self.call(aten._to_copy.default, result, dtype=dtype)
        return result if is_complex else self.call(aten.stack.default, [result, self.call(aten.zeros_like.default, result)], -1)

    def _pairs_of(self, node: fx.Node) -> fx.Node:
        if node not in self._pairs:
            self._pairs[node] = self.call(as_pairs, node)
        return self._pairs[node]


__all__ = ["PairsWriter", "put_pairs"]
