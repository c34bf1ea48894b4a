"""A graph's subgraphs, built. What cannot be built is left to torch, node by node; everything around it is Kiln's.

A subgraph that cannot be built holds a node that cannot: its error may name the op. Each suspect is then asked for alone, so
that no other node of the same op, or of none, is lost with it. Where Kiln would do next to nothing of a graph it does
nothing: what crosses between two runtimes costs more than it saves.
"""

from __future__ import annotations

import operator
from typing import Callable

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from .._reasons import Reason
from .expansion import first_partition
from .partition import Partition, Subgraph, describe_alone, is_free, ops_of, partition
from .pieces import put_together, whole_of
from .place import Place
from .tensors import elements_of, extents_of, tensors_in
from .text import Unsupported

# Of kiln.Error.code_name: what says something about the graph, whoever asks and whenever.
UNIMPLEMENTED = "unimplemented"
ABOUT_THE_GRAPH = ("invalid_argument", UNIMPLEMENTED, "internal")
# Nodes of one subgraph that are asked for alone, those that are alike counted once.
MAX_PROBES = 64
# Of a graph's estimated work, the share below which all of it is torch's.
MIN_SHARE = 0.05
# The estimate counts elements that are read and written; so many operations of a product take as long as one of them.
OPERATIONS_PER_ELEMENT = 32


def split(graph: fx.Graph, place: Place, make: Callable) -> tuple[Partition, dict]:
    """The graph's partition, and what make(graph, subgraph, place) gives for each subgraph, by level. What it gives has a `reason`
    where it is no program. Each round leaves at least one more node to torch, so there is a last one."""
    plan = first_partition(graph, place)
    if share_of_work(plan) < MIN_SHARE:
        why = f"of the graph's work less than {MIN_SHARE:.0%} would be Kiln's"
        why = Reason(why, advice="nothing: it would cost more than it saves")
        left = put_together({n: why for subgraph in plan.subgraphs.values() for n in subgraph.nodes})
        return partition(graph, left, place), {}
    lacking: dict[fx.Node, Reason] = {}
    while True:
        more, subgraphs = {}, {}
        for level, subgraph in plan.subgraphs.items():
            try:
                subgraphs[level] = made = make(graph, subgraph, place)
                more.update(_culprits(graph, subgraph, place, make, made))
            except Unsupported as reason:
                more.update(dict.fromkeys(subgraph.nodes, Reason.of(reason)))
        if not more.keys() - lacking.keys():
            return plan, subgraphs
        lacking.update(put_together(more))
        plan = partition(graph, lacking, place)


def _culprits(graph: fx.Graph, subgraph: Subgraph, place: Place, make: Callable, made) -> dict[fx.Node, Reason]:
    """Nodes for which the subgraph could not be had, each with why; none where it is no node's fault."""
    reason = _fault_of(made)
    if reason is None:
        return {}
    nodes = [n for n in subgraph.nodes if n.target is not operator.getitem]
    suspects = [n for n in nodes if reason.op in ops_of(n)] if reason.op else nodes
    if len(nodes) == 1:
        return {nodes[0]: reason}
    found: dict[str, Reason | None] = {}  # by text, why it cannot be had; None if it can
    culprits = {}
    for node in suspects:
        alone = describe_alone(node)
        if alone.text not in found:
            if len(found) >= MAX_PROBES:
                break
            found[alone.text] = _fault_of(make(graph, alone, place))
        if found[alone.text] is not None:
            culprits[node] = found[alone.text]
    if culprits:
        return culprits
    pieces = [n for n in nodes if whole_of(n) is not None]
    # Each can be had alone: together they cannot.
    return dict.fromkeys(pieces or (suspects if reason.op else ()), reason)


def _fault_of(made) -> Reason | None:
    """Why a subgraph is no program, where that is the graph's fault."""
    reason = getattr(made, "reason", None)
    return reason if reason is not None and reason.code in ABOUT_THE_GRAPH else None


def share_of_work(plan: Partition) -> float:
    """Kiln's part of what the graph's nodes are estimated to cost; 1 for a graph of nothing."""
    left = sum(work_of(n) for n in plan.reasons if not is_free(n))
    if left == 0:
        return 1.0
    mine = sum(work_of(n) for subgraph in plan.subgraphs.values() for n in subgraph.nodes if not is_free(n))
    return mine / (mine + left)


def work_of(node: fx.Node) -> float:
    """In elements that cross memory, its tensors', and what its products' operations amount to."""
    elements = sum(elements_of(t) for n in (node, *node.all_input_nodes) for t in tensors_in(n.meta.get("val")))
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    operations = 0
    if count is not None:
        arguments, keywords = fx.map_arg((node.args, node.kwargs), _shape_of)
        try:
            operations = count(*arguments, **keywords, out_val=_shape_of(node))
        except Exception:  # noqa: BLE001: an estimate
            pass
    return elements + operations / OPERATIONS_PER_ELEMENT


def _shape_of(node: fx.Node):
    """What torch counts a product's operations by."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return extents_of(value)
    return tuple(map(extents_of, tensors_in(value)))


__all__ = ["MIN_SHARE", "UNIMPLEMENTED", "share_of_work", "split", "work_of"]
