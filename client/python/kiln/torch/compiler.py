"""From an AOT graph to something that runs: one CompiledGraph, made of subgraphs and torch's own steps."""

from __future__ import annotations

import operator
from typing import Callable

from torch import fx

from .. import _session
from .._reasons import NOT_FOUND, UNAVAILABLE, Reason
from . import compat, processor
from .complex_numbers import put_pairs
from .ctc_loss import compute_ctc_losses
from .flex import separate_flex_attention
from .fused_attention import separate_fused_attention
from .graphs import WHAT_IS_SAVED, CompiledGraph
from .linear_loss import compute_in_rows
from .norm_statistics import correct_statistics
from .panels import panels_of
from .partition import Partition, Subgraph, is_free, prepare, text_with_packed
from .pieces import is_counted, name_of
from .place import Place
from .programs import build_program, insist
from .split import UNIMPLEMENTED, split
from .step_programs import compute_over_time
from .subgraphs import EagerSubgraph, FrozenSubgraph, StaticSubgraph, SymbolicSubgraph, run_subgraph
from .tally import entry_name
from .text import Unsupported
from .write_back import own_memory, release_outputs, write_back


def separate_attention(graph: fx.Graph) -> None:
    """Puts functions of what attention is of in the place of all torch's ops of it that have such."""
    separate_flex_attention(graph)
    separate_fused_attention(graph)


def compile_graph(gm: fx.GraphModule, example_inputs) -> CompiledGraph:
    """Compiles one AOT graph. Subgraphs that cannot be had run in torch."""
    correct_statistics(gm.graph)
    separate_attention(gm.graph)
    put_pairs(gm.graph)
    compute_in_rows(gm, make_alone)
    compute_over_time(gm, make_alone)
    compute_ctc_losses(gm, make_alone)
    place = prepare(gm.graph)
    for target in _session.session().targets:
        build_elsewhere(gm.graph, place, target)
    plan, subgraphs = split(gm.graph, place, _make_subgraph)
    graph, attributes = _stitch(gm, plan, subgraphs)
    source, names = compat.adapter().boxed_code(graph)
    outside = [(name_of(n), why) for n, why in plan.reasons.items() if not is_free(n)]
    return CompiledGraph(source, names, attributes, outside, gm.meta.get(WHAT_IS_SAVED, ""))


def build_elsewhere(graph: fx.Graph, place: Place, target: str) -> None:
    """Has the graph built for a target that need not be this host's, split as it will be there. Nothing of it is run here."""
    session = _session.session()

    def build(graph: fx.Graph, subgraph: Subgraph, _: Place):
        left = EagerSubgraph(graph, subgraph)
        try:
            if subgraph.symbols:
                raise Unsupported("extents that are not bound yet")
            build_program(subgraph.text, place, target)
            return None
        except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
            left.reason = Reason.of(error)
            return left

    with processor.of_target(target):
        plan, subgraphs = split(graph, place, build)
    reasons = {node: why for node, why in plan.reasons.items() if not is_free(node)}
    for level, subgraph in plan.subgraphs.items():
        nodes = [n for n in subgraph.nodes if not is_free(n) and is_counted(n)]
        if subgraphs[level] is None:
            session.targets[target]["nodes_compiled"] += len(nodes)
        else:
            reasons.update(dict.fromkeys(nodes, subgraphs[level].reason))
    session.targets[target]["nodes_left"] += len(reasons)
    for node, why in reasons.items():
        session.note_fallback(str(node.target), f"for {target}: {why}")


def _stitch(gm: fx.GraphModule, plan: Partition, subgraphs: dict) -> tuple[fx.Graph, dict]:
    """The graph that runs the partition: subgraphs are calls of attributes, all else is copied from the original."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}

    def here(node: fx.Node) -> fx.Node:
        """The node's copy; views are made where they are first wanted."""
        if node not in copies:
            chain = [node]
            while chain[-1].args[0] not in copies:
                chain.append(chain[-1].args[0])
            for view in reversed(chain):
                copies[view] = graph.node_copy(view, lambda n: copies[n])
        return copies[node]

    steps: dict[int, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            copies[node] = graph.node_copy(node)
        elif node in plan.reasons:
            steps.setdefault(plan.levels[node], []).append(node)

    for level in range(-1, max([-1, *steps, *plan.subgraphs]) + 1):
        if level in plan.subgraphs:
            _call_subgraph(graph, _name_of(level), plan.subgraphs[level], own_memory(plan, level), here, copies)
        for node in steps.get(level, ()):
            for operand in node.all_input_nodes:
                here(operand)
            copies[node] = graph.node_copy(node, here)
    for copy in plan.closing_copies:
        graph.call_function(write_back, (here(copy.args[0]), here(copy.args[1])))
    (output,) = gm.graph.find_nodes(op="output")
    graph.output(fx.map_arg(output.args[0], here))
    release_outputs(graph, run_subgraph)
    graph.eliminate_dead_code()
    made = {_name_of(level): subgraph for level, subgraph in subgraphs.items()}
    names = [n.target.split(".")[0] for n in graph.find_nodes(op="get_attr")]
    return graph, {name: made[name] if name in made else getattr(gm, name) for name in names}


def _name_of(level: int) -> str:
    return f"kiln_subgraph_{level}"


def _call_subgraph(graph: fx.Graph, name: str, subgraph: Subgraph, memory: dict, here: Callable, copies: dict) -> None:
    """`memory`: where outputs are to be made, of those for which that is known."""
    arguments = [here(n) for n in (*subgraph.inputs, *subgraph.sizes)]
    runner = graph.get_attr(name)
    targets = ([here(memory[n]) if n in memory else None for n in subgraph.outputs],) if memory else ()
    results = graph.call_function(run_subgraph, (runner, arguments, *targets))
    for i, node in enumerate(subgraph.outputs):
        copies[node] = graph.call_function(operator.getitem, (results, i))


def _make_subgraph(graph: fx.Graph, subgraph: Subgraph, place: Place):
    """The subgraph's program, or the subgraph in torch with the reason."""
    eager = EagerSubgraph(graph, subgraph)
    eager.ops = tuple(name_of(n) for n in subgraph.nodes if not is_free(n) and is_counted(n))
    try:
        if subgraph.symbols:
            return SymbolicSubgraph(subgraph.text, *subgraph.layouts, place, subgraph.binding, eager)
        eager.state = (subgraph.text, *subgraph.layouts, place)
        return _frozen(subgraph, eager) or StaticSubgraph(*eager.state, eager)
    except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
        eager.reason = insist(_judged(subgraph.text, place, Reason.of(error)))
        eager.is_final = isinstance(error, Unsupported)
        return eager


def _frozen(subgraph: Subgraph, eager: EagerSubgraph):
    """The subgraph that reads weights packed, where they are said to be constant; None where none is, or it cannot be had so."""
    panels = panels_of(subgraph, eager.state[-1])
    if not panels:
        return None
    numbers = {subgraph.inputs.index(weight): each for weight, each in panels.items()}
    try:
        return FrozenSubgraph(*eager.state, eager, text_with_packed(subgraph, panels), numbers)
    except Exception as error:  # noqa: BLE001: it may be had of weights as they are
        _session.session().note_fallback("packed weights", str(error))
        return None


def make_alone(graph: fx.Graph, subgraph: Subgraph, place: Place):
    """As _make_subgraph, of a subgraph that is all of a graph; it is built for what other graphs are built for."""
    for target in _session.session().targets:
        build_elsewhere(graph, place, target)
    return _make_subgraph(graph, subgraph, place)


def _judged(text: str, place: Place, reason: Reason) -> Reason:
    """The reason. That no backend has an op of the text is kept in the cache: a process without a daemon could not tell it from
    a miss, and would not split the graph as the one before did."""
    client = _session.session().client()
    if client is None or reason.code not in (UNIMPLEMENTED, UNAVAILABLE, NOT_FOUND):
        return reason
    from .. import _kiln  # there only with libkiln

    key = "\0".join(("unimplemented", _kiln.version(), place.name, text)).encode()
    try:
        if reason.code == UNIMPLEMENTED:
            client.capture_put(key, "\0".join((reason.op, reason)).encode(), entry_name(f"{reason.op} is not covered"))
        elif (kept := client.capture_get(key)) is not None:
            op, said = kept.decode().split("\0", 1)
            return Reason(said, code=UNIMPLEMENTED, op=op)
    except Exception:  # noqa: BLE001: the subgraph runs in torch, one way or the other
        pass
    return reason


__all__ = ["build_elsewhere", "compile_graph", "make_alone", "separate_attention"]
