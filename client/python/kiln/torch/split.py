"""A graph's regions, built. What cannot be built is left to torch, node by node; everything around it is Kiln's.

A region that cannot be built holds a node that cannot: its error may name the op. Each suspect is then asked for alone, so
that no other node of the same op, or of none, is lost with it. Where Kiln would do next to nothing of a graph it does
nothing: what crosses between two runtimes costs more than it saves.
"""

from __future__ import annotations

import math
import operator
from typing import Callable

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from .partition import Partition, Region, describe_alone, is_free, ops_of, partition
from .place import Place
from .tensors import tensors_in
from .text import Unsupported

# Of kiln.Error.code: what says something about the graph, whoever asks and whenever.
INVALID_ARGUMENT, UNIMPLEMENTED, INTERNAL = 3, 12, 13
ABOUT_THE_GRAPH = (INVALID_ARGUMENT, UNIMPLEMENTED, INTERNAL)
# Nodes of one region that are asked for alone, those that are alike counted once.
MAX_PROBES = 64
# Of a graph's estimated work, the share below which all of it is torch's.
MIN_SHARE = 0.05
# The estimate counts elements that are read and written; so many operations of a product take as long as one of them.
OPERATIONS_PER_ELEMENT = 32
# Stands for an extent that is not known yet.
SYMBOLIC_EXTENT = 64


def split(graph: fx.Graph, place: Place, make: Callable) -> tuple[Partition, dict]:
    """The graph's partition, and what make(graph, region, place) gives for each region, by level. What it gives has a `reason`
    where it is no program. Each round leaves at least one more node to torch, so there is a last one."""
    plan = partition(graph, None, place)
    if share_of_work(plan) < MIN_SHARE:
        why = f"of the graph's work less than {MIN_SHARE:.0%} would be Kiln's"
        return partition(graph, {n: why for region in plan.regions.values() for n in region.nodes}, place), {}
    lacking: dict[fx.Node, str] = {}
    while True:
        more, regions = {}, {}
        for level, region in plan.regions.items():
            try:
                regions[level] = made = make(graph, region, place)
                more.update(_culprits(graph, region, place, make, made))
            except Unsupported as reason:
                more.update(dict.fromkeys(region.nodes, str(reason)))
        if not more.keys() - lacking.keys():
            return plan, regions
        lacking.update(more)
        plan = partition(graph, lacking, place)


def _culprits(graph: fx.Graph, region: Region, place: Place, make: Callable, made) -> dict[fx.Node, str]:
    """Nodes for which the region could not be had, each with why; none where it is no node's fault."""
    if getattr(made, "code_of_error", 0) not in ABOUT_THE_GRAPH:
        return {}
    nodes = [n for n in region.nodes if n.target is not operator.getitem]
    suspects = [n for n in nodes if made.op_of_error in ops_of(n)] if made.op_of_error else nodes
    if len(nodes) == 1:
        return {nodes[0]: made.reason}
    found: dict[str, str] = {}  # by text, why it cannot be had; "" if it can
    culprits = {}
    for node in suspects:
        alone = describe_alone(node)
        if alone.text not in found:
            if len(found) >= MAX_PROBES:
                break
            probe = make(graph, alone, place)
            is_culprit = getattr(probe, "code_of_error", 0) in ABOUT_THE_GRAPH
            found[alone.text] = probe.reason if is_culprit else ""
        if found[alone.text]:
            culprits[node] = found[alone.text]
    if not culprits and made.op_of_error:  # each can be had alone: together they cannot
        return dict.fromkeys(suspects, made.reason)
    return culprits


def share_of_work(plan: Partition) -> float:
    """Kiln's part of what the graph's nodes are estimated to cost; 1 for a graph of nothing."""
    left = sum(work_of(n) for n in plan.reasons if not is_free(n))
    if left == 0:
        return 1.0
    mine = sum(work_of(n) for region in plan.regions.values() for n in region.nodes if not is_free(n))
    return mine / (mine + left)


def work_of(node: fx.Node) -> float:
    """In elements that cross memory, its tensors', and what its products' operations amount to."""
    elements = sum(math.prod(_extents(t)) for n in (node, *node.all_input_nodes) for t in tensors_in(n.meta.get("val")))
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
        return _extents(value)
    return tuple(map(_extents, tensors_in(value)))


def _extents(tensor: torch.Tensor) -> tuple:
    return tuple(e if type(e) is int else SYMBOLIC_EXTENT for e in tensor.shape)


__all__ = ["MIN_SHARE", "UNIMPLEMENTED", "share_of_work", "split", "work_of"]
