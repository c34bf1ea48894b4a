"""Ops between captures, run in Kiln one at a time.

What kiln.compile leaves in Python, the forwards of the modules that hold the blocks, is few ops: positions, sums of
embeddings, masks. It is not traced (docs/capture_and_guards.md says why). Python runs it as always, and each op that torch
is about to run goes to a program of its own, found by what the program depends on: the op, its numbers, and its operands'
types. An op that changes its first operand goes as the one that gives a new tensor, and the result is written to the operand.
A loss of torch.nn.functional is no op but some with gradients of their own, as large as the scores: it has a capture.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import operator
import threading
import types
from typing import Callable

import torch
from torch import fx

from .. import _session
from .._reasons import Reason
from . import compat, waiting
from .compiler import build_elsewhere
from .expansion import first_partition, is_said_in_others
from .partition import WITHOUT_ROW
from .place import place_of
from .rows import NO_ROW, ROWS, row_of
from .subgraphs import EagerSubgraph, StaticSubgraph
from .tally import Tally
from .tensors import is_empty, span_of, tensors_in
from .text import Unsupported
from .write_back import write_back

# Types and numbers that one op may have programs for: those of the model's first call, and what later calls add up to. An op with
# more, as one that counts steps, stays in torch: each would be compiled, which takes longer than it ever saves.
MAX_FIRST_VARIANTS, MAX_VARIANTS = 64, 8

aten = torch.ops.aten
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_ATOMS = (type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, str)

# Why an op has no program here, besides what partition() says.
_NO_WORK = Reason("no work")
_OVERLAPS = Reason("an operand shares memory with the one that is changed")
_ANOTHER_MODE = Reason("another dispatch mode", advice="nothing: the mode has to see the op")
_TOO_MANY = Reason(f"met in more than {MAX_VARIANTS} variants",
                   advice="give the op fewer shapes and numbers, or torch.compile the model with dynamic=True")  # fmt: skip

_thread = threading.local()


class Between:
    """Enters around one model's calls. Threading: any; each thread that runs the model has its own interception."""

    def __init__(self, tally: Tally | None = None, captured: Callable | None = None) -> None:
        """tally: what it counts by, besides the session. captured(loss): a function that does what the loss function does, from a
        capture."""
        self._tally, self._captured = tally or Tally(), captured
        self._programs: dict[tuple, _Program | Reason] = {}  # by op, numbers and types; a reason is why there is none
        self._variants: collections.Counter = collections.Counter()
        self._met, self._met_now = waiting.Meetings(), set()  # in all calls of the model, and in this one
        self._is_counting = True

    def run(self, function, arguments: tuple, keywords: dict):
        """function(*arguments, **keywords), its ops in Kiln, but for those of captures."""
        if torch.compiler.is_compiling() or getattr(_thread, "interception", None) is not None:
            return function(*arguments, **keywords)
        functions = compat.adapter().FunctionInterceptor(self._run_function)
        with functions if self._captured else contextlib.nullcontext(), compat.adapter().OpInterceptor(self._run_op) as ops:
            _thread.interception = functions, ops
            try:
                return function(*arguments, **keywords)
            finally:
                _thread.interception = None
                self._is_counting = False
                self._met_now.clear()

    def _run_function(self, function, arguments: tuple, keywords: dict):
        if not torch.compiler.is_compiling() and function in losses():  # in this order: what the model compiles is traced through here
            function = self._captured(function)
        return function(*arguments, **keywords)

    def _run_op(self, op, arguments: tuple, keywords: dict):
        program = self._find(op, arguments, keywords)
        if isinstance(program, _Program):
            try:
                result = program(arguments, keywords)
            except IndexError:
                program = Reason("an index out of range")  # torch says so in its own words
            except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
                program = Reason.of(error)
                _session.session().say("between", f"{op} ran in torch: {error}")
            else:
                self._count(op, None)
                return result
        self._count(op, program)
        return op(*arguments, **keywords)

    def _find(self, op, arguments: tuple, keywords: dict):
        """The program, or why there is none."""
        if is_free(op):
            return _NO_WORK
        function = function_of(op)
        if row_of(function) is NO_ROW and not is_said_in_others(function):
            return WITHOUT_ROW
        if compat.adapter().has_dispatch_modes():
            return _ANOTHER_MODE
        try:
            key = (op, _describe(arguments), *((name, _describe(value)) for name, value in keywords.items()))
            program = self._programs.get(key)
            if function is not op and overlaps(arguments[0], (arguments[1:], keywords)):
                return _OVERLAPS
        except Exception as error:  # noqa: BLE001: a tensor without strides, a subclass, an object
            return Reason(f"operands of another kind: {error}")
        if program is None and self._variants[op] >= (MAX_FIRST_VARIANTS if self._is_counting else MAX_VARIANTS):
            return _TOO_MANY
        if program is None:
            is_first = self._is_counting or not self._variants[op]
            meetings = waiting.meetings() if is_first else waiting.more_meetings()
            if meetings > 1 and (key in self._met_now or self._met.count(key) < meetings):
                self._met_now.add(key)
                return waiting.BEING_BUILT
            self._variants[op] += 1
            try:
                program = _Program(op, arguments, keywords, min(meetings, 1))
                self._tally.checked.add(program.subgraph)
            except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
                program = Reason.of(error)
            self._programs[key] = program
        return program

    def _count(self, op, why: Reason | None) -> None:
        """Only in the model's first call."""
        if self._is_counting and why is not _NO_WORK:
            why = None if why is None else why.within("between captures")
            _session.session().count_between(str(op), why)
            self._tally.add(int(why is None), [] if why is None else [(str(op), why)], ())


def run_capture(function, *arguments):
    """function(*arguments), whose ops are those of a capture, which Kiln has seen."""
    interception = getattr(_thread, "interception", None)
    if interception is None or not interception[1].is_innermost():
        return function(*arguments)
    functions, ops = interception
    with functions.paused(), ops.paused():
        _thread.interception = None
        try:
            return function(*arguments)
        finally:
            _thread.interception = interception


@functools.cache
def losses() -> frozenset:
    """What torch.nn.functional has with a reduction."""
    functions = (f for f in vars(torch.nn.functional).values() if isinstance(f, types.FunctionType))
    return frozenset(f for f in functions if "reduction" in inspect.signature(f).parameters)


def is_free(op) -> bool:
    """Views, in place or not, what computes nothing, and draws of dropout's masks."""
    schema = getattr(op, "_schema", None)
    if schema is None:
        return False
    is_alias = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    is_nothing = torch.Tag.inplace_view in op.tags or op is aten.bernoulli_.float
    return is_alias or is_nothing or row_of(op).is_view or row_of(op).is_idle


@functools.cache
def function_of(op):
    """Of an op that gives its first operand, changed, and changes nothing else, the op that gives the same as a new tensor; else
    the op."""
    schema = getattr(op, "_schema", None)
    if schema is None or not schema.is_mutable or not schema.name.endswith("_"):
        return op
    changed = [argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments]
    namespace, name = schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    function = getattr(packet, schema.overload_name or "default", None)
    is_alike = function is not None and [a.name for a in function._schema.arguments] == [a.name for a in schema.arguments]
    return function if is_alike and changed[0] and sum(changed) == 1 else op


def overlaps(tensor: torch.Tensor, others) -> bool:
    """Whether one of the others, which does not lie just as the tensor does, has an element between the tensor's first and last."""
    begin, end = _range_of(tensor)
    apart = (o for o in tensors_in(others) if (o.data_ptr(), o.shape, o.stride()) != (begin, tensor.shape, tensor.stride()))
    return any(begin < other_end and other_begin < end for other_begin, other_end in map(_range_of, apart))


def _range_of(tensor: torch.Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    return begin, begin + span_of(tensor.shape, tensor.stride()) * tensor.itemsize


def _describe(value):
    """A key: what a program depends on. Raises TypeError for what has none."""
    kind = type(value)
    if kind in _PLAIN:
        if value.is_neg():
            raise TypeError("a view with the negative bit")
        return value.dtype, value.device, value.shape, value.stride()
    if kind in (bool, int):
        return kind, value
    if kind is float:
        return kind, value.hex()
    if kind in (list, tuple):
        return tuple(map(_describe, value))
    if isinstance(value, _ATOMS):
        return value
    raise TypeError(kind.__name__)


class _Program:
    """One op in Kiln. Raises Unsupported, or kiln's Error, when it cannot be had."""

    def __init__(self, op, arguments: tuple, keywords: dict, meetings: int) -> None:
        """meetings: as waiting.meetings()."""
        function = function_of(op)
        self._is_in_place = function is not op
        result = function(*arguments, **keywords)  # torch knows what comes out
        if self._is_in_place and (result.dtype, result.shape) != (arguments[0].dtype, arguments[0].shape):
            raise Unsupported("what it gives is no such tensor as the one that it changes")
        if all(map(is_empty, tensors_in(result))):
            raise Unsupported(_NO_WORK)
        self._is_tuple = isinstance(result, tuple)
        graph, operands = fx.Graph(), {}
        of_type = compat.adapter().fake_tensors()  # a graph is a cycle, and would keep the caller's tensors for long

        def operand(tensor: torch.Tensor) -> fx.Node:
            node = graph.placeholder(f"operand_{len(operands)}")
            node.meta["val"] = of_type(tensor)
            operands[node] = len(operands)
            return node

        node = graph.call_function(function, _replaced(arguments, operand), _replaced(keywords, operand))
        node.meta["val"] = _replaced(result, of_type)
        results = [node]
        if self._is_tuple:
            results = [graph.call_function(operator.getitem, (node, i)) for i in range(len(result))]
            for piece, value in zip(results, node.meta["val"]):
                piece.meta["val"] = value
        graph.output(tuple(results))
        for target in _session.session().targets:
            build_elsewhere(graph, place_of(graph), target)
        plan = first_partition(graph, place_of(graph))
        for reason in plan.reasons.values():
            raise Unsupported(reason)
        (subgraph,) = plan.subgraphs.values()
        (results,) = (n.args[0] for n in graph.find_nodes(op="output"))  # where the op was taken apart, others than before
        self._operands = [operands[n] for n in subgraph.inputs]
        self._order = [subgraph.outputs.index(n) for n in results]
        eager = EagerSubgraph(graph, subgraph)
        eager.ops = (str(op),)
        self.subgraph = StaticSubgraph(subgraph.text, *subgraph.layouts, plan.place, eager, meetings=meetings)

    def __call__(self, arguments: tuple, keywords: dict):
        tensors = list(tensors_in((arguments, keywords)))
        with compat.adapter().profiled("kiln"):
            if self._is_in_place:
                (result,) = self.subgraph.run([tensors[i] for i in self._operands], tensors[:1])
                write_back(tensors[0], result)
                return tensors[0]
            results = self.subgraph.run([tensors[i] for i in self._operands])
        return tuple(results[i] for i in self._order) if self._is_tuple else results[0]


def _replaced(value, of_tensor):
    """Arguments with of_tensor(t) in place of each tensor t."""
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(item, of_tensor) for item in value)
    if isinstance(value, dict):
        return {name: _replaced(item, of_tensor) for name, item in value.items()}
    return value
