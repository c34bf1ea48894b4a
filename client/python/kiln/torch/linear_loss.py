"""Finds a projection of which only a loss reads the scores, and has it computed some rows at a time (loss_in_rows.py).

By structure: scores = mm(x, t(weight)) or addmm(bias, x, t(weight)); of these, through views, slices of rows and casts of
halves to f32, log_softmax and nll_loss; and where there is a backward, the gradient of the scores, through the same the other
way, into the gradients of x, weight and bias. Where anybody else reads any of it, a model that returns its scores, the graph
stays.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Callable

import torch
from torch import fx

from .loss_in_rows import LinearLoss, LossInRows, max_rows_of, scaled, summed_in
from .nodes import applied, node_of, piece_of
from .step_programs import call_in_steps, make_step

aten = torch.ops.aten

# Scores that are worth it; fewer are held by the caches, and by the scratch memory of any program.
LEAST_SCORES = 1 << 23
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.clone.default, aten.detach.default, aten._to_copy.default)
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_REDUCTIONS = (None, True, False)  # by torch's number: whether it is a mean


class _NotOne(Exception):
    """What was met is no such loss."""


def _require(condition: bool) -> None:
    if not condition:
        raise _NotOne


@dataclass
class _Found:
    loss: fx.Node  # nll_loss_forward
    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    slices: list[fx.Node] = field(default_factory=list)  # of the scores, the last one first
    incoming: fx.Node | None = None  # the gradient of the loss
    back: list[fx.Node] = field(default_factory=list)  # what undoes the slices, the first one first
    # What gives the gradients of x, weight and bias.
    gradients: list[fx.Node | None] = field(default_factory=lambda: [None] * 3)
    inside: set[fx.Node] = field(default_factory=set)  # all nodes that go away

    @property
    def rows(self) -> int:
        return _shape(self.loss.args[0])[0]


def compute_in_rows(gm: fx.GraphModule, make_subgraph: Callable) -> None:
    """Replaces such losses in the graph of a forward, or of a forward and its backward. make_subgraph(graph, subgraph, place)
    gives what runs the graph's only subgraph."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.nll_loss_forward.default):
        try:
            found = _find(node)
            made = _make(found, make_subgraph)
        except Exception:  # noqa: BLE001: Kiln never makes its caller fail, and the graph is as it was
            continue
        if made is not None:
            _replace(gm, found, made)


def _loss_of(found: _Found) -> LinearLoss:
    _, _, _, reduction, ignored = found.loss.args
    classes = _shape(found.weight)[0]
    wanted = tuple(n is not None for n in found.gradients)
    is_wide = _dtype(found.loss.args[0]) == summed_in(_dtype(found.x))
    return LinearLoss(found.rows, classes, ignored, _REDUCTIONS[reduction], is_wide, found.bias is not None, wanted)


# ---- finding


def _shape(node: fx.Node) -> tuple:
    return tuple(node.meta["val"].shape)


def _dtype(node: fx.Node) -> torch.dtype:
    return node.meta["val"].dtype


def _find(loss: fx.Node) -> _Found:
    """Raises _NotOne."""
    log_softmax, _, class_weight, reduction, _ = loss.args
    _require(class_weight is None and reduction != 0 and len(loss.meta["val"][0].shape) == 0)
    _require(log_softmax.target is aten._log_softmax.default and log_softmax.args[1] in (1, -1) and not log_softmax.args[2])
    product, slices, inside = _scores(log_softmax)
    if product.target is aten.addmm.default:
        bias, x, weight = product.args
        _require(not product.kwargs and len(_shape(bias)) == 1)
    else:
        _require(product.target is aten.mm.default)
        bias, (x, weight) = None, product.args
    weight, is_transposed = _untransposed(weight)
    found = _Found(loss, x, weight, bias, slices, inside={loss, product, log_softmax, *loss.users, *inside})
    operands = [x, weight, *([bias] if bias else [])]
    values = [n.meta["val"] for n in (*operands, log_softmax)]
    _require(is_transposed and all(type(e) is int for v in values for e in v.shape))
    dtypes = {_dtype(x), summed_in(_dtype(x))}
    _require(len(set(map(_dtype, operands))) == 1 and _dtype(x) in _DTYPES and _dtype(log_softmax) in dtypes)
    _require(all(v.device.type == "cpu" for v in values))
    _require(found.rows * _shape(weight)[0] >= LEAST_SCORES and _shape(bias or weight)[0] == _shape(log_softmax)[1])
    _find_backward(found, log_softmax)
    _require(all(_dtype(n) in dtypes for n in found.inside if n.target is aten._to_copy.default))
    kept = {n for n in loss.users if n.args[1] == 0} | {n for n in found.gradients if n is not None}
    _require(all(user in found.inside for n in found.inside - kept for user in n.users))
    return found


def _scores(log_softmax: fx.Node) -> tuple[fx.Node, list[fx.Node], set[fx.Node]]:
    """(The product, the slices of its rows, all that lies between) of what the log_softmax reads."""
    classes, slices, between = _shape(log_softmax)[1], [], set()
    node = log_softmax.args[0]
    while node.target in _VIEWS or node.target is aten.slice.Tensor:
        _require(_shape(node)[-1] == classes == _shape(node.args[0])[-1])
        if node.target is aten.slice.Tensor:
            _require(_dim(node, 1) < len(_shape(node)) - 1)
            slices.append(node)
        between.add(node)
        node = node.args[0]
    return node, slices, between


def _dim(node: fx.Node, index: int) -> int:
    dim = node.args[index] if index < len(node.args) else 0
    return dim % len(_shape(node))


def _untransposed(node: fx.Node) -> tuple[fx.Node, bool]:
    """(What the matrix is a view of, whether that is its transpose)."""
    is_transposed = False
    while node.target in (aten.t.default, aten.detach.default):
        is_transposed ^= node.target is aten.t.default
        node = node.args[0]
    return node, is_transposed


def _readers(node: fx.Node, inside: set) -> list[tuple[fx.Node, fx.Node]]:
    """Who reads the matrix, and as what: itself or a view, which is added to `inside`."""
    readers = []
    for user in node.users:
        if user.target in (aten.t.default, aten.detach.default):
            inside.add(user)
            readers += _readers(user, inside)
        else:
            readers.append((user, node))
    return readers


def _find_backward(found: _Found, log_softmax: fx.Node) -> None:
    readers = [pair for pair in _readers(log_softmax, found.inside) if pair[0] is not found.loss]
    if not readers:
        return
    _require(len(readers) == 2 and all(_untransposed(read_as) == (log_softmax, False) for _, read_as in readers))
    by_target = {user.target: user for user, _ in readers}
    _require(by_target.keys() == {aten.nll_loss_backward.default, aten._log_softmax_backward_data.default})
    of_loss, of_scores = by_target[aten.nll_loss_backward.default], by_target[aten._log_softmax_backward_data.default]
    total = next((n for n in found.loss.users if n.args[1] == 1), None)
    _require(of_loss.args[2:] == (*found.loss.args[1:], total) and of_scores.args[0] is of_loss)
    _require(of_scores.args[2] in (1, -1) and of_scores.args[3] == _dtype(log_softmax))
    found.incoming = of_loss.args[0]
    found.inside |= {of_loss, of_scores}
    gradient = _find_way_back(found, of_scores)
    for reader, read_as in _readers(gradient, found.inside):
        place = _gradient_of(found, gradient, reader, read_as)
        _require(found.gradients[place] is None)
        found.gradients[place] = reader
        found.inside.add(reader)


def _find_way_back(found: _Found, node: fx.Node) -> fx.Node:
    """The gradient of the product, of that of its slices."""
    classes = _shape(found.weight)[0]
    while len(node.users) == 1 and (user := next(iter(node.users))).target in (*_VIEWS, aten.slice_backward.default):
        _require(_shape(user)[-1] == classes)
        if user.target is aten.slice_backward.default:
            found.back.append(user)
        found.inside.add(user)
        node = user
    _require(len(found.back) == len(found.slices) and all(map(_undoes, found.back, found.slices)))
    _require(_shape(node) == (_shape(found.x)[0], classes))
    return node


def _undoes(back: fx.Node, cut: fx.Node) -> bool:
    dim, begin, end, step = (*cut.args[1:], *(0, None, None, 1)[len(cut.args) - 1 :])
    undone = (list(_shape(cut.args[0])), dim, begin or 0, 2**63 - 1 if end is None else end, step)
    return (list(back.args[1]), *back.args[2:]) == undone and _shape(back.args[0]) == _shape(cut)


def _gradient_of(found: _Found, gradient: fx.Node, reader: fx.Node, read_as: fx.Node) -> int:
    """Which gradient the node gives: of x, weight or bias."""
    if reader.target is aten.sum.dim_IntList:
        _require(read_as is gradient and list(reader.args[1]) == [0] and found.bias is not None and "dtype" not in reader.kwargs)
        return 2
    _require(reader.target is aten.mm.default)
    left, right = map(_untransposed, reader.args)
    if left == (gradient, False) and right == (found.weight, False):
        return 0
    _require(left == (gradient, True) and right == (found.x, False))
    return 1


# ---- programs


def _make(found: _Found, make_subgraph: Callable) -> LossInRows | None:
    """None where one program would have all rows, or Kiln cannot have all of the step."""
    loss = _loss_of(found)
    x, weight, bias = (n if n is None else n.meta["val"] for n in (found.x, found.weight, found.bias))
    dtype, steps = summed_in(x.dtype), {}
    chunks = loss.chunks(max_rows_of(x.dtype))
    if len(chunks) == 1:
        return None
    sums = [t.new_empty(t.shape, dtype=dtype) for t, is_wanted in zip((weight, bias), loss.wanted[1:]) if is_wanted]
    for rows in dict.fromkeys(chunks):
        of_rows = [x.new_empty((rows, x.shape[1])), x.new_empty(rows, dtype=torch.int64), x.new_empty((), dtype=dtype)]
        step = make_step(loss.step, [*of_rows, weight, *([bias] if loss.has_bias else []), *sums], make_subgraph)
        if step is None:
            return None
        steps[rows] = step
    return LossInRows(loss, chunks, steps)


# ---- replacing


def _replace(gm: fx.GraphModule, found: _Found, made: LossInRows) -> None:
    graph, loss = gm.graph, made.loss
    wanted = [n for n in found.gradients if n is not None]
    x, dtype = found.x.meta["val"], summed_in(_dtype(found.x))
    of_rows = [x.new_empty((loss.rows, x.shape[1]), dtype=dtype)] if loss.wanted[0] else []
    of_parameters = [n.meta["val"].new_empty(_shape(n), dtype=dtype)
                     for n, is_wanted in zip((found.weight, found.bias), loss.wanted[1:]) if is_wanted]  # fmt: skip
    with graph.inserting_before(found.loss):
        operands = [_cut(graph, found), found.loss.args[1], found.weight, found.bias]
        run = call_in_steps(gm, made, operands, (found.loss.meta["val"][0], *of_rows, *of_parameters))
        parts = [piece_of(graph, run, i) for i in range(len(run.meta["val"]))]
    for user in [n for n in found.loss.users if n.args[1] == 0]:
        user.replace_all_uses_with(parts[0])
    for node, part in zip(wanted, parts[1:]):
        with graph.inserting_before(node):
            gradient = node_of(graph, scaled, (part, found.incoming, x.dtype), part.meta["val"].to(x.dtype))
            if node is found.gradients[0]:
                gradient = _put_back(graph, found, gradient)
            elif node is found.gradients[2]:
                gradient = node_of(graph, aten.view.default, (gradient, list(_shape(node))), node.meta["val"])
        node.replace_all_uses_with(gradient)
    for node in reversed(list(graph.nodes)):
        if node in found.inside and not node.users:
            graph.erase_node(node)
    gm.recompile()


def _view(graph: fx.Graph, node: fx.Node, shape: tuple) -> fx.Node:
    return node if _shape(node) == shape else applied(graph, aten.view.default, node, list(shape))


def _cut(graph: fx.Graph, found: _Found) -> fx.Node:
    """The rows of x whose scores the loss reads."""
    node, width = found.x, _shape(found.x)[1]
    for cut in reversed(found.slices):
        node = _view(graph, node, (*_shape(cut.args[0])[:-1], width))
        node = applied(graph, aten.slice.Tensor, node, *cut.args[1:])
        node = applied(graph, aten.clone.default, node)
    return _view(graph, node, (found.rows, width))


def _put_back(graph: fx.Graph, found: _Found, gradient: fx.Node) -> fx.Node:
    """The gradient of x, of that of its rows."""
    width = _shape(found.x)[1]
    for back in found.back:
        gradient = _view(graph, gradient, (*_shape(back.args[0])[:-1], width))
        gradient = applied(graph, aten.slice_backward.default, gradient, [*back.args[1][:-1], width], *back.args[2:])
    return _view(graph, gradient, _shape(found.x))


__all__ = ["LEAST_SCORES", "compute_in_rows"]
