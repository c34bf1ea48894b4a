"""Dropout, taken apart: its mask, and the multiplication, which is Kiln's. Who draws the mask the configuration says (`random`).

torch   torch's generator, as eager does, so that one seed gives one mask however a model runs. `draw_mask` is a step on the
        host that depends on a shape alone, so it can run before everything else and splits no subgraph.
fast    kernels, wherever they need it, forward and backward: no mask is stored. `draw_seed` takes one number of torch's
        generator; whether an element is kept depends on that number and on the element's place alone (`keep_mask`).
"""

from __future__ import annotations

import math
import operator

import torch
from torch import fx

from .. import _session

aten = torch.ops.aten


def draw_mask(size, stride, p: float) -> torch.Tensor:
    """Which elements are kept, drawn exactly as eager does for an input of this layout.

    Strides matter: the generator fills memory in the order of its addresses."""
    mask = torch.empty_strided(size, stride, dtype=torch.bool)
    return mask.bernoulli_(1 - p)


def draw_seed() -> torch.Tensor:
    """Of one mask. An integer that f64 holds."""
    return torch.randint(1 << 53, ())


def keep_mask(seed: torch.Tensor, size, stride, p: float) -> torch.Tensor:
    """Which elements are kept: those whose random bits are below kept_below(p)."""
    words = _philox(seed, torch.arange(math.prod(size)).reshape(size))
    return torch.empty_strided(size, stride, dtype=torch.bool).copy_(words < kept_below(p))


def kept_below(p: float) -> int:
    """Of 32 bits."""
    return round((1 - p) * 2**32)


def _philox(key: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """The op philox of docs/ops.md in torch: Philox-2x32-10 of Salmon et al., SC 2011."""
    word = 0xFFFFFFFF
    x, y, round_key = counter & word, (counter >> 32) ^ (key >> 32), key & word
    for _ in range(10):
        product = x * 0xD256D193  # wraps
        x, y = (product >> 32 & word) ^ round_key ^ y, product & word
        round_key = round_key + 0x9E3779B9 & word
    return x


# What is no work, and no op of a model's.
DRAWING = (draw_mask, draw_seed, keep_mask)


def _is_static(tensor) -> bool:
    return all(type(e) is int for e in (*tensor.shape, *tensor.stride()))


def _preserved_strides(tensor) -> tuple:
    """The strides that torch.empty_like gives."""
    return torch.empty_like(tensor).stride()


def separate_masks(graph: fx.Graph) -> None:
    """Replaces each native_dropout with a known shape by a mask and its application, in place."""
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
            mask = _mask(graph, tensor, (size, stride, p))
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


def _mask(graph: fx.Graph, tensor, what: tuple) -> fx.Node:
    if _session.session().random != "fast":
        return graph.call_function(draw_mask, what)
    seed = graph.call_function(draw_seed)
    seed.meta["val"] = tensor.new_empty((), dtype=torch.int64)
    return graph.call_function(keep_mask, (seed, *what))
