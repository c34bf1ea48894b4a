"""Dropout, taken apart: its mask, and the multiplication, which is Kiln's. Who draws the mask the configuration says (`random`).

torch   torch's generator, as eager does, so that one seed gives one mask however a model runs. `draw_mask` is a step on the
        host that depends on a shape alone, so it can run before everything else and splits no subgraph. A shape that changes is
        said by the graph's inputs: a mask of any other such shape is torch's.
fast    kernels, wherever they need it, forward and backward (draws.py): no mask is stored.
"""

from __future__ import annotations

import itertools
import operator

import torch
from torch import fx

from .builder import dim_of, dims_of, is_dense, strides_of
from .draws import is_fast, is_static, preserved_strides, words_of_one_seed, words_of_share
from .nodes import applied, node_of

aten = torch.ops.aten

MOST_ORDERED = 5  # dims of a tensor whose order is looked for


def draw_mask(size, stride, share: float) -> torch.Tensor:
    """Which elements are kept, drawn exactly as eager does for an input of this layout, whatever its dtype.

    Strides matter: the generator fills memory in the order of its addresses."""
    return torch.empty_strided(size, stride, dtype=torch.bool).bernoulli_(share)


def draw_mask_in_order(size, order, share: float) -> torch.Tensor:
    """As draw_mask, of what lies in memory with its dims in an order: order[i] is the i-th."""
    places = [order.index(d) for d in range(len(order))]
    return torch.empty([size[d] for d in order], dtype=torch.bool).bernoulli_(share).permute(places)


def separate_masks(graph: fx.Graph) -> None:
    """Replaces each native_dropout with a known shape by a mask and its application, in place; of dropout in place, where torch
    draws, what it multiplies by."""
    for node in graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        x, p, train = node.args
        tensor = x.meta.get("val")
        if not _is_on_host(tensor, p) or any(user.target is not operator.getitem for user in node.users):
            continue
        with graph.inserting_before(node):
            masked = _masked(graph, x, tensor, float(p), train is not False)
        if masked is not None:
            _replace(graph, node, x, *masked)
    for node in graph.find_nodes(op="call_function", target=aten.bernoulli.p):
        _draw_by_shape(graph, node)
    graph.eliminate_dead_code()


def _is_on_host(tensor, share) -> bool:
    """Whether a mask of this tensor can have the numbers that eager draws. On devices it draws by means that nothing repeats."""
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and isinstance(share, (int, float))


def _masked(graph: fx.Graph, x: fx.Node, tensor: torch.Tensor, p: float, train: bool) -> tuple[fx.Node, float] | None:
    """A mask and what is left is scaled by; None where torch has to draw."""
    if train and 0 < p < 1:
        mask = _mask(graph, tensor, p)
        return None if mask is None else (mask, 1 / (1 - p))
    keep = not train or p == 0  # eager draws nothing
    return graph.call_function(aten.full_like.default, (x, keep), {"dtype": torch.bool}), 1.0 if keep else 0.0


def _replace(graph: fx.Graph, node: fx.Node, x: fx.Node, mask: fx.Node, scale: float) -> None:
    out_meta, mask_meta = node.meta["val"]
    with graph.inserting_before(node):
        mask.meta["val"] = mask_meta
        out = node_of(graph, aten.native_dropout_backward.default, (x, mask, scale), out_meta)
    for user in list(node.users):
        user.replace_all_uses_with((out, mask)[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)


def _mask(graph: fx.Graph, tensor: torch.Tensor, p: float) -> fx.Node | None:
    if not is_static(tensor):
        size, order = _size_by_inputs(graph, tensor), _order_of(tensor)
        is_known = size is not None and order is not None and not is_fast()
        return graph.call_function(draw_mask_in_order, (size, order, 1 - p)) if is_known else None
    if not is_fast():
        return graph.call_function(draw_mask, (tuple(tensor.shape), preserved_strides(tensor), 1 - p))
    words = applied(graph, aten.select.int, words_of_one_seed(graph, tensor, 1), 0, 0)
    return graph.call_function(aten.lt.Scalar, (words, words_of_share(1 - p)))


def _size_by_inputs(graph: fx.Graph, tensor: torch.Tensor) -> tuple | None:
    """The shape: numbers, and inputs of the graph that are those extents."""
    inputs = {dim_of(n): n for n in graph.find_nodes(op="placeholder") if isinstance(n.meta.get("val"), torch.SymInt)}
    size = tuple(extent if isinstance(extent, int) else inputs.get(extent) for extent in dims_of(tensor))
    return None if None in size else size


def _order_of(tensor: torch.Tensor) -> tuple | None:
    """Of the dims in memory, of a tensor without gaps."""
    shape, strides = dims_of(tensor), strides_of(tensor)
    orders = itertools.permutations(range(len(shape))) if len(shape) <= MOST_ORDERED else ()
    return next((o for o in orders if is_dense([shape[d] for d in o], [strides[d] for d in o])), None)


def _draw_by_shape(graph: fx.Graph, node: fx.Node) -> None:
    """Has the op, which would wait for the tensor whose shape it takes, be a mask, where it gives the numbers of one."""
    share, value = node.args[1], node.meta.get("val")
    if is_fast() or node.kwargs.get("generator") or not _is_on_host(value, share) or not is_static(value):
        return
    if value.stride() != preserved_strides(value):
        return
    with graph.inserting_before(node):
        mask = node_of(graph, draw_mask, (tuple(value.shape), value.stride(), share), value.to(torch.bool))
        drawn = node_of(graph, aten._to_copy.default, (mask,), value, dtype=value.dtype)
    node.replace_all_uses_with(drawn)
    graph.erase_node(node)
