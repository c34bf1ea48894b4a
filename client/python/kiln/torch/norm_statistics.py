"""The statistics that norms of halves give on the CPU: as wide as their parameters, whatever torch says of the op's results.

Under autocast parameters are f32 and what is normalised bf16. Gradients from statistics rounded to it would be worse than eager's, and a
program that gets them from torch's kernel would be handed others than it was told of."""

from __future__ import annotations

import operator

import torch
from torch import fx

from .nodes import named_arguments, node_of
from .partition import is_view
from .rows import row_of

aten = torch.ops.aten


def correct_statistics(graph: fx.Graph) -> None:
    """Says in the graph what torch's kernels give. Who is no norm's gradient reads what torch says."""
    for node in [n for n in graph.nodes if row_of(n.target).gives_statistics]:
        given = {name: value.meta["val"] for name, value in named_arguments(node).items() if isinstance(value, fx.Node)}
        if given["input"].device.type == "cpu":
            _correct(node, _statistics_of(given))


def _statistics_of(given: dict) -> tuple:
    """Dtypes of results but the first: mean and reciprocal deviation, and new running statistics where there are any. Torch's kernels
    take parameters of the input's dtype, and f32 ones of halves."""
    x, running = given["input"].dtype, given.get("running_mean")
    parameters = {given[name].dtype for name in ("weight", "bias", "running_mean", "running_var") if name in given}
    own = torch.float32 if parameters - {x} else x
    return (own, own) if running is None else (own, own, running.dtype, running.dtype)


def _correct(node: fx.Node, dtypes: tuple) -> None:
    result, *statistics = node.meta["val"]
    node.meta["val"] = (result, *(value.to(dtype) for value, dtype in zip(statistics, dtypes, strict=True)))
    for piece in list(node.users):
        if piece.target is operator.getitem and piece.args[1] > 0:
            _set_dtype(piece, dtypes[piece.args[1] - 1])


def _set_dtype(node: fx.Node, dtype: torch.dtype) -> None:
    said = node.meta["val"]
    if said.dtype == dtype:
        return
    node.meta["val"] = said.to(dtype)
    users = [user for user in node.users if not row_of(user.target).reads_statistics and user.op != "output"]
    for view in filter(is_view, users):
        _set_dtype(view, dtype)
    readers = [user for user in users if not is_view(user)]
    if not readers:
        return
    with node.graph.inserting_after(node):
        as_said = node_of(node.graph, aten._to_copy.default, (node,), said, dtype=said.dtype)
    for reader in readers:
        reader.replace_input_with(node, as_said)


__all__ = ["correct_statistics"]
