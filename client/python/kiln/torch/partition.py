"""Splits an fx graph into regions for Kiln and steps for torch, so that a node Kiln lacks breaks nothing around it.

Level colouring: a node of Kiln has a level above every node of torch it depends on; a node of torch has at least the level
of all its operands. All of Kiln's nodes of one level form one region. Running region 0, torch's nodes of level 0, region
1, … respects every dependency, whatever the graph looks like: nothing of level k needs anything of a level above k, and a
region needs torch's nodes of lower levels only. So regions are acyclic by construction, without any search.

Views belong to nobody: they cost nothing, so each side makes the views it needs from the values it has. A region's inputs
and outputs are therefore always real tensors, and a view at the border is torch's, on the region's output.

Random numbers must be drawn in eager's order, so nodes that draw form a chain of their own.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch
from torch import fx

from . import compat
from .builder import Builder, dim_of, meta_of, tensor_operands, type_of
from .dropout import draw_mask
from .place import Place, place_of
from .rows import ROWS
from .tensors import is_empty, tensors_in
from .text import Unsupported, dims_text

aten = torch.ops.aten

VIEWS = {
    getattr(getattr(aten, packet), overload)
    for packet, overload in (
        ("view", "default"), ("_unsafe_view", "default"), ("t", "default"), ("transpose", "int"), ("permute", "default"),
        ("expand", "default"), ("unsqueeze", "default"), ("squeeze", "default"), ("squeeze", "dim"), ("squeeze", "dims"),
        ("slice", "Tensor"), ("select", "int"), ("split", "Tensor"), ("split_with_sizes", "default"), ("unbind", "int"),
        ("alias", "default"), ("detach", "default"),
    )
}  # fmt: skip


@dataclass
class Region:
    """Nodes that run as one Kiln program."""

    nodes: list[fx.Node]
    inputs: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)
    text: str = ""
    symbols: list = field(default_factory=list)


@dataclass
class Partition:
    place: Place
    levels: dict[fx.Node, int]
    regions: dict[int, Region]  # by level
    reasons: dict[fx.Node, str]  # why a node stays in torch
    views: set[fx.Node]


def is_view(node: fx.Node) -> bool:
    """A view, or one piece of a view with several."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0])
    return node.op == "call_function" and node.target in VIEWS


def is_free(node: fx.Node) -> bool:
    """What costs nothing in torch and is not counted: views, pieces of tuples, sizes, empty tensors, drawing a mask, a look at
    a gradient's negative bit."""
    if node.op != "call_function" or is_view(node) or node.target in (operator.getitem, draw_mask, resolve_negative):
        return True
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return is_empty(value)
    return isinstance(value, (int, torch.SymInt, torch.SymBool))


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


def _as_dtype(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    if node.meta["val"].dtype == dtype:
        return node
    copy = graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
    copy.meta["val"] = node.meta["val"].to(dtype)
    return copy


def drop_empties(graph: fx.Graph) -> None:
    """cat ignores operands without elements but for their dtype, those of shape (0,) whatever the others' rank: takes them
    out."""
    for node in graph.find_nodes(op="call_function", target=aten.cat.default):
        kept = [n for n in node.args[0] if not is_empty(n.meta["val"])]
        if kept and len(kept) < len(node.args[0]):
            with graph.inserting_before(node):
                node.args = ([_as_dtype(graph, n, node.meta["val"].dtype) for n in kept], *node.args[1:])
    graph.eliminate_dead_code()


def why_not(node: fx.Node, place: Place) -> str | None:
    """Why Kiln cannot do this node there, found by importing it alone; None if it can."""
    if node.target not in ROWS:
        return "no row"
    if node.target is operator.getitem:
        return None
    for tensor in tensors_in([n.meta.get("val") for n in (node, *node.all_input_nodes)]):
        if reason := place.why_not(tensor):
            return reason
    try:
        builder = Builder(ROWS, lambda n: n is node)
        _check_types(node, builder.results(node))
        for operand in builder.inputs:
            _, shape = type_of(meta_of(operand)) if isinstance(meta_of(operand), torch.Tensor) else (None, ())
            if 0 in shape:
                raise Unsupported("an empty tensor")
        builder.writer.text()
    except Unsupported as reason:
        return str(reason)
    except Exception as error:  # noqa: BLE001: an argument no row foresaw must not end the compilation
        return f"{type(error).__name__}: {error}"
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
        if 0 in shape:
            raise Unsupported("an empty tensor")
        dims_text([dim_of(s) for s in tensor.stride()])


def _several_results(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def partition(graph: fx.Graph, lacking: dict[fx.Node, str] | None = None, place: Place | None = None) -> Partition:
    """Colours the graph and prepares each region's text. Nodes that cannot be said stay in torch, as do those of `lacking`,
    each with why. `place`: where regions run; without, where the graph's tensors are."""
    place = place or place_of(graph)
    reasons: dict[fx.Node, str] = dict(lacking or {})
    views = set()
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr") or node in reasons:
            continue
        if is_view(node) and why_not(node, place) is None:
            views.add(node)
            continue
        reason = "not a function" if node.op != "call_function" else why_not_operand(node, reasons) or why_not(node, place)
        if reason is not None:
            reasons[node] = reason
    result = Partition(place, *_colour(graph, reasons, views), reasons, views)
    for region in result.regions.values():
        _describe(region, result)
    return result


def why_not_operand(node: fx.Node, reasons: dict) -> str | None:
    """A piece of a tuple goes where the tuple is made."""
    if node.target is not operator.getitem:
        return None
    return "its tuple is made in torch" if node.args[0] in reasons or node.args[0].op != "call_function" else None


def _colour(graph: fx.Graph, reasons: dict, views: set) -> tuple[dict[fx.Node, int], dict[int, Region]]:
    """(levels, regions by level), as the essay above says."""
    levels: dict[fx.Node, int] = {}
    regions: dict[int, Region] = {}
    compiled: list[fx.Node] = []
    last_draw = -1
    for node in graph.nodes:
        operands = node.all_input_nodes
        if node.op in ("placeholder", "get_attr"):
            levels[node] = -1
        elif node in reasons or node in views or node.op == "output":
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
        regions.setdefault(levels[node], Region([])).nodes.append(node)
    return levels, regions


def _first_read(node: fx.Node, levels: dict, views: set) -> int:
    """The level of the first reader, where what has no operands is made: not carried there from the first region."""
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
    return node.target is draw_mask or compat.adapter().draws_random_numbers(node.target)


def _describe(region: Region, result: Partition) -> None:
    """Finds the region's inputs, outputs and text."""
    inside = set(region.nodes)
    region.outputs = _outputs(region, result)
    builder = Builder(ROWS, lambda n: n in inside or n in result.views)
    for node in region.outputs:
        builder.output(node)
    region.inputs = builder.inputs
    region.text = builder.writer.text()
    region.symbols = builder.writer.symbols


def describe_alone(node: fx.Node) -> Region:
    """The node as a region of its own, with the pieces of its result that are read."""
    pieces = [u for u in node.users if u.target is operator.getitem] if _several_results(node) else []
    region = Region([node, *pieces], outputs=pieces or [node])
    builder = Builder(ROWS, lambda n: n in region.nodes)
    for output in region.outputs:
        builder.output(output)
    region.inputs, region.text, region.symbols = builder.inputs, builder.writer.text(), builder.writer.symbols
    return region


def _outputs(region: Region, result: Partition) -> list[fx.Node]:
    """The region's nodes whose tensors somebody else reads, through views or not."""
    inside = set(region.nodes)
    outputs = []
    for node in region.nodes:
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


