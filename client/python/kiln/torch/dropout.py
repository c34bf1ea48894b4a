"""Dropout, taken apart: its mask, and the multiplication, which is Kiln's. Who draws the mask the configuration says (`random`).

torch   torch's generator, as eager does, so that one seed gives one mask however a model runs. `draw_mask` is a step on the
        host that depends on a shape alone, so it can run before everything else and splits no subgraph.
fast    kernels, wherever they need it, forward and backward (draws.py): no mask is stored.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from .draws import is_fast, is_static, preserved_strides, words_of_one_seed, words_of_share
from .nodes import applied, node_of

aten = torch.ops.aten


def draw_mask(size, stride, share: float) -> torch.Tensor:
    """Which elements are kept, drawn exactly as eager does for an input of this layout, whatever its dtype.

    Strides matter: the generator fills memory in the order of its addresses."""
    return torch.empty_strided(size, stride, dtype=torch.bool).bernoulli_(share)


def separate_masks(graph: fx.Graph) -> None:
    """Replaces each native_dropout with a known shape by a mask and its application, in place; of dropout in place, where torch
    draws, what it multiplies by."""
    for node in graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        x, p, train = node.args
        tensor = x.meta.get("val")
        if not _is_repeated(tensor, p) or any(user.target is not operator.getitem for user in node.users):
            continue
        _separate(graph, node, x, tensor, float(p), train is not False)
    for node in graph.find_nodes(op="call_function", target=aten.bernoulli.p):
        _draw_by_shape(graph, node)
    graph.eliminate_dead_code()


def _is_repeated(tensor, share) -> bool:
    """Whether a mask of this tensor's layout has the numbers that eager draws. On devices it draws by means that nothing repeats."""
    is_known = isinstance(tensor, torch.Tensor) and is_static(tensor) and isinstance(share, (int, float))
    return is_known and tensor.device.type == "cpu"


def _separate(graph: fx.Graph, node: fx.Node, x: fx.Node, tensor, p: float, train: bool) -> None:
    out_meta, mask_meta = node.meta["val"]
    with graph.inserting_before(node):
        if train and 0 < p < 1:
            mask = _mask(graph, tensor, p)
            scale = 1 / (1 - p)
        else:  # eager draws nothing
            keep = not train or p == 0
            options = {"dtype": torch.bool, "device": torch.device("cpu")}
            mask = graph.call_function(aten.full.default, (tuple(tensor.shape), keep), options)
            scale = 1.0 if keep else 0.0
        mask.meta["val"] = mask_meta
        out = node_of(graph, aten.native_dropout_backward.default, (x, mask, scale), out_meta)
    for user in list(node.users):
        user.replace_all_uses_with((out, mask)[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)


def _mask(graph: fx.Graph, tensor, p: float) -> fx.Node:
    if not is_fast():
        return graph.call_function(draw_mask, (tuple(tensor.shape), preserved_strides(tensor), 1 - p))
    words = applied(graph, aten.select.int, words_of_one_seed(graph, tensor, 1), 0, 0)
    return graph.call_function(aten.lt.Scalar, (words, words_of_share(1 - p)))


def _draw_by_shape(graph: fx.Graph, node: fx.Node) -> None:
    """Has the op, which would wait for the tensor whose shape it takes, be a mask, where it gives the numbers of one."""
    share, value = node.args[1], node.meta.get("val")
    if is_fast() or node.kwargs.get("generator") or not _is_repeated(value, share) or value.stride() != preserved_strides(value):
        return
    with graph.inserting_before(node):
        mask = node_of(graph, draw_mask, (tuple(value.shape), value.stride(), share), value.to(torch.bool))
        drawn = node_of(graph, aten._to_copy.default, (mask,), value, dtype=value.dtype)
    node.replace_all_uses_with(drawn)
    graph.erase_node(node)
