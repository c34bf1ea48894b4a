"""torch's fused attention on NVIDIA, as functions of what attention is of: FlashAttention's, the memory-efficient and cuDNN's ops
give and take, besides, what dropout and ragged batches need. Here it is (out, lse), lse the natural logarithm of the sums, and
gradients of query, key and value; in torch each still is the op that it was."""

from __future__ import annotations

import math
import operator
from typing import Callable, NamedTuple

import torch
from torch import fx

from .. import _session
from .nodes import all_arguments, applied, node_of, piece_of

aten = torch.ops.aten

LSE_ROWS = 32  # the memory-efficient op has the lse of a multiple of so many rows


class _Call(NamedTuple):
    """A node's arguments by the names of its schema."""

    node: fx.Node
    arguments: dict

    @classmethod
    def of(cls, node: fx.Node) -> _Call:
        return cls(node, all_arguments(node))

    def tensors(self, *names: str) -> list:
        return [self.arguments.get(name) for name in names]

    @property
    def scale(self) -> float:
        head_dim = self.arguments["query"].meta["val"].shape[-1]
        given = self.arguments["scale"]
        return 1 / math.sqrt(head_dim) if given is None else given

    @property
    def is_plain(self) -> bool:
        """Whether it is attention alone: no dropout, nothing to look at, no gradient of the bias, extents that are known. Where
        there are not as many keys as queries, torch's ops do not agree on what is causal."""
        a = self.arguments
        query, key, value = (a[name].meta["val"].shape for name in ("query", "key", "value"))
        return (a["dropout_p"] == 0 and not a.get("return_debug_mask") and not a.get("grad_input_mask", [False] * 4)[3]
                and all(type(e) is int for e in (*query, *key, *value)) and isinstance(self.scale, float)
                and not (a["is_causal"] and query[2] != key[2]))  # fmt: skip


class _Kind(NamedTuple):
    """One of torch's implementations: its ops, and what runs them."""

    forward: object
    backward: object
    run: Callable
    run_backward: Callable


def fused_attention(query, key, value, bias, scale: float, causal: bool, kind: str):
    """(out, lse), lse as [batch, heads, rows]."""
    return KINDS[kind].run(query, key, value, bias, scale, causal)


def fused_attention_backward(grad, query, key, value, out, lse, bias, scale: float, causal: bool, kind: str):
    """Gradients of query, key and value."""
    return KINDS[kind].run_backward(grad, query, key, value, out, lse, bias, scale, causal)


def _flash(query, key, value, bias, scale, causal):
    return aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scale)[:2]


def _flash_backward(grad, query, key, value, out, lse, bias, scale, causal):
    seed, offset = (torch.zeros(shape, dtype=torch.uint64, device=query.device) for shape in ((2,), ()))
    rows = query.shape[2], key.shape[2]
    return aten._scaled_dot_product_flash_attention_backward(
        grad, query, key, value, out, lse, None, None, *rows, 0.0, causal, seed, offset, scale=scale
    )


def _efficient(query, key, value, bias, scale, causal):
    out, lse, *_ = aten._scaled_dot_product_efficient_attention(query, key, value, bias, True, 0.0, causal, scale=scale)
    return out, lse.narrow(2, 0, query.shape[2])


def _efficient_backward(grad, query, key, value, out, lse, bias, scale, causal):
    padded = torch.nn.functional.pad(lse, (0, -lse.shape[2] % LSE_ROWS), value=math.inf)
    wanted = [True, True, True, False]
    return aten._scaled_dot_product_efficient_attention_backward(
        grad, query, key, value, bias, out, padded, *_seeds(query), 0.0, wanted, causal, scale=scale
    )[:3]


def _cudnn(query, key, value, bias, scale, causal):
    out, lse, *_ = aten._scaled_dot_product_cudnn_attention(query, key, value, bias, True, 0.0, causal, scale=scale)
    return out, lse.squeeze(-1)


def _cudnn_backward(grad, query, key, value, out, lse, bias, scale, causal):
    rows = query.shape[2], key.shape[2]
    return aten._scaled_dot_product_cudnn_attention_backward(
        grad, query, key, value, out, lse.unsqueeze(-1), *_seeds(query), bias, None, None, *rows, 0.0, causal, scale=scale
    )


def _seeds(query):
    return (torch.zeros((), dtype=torch.int64, device=query.device) for _ in range(2))


KINDS = {
    "flash": _Kind(aten._scaled_dot_product_flash_attention.default,
                   aten._scaled_dot_product_flash_attention_backward.default, _flash, _flash_backward),
    "efficient": _Kind(aten._scaled_dot_product_efficient_attention.default,
                       aten._scaled_dot_product_efficient_attention_backward.default, _efficient, _efficient_backward),
    "cudnn": _Kind(aten._scaled_dot_product_cudnn_attention.default,
                   aten._scaled_dot_product_cudnn_attention_backward.default, _cudnn, _cudnn_backward),
}  # fmt: skip
_FORWARDS = {kind.forward: name for name, kind in KINDS.items()}
_BACKWARDS = {kind.backward: name for name, kind in KINDS.items()}


def separate_fused_attention(graph: fx.Graph) -> None:
    """Puts these functions in the place of torch's ops, where they do the same and `attention` of the configuration is Kiln's;
    others stay as they are. Backwards first: what of a forward only they have read is read by nobody then."""
    is_there = any(node.target in _FORWARDS or node.target in _BACKWARDS for node in graph.nodes)
    if not is_there or _session.session().attention == "torch":
        return
    for node in list(graph.nodes):
        if node.target in _BACKWARDS and (call := _Call.of(node)).is_plain:
            _separate_backward(graph, call, _BACKWARDS[node.target])
    graph.eliminate_dead_code()
    constants = _Constants(graph)
    for node in list(graph.nodes):
        if node.target not in _FORWARDS or not (call := _Call.of(node)).is_plain:
            continue
        others = [u for u in node.users if u.target is not operator.getitem or u.args[1] >= 2]
        if all(_is_handed_on(u) for u in others):
            for other in others:
                other.replace_all_uses_with(constants.like(other.meta["val"]))
                graph.erase_node(other)
            _separate_forward(graph, call, _FORWARDS[node.target])


def _is_handed_on(node: fx.Node) -> bool:
    """Whether it is a tensor besides (out, lse) that only a backward compiled apart is given: without dropout nobody looks at
    its contents."""
    is_tensor = node.target is operator.getitem and isinstance(node.meta.get("val"), torch.Tensor)
    return is_tensor and all(u.op == "output" for u in node.users)


class _Constants:
    """Zeros, at the begin of a graph, one node of each kind."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph, self._nodes = graph, {}

    def like(self, value: torch.Tensor) -> fx.Node:
        kind = tuple(value.shape), value.dtype, value.device
        if kind not in self._nodes:
            with self._graph.inserting_before(next(n for n in self._graph.nodes if n.op != "placeholder")):
                keywords = {"dtype": value.dtype, "device": value.device}
                self._nodes[kind] = self._graph.call_function(aten.zeros.default, (list(value.shape),), keywords)
                self._nodes[kind].meta["val"] = value
        return self._nodes[kind]


def _separate_backward(graph: fx.Graph, call: _Call, kind: str) -> None:
    grad, query, key, value, out, lse, bias = call.tensors("grad_out", "query", "key", "value", "out", "logsumexp", "attn_bias")
    grad = call.arguments["grad_out_"] if grad is None else grad
    with graph.inserting_before(call.node):
        plain = _plain_lse(graph, lse, query.meta["val"].shape[2])
        arguments = grad, query, key, value, out, plain, bias, call.scale, call.arguments["is_causal"], kind
        made = node_of(graph, fused_attention_backward, arguments, call.node.meta["val"][:3])
    _replace(graph, call.node, made)


def _separate_forward(graph: fx.Graph, call: _Call, kind: str) -> None:
    query, key, value, bias = call.tensors("query", "key", "value", "attn_bias")
    out, lse = call.node.meta["val"][:2]
    with graph.inserting_before(call.node):
        plain = query.meta["val"].new_empty(query.meta["val"].shape[:3], dtype=torch.float32)
        arguments = query, key, value, bias, call.scale, call.arguments["is_causal"], kind
        made = node_of(graph, fused_attention, arguments, (out, plain))
        readers = [u for u in call.node.users if u.args[1] == 1]
        whole = _torchs_lse(graph, piece_of(graph, made, 1), lse) if readers else None
    for reader in readers:
        reader.replace_all_uses_with(whole)
        graph.erase_node(reader)
    _replace(graph, call.node, made)


def _plain_lse(graph: fx.Graph, lse: fx.Node, rows: int) -> fx.Node:
    """[batch, heads, rows] of what torch's op gave."""
    if lse.meta["val"].dim() == 4:
        return applied(graph, aten.squeeze.dim, lse, -1)
    return lse if lse.meta["val"].shape[2] == rows else applied(graph, aten.slice.Tensor, lse, 2, 0, rows)


def _torchs_lse(graph: fx.Graph, lse: fx.Node, like: torch.Tensor) -> fx.Node:
    if like.dim() == 4:
        return applied(graph, aten.unsqueeze.default, lse, -1)
    missing = like.shape[2] - lse.meta["val"].shape[2]
    return lse if missing <= 0 else applied(graph, aten.constant_pad_nd.default, lse, [0, missing], math.inf)


def _replace(graph: fx.Graph, node: fx.Node, made: fx.Node) -> None:
    node.replace_all_uses_with(made)
    graph.erase_node(node)


__all__ = ["KINDS", "fused_attention", "fused_attention_backward", "separate_fused_attention"]
