"""Dropout with torch's own random numbers.

Eager's native_dropout draws a mask from torch's generator, then multiplies. The draw must stay torch's, so that one seed
gives one mask however a model runs; the multiplication is Kiln's. native_dropout is therefore taken apart: `draw_mask`
is a step on the host that depends on a shape alone, so it can run before everything else and splits no subgraph.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

aten = torch.ops.aten


def draw_mask(size, stride, p: float) -> torch.Tensor:
    """Which elements are kept, drawn exactly as eager does for an input of this layout.

    Strides matter: the generator fills memory in the order of its addresses."""
    mask = torch.empty_strided(size, stride, dtype=torch.bool)
    return mask.bernoulli_(1 - p)


def _is_static(tensor) -> bool:
    return all(type(e) is int for e in (*tensor.shape, *tensor.stride()))


def _preserved_strides(tensor) -> tuple:
    """The strides that torch.empty_like gives."""
    return torch.empty_like(tensor).stride()


def separate_masks(graph: fx.Graph) -> None:
    """Replaces each native_dropout with a known shape by draw_mask and an application of the mask, in place."""
    for node in graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        x, p, train = node.args
        tensor = x.meta.get("val")
        if not isinstance(tensor, torch.Tensor) or not _is_static(tensor) or not isinstance(p, (int, float)):
            continue
        if tensor.device.type != "cpu":  # elsewhere eager draws by other means, which nothing repeats
            continue
        if any(user.target is not operator.getitem for user in node.users):
            continue
        _separate(graph, node, x, tensor, float(p), train is not False)
    graph.eliminate_dead_code()


def _separate(graph: fx.Graph, node: fx.Node, x: fx.Node, tensor, p: float, train: bool) -> None:
    out_meta, mask_meta = node.meta["val"]
    size, stride = tuple(tensor.shape), _preserved_strides(tensor)
    with graph.inserting_before(node):
        if train and 0 < p < 1:
            mask = graph.call_function(draw_mask, (size, stride, p))
            scale = 1 / (1 - p)
        else:  # eager draws nothing
            keep = not train or p == 0
            options = {"dtype": torch.bool, "device": torch.device("cpu")}
            mask = graph.call_function(aten.full.default, (size, keep), options)
            scale = 1.0 if keep else 0.0
        mask.meta["val"] = mask_meta
        out = graph.call_function(aten.native_dropout_backward.default, (x, mask, scale))
        out.meta["val"] = out_meta
    for user in list(node.users):
        user.replace_all_uses_with((out, mask)[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)
