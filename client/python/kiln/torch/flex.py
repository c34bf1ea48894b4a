"""FlexAttention, taken apart: what its score and mask functions say becomes ops of the graph, and so Kiln's.

A score function that only adds to the score, and a mask, are a bias: the graph computes it and `attend` takes it. Of another
score function the graph says what scores become between `attention_scores` and `attention_of_scores`. Either way, where all
that shares a kernel, it is computed for a block of scores at a time and lies nowhere. Gradients of other score functions, and
of what a score function captures, are said with all scores at once, as torch's own formula has it.

torch has no gradients of FlexAttention on processors and says so before it asks a backend; under Kiln's it is let by
(compat.py's adapter).
"""

from __future__ import annotations

import contextlib
import math
import operator
from dataclasses import dataclass

import torch
from torch import fx

from . import compat
from .attend import (
    as_many_heads,
    attend,
    attend_backward,
    attention_of_scores,
    attention_scores,
    gradient_of_scores,
    gradients,
    normalised,
    scores_of,
    wide,
)
from .expansion import table_of_pieces
from .nodes import node_of, piece_of
from .tensors import relayout, tensors_in

aten = torch.ops.aten
LN_2 = math.log(2)  # the operators count logarithms of sums in base two


# ---- what is in the graph


@dataclass
class _Call:
    """A node of FlexAttention, forward (out, lse, largest score) or backward (gradients of query, key, value, captured)."""

    node: fx.Node
    query: fx.Node
    key: fx.Node
    value: fx.Node
    out: fx.Node | None
    lse: fx.Node | None
    grad: fx.Node | None
    grad_lse: fx.Node | None
    score: fx.GraphModule
    joint: fx.GraphModule | None
    mask: fx.GraphModule
    scale: float
    score_captures: tuple
    mask_captures: tuple

    @classmethod
    def of(cls, node: fx.Node, is_backward: bool) -> _Call:
        arguments = list(node.args)
        given = arguments[3:7] if is_backward else [None] * 4
        score, *rest = arguments[7:] if is_backward else arguments[3:]
        joint = rest.pop(0) if is_backward else None
        blocks, scale, _, score_captures, mask_captures = rest
        graph_of = lambda n: getattr(node.graph.owning_module, n.target) if n is not None else None  # noqa: E731
        return cls(node, *arguments[:3], *given, graph_of(score), graph_of(joint), graph_of(blocks[-1]), float(scale),
                   tuple(score_captures), tuple(mask_captures))  # fmt: skip

    @property
    def extents(self) -> tuple:
        """Of scores."""
        query, key = self.query.meta["val"], self.key.meta["val"]
        return (*query.shape[:3], key.shape[2])

    @property
    def is_uniform(self) -> bool:
        """Whether its tensors are of the forms that kernels have: one dtype, not f64, and one batch."""
        query, *others = (n.meta["val"] for n in (self.query, self.key, self.value))
        is_alike = all((x.dtype, x.shape[0]) == (query.dtype, query.shape[0]) for x in others)
        return is_alike and query.dtype is not torch.float64

    @property
    def has_bias(self) -> bool:
        """Whether it is attention with a bias, of the forms that kernels have."""
        return self.is_uniform and adds_to_score(self.score.graph)

    @property
    def is_known(self) -> bool:
        operands = [n.meta.get("val") for n in self.node.all_input_nodes if n.op != "get_attr"]
        values = [*operands, *tensors_in(self.node.meta.get("val"))]
        return all(isinstance(v, torch.Tensor) and v.device.type == "cpu" and all(type(e) is int for e in v.shape) for v in values)

    def places(self) -> list[torch.Tensor]:
        return [torch.arange(extent) for extent in self.extents]

    def places_in(self, function: fx.GraphModule) -> list[torch.Tensor]:
        """As places, the first alone where the function does not look at which it is: its results are the same for all of them."""
        first = 0 if function is self.mask else 1
        looked_at = function.graph.find_nodes(op="placeholder")[first : first + 4]
        return [places if node.users else places[:1] for node, places in zip(looked_at, self.places())]

    def seen(self, captures: list):
        """Which scores count; of extent 1 where it is the same for all."""
        over = compat.adapter().over_scores(self.mask, (), (None,) * len(captures))
        return over(*self.places_in(self.mask), *captures)

    def scored(self, scores, prefix, captures: list):
        """prefix: 0 where `scores` are all of them, None where they are one number; then of extent 1 as `seen` is."""
        over = compat.adapter().over_scores(self.score, (prefix,), (None,) * len(captures))
        places = self.places() if prefix == 0 else self.places_in(self.score)
        return over(scores, *places, *captures)


def separate_flex_attention(graph: fx.Graph) -> None:
    """Replaces each node of FlexAttention with known extents, on the host, by ops; others stay as they are."""
    forward, backward = compat.adapter().flex_attention()
    for node in [n for n in graph.nodes if n.op == "call_function" and n.target in (forward, backward)]:
        with contextlib.suppress(Exception):  # a function that torch cannot map or that has constants: the node stays torch's
            call = _Call.of(node, node.target is backward)
            if call.is_known:
                _separate(graph, call)


def _separate(graph: fx.Graph, call: _Call) -> None:
    node = call.node
    with graph.inserting_before(node):
        results = list(_forward(graph, call) if call.grad is None else _backward(graph, call))
    for user in list(node.users):
        assert user.target is operator.getitem
        made = results[user.args[1]]
        if isinstance(made, tuple):  # gradients of what is captured
            for reader in list(user.users):
                reader.replace_all_uses_with(made[reader.args[1]])
                graph.erase_node(reader)
        else:
            user.replace_all_uses_with(made)
            _retype_aliases(made)
        graph.erase_node(user)
    graph.erase_node(node)
    graph.eliminate_dead_code()


def _retype_aliases(node: fx.Node) -> None:
    """torch traces sums of f64 as f32, which they are not."""
    for user in node.users:
        if user.target in (aten.detach.default, aten.alias.default):
            user.meta["val"] = node.meta["val"]
            _retype_aliases(user)


def _forward(graph: fx.Graph, call: _Call):
    query, key, value = call.query, call.key, call.value
    out, lse, largest = call.node.meta["val"]
    count = len(_nodes(call.score_captures))
    if call.has_bias:
        bias, causal = _bias(graph, call)
        values = query.meta["val"].new_empty(out.shape), lse
        made = node_of(graph, attend, (query, key, value, bias, call.scale, causal), values)
        results = [piece_of(graph, made, i) for i in (0, 1)]
    elif call.is_uniform:
        scores, causal = _scores(graph, call)
        made = node_of(graph, attention_of_scores, (scores, value, causal), (query.meta["val"].new_empty(out.shape), lse))
        results = [piece_of(graph, made, i) for i in (0, 1)]
    else:
        def dense(query, key, value, *captures):
            attended, lse = normalised(_all_scores(call, query, key, captures, count), as_many_heads(wide(value), query))
            return attended.to(query.dtype), lse

        results = _trace(graph, dense, [query, key, value, *_captures(call)])
    yield _laid_out(graph, results[0], out)
    yield node_of(graph, aten.div.Tensor, (results[1], LN_2), results[1].meta["val"])
    if any(user.args[1] == 2 for user in call.node.users):
        def largest_of(query, key, *captures):
            return _all_scores(call, query, key, captures, count).amax(-1) / LN_2

        yield _trace(graph, largest_of, [query, key, *_captures(call)])[0]


def _backward(graph: fx.Graph, call: _Call):
    *expected, of_captures = call.node.meta["val"]
    operands = [call.grad, call.query, call.key, call.value, call.out]
    is_plain = call.grad_lse is None or _is_zero(call.grad_lse)
    lse = node_of(graph, aten.mul.Tensor, (call.lse, LN_2), call.lse.meta["val"])
    if is_plain and call.has_bias and not any(isinstance(g, torch.Tensor) for g in of_captures):
        bias, causal = _bias(graph, call)
        values = tuple(g.new_empty(g.shape) for g in expected)
        made = node_of(graph, attend_backward, (*operands, lse, bias, call.scale, causal), values)
        results = [piece_of(graph, made, i) for i in range(3)]
        captured = [None] * len(of_captures)
    else:
        results = _trace(graph, _dense_backward(call, of_captures, is_plain),
                         [*operands, lse, *([] if is_plain else [call.grad_lse]), *_captures(call)])  # fmt: skip
        captured = results[3:]
    yield from (_laid_out(graph, result, value) for result, value in zip(results, expected))
    captured = iter(captured)
    yield tuple(next(captured) if isinstance(g, torch.Tensor) else None for g in of_captures)


def _dense_backward(call: _Call, of_captures, is_plain: bool):
    count = len(_nodes(call.score_captures))

    def dense(grad, query, key, value, out, lse, *rest):
        grad_lse, captures = (None, rest) if is_plain else (rest[0] / LN_2, rest[1:])
        own, masks = _given(call.score_captures, captures[:count]), _given(call.mask_captures, captures[count:])
        raw = scores_of(wide(query), as_many_heads(wide(key), query), call.scale)
        seen = call.seen(masks)
        scores = torch.where(seen, call.scored(raw, 0, own), -math.inf)
        weights, grad_scores = gradient_of_scores(scores, grad, value, out, lse, grad_lse)
        over = compat.adapter().over_scores(call.joint, (0,), (0, *(None,) * len(own)), [0, *(None,) * (4 + len(own))])
        grad_raw, _, _, _, _, *grads = over(raw, *call.places(), grad_scores, *own)
        of_operands = gradients(torch.where(seen, wide(grad_raw), 0.0), weights, grad, query, key, value, call.scale)
        wanted = [i for i, value in enumerate(of_captures) if isinstance(value, torch.Tensor)]
        return *of_operands, *(torch.zeros_like(own[i]) if grads[i] is None else grads[i].clone() for i in wanted)

    return dense


def _all_scores(call: _Call, query, key, captures, count: int):
    raw = scores_of(wide(query), as_many_heads(wide(key), query), call.scale)
    scores = call.scored(raw, 0, _given(call.score_captures, captures[:count]))
    return torch.where(call.seen(_given(call.mask_captures, captures[count:])), scores, -math.inf)


def _bias(graph: fx.Graph, call: _Call) -> tuple[fx.Node | None, bool]:
    """(what is added to scores, whether keys after the query are left out besides)."""
    count = len(_nodes(call.score_captures))
    (everything, causal), is_scored = _mask_said(call), adds_something(call.score.graph)
    if everything and not is_scored:
        return None, causal

    def bias_of(*captures):
        bias = torch.zeros((), dtype=torch.float32)
        if is_scored:
            bias = call.scored(bias, None, _given(call.score_captures, captures[:count]))
        if everything:
            return bias
        return torch.where(call.seen(_given(call.mask_captures, captures[count:])), bias, -math.inf)

    return _trace(graph, bias_of, _captures(call))[0], causal


def _mask_said(call: _Call) -> tuple[bool, bool]:
    """(whether it leaves out at most keys after the query, whether it leaves out all of these)."""
    mask = call.mask.graph
    return is_constant(mask, True) or is_causal(mask, _result(mask)), implies_causal(mask)


def _scores(graph: fx.Graph, call: _Call) -> tuple[fx.Node, bool]:
    """(what scores become, whether keys after the query are left out besides)."""
    count = len(_nodes(call.score_captures))
    everything, causal = _mask_said(call)
    raw = call.query.meta["val"].new_empty(call.extents, dtype=torch.float32)
    made = node_of(graph, attention_scores, (call.query, call.key, call.scale), raw)

    def changed(raw, *captures):
        scores = call.scored(raw, 0, _given(call.score_captures, captures[:count])).to(raw.dtype)
        if everything:
            return scores
        return torch.where(call.seen(_given(call.mask_captures, captures[count:])), scores, -math.inf)

    return _trace(graph, changed, [made, *_captures(call)])[0], causal


# ---- what the functions say


def adds_to_score(graph: fx.Graph) -> bool:
    """Whether the function of a score is the score plus what does not depend on it, or -inf, wherever it is evaluated: then it
    is the score plus the function of zero."""
    score, *_ = graph.find_nodes(op="placeholder")
    plain, touched = {score}, {score}
    for node in graph.nodes:
        if node.op == "call_function" and any(n in touched for n in node.all_input_nodes):
            touched.add(node)
            if _keeps_slope(node, plain, touched):
                plain.add(node)
    return _result(graph) in plain


def _keeps_slope(node: fx.Node, plain: set, touched: set) -> bool:
    x, *rest = node.args
    if node.target in (aten.clone.default, aten.alias.default):
        return x in plain
    if node.target in (aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar):
        (y,) = rest
        if x in plain:
            return y not in touched
        return node.target is aten.add.Tensor and y in plain and x not in touched and not node.kwargs
    if node.target is aten.where.self:
        return x not in touched and all(value in plain or _is_number(value, -math.inf) for value in rest)
    if node.target is aten.masked_fill.Scalar:
        return x in plain and rest[0] not in touched and rest[1] == -math.inf
    return False


def adds_something(graph: fx.Graph) -> bool:
    score, *_ = graph.find_nodes(op="placeholder")
    return _result(graph) is not score


def implies_causal(graph: fx.Graph) -> bool:
    """Whether the mask is false wherever the key's place is beyond the query's."""
    pending = [_result(graph)]
    while pending:
        node = pending.pop()
        if is_causal(graph, node):
            return True
        if isinstance(node, fx.Node) and node.target in (aten.logical_and.default, aten.bitwise_and.Tensor):
            pending.extend(node.args)
    return False


def is_causal(graph: fx.Graph, node) -> bool:
    """Whether the node of a mask says that the key's place is not beyond the query's."""
    _, _, query, key, *_ = graph.find_nodes(op="placeholder")
    said = (aten.ge.Tensor, (query, key)), (aten.le.Tensor, (key, query))
    return isinstance(node, fx.Node) and (node.target, node.args) in said


def is_constant(graph: fx.Graph, value) -> bool:
    return _is_number(_result(graph), value)


def _is_number(node, value) -> bool:
    if not isinstance(node, fx.Node):
        return node == value
    places = {aten.full.default: 1, aten.scalar_tensor.default: 0, aten.new_full.default: 2, aten.full_like.default: 1}
    if node.target is aten.new_ones.default:
        return value == 1
    return node.target in places and node.args[places[node.target]] == value


def _result(graph: fx.Graph) -> fx.Node:
    (output,) = graph.find_nodes(op="output")
    result = output.args[0]
    return result[0] if isinstance(result, (tuple, list)) else result


# ---- graphs of functions


def _nodes(captures: tuple) -> list[fx.Node]:
    return [c for c in captures if isinstance(c, fx.Node)]


def _captures(call: _Call) -> list[fx.Node]:
    return _nodes(call.score_captures) + _nodes(call.mask_captures)


def _given(captures: tuple, tensors) -> list:
    """Captures in their order, tensors in the place of nodes; numbers are what they are."""
    left = iter(tensors)
    return [next(left) if isinstance(c, fx.Node) else c for c in captures]


def _trace(graph: fx.Graph, function, operands: list[fx.Node]) -> list[fx.Node]:
    """The function's ops, where the graph is written to now."""
    table = {**table_of_pieces(), torch.ops.flex_lib.zeros_and_scatter.default: _sums_at}
    traced = compat.adapter().trace_pieces(function, [n.meta["val"] for n in operands], table).graph
    assert not traced.find_nodes(op="get_attr"), "a constant tensor"
    copies = dict(zip(traced.find_nodes(op="placeholder"), operands))
    for piece in [n for n in traced.nodes if n.op == "call_function"]:
        copies[piece] = graph.node_copy(piece, lambda n: copies[n])
    (output,) = traced.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    return [copies[r] for r in results]


def _sums_at(shape, indices, values):
    """By which torch says the gradient of what is read at indices. Each sum is kept in one number, and may be of all scores: in f64."""
    sums = values.new_zeros(shape, dtype=torch.float64).index_put(indices, values.double(), accumulate=True)
    return sums.to(values.dtype)


def _laid_out(graph: fx.Graph, node: fx.Node, value: torch.Tensor) -> fx.Node:
    """In the strides that the op gives."""
    if node.meta["val"].stride() == value.stride():
        return node
    return node_of(graph, relayout, (node, value.stride()), value)


def _is_zero(node: fx.Node) -> bool:
    return node.target in (aten.zeros_like.default, aten.zeros.default) or _is_number(node, 0)
