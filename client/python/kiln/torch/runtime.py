"""From an AOT graph to something that runs: one CompiledGraph, made of region programs and torch's own steps."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import operator
import weakref
from typing import Callable

import torch
from torch import fx

from .. import _session
from . import check, compat
from .again import Again
from .dropout import separate_masks
from .fallback import fallback_graph
from .partition import Partition, Region, drop_empties, is_free, resolve_tangents
from .place import Place, place_of
from .split import UNIMPLEMENTED, split
from .tensors import relayout
from .tally import current_owner, note_disturbance, tally_of
from .text import DTYPES, Unsupported

_live: weakref.WeakSet = weakref.WeakSet()


def note_live(region) -> None:
    """Counts region.programs() while the region lives."""
    _live.add(region)


def live_programs():
    """Programs of regions that are alive, for counting."""
    return [p for r in list(_live) for p in r.programs() if hasattr(p, "relayouts")]


# Of kiln.Error.code: there is no daemon to ask.
UNAVAILABLE = 14


def layout_of(tensor: torch.Tensor) -> tuple:
    """(dtype, shape, strides) as the extension wants them."""
    return DTYPES[tensor.dtype], tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))


_deadline_ms = contextvars.ContextVar("deadline_ms", default=0)


@contextlib.contextmanager
def waiting_at_most(deadline_ms: int):
    """Within, no program is waited for longer; 0 is what the configuration says."""
    token = _deadline_ms.set(deadline_ms)
    try:
        yield
    finally:
        _deadline_ms.reset(token)


def create_program(text: str, inputs: list[tuple], outputs: list[tuple], place: Place, symbol_values: tuple = ()):
    """An executable of the text, for tensors there. Raises kiln's Error when it cannot be had."""
    client = _session.session().client(place.name)
    if client is None:
        raise RuntimeError(f"no client for {place.device}")
    _attach()
    note_disturbance()
    options = {"symbol_values": symbol_values, "deadline_ms": _deadline_ms.get(), "memory": place.memory}
    try:
        return client.compile(text, inputs, outputs, **options)
    except Exception as error:
        _session.session().say_cause(error)
        raise


_attached = False


def _attach() -> None:
    global _attached
    if not _attached:
        from .. import _kiln

        _kiln.attach(torch.Tensor, relayout)
        _attached = True


class StaticRegion:
    """A region whose shapes are all known. Called with a list of tensors, gives a list of tensors."""

    def __init__(self, text: str, inputs: list, outputs: list, place: Place, eager: Callable, symbols: tuple = ()) -> None:
        self._program = create_program(text, inputs, outputs, place, symbols)
        self.eager, self.ops = eager, getattr(eager, "ops", ())
        self.state = (text, inputs, outputs, place)
        check.on_first_run(self, self._program, eager, check.Facts(*self.state, symbols))
        note_live(self)

    def programs(self):
        return [self._program]

    def checks(self) -> list[str]:
        """What became of its programs' first runs, in check.py's words."""
        return [self.check]

    def __call__(self, tensors: list) -> list:
        if compat.adapter().differentiates_forward():  # a program would lose what goes along with the tensors
            return self.eager(tensors)
        try:
            return self.run(tensors)
        except IndexError:
            # Inputs are untouched, so torch can run the region again and raise its own error, in its own words.
            return self.eager(tensors)
        except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
            _session.session().say("run", f"a region ran in torch: {error}")
            return self.eager(tensors)


class EagerRegion:
    """A region's nodes run by torch: its fallback. Its graph is made at once, so that what has no fallback is known while
    graphs are split; source is generated when first wanted, and compiled when first run."""

    def __init__(self, graph: fx.Graph | None, region: Region | None, code: tuple | None = None) -> None:
        self._graph = None if graph is None else fallback_graph(graph, region)
        self._code, self._function = code, None
        self.state: tuple | None = None  # of the StaticRegion it stands for, so that a later process tries again
        self.ops: tuple[str, ...] = ()  # of its nodes, views not counted
        self.reason, self.code_of_error, self.op_of_error = "", 0, ""  # why it runs in place of the program
        self.is_final = False  # whether that holds in all processes

    def checks(self) -> list[str]:
        return []

    def __call__(self, tensors: list) -> list:
        if self._function is None:
            source, names = self.code()
            scope = dict(names)
            exec(compile(source, "<kiln eager>", "exec"), scope)  # noqa: S102: fx's own source
            self._function = functools.partial(scope["forward"], None)
        return list(self._function(*tensors))

    def code(self) -> tuple[str, dict]:
        """(source of forward(self, *tensors), its globals)."""
        if self._code is None:
            code = self._graph.python_code("self")
            self._code = code.src, dict(code.globals)
            self._graph = None
        return self._code


class CompiledGraph:
    """A boxed callable: takes a list of tensors, which it empties, and gives a tuple.

    Made of generated source, in which regions are called by name, so that it can be kept and made again."""

    def __init__(self, source: str, names: dict, attributes: dict, outside: list) -> None:
        """outside: (op, why) of each node that no region has."""
        scope = dict(names)
        exec(compile(source, "<kiln>", "exec"), scope)  # noqa: S102: our own source, or fx's
        self._function = scope["forward"].__get__(_Attributes(attributes))
        self.source, self.names, self.attributes, self.outside = source, names, attributes, outside
        tally = tally_of(current_owner())
        _count(attributes.values(), outside, tally)
        self._time = tally.time
        self._boxed_call = True  # on the instance: functools.update_wrapper copies __dict__ only
        self.again: Again | None = None  # of a forward with a backward

    @property
    def has_regions(self) -> bool:
        return any(hasattr(value, "ops") for value in self.attributes.values())

    def __call__(self, arguments: list):
        return self._time.run(self._function, arguments)


class _Attributes:
    """The `self` of generated source: regions and constants by name."""

    def __init__(self, attributes: dict) -> None:
        self.__dict__.update(attributes)


def compile_graph(gm: fx.GraphModule, example_inputs) -> CompiledGraph:
    """Compiles one AOT graph. Regions that cannot be had run in torch."""
    separate_masks(gm.graph)
    drop_empties(gm.graph)
    resolve_tangents(gm.graph)
    place = place_of(gm.graph)
    for target in _session.session().targets:
        build_elsewhere(gm.graph, place, target)
    plan, regions = split(gm.graph, place, _make_region)
    graph, attributes = _stitch(gm, plan, regions)
    source, names = compat.adapter().boxed_code(graph)
    outside = [(str(n.target), why) for n, why in plan.reasons.items() if not is_free(n)]
    return CompiledGraph(source, names, attributes, outside)


def build_elsewhere(graph: fx.Graph, place: Place, target: str) -> None:
    """Has the graph built for a target that need not be this host's, split as it will be there. Nothing of it is run here."""
    session = _session.session()

    def build(graph: fx.Graph, region: Region, _: Place):
        left = EagerRegion(graph, region)
        try:
            if region.symbols:
                raise Unsupported("extents that are not bound yet")
            session.client(place.name).build(region.text, target, deadline_ms=_deadline_ms.get())
            return None
        except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
            left.reason, left.code_of_error, left.op_of_error = facts_of(error)
            return left

    plan, regions = split(graph, Place(place.device, is_elsewhere=True), build)
    reasons = {node: why for node, why in plan.reasons.items() if not is_free(node)}
    for level, region in plan.regions.items():
        nodes = [n for n in region.nodes if not is_free(n)]
        if regions[level] is None:
            session.targets[target]["nodes_compiled"] += len(nodes)
        else:
            reasons.update(dict.fromkeys(nodes, regions[level].reason))
    session.targets[target]["nodes_left"] += len(reasons)
    for node, why in reasons.items():
        session.note_fallback(str(node.target), f"for {target}: {why}")


def _stitch(gm: fx.GraphModule, plan: Partition, regions: dict) -> tuple[fx.Graph, dict]:
    """The graph that runs the partition: regions are calls of attributes, all else is copied from the original."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    attributes: dict = {}

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
            if node.op == "get_attr":
                attributes[node.target.split(".")[0]] = getattr(gm, node.target.split(".")[0])
        elif node in plan.reasons:
            steps.setdefault(plan.levels[node], []).append(node)

    for level in range(-1, max([-1, *steps, *plan.regions]) + 1):
        if level in plan.regions:
            name = f"kiln_region_{level}"
            region = plan.regions[level]
            attributes[name] = regions[level]
            _call_region(graph, name, region, here, copies)
        for node in steps.get(level, ()):
            for operand in node.all_input_nodes:
                here(operand)
            copies[node] = graph.node_copy(node, here)
    (output,) = gm.graph.find_nodes(op="output")
    graph.output(fx.map_arg(output.args[0], here))
    graph.eliminate_dead_code()
    return graph, attributes


def _call_region(graph: fx.Graph, name: str, region: Region, here: Callable, copies: dict) -> None:
    arguments = [here(n) for n in region.inputs]
    runner = graph.get_attr(name)
    results = graph.call_function(_run, (runner, arguments))
    for i, node in enumerate(region.outputs):
        copies[node] = graph.call_function(operator.getitem, (results, i))


def _run(region, tensors: list) -> list:
    return region(tensors)


def _make_region(graph: fx.Graph, region: Region, place: Place):
    """The region's program, or the region in torch with the reason."""
    eager = EagerRegion(graph, region)
    eager.ops = tuple(str(n.target) for n in region.nodes if not is_free(n))
    try:
        if region.symbols:
            from .symbolic import SymbolicRegion

            return SymbolicRegion.of(region, place, eager)
        inputs, outputs = ([layout_of(n.meta["val"]) for n in nodes] for nodes in (region.inputs, region.outputs))
        eager.state = (region.text, inputs, outputs, place)
        return StaticRegion(*eager.state, eager)
    except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
        eager.reason, eager.code_of_error, eager.op_of_error = _judged(region.text, place, error)
        eager.is_final = isinstance(error, Unsupported)
        return eager


def facts_of(error: Exception) -> tuple[str, int, str]:
    """(why, kiln.Error's code or 0, the op that it names or none)."""
    return str(error), getattr(error, "code", 0), getattr(error, "op", None) or ""


def _judged(text: str, place: Place, error: Exception) -> tuple[str, int, str]:
    """The error's facts. That no backend has an op of the text is kept in the cache: a process without a daemon could not tell it
    from a miss, and would not split the graph as the one before did."""
    reason, code, op = facts_of(error)
    client = _session.session().client()
    if client is None or code not in (UNIMPLEMENTED, UNAVAILABLE):
        return reason, code, op
    from .. import _kiln

    key = "\0".join(("unimplemented", _kiln.version(), place.name, text)).encode()
    try:
        if code == UNIMPLEMENTED:
            client.capture_put(key, "\0".join((op, reason)).encode())
        elif (kept := client.capture_get(key)) is not None:
            op, reason = kept.decode().split("\0", 1)
            return reason, UNIMPLEMENTED, op
    except Exception:  # noqa: BLE001: the region runs in torch, one way or the other
        pass
    return reason, code, op


_instances = 1


@contextlib.contextmanager
def count_instances(count: int):
    """Within, a graph's nodes count `count` times: so many modules run it, as so many layers of one graph would."""
    global _instances
    before, _instances = _instances, count
    try:
        yield
    finally:
        _instances = before


def _count(attributes, outside: list, tally) -> None:
    """Adds a graph to what stats(), explain() and report() say."""
    note_disturbance()
    session = _session.session()
    regions = [a for a in attributes if hasattr(a, "ops")]
    fallback = list(outside)
    for region in regions:
        if isinstance(region, EagerRegion):
            fallback += [(op, region.reason) for op in region.ops]
    compiled = sum(len(r.ops) for r in regions if not isinstance(r, EagerRegion))
    tally.add(compiled, fallback, regions, _instances)
    session.counts["nodes_compiled"] += compiled * _instances
    session.counts["nodes_fallback"] += len(fallback) * _instances
    session.counts["graphs"] += 1
    for op, why in fallback:
        session.fallback_ops[op] += _instances
        session.note_fallback(op, why)
    unsaid = [op for op, why in fallback if why not in session.causes]
    if unsaid:
        names = ", ".join(dict.fromkeys(unsaid))
        session.say("fallback", f"{len(fallback)} of {len(fallback) + compiled} nodes run in torch: {names[:200]}")


__all__ = ["CompiledGraph", "EagerRegion", "StaticRegion", "compile_graph", "count_instances", "live_programs"]
