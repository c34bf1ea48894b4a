"""Programs for steps (steps.py), and the recurrences of a graph whose steps have one."""

from __future__ import annotations

from typing import Callable

import torch
from torch import fx

from . import compat
from .nodes import node_of
from .over_time import OverTime
from .partition import is_free, partition
from .place import Place
from .recurrent import CELLS
from .steps import Step, run_in_steps
from .subgraphs import EagerSubgraph


def make_step(function: Callable, operands: list, make_subgraph: Callable) -> Step | None:
    """None where Kiln cannot have all of the function. `operands`: tensors of the types of its arguments. make_subgraph(graph,
    subgraph, place) gives what runs the graph's only subgraph."""
    graph = compat.adapter().trace_pieces(lambda *given: function(*given), operands, {}).graph  # of any kind: fx counts names
    arguments = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    results = {node: i for i, node in enumerate(graph.find_nodes(op="output")[0].args[0])}
    place = Place(operands[0].device)
    plan = partition(graph, None, place)
    if len(plan.subgraphs) != 1 or any(not is_free(node) for node in plan.reasons):
        return None
    (subgraph,) = plan.subgraphs.values()
    if not arguments.keys() >= set(subgraph.inputs) or results.keys() != set(subgraph.outputs):
        return None
    made = make_subgraph(graph, subgraph, place)
    if isinstance(made, EagerSubgraph):
        return None
    return Step(made, [arguments[n] for n in subgraph.inputs], [results[n] for n in subgraph.outputs])


def compute_over_time(gm: fx.GraphModule, make_subgraph: Callable) -> None:
    """Replaces recurrences in a graph whose steps Kiln can have. make_subgraph: as make_step's."""
    for op, is_backward in ((torch.ops.kiln.recurrence.default, False), (torch.ops.kiln.recurrence_backward.default, True)):
        for node in gm.graph.find_nodes(op="call_function", target=op):
            *operands, kind = node.args
            try:
                step = make_step(_function(kind, is_backward), _types(kind, operands, is_backward), make_subgraph)
            except Exception:  # noqa: BLE001: Kiln never makes its caller fail, and torch's steps stay
                continue
            if step is not None:
                replace_in_steps(gm, node, OverTime(kind, is_backward, step), operands)


def _function(kind: str, is_backward: bool) -> Callable:
    return CELLS[kind].back if is_backward else CELLS[kind].forward


def _types(kind: str, operands: list, is_backward: bool) -> list:
    """Tensors of the types of a step's arguments."""
    cell = CELLS[kind]
    x, hidden, weight = (operands[i].meta["val"] for i in ((2, 3, 5) if is_backward else (0, 1, 3)))
    rows, width = hidden.shape
    of = lambda *shape: weight.new_empty(shape)  # noqa: E731
    states = [of(rows, width)] * cell.states
    if not is_backward:
        return [of(rows, x.shape[2]), *states, of(*weight.shape), *([of(weight.shape[0])] if cell.has_bias else [])]
    kept = of(rows, cell.kept * width) if cell.kept else of(0)
    return [of(rows, width), of(rows, x.shape[2]), kept, of(rows, width), of(rows, width), *states, of(*weight.shape)]


def call_in_steps(gm: fx.GraphModule, runner: Callable, operands: list, value: tuple) -> fx.Node:
    """A call, where nodes are being inserted, of a runner that becomes an attribute of the graph."""
    name = f"kiln_in_steps_{sum(n.target is run_in_steps for n in gm.graph.nodes)}"
    setattr(gm, name, runner)
    return node_of(gm.graph, run_in_steps, (gm.graph.create_node("get_attr", name), *operands), value)


def replace_in_steps(gm: fx.GraphModule, node: fx.Node, runner: Callable, operands: list) -> None:
    """Has the runner give what the node gives."""
    with gm.graph.inserting_before(node):
        run = call_in_steps(gm, runner, operands, node.meta["val"])
    node.replace_all_uses_with(run)
    gm.graph.erase_node(node)


__all__ = ["call_in_steps", "compute_over_time", "make_step", "replace_in_steps"]
