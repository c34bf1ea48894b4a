"""What a graph writes to its inputs, and in whose tensors it gives its outputs.

AOTAutograd makes a graph functional: what it writes to an input it copies there at its end. Where a subgraph makes such a value
and nothing needs what the input held before, the subgraph's program is given the input's own memory to write to, and the copy
falls away (kiln_program_may_overwrite says whether the program can).

An output that is a view leaves as a tensor of its own where nothing else that leaves lies in its memory: a view keeps the tensor
that it is of, and autograd adds to a gradient in place only where nobody else holds its memory.
"""

from __future__ import annotations

import operator
from collections import Counter

import torch
from torch import fx

from .builder import is_alike
from .nodes import gives_view
from .rows import row_of

aten = torch.ops.aten


def give_written_inputs(graph: fx.Graph) -> None:
    """Outputs that are what a copy to an input gives, as of a counter that a model steps and returns, are that input."""
    (output,) = graph.find_nodes(op="output")
    for node in output.all_input_nodes:
        if node.target is aten.copy_.default and node.args[0].op == "placeholder" and set(node.users) == {output}:
            node.replace_all_uses_with(node.args[0])


def closing_copies(graph: fx.Graph) -> dict[fx.Node, None]:
    """The copies to inputs with which the graph ends, in their order."""
    copies: list[fx.Node] = []
    (output,) = graph.find_nodes(op="output")
    node = output.prev
    while node.target is aten.copy_.default and node.args[0].op == "placeholder" and not node.users:
        copies.append(node)
        node = node.prev
    return dict.fromkeys(reversed(copies))


def own_memory(plan, level: int) -> dict[fx.Node, fx.Node]:
    """Of the outputs of a level's subgraph, those that may be made where an input of the graph lies: that input."""
    mine, outputs, found = set(plan.subgraphs[level].nodes), set(plan.subgraphs[level].outputs), {}
    for copy in plan.closing_copies:
        target, value = copy.args[:2]
        if value not in outputs or value in found or not is_alike(target, value):
            continue
        if _is_done_with(target, copy, mine, plan, level) and not _leaves(value, plan):
            found[value] = target
    return found


def _readers(node: fx.Node, plan):
    """Who reads the value, through views, whoever makes them, or not."""
    for user in node.users:
        if user in plan.views or row_of(user.target).is_view or gives_view(user.target):
            yield from _readers(user, plan)
        else:
            yield user


def _is_done_with(target: fx.Node, copy: fx.Node, mine: set, plan, level: int) -> bool:
    """Whether nobody but the subgraph reads what the input holds when the subgraph runs, or later."""
    later = (user for user in _readers(target, plan) if user is not copy and user not in mine)
    return not any(user.op == "output" or user in plan.closing_copies or plan.levels[user] >= level for user in later)


def _leaves(value: fx.Node, plan) -> bool:
    return any(user.op == "output" for user in _readers(value, plan))


@fx.has_side_effect
def write_back(target: torch.Tensor, value: torch.Tensor) -> None:
    """Gives the target the value, which is there already where the target's memory was written to."""
    if value is not target:
        target.copy_(value)
    elif not target.is_inference():
        torch.autograd.graph.increment_version(target)


def release_outputs(graph: fx.Graph, runner) -> None:
    """Has the stitched graph give views of what only they hold, of results of calls of `runner`, as tensors of their own."""
    (output,) = graph.find_nodes(op="output")
    roots = {n: _root(n) for n in output.all_input_nodes}
    holders = Counter(roots.values())

    def released(node: fx.Node) -> fx.Node:
        root = roots[node]
        if root is node or holders[root] > 1 or not _is_result(root, runner):
            return node
        with graph.inserting_before(output):
            return graph.call_function(own_tensor, (node,))

    leaving = {node: released(node) for node in roots}
    output.args = fx.map_arg(output.args, leaving.__getitem__)


def _root(node: fx.Node) -> fx.Node:
    """What the node, or the tuple that it is a piece of, is a view of in the end."""
    while True:
        made = node.args[0] if node.target is operator.getitem else node
        if not row_of(made.target).is_view and not gives_view(made.target):
            return node
        node = made.args[0]


def _is_result(node: fx.Node, runner) -> bool:
    return node.target is operator.getitem and node.args[0].target is runner


def own_tensor(view: torch.Tensor) -> torch.Tensor:
    """The view's elements where they lie, in a tensor that is a view of none."""
    return view.data
