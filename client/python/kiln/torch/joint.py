"""What training saves: splits the joint graph of forward and backward.

A value of the forward that the backward needs is either saved or computed again from what is saved. Kiln recomputes
chains of pointwise ops and views, which fuse into the kernels that use them, and saves what is dear or cannot be repeated:

  anchors   results of contractions, attention, reductions, gathers, softmax, statistics of norms; dropout masks and all
            other random draws; whatever runs in torch; inputs (free: they live anyway)
  joins     a pointwise result of two or more different values that has several readers in the forward, or is read by a
            norm: the residual stream. Recomputing it would reach back through all earlier layers.

A value needed by the backward is saved if it is one of these, else its operands are needed instead. The rule looks at a
node and its neighbours only, so every layer of one class saves the same set: subgraphs stay equal. It differs from a
minimum cut (torch's default) in that, and in costing microseconds. Where tuning is asked for, partitions by other rules race
against it (saving.py).

Inputs and outputs of the forward belong to others, who may write to them before the backward runs; the forward itself
writes to some inputs when it ends. Eager saves such a tensor only where a gradient's formula reads it, and so do we: what is
computed of one that no formula reads is saved itself, never computed again.
"""

from __future__ import annotations

import functools
import operator

import torch
from torch import fx

from . import ahead, compat, saving
from .builder import tensor_operands
from .compiler import make_alone, separate_attention
from .complex_numbers import put_pairs
from .graphs import WHAT_IS_SAVED
from .linear_loss import compute_in_rows
from .norm_statistics import correct_statistics
from .partition import is_view
from .random_ops import separate_draws
from .rows import row_of


def is_cheap(node: fx.Node) -> bool:
    """Whether recomputing the node costs nothing worth saving for: it fuses into its reader."""
    return is_view(node) or row_of(node.target).is_recomputed


def _base(node: fx.Node) -> fx.Node:
    """The value below views and copies."""
    while is_view(node) or row_of(node.target).is_copy:
        node = node.args[0]
    return node


def _readers(node: fx.Node, forward: set) -> list[fx.Node]:
    """Nodes of the forward that read the value, through views or not."""
    readers, stack = [], [u for u in node.users if u in forward]
    while stack:
        user = stack.pop()
        if is_view(user):
            stack.extend(u for u in user.users if u in forward)
        elif user not in readers:
            readers.append(user)
    return readers


def is_join(node: fx.Node, forward: set) -> bool:
    """The residual stream, as the essay above says."""
    if is_view(node) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    size = node.meta["val"].numel()
    sources = {_base(n) for n in tensor_operands(node) if n.meta["val"].numel() == size and n.meta["val"].is_floating_point()}
    if len(sources) < 2:
        return False
    readers = _readers(node, forward)
    return len(readers) > 1 or any(row_of(r.target).is_norm for r in readers)


def storage_of(node: fx.Node) -> fx.Node:
    """The node whose memory this node's tensor lies in: itself, unless torch says that it is a view."""
    while node.op == "call_function":
        made_by = node.args[0] if node.target is operator.getitem else node
        if not (_is_alias(made_by.target) or is_view(made_by)):
            return node
        node = made_by.args[0]
    return node


def _is_alias(target) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def exposed_values(joint: fx.GraphModule, num_fwd_outputs: int, forward: set) -> set[fx.Node]:
    """Inputs and outputs of the forward that no gradient's formula reads: whoever owns them may write to them."""
    (output,) = joint.graph.find_nodes(op="output")
    outputs = [n for n in output.args[0][:num_fwd_outputs] if isinstance(n, fx.Node)]
    gradients = [n for n in output.args[0][num_fwd_outputs:] if isinstance(n, fx.Node)]
    inputs = [n for n in forward if n.op == "placeholder"]
    read = [n for node in joint.graph.nodes if node not in forward and node is not output for n in node.all_input_nodes]
    return {storage_of(n) for n in inputs + outputs} - {storage_of(n) for n in read + gradients}


def forward_nodes(joint: fx.GraphModule, num_fwd_outputs: int) -> set[fx.Node]:
    """All nodes that no tangent reaches."""
    tainted: set[fx.Node] = set()
    for node in joint.graph.nodes:
        if compat.adapter().is_tangent(node) or any(n in tainted for n in node.all_input_nodes):
            tainted.add(node)
    return {n for n in joint.graph.nodes if n not in tainted and n.op != "output"}


def is_recomputed(node: fx.Node, forward: set) -> bool:
    """The rule of the essay above."""
    return is_cheap(node) and not is_join(node, forward)


def is_made_of_nothing(node: fx.Node, forward: set) -> bool:
    """Views, and what has no tensors for operands."""
    return is_view(node) or (is_cheap(node) and not tensor_operands(node))


# What is computed again, and not saved, by the names that races know: the rule, and what has all saved that the backward reads.
RULES = {"by rule": is_recomputed, "as read": is_made_of_nothing}


def saved_values(joint: fx.GraphModule, num_fwd_outputs: int, rule=is_recomputed) -> list[fx.Node]:
    """The values the forward hands to the backward, in the order of the graph."""
    forward = forward_nodes(joint, num_fwd_outputs)
    (output,) = joint.graph.find_nodes(op="output")
    gradients = [n for n in output.args[0][num_fwd_outputs:] if isinstance(n, fx.Node)]
    needed = [n for node in joint.graph.nodes if node not in forward and node.op != "output"
              for n in node.all_input_nodes if n in forward]  # fmt: skip
    needed += [n for n in gradients if n in forward]
    exposed = exposed_values(joint, num_fwd_outputs, forward)
    saved: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    while needed:
        node = needed.pop()
        if node in seen:
            continue
        seen.add(node)
        reads_exposed = any(storage_of(n) in exposed for n in tensor_operands(node))
        if rule(node, forward) and (is_view(node) or not reads_exposed):
            needed.extend(node.all_input_nodes)
        elif node.op == "get_attr":
            continue  # both graphs hold constants
        elif isinstance(node.meta.get("val"), (tuple, list)):
            needed.extend(u for u in node.users if u.target is operator.getitem and u in forward)
        else:
            saved.add(node)
    return [n for n in joint.graph.nodes if n in saved]


def partition_joint(joint: fx.GraphModule, inputs, *, num_fwd_outputs: int, **options):
    """(forward, backward) of a joint graph. Symbolic shapes, and other torch versions, take torch's own partition."""
    adapter = compat.adapter()
    try:
        correct_statistics(joint.graph)
        separate_attention(joint.graph)
        put_pairs(joint.graph)
        if _is_static(joint):
            separate_draws(joint.graph)
            compute_in_rows(joint, make_alone)
            joint.recompile()
            static = options.get("static_lifetime_input_nodes")
            partitions = {name: functools.partial(_divide, joint, num_fwd_outputs, static, rule) for name, rule in RULES.items()}
            choice = saving.choose(joint, num_fwd_outputs, partitions)
            forward, backward = partitions[choice.name]()
            forward.meta[WHAT_IS_SAVED] = choice.said
            ahead.begin(backward)
            return forward, backward
    except adapter.NotAvailable:
        pass
    return adapter.default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **options)


def _divide(joint: fx.GraphModule, num_fwd_outputs: int, static_inputs, rule):
    saved = saved_values(joint, num_fwd_outputs, rule)
    return compat.adapter().extract_forward_backward(joint, saved, num_fwd_outputs=num_fwd_outputs, static_inputs=static_inputs)


def _is_static(joint: fx.GraphModule) -> bool:
    """No symbolic sizes, and nothing but functions of the table of aten."""
    for node in joint.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return False
        if isinstance(value, torch.Tensor) and not all(type(e) is int for e in value.shape):
            return False
        if node.op == "call_function" and compat.adapter().is_higher_order(node.target):
            return False
    return True
