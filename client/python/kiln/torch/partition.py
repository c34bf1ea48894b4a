"""Splits an fx graph into subgraphs for Kiln and steps for torch, so that a node Kiln lacks breaks nothing around it.

Level colouring: a node of Kiln has a level above every node of torch it depends on; a node of torch has at least the level
of all its operands. All of Kiln's nodes of one level form one subgraph. Running subgraph 0, torch's nodes of level 0, subgraph
1, … respects every dependency, whatever the graph looks like: nothing of level k needs anything of a level above k, and a
subgraph needs torch's nodes of lower levels only. So subgraphs are acyclic by construction, without any search.

Views belong to nobody: they cost nothing, so each side makes the views it needs from the values it has. A subgraph's inputs
and outputs are therefore always real tensors, and a view at the border is torch's, on the subgraph's output.

Random numbers must be drawn in eager's order, so nodes that draw form a chain of their own.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from functools import cached_property

import sympy
import torch
from torch import fx

from .._reasons import Reason
from . import compat
from .binding import Binding
from .builder import Builder, dim_of, layout_of, meta_of, strides_of, tensor_operands, type_of
from .draws import draw_seed, random_words
from .dropout import draw_mask, draw_mask_in_order
from .loss_in_rows import scaled
from .nodes import is_number
from .place import Place, place_of
from .random_ops import separate_draws
from .rows import NO_ROW, ROWS, row_of
from .steps import run_in_steps
from .tensors import is_empty, tensors_in
from .text import Unsupported, as_polynomial, dims_text, symbols_of
from .write_back import closing_copies, give_written_inputs

WITHOUT_ROW = Reason("no row", advice="nothing: Kiln has no kernel for it")

@dataclass
class Subgraph:
    """Nodes that run as one Kiln program: what libkiln calls a graph."""

    nodes: list[fx.Node]
    inputs: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)
    text: str = ""
    views: set[fx.Node] = field(default_factory=set)  # of the whole graph
    symbols: list[sympy.Expr] = field(default_factory=list)
    symbolic_dims: list[sympy.Expr] = field(default_factory=list)

    @property
    def layouts(self) -> tuple[list, list]:
        """Of the inputs and of the outputs."""
        return list(map(layout_of, self.inputs)), list(map(layout_of, self.outputs))

    @cached_property
    def sizes(self) -> list[fx.Node]:
        """Sizes that the whole graph is given and that say symbols which no input shows: these, too, the subgraph is called with."""
        if not self.symbols:
            return []
        shown = {dim for layout in self.layouts[0] for dims in layout[1:] for dim in dims}
        hidden = _with_operands(set(self.symbols) - shown) - shown
        sizes = [n for n in self.nodes[0].graph.find_nodes(op="placeholder") if isinstance(n.meta.get("val"), torch.SymInt)]
        return [n for n in sizes if _says(dim_of(n), _with_operands(self.symbols), hidden)]

    @cached_property
    def binding(self) -> Binding:
        """Of its symbols by the arguments that it is called with: inputs, then sizes. Raises Unsupported."""
        return Binding(self.symbols, self.symbolic_dims, self.layouts[0], list(map(dim_of, self.sizes)))


def _with_operands(symbols) -> set:
    """Symbols, and what quotients and remainders among them are of."""
    return set(symbols).union(*(symbol.free_symbols for symbol in symbols))


def _says(dim, symbols: set, hidden: set) -> bool:
    is_known = isinstance(dim, sympy.Expr) and as_polynomial(dim).is_polynomial() and symbols_of(dim) <= symbols
    return is_known and bool(symbols_of(dim) & hidden)


@dataclass
class Partition:
    place: Place
    levels: dict[fx.Node, int]
    subgraphs: dict[int, Subgraph]  # by level
    reasons: dict[fx.Node, Reason]  # why a node stays in torch
    views: set[fx.Node]
    closing_copies: dict[fx.Node, None]  # to inputs of the graph, when all else is done


def is_view(node: fx.Node) -> bool:
    """A view, or one piece of a view with several."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0])
    return row_of(node.target).is_view


def is_free(node: fx.Node) -> bool:
    """What costs nothing in torch and is not counted: views, pieces of tuples, sizes and what is asserted of them, empty tensors,
    what random numbers are made of, a look at a gradient's negative bit."""
    if node.op != "call_function" or is_view(node) or node.target in _FREE:
        return True
    return gives_nothing(node) or is_number(node)


def gives_nothing(node: fx.Node) -> bool:
    """Whether all its results are tensors without elements."""
    results = list(tensors_in(node.meta.get("val")))
    return bool(results) and all(map(is_empty, results))


def resolve_negative(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without torch's negative bit, which programs do not see."""
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def resolve_tangents(graph: fx.Graph) -> None:
    """Gradients that come into the graph are of any making, and no guard looks at them; all other inputs are as traced."""
    tangents = [n for n in graph.find_nodes(op="placeholder") if compat.adapter().is_tangent(n)]
    for node in tangents:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            with graph.inserting_after(node):
                resolved = graph.call_function(resolve_negative, (node,))
            resolved.meta["val"] = value
            node.replace_all_uses_with(resolved, delete_user_cb=lambda user, own=resolved: user is not own)


_FREE = (operator.getitem, resolve_negative, torch.ops.aten._assert_scalar.default, torch.ops.prims._sink_tokens.default,
         run_in_steps, scaled, draw_mask, draw_mask_in_order, draw_seed, random_words)  # fmt: skip


def prepare(graph: fx.Graph) -> Place:
    """What a captured graph becomes before it is split; where it runs."""
    separate_draws(graph)
    resolve_tangents(graph)
    give_written_inputs(graph)
    return place_of(graph)


def why_not(node: fx.Node, place: Place) -> Reason | None:
    """Why Kiln cannot do this node there, found by importing it alone; None if it can."""
    if row_of(node.target) is NO_ROW:
        return WITHOUT_ROW
    if node.target is operator.getitem:
        return None
    for tensor in tensors_in([n.meta.get("val") for n in (node, *node.all_input_nodes)]):
        if reason := place.why_not(tensor):
            return reason
    try:
        if gives_nothing(node):
            raise Unsupported("an empty tensor")
        builder = Builder(ROWS, lambda n: n is node)
        _check_types(node, builder.results(node))
        builder.writer.text()
    except Unsupported as error:
        return Reason.of(error)
    except Exception as error:  # noqa: BLE001: an argument no row foresaw must not end the compilation
        return Reason(f"{type(error).__name__}: {error}")
    return None


def ops_of(node: fx.Node) -> set[str]:
    """Kiln's ops that say the node."""
    if node.target is operator.getitem:
        return set()
    builder = Builder(ROWS, lambda n: n is node)
    builder.results(node)
    return builder.writer.ops()


def _check_types(node: fx.Node, results: tuple) -> None:
    """What the row says must be what torch found."""
    value = meta_of(node)
    expected = [value] if isinstance(value, torch.Tensor) else [t for t in value]
    for result, tensor in zip(results, expected):
        if tensor is None:
            continue
        dtype, shape = type_of(tensor)
        if (result.dtype, result.shape) != (dtype, shape):
            raise Unsupported(f"row gives {result.dtype}{list(result.shape)}, torch {dtype}{list(shape)}")
        dims_text(strides_of(tensor))


def _several_results(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def partition(graph: fx.Graph, lacking: dict[fx.Node, Reason] | None = None, place: Place | None = None) -> Partition:
    """Colours the graph and prepares each subgraph's text. Nodes that cannot be said stay in torch, as do those of `lacking`,
    each with why. `place`: where subgraphs run; without, where the graph's tensors are."""
    place = place or place_of(graph)
    reasons: dict[fx.Node, Reason] = dict(lacking or {})
    views, copies = set(), closing_copies(graph)
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr") or node in reasons or node in copies:
            continue
        reason = Reason("not a function") if node.op != "call_function" else why_not_operand(node, reasons) or why_not(node, place)
        if reason is not None:
            reasons[node] = reason
        elif is_view(node):
            views.add(node)
    result = Partition(place, *_colour(graph, reasons, views, copies), reasons, views, copies)
    for subgraph in result.subgraphs.values():
        _describe(subgraph, result)
    return result


def why_not_operand(node: fx.Node, reasons: dict) -> Reason | None:
    """A piece of a tuple goes where the tuple is made."""
    if node.target is not operator.getitem:
        return None
    is_torchs = node.args[0] in reasons or node.args[0].op != "call_function"
    return Reason("its tuple is made in torch") if is_torchs else None


def _colour(graph: fx.Graph, reasons: dict, views: set, copies: dict) -> tuple[dict[fx.Node, int], dict[int, Subgraph]]:
    """(levels, subgraphs by level), as the essay above says."""
    levels: dict[fx.Node, int] = {}
    subgraphs: dict[int, Subgraph] = {}
    compiled: list[fx.Node] = []
    last_draw = -1
    for node in graph.nodes:
        operands = node.all_input_nodes
        if node.op in ("placeholder", "get_attr"):
            levels[node] = -1
        elif node in reasons or node in views or node in copies or node.op == "output":
            levels[node] = max((levels[n] for n in operands), default=-1)
            if node in reasons and draws(node):
                levels[node] = last_draw = max(levels[node], last_draw)
        else:
            below = [levels[n] + (1 if _made_in_torch(n, reasons, views) else 0) for n in tensor_operands(node)]
            levels[node] = max([0, *below])
            compiled.append(node)
    for node in compiled:
        if not tensor_operands(node):
            levels[node] = _first_read(node, levels, views)
        subgraphs.setdefault(levels[node], Subgraph([])).nodes.append(node)
    return levels, subgraphs


def _first_read(node: fx.Node, levels: dict, views: set) -> int:
    """The level of the first reader, where what has no operands is made: not carried there from the first subgraph."""
    first, stack = None, list(node.users)
    while stack:
        user = stack.pop()
        if user in views:
            stack.extend(user.users)
        elif user.op != "output":
            first = levels[user] if first is None else min(first, levels[user])
    return levels[node] if first is None else max(first, levels[node])


def _made_in_torch(node: fx.Node, reasons: dict, views: set) -> bool:
    """Whether the value below all views comes from a node of torch."""
    while node in views:
        node = node.args[0]
    return node in reasons


def draws(node: fx.Node) -> bool:
    return node.target in (draw_mask, draw_mask_in_order, draw_seed) or compat.adapter().draws_random_numbers(node.target)


def _describe(subgraph: Subgraph, result: Partition) -> None:
    """Finds the subgraph's inputs, outputs and text."""
    subgraph.outputs, subgraph.views = _outputs(subgraph, result), result.views
    _take(subgraph, _built(subgraph, {}))


def _built(subgraph: Subgraph, packed: dict) -> Builder:
    inside = set(subgraph.nodes)
    builder = Builder(ROWS, lambda n: n in inside or n in subgraph.views, packed)
    for node in subgraph.outputs:
        builder.output(node)
    return builder


def text_with_packed(subgraph: Subgraph, packed: dict) -> str:
    """The subgraph's text, for inputs of which some lie in panels: Panels, by node."""
    return _built(subgraph, packed).writer.text()


def _take(subgraph: Subgraph, builder: Builder) -> None:
    subgraph.inputs, subgraph.text = builder.inputs, builder.writer.text()
    subgraph.symbols, subgraph.symbolic_dims = builder.writer.symbols, builder.writer.symbolic_dims


def describe_alone(node: fx.Node) -> Subgraph:
    """The node as a subgraph of its own, with the pieces of its result that are read."""
    pieces = [u for u in node.users if u.target is operator.getitem] if _several_results(node) else []
    subgraph = Subgraph([node, *pieces], outputs=pieces or [node])
    _take(subgraph, _built(subgraph, {}))
    return subgraph


def _outputs(subgraph: Subgraph, result: Partition) -> list[fx.Node]:
    """The subgraph's nodes whose tensors somebody else reads, through views or not."""
    inside = set(subgraph.nodes)
    outputs = []
    for node in subgraph.nodes:
        if not _several_results(node) and _read_outside(node, inside, result):
            outputs.append(node)
    return outputs


def _read_outside(node: fx.Node, inside: set, result: Partition) -> bool:
    stack, seen = list(node.users), set()
    while stack:
        user = stack.pop()
        if user in seen or user in inside:
            continue
        seen.add(user)
        if user not in result.views:
            return True
        stack.extend(user.users)
    return False


